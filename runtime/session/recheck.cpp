#include "runtime/session/recheck.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/half.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr size_t kWordBytes = 8, kRowBytes = 512 * kWordBytes;  // of a parity

// Says whether it is a part of training, of which each run matters to all that follow.
constexpr bool trains(Program program) {
  return program != Program::init && program != Program::eval && !predicts(program);
}

std::string name_of(Program program, int64_t number) {
  const std::string_view name =
      program == Program::step ? "launch" : kProgramNames[static_cast<size_t>(program)];
  return fmt::format("{} {}", name, number);
}

// Returns the bytes that a difference is told by: an element's, or one of a block's.
int64_t told_bytes(DType dtype) { return dtype_block(dtype) > 1 ? 1 : dtype_bytes(dtype); }

// The value of an element, and its bits; a block's byte.
std::string value_text(DType dtype, const std::byte* element) {
  uint32_t bits = 0;
  std::memcpy(&bits, element, static_cast<size_t>(told_bytes(dtype)));
  if (dtype_block(dtype) > 1) return fmt::format("0x{:02x}", bits);
  if (dtype == DType::i32) return fmt::format("{}", std::bit_cast<int32_t>(bits));
  float value = std::bit_cast<float>(bits);
  if (dtype != DType::f32) widen(half_type(dtype), element, &value, 1);
  return fmt::format("{} (0x{:0{}x})", value, bits, 2 * dtype_bytes(dtype));
}

// Names the element, or the block, that has byte `at` of the buffer.
std::string element_name(const PlanBuffer& buffer, int64_t at) {
  const int64_t block = dtype_block(buffer.dtype), bytes = dtype_bytes(buffer.dtype),
                element = at / bytes * block;
  if (block > 1)
    return fmt::format("byte {} of the block at {}{}", at % bytes, buffer.name,
                       index_text(buffer.shape, element));
  return buffer.name + (buffer.shape.empty() ? "" : index_text(buffer.shape, element));
}

}  // namespace

void Recheck::begin(int64_t every, int64_t launches, int64_t updates) {
  counts_ = {.every = every};
  made_.fill(updates);
  made_[static_cast<size_t>(Program::step)] = launches;
}

bool Recheck::count(Program program) {
  return trains(program) && counts_.every > 0 && ++made_[static_cast<size_t>(program)] % counts_.every == 0;
}

Result<std::span<const std::byte>> Recheck::view(int64_t offset, int64_t bytes) {
  if (const std::span<std::byte> here = device_.host_memory(offset, bytes); !here.empty())
    return std::span<const std::byte>(here);
  if (std::ssize(scratch_) < bytes) scratch_.resize(static_cast<size_t>(bytes));
  const std::span<std::byte> copy = std::span(scratch_).first(static_cast<size_t>(bytes));
  GACC_TRY(device_.read(offset, copy));
  return std::span<const std::byte>(copy);
}

Status Recheck::keep(std::span<const Range> ranges, Block& to) {
  size_t size = 0;
  for (const Range& range : ranges) size += static_cast<size_t>(range.bytes);
  if (to.size() < size) to.resize(size);
  std::span<std::byte> rest(to);
  for (const Range& range : ranges) {
    GACC_TRY(device_.read(range.offset, rest.first(static_cast<size_t>(range.bytes))));
    rest = rest.subspan(static_cast<size_t>(range.bytes));
  }
  return {};
}

Status Recheck::put_back(std::span<const Range> ranges, const Block& from) {
  std::span<const std::byte> rest(from);
  for (const Range& range : ranges) {
    GACC_TRY(device_.write(range.offset, rest.first(static_cast<size_t>(range.bytes))));
    rest = rest.subspan(static_cast<size_t>(range.bytes));
  }
  return {};
}

Result<Recheck::Parity> Recheck::parity(const PlanBuffer& buffer) {
  const std::span<const std::byte> bytes = GACC_TRY(view(buffer.offset, buffer.bytes));
  Parity parity;
  for (size_t done = 0; done < bytes.size(); done += kRowBytes) {
    const std::span<const std::byte> row = bytes.subspan(done, std::min(bytes.size() - done, kRowBytes));
    uint64_t all = 0;
    for (size_t column = 0; column < row.size() / kWordBytes; ++column) {
      uint64_t word = 0;
      std::memcpy(&word, row.data() + kWordBytes * column, kWordBytes);
      parity.columns[column] ^= word;
      all ^= word;
    }
    if (const size_t rest = row.size() % kWordBytes; rest != 0) {
      uint64_t word = 0;
      std::memcpy(&word, row.data() + row.size() - rest, rest);
      parity.columns[row.size() / kWordBytes] ^= word;
      all ^= word;
    }
    parity.rows.push_back(all);
  }
  return parity;
}

Result<std::string> Recheck::change(const PlanBuffer& buffer, const Parity& before) {
  const Parity now = GACC_TRY(parity(buffer));
  if (now.rows == before.rows && now.columns == before.columns) return std::string();
  const auto [row, same] = std::ranges::mismatch(now.rows, before.rows);
  if (row == now.rows.end() || !std::ranges::equal(row + 1, now.rows.end(), same + 1, before.rows.end()))
    return fmt::format("{}, which it only reads, changed in several places meanwhile, and is as it is now",
                       buffer.name);
  const int64_t begin = (row - now.rows.begin()) * static_cast<int64_t>(kRowBytes);
  const auto size = static_cast<size_t>(std::min(buffer.bytes - begin, static_cast<int64_t>(kRowBytes)));
  std::array<std::byte, kRowBytes> is{}, was{};
  GACC_TRY(device_.read(buffer.offset + begin, std::span(is).first(size)));
  for (size_t column = 0; column < now.columns.size(); ++column) {
    uint64_t word = 0;
    std::memcpy(&word, is.data() + kWordBytes * column, kWordBytes);
    word ^= now.columns[column] ^ before.columns[column];
    std::memcpy(was.data() + kWordBytes * column, &word, kWordBytes);
  }
  GACC_TRY(device_.write(buffer.offset + begin, std::span(was).first(size)));
  const int64_t each = told_bytes(buffer.dtype);
  const int64_t element = (std::ranges::mismatch(is, was).in1 - is.begin()) / each;
  const std::string name = element_name(buffer, begin + element * each);
  return fmt::format("{}, which it only reads, was {} before, and is {} after", name,
                     value_text(buffer.dtype, was.data() + element * each),
                     value_text(buffer.dtype, is.data() + element * each));
}

Result<std::string> Recheck::difference(const PlanProgram& program, std::span<const Range> ranges,
                                        const Block& first) {
  size_t done = 0;
  for (const Range& range : ranges) {
    const auto size = static_cast<size_t>(range.bytes);
    const std::span<const std::byte> then = std::span(first).subspan(done, size);
    const std::span<const std::byte> now = GACC_TRY(view(range.offset, range.bytes));
    done += size;
    if (std::memcmp(then.data(), now.data(), size) == 0) continue;
    const int64_t at = std::ranges::mismatch(then, now).in1 - then.begin();
    for (const int64_t number : program.writes) {
      const PlanBuffer& buffer = plan_.buffers[static_cast<size_t>(number)];
      const int64_t begin = buffer.offset - range.offset;
      if (at < begin || at >= begin + buffer.bytes) continue;
      const int64_t each = told_bytes(buffer.dtype), element = (at - begin) / each;
      const auto place = static_cast<size_t>(begin + element * each);
      return fmt::format("{} is {} the first time and {} the second", element_name(buffer, element * each),
                         value_text(buffer.dtype, then.data() + place),
                         value_text(buffer.dtype, now.data() + place));
    }
    return fmt::format("byte {} of the arena, between two buffers, differs", range.offset + at);
  }
  return std::string();
}

Status Recheck::run(Program program, int64_t samples, std::span<const ArenaWrite> inputs) {
  const auto found_program =
      std::ranges::find(plan_.programs, kProgramNames[static_cast<size_t>(program)], &PlanProgram::name);
  if (found_program == plan_.programs.end())
    return Status::error("internal error: the plan has no such program");
  const PlanProgram& planned = *found_program;
  std::vector<Range> ranges;
  for (const int64_t number : planned.writes) {  // in the order of their offsets
    const PlanBuffer& buffer = plan_.buffers[static_cast<size_t>(number)];
    constexpr int64_t kPadding = 256;
    const int64_t end = ranges.empty() ? 0 : ranges.back().offset + ranges.back().bytes;
    if (!ranges.empty() && buffer.offset - end < kPadding)
      ranges.back().bytes = std::max(end, buffer.offset + buffer.bytes) - ranges.back().offset;
    else
      ranges.push_back({buffer.offset, buffer.bytes});
  }
  std::vector<Parity> before;
  GACC_TRY(keep(ranges, before_));
  for (const int64_t number : planned.reads)
    before.push_back(GACC_TRY(parity(plan_.buffers[static_cast<size_t>(number)])));
  GACC_TRY(device_.run(program, samples));
  GACC_TRY(keep(ranges, first_));
  GACC_TRY(put_back(ranges, before_));
  if (!inputs.empty()) GACC_TRY(device_.write_all(inputs));
  GACC_TRY(device_.run(program, samples));
  std::string found = GACC_TRY(difference(planned, ranges, first_));
  for (size_t i = 0; i < before.size(); ++i) {
    std::string changed = GACC_TRY(change(plan_.buffers[static_cast<size_t>(planned.reads[i])], before[i]));
    if (!changed.empty()) found = std::move(changed);  // it comes first: what was written may follow from it
  }
  counts_.launches += program == Program::step;
  counts_.updates += program == Program::update;
  if (found.empty()) return {};
  GACC_TRY(put_back(ranges, before_));
  counts_.difference = fmt::format("{}: {}", name_of(program, made_[static_cast<size_t>(program)]), found);
  return Status::error("--recheck: {}. It was made twice from the same state: this machine computes wrong",
                       counts_.difference);
}

}  // namespace gacc
