// Making batches: samples are picked in order, converted, scaled and normalised. A value, divided by 255 when it is a
// u8, minus the mean, divided by the deviation, is computed in double and rounded to f32 once: of large values, such as
// times in seconds, f32 would lose what distinguishes them before the mean is taken away.
#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/data/array.h"
#include "runtime/data/dataset.h"
#include "runtime/data/philox.h"

namespace gacc {
namespace {

template <class From, class To>
struct Block {
  const From* samples;  // of the column
  To* out;              // of the batch
  int64_t elements;     // of a sample
  int64_t first, size;  // the channel's part of a sample
};

template <class From, class To, class Convert>
void gather_block(const Block<From, To>& block, std::span<const int64_t> order, Convert convert) {
  for (size_t i = 0; i < order.size(); ++i) {
    const From* from = block.samples + order[i] * block.elements + block.first;
    To* __restrict to = block.out + static_cast<int64_t>(i) * block.elements + block.first;
    for (int64_t j = 0; j < block.size; ++j) to[j] = convert(from[j]);
  }
}

template <class From>
void gather_floats(Block<From, float> block, const std::vector<double>& means,
                   const std::vector<double>& deviations, std::span<const int64_t> order) {
  constexpr bool kBytes = std::is_same_v<From, uint8_t>;
  // Picks a channel's number, an index along the first axis of a sample. A list of a single number holds for all.
  const auto pick = [](const std::vector<double>& list, int64_t channel, double otherwise) {
    const size_t at = list.size() == 1 ? 0 : static_cast<size_t>(channel);
    return list.empty() ? otherwise : list[at];
  };
  const auto channels = static_cast<int64_t>(std::max<size_t>({1, means.size(), deviations.size()}));
  block.size = block.elements / channels;
  for (int64_t channel = 0; channel < channels; ++channel, block.first += block.size) {
    const double mean = pick(means, channel, 0), deviation = pick(deviations, channel, 1);
    const auto scaled = [](From value) { return static_cast<float>(value) / (kBytes ? 255.0f : 1); };
    const auto normal = [=](From value) {
      return static_cast<float>((static_cast<double>(value) / (kBytes ? 255 : 1) - mean) / deviation);
    };
    if (kBytes && block.size * static_cast<int64_t>(order.size()) >= 512) {
      // u8 has 256 values only: a table is as exact, and saves two divisions a pixel.
      std::array<float, 256> table;
      for (size_t v = 0; v < table.size(); ++v) table[v] = normal(static_cast<From>(v));
      gather_block(block, order, [&](From value) { return table[static_cast<uint8_t>(value)]; });
    } else if (means.empty() && deviations.empty()) {
      gather_block(block, order, scaled);
    } else {
      gather_block(block, order, normal);
    }
  }
}

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

std::span<const std::byte> Dataset::bytes(size_t column) const {
  const Column& own = columns[column];
  if (!own.file) return own.bytes;
  const auto size = static_cast<size_t>(samples * checked_product(own.shape) * element_bytes(own.dtype));
  return own.file->bytes().subspan(own.first, size);
}

Status Dataset::gather(size_t input, const PlanInput& plan, std::span<const int64_t> order,
                       std::span<std::byte> destination) const {
  const Column& column = columns[input];
  std::span<const std::byte> samples = bytes(input);
  static thread_local std::vector<std::byte> read;  // of column after column: no new pages for each batch
  std::vector<int64_t> in_order;
  if (column.on_disk()) {
    GACC_TRY(read_samples(column, plan, order, read));
    samples = read;
    in_order = epoch_order(static_cast<int64_t>(order.size()), 0, 0, /*shuffle=*/false);
    order = in_order;
  }
  const int64_t elements = checked_product(plan.shape);
  const bool of_data = plan.normalize_data;
  const std::vector<double>& means = of_data ? column.mean : plan.mean;
  const std::vector<double>& deviations = of_data ? column.std : plan.std;
  visit_elements(column.dtype, samples, [&]<class From>(std::span<const From> from) {
    const auto block = [&]<class To>(To* out) {
      return Block<From, To>{from.data(), out, elements, 0, elements};
    };
    if (plan.dtype == DType::f32)
      gather_floats(block(reinterpret_cast<float*>(destination.data())), means, deviations, order);
    else
      gather_block(block(reinterpret_cast<int32_t*>(destination.data())), order,
                   [](From value) { return static_cast<int32_t>(value); });
  });
  return {};
}

std::vector<int64_t> epoch_order(int64_t samples, uint64_t seed, int64_t epoch, bool shuffle) {
  std::vector<int64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
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
