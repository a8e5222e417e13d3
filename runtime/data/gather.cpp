// Making batches: samples are picked in order, converted, scaled and normalised. The arithmetic is that of
// torch on f32: f32(v), divided by 255 when v is a u8, minus the mean, divided by the deviation, rounding
// each time.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "runtime/data/array.h"
#include "runtime/data/check_values.h"
#include "runtime/data/dataset.h"
#include "runtime/data/element_types.h"
#include "runtime/data/philox.h"

namespace gacc {
namespace {

// The normalisation of one channel (an index along the first axis of a sample).
struct Affine {
  float mean = 0, std = 1;
  bool active = false;
  float apply(float value) const { return active ? (value - mean) / std : value; }
};

// The means and deviations of an input: the model file's, or its training data's.
struct Statistics {
  const std::vector<double>&mean, &std;
};

// An empty list is no normalisation, a single number holds for all channels.
Affine channel_affine(const Statistics& of, int64_t channel) {
  auto pick = [&](const std::vector<double>& list, double otherwise) {
    return list.empty() ? otherwise : list.size() == 1 ? list[0] : list[static_cast<size_t>(channel)];
  };
  return {static_cast<float>(pick(of.mean, 0)), static_cast<float>(pick(of.std, 1)),
          !of.mean.empty() || !of.std.empty()};
}

template <class From>
struct Block {
  const From* samples;  // of the column
  float* out;           // of the batch
  int64_t elements;     // of a sample
  int64_t first, size;  // the channel's part of a sample
};

template <class From>
void convert(const Block<From>& block, std::span<const int64_t> order, const Affine& affine) {
  for (size_t i = 0; i < order.size(); ++i) {
    const From* from = block.samples + order[i] * block.elements + block.first;
    float* to = block.out + static_cast<int64_t>(i) * block.elements + block.first;
    if constexpr (std::is_same_v<From, float>) {
      if (!affine.active) {
        std::memcpy(to, from, static_cast<size_t>(block.size) * sizeof(float));
        continue;
      }
    }
    for (int64_t j = 0; j < block.size; ++j) {
      auto value = static_cast<float>(from[j]);
      if constexpr (std::is_same_v<From, uint8_t>) value = value / 255.0f;
      to[j] = affine.apply(value);
    }
  }
}

// u8 has 256 values only: a table is as exact, and saves two divisions a pixel.
void convert_by_table(const Block<uint8_t>& block, std::span<const int64_t> order, const Affine& affine) {
  std::array<float, 256> table;
  for (size_t v = 0; v < table.size(); ++v) table[v] = affine.apply(static_cast<float>(v) / 255.0f);
  for (size_t i = 0; i < order.size(); ++i) {
    const uint8_t* from = block.samples + order[i] * block.elements + block.first;
    float* to = block.out + static_cast<int64_t>(i) * block.elements + block.first;
    for (int64_t j = 0; j < block.size; ++j) to[j] = table[from[j]];
  }
}

template <class From>
void gather_floats(const std::byte* bytes, const Statistics& of, int64_t elements,
                   std::span<const int64_t> order, std::byte* destination) {
  auto channels = static_cast<int64_t>(std::max<size_t>({1, of.mean.size(), of.std.size()}));
  Block<From> block{reinterpret_cast<const From*>(bytes), reinterpret_cast<float*>(destination), elements, 0,
                    elements / channels};
  for (int64_t channel = 0; channel < channels; ++channel, block.first += block.size) {
    const Affine affine = channel_affine(of, channel);
    if constexpr (std::is_same_v<From, uint8_t>) {
      if (block.size * static_cast<int64_t>(order.size()) >= 512) {
        convert_by_table(block, order, affine);
        continue;
      }
    }
    convert(block, order, affine);
  }
}

template <class From>
void gather_integers(const std::byte* bytes, int64_t elements, std::span<const int64_t> order,
                     std::byte* destination) {
  const auto* samples = reinterpret_cast<const From*>(bytes);
  auto* out = reinterpret_cast<int32_t*>(destination);
  for (const int64_t sample : order)
    for (int64_t j = 0; j < elements; ++j) *out++ = static_cast<int32_t>(samples[sample * elements + j]);
}

}  // namespace

std::span<const std::byte> Dataset::bytes(size_t column) const {
  const Column& own = columns[column];
  if (!own.file) return own.bytes;
  const auto size = static_cast<size_t>(samples * checked_product(own.shape) * element_bytes(own.dtype));
  return own.file->bytes().subspan(own.first, size);
}

namespace {

// The samples `order` of a column on disk, one after the other, checked.
Status read_samples(const Column& column, const PlanInput& plan, std::span<const int64_t> order,
                    std::vector<std::byte>& samples) {
  const int64_t elements = checked_product(plan.shape);
  const auto each = static_cast<size_t>(elements * element_bytes(column.dtype));
  samples.resize(order.size() * each);
  for (size_t i = 0, next = 0; i < order.size(); i = next) {  // what lies together is read at once
    for (next = i + 1; next < order.size() && order[next] == order[next - 1] + 1;) ++next;
    const size_t first = column.first + static_cast<size_t>(order[i]) * each;
    const std::span<std::byte> to = std::span(samples).subspan(i * each, (next - i) * each);
    GACC_TRY(column.file->read(first, to));
  }
  GACC_TRY(column.file->unchanged());
  return check_values(plan, column.dtype, samples, [&](int64_t element) {
    return column.place(order[static_cast<size_t>(element / elements)] * elements + element % elements);
  });
}

}  // namespace

Status Dataset::gather(size_t input, const PlanInput& plan, std::span<const int64_t> order,
                       std::span<std::byte> destination) const {
  const Column& column = columns[input];
  std::span<const std::byte> samples = bytes(input);
  std::vector<std::byte> read;
  std::vector<int64_t> in_order;
  if (column.on_disk()) {
    GACC_TRY(read_samples(column, plan, order, read));
    samples = read;
    in_order.resize(order.size());
    std::iota(in_order.begin(), in_order.end(), 0);
    order = in_order;
  }
  const std::byte* const bytes = samples.data();
  int64_t elements = checked_product(plan.shape);
  const bool of_data = plan.normalize_data;
  const Statistics statistics{of_data ? column.mean : plan.mean, of_data ? column.std : plan.std};
  visit_elements(column.dtype, samples, [&]<class From>(std::span<const From>) {
    if (plan.dtype == "f32")
      gather_floats<From>(bytes, statistics, elements, order, destination.data());
    else
      gather_integers<From>(bytes, elements, order, destination.data());
  });
  return {};
}

std::vector<int64_t> epoch_order(int64_t samples, uint64_t seed, int64_t epoch, bool shuffle) {
  std::vector<int64_t> order(static_cast<size_t>(samples));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  if (!shuffle) return order;
  // Fisher-Yates. A 64-bit random number times the range, high half, picks without noticeable bias (range /
  // 2^64).
  for (size_t i = order.size(); i > 1; --i) {
    auto step = static_cast<uint64_t>(i);
    PhiloxCounter words = philox({static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32),
                                  static_cast<uint32_t>(epoch), static_cast<uint32_t>(RandomStream::shuffle)},
                                 seed);
    const uint64_t random = uint64_t{words[0]} << 32 | words[1];
    auto pick = static_cast<size_t>((static_cast<unsigned __int128>(random) * step) >> 64);
    std::swap(order[i - 1], order[pick]);
  }
  return order;
}

}  // namespace gacc
