#include "runtime/session/recheck.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/half.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr size_t kWordBytes = 8, kRowBytes = 512 * kWordBytes;  // of a parity
constexpr int64_t kPieceBytes = 64 * static_cast<int64_t>(kRowBytes);

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

void Recheck::begin(int64_t every, const TrainState& before) {
  counts_ = {every, before.recheck.launches, before.recheck.updates};
  made_.fill(before.updates + before.skipped);
  made_[static_cast<size_t>(Program::step)] = before.launches;
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

void Recheck::add_pieces(Piece all, std::vector<Piece>& pieces) const {
  const bool cut = !device_.host_memory(all.offset, all.bytes).empty();
  for (int64_t done = 0; done < all.bytes; done += pieces.back().bytes) {
    Piece& piece = pieces.emplace_back(all);
    piece.offset += done;
    piece.place += done;
    piece.bytes = cut ? std::min(all.bytes - done, kPieceBytes) : all.bytes;
  }
}

std::vector<Recheck::Piece> Recheck::written(const PlanProgram& program) const {
  std::vector<Piece> pieces;
  Piece all;  // buffers that follow each other, up to the padding between them
  for (const int64_t number : program.writes) {  // in the order of their offsets
    constexpr int64_t kPadding = 256;
    const PlanBuffer& buffer = plan_.buffers[static_cast<size_t>(number)];
    const int64_t end = all.offset + all.bytes;
    if (buffer.offset - end >= kPadding || all.bytes == 0) {
      add_pieces(all, pieces);
      all = {buffer.offset, buffer.bytes, all.place + all.bytes};
    } else {
      all.bytes = std::max(end, buffer.offset + buffer.bytes) - all.offset;
    }
  }
  add_pieces(all, pieces);
  return pieces;
}

std::vector<Recheck::Piece> Recheck::read(const PlanProgram& program) const {
  std::vector<Piece> pieces;
  for (const int64_t number : program.reads) {
    const PlanBuffer& buffer = plan_.buffers[static_cast<size_t>(number)];
    add_pieces({.offset = buffer.offset, .bytes = buffer.bytes, .buffer = &buffer}, pieces);
  }
  return pieces;
}

Result<Recheck::Parity> Recheck::parity(const Piece& piece) {
  const std::span<const std::byte> bytes = GACC_TRY(view(piece.offset, piece.bytes));
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

Result<std::string> Recheck::change(const Piece& piece, const Parity& before) {
  const PlanBuffer& buffer = *piece.buffer;
  const Parity now = GACC_TRY(parity(piece));
  if (now.rows == before.rows && now.columns == before.columns) return std::string();
  const auto [row, same] = std::ranges::mismatch(now.rows, before.rows);
  if (row == now.rows.end() || !std::ranges::equal(row + 1, now.rows.end(), same + 1, before.rows.end()))
    return fmt::format("{}, which it only reads, changed in several places meanwhile, and is as it is now",
                       buffer.name);
  const int64_t begin = (row - now.rows.begin()) * static_cast<int64_t>(kRowBytes);
  const auto size = static_cast<size_t>(std::min(piece.bytes - begin, static_cast<int64_t>(kRowBytes)));
  std::array<std::byte, kRowBytes> is{}, was{};
  GACC_TRY(device_.read(piece.offset + begin, std::span(is).first(size)));
  for (size_t column = 0; column < now.columns.size(); ++column) {
    uint64_t word = 0;
    std::memcpy(&word, is.data() + kWordBytes * column, kWordBytes);
    word ^= now.columns[column] ^ before.columns[column];
    std::memcpy(was.data() + kWordBytes * column, &word, kWordBytes);
  }
  GACC_TRY(device_.write(piece.offset + begin, std::span(was).first(size)));
  const int64_t each = told_bytes(buffer.dtype);
  const int64_t element = (std::ranges::mismatch(is, was).in1 - is.begin()) / each;
  const std::string name = element_name(buffer, piece.place + begin + element * each);
  return fmt::format("{}, which it only reads, was {} before, and is {} after", name,
                     value_text(buffer.dtype, was.data() + element * each),
                     value_text(buffer.dtype, is.data() + element * each));
}

Result<std::string> Recheck::difference(const PlanProgram& program, const Piece& piece) {
  const std::span<const std::byte> then = in(first_, piece);
  const std::span<const std::byte> now = GACC_TRY(view(piece.offset, piece.bytes));
  if (std::memcmp(then.data(), now.data(), now.size()) == 0) return std::string();
  const int64_t at = piece.offset + (std::ranges::mismatch(then, now).in1 - then.begin());
  for (const int64_t number : program.writes) {
    const PlanBuffer& buffer = plan_.buffers[static_cast<size_t>(number)];
    if (at < buffer.offset || at >= buffer.offset + buffer.bytes) continue;
    const int64_t each = told_bytes(buffer.dtype), element = (at - buffer.offset) / each;
    const auto place = static_cast<size_t>(buffer.offset + element * each - piece.offset);
    return fmt::format("{} is {} the first time and {} the second", element_name(buffer, element * each),
                       value_text(buffer.dtype, then.data() + place),
                       value_text(buffer.dtype, now.data() + place));
  }
  return fmt::format("byte {} of the arena, between two buffers, differs", at);
}

Status Recheck::run(Program program, int64_t samples, std::span<const ArenaWrite> inputs) {
  const auto found_program =
      std::ranges::find(plan_.programs, kProgramNames[static_cast<size_t>(program)], &PlanProgram::name);
  if (found_program == plan_.programs.end())
    return Status::error("internal error: the plan has no such program");
  const PlanProgram& planned = *found_program;
  const std::vector<Piece> writes = written(planned), reads = read(planned);
  const auto size = static_cast<size_t>(writes.empty() ? 0 : writes.back().place + writes.back().bytes);
  for (Block* block : {&before_, &first_})
    if (block->size() < size) block->resize(size);
  const auto put_back = [&](size_t i) { return device_.write(writes[i].offset, in(before_, writes[i])); };

  std::vector<Parity> parities(reads.size());
  GACC_TRY(device_.run_each(
      writes.size(), [&](size_t i) { return device_.read(writes[i].offset, in(before_, writes[i])); }));
  GACC_TRY(device_.run_each(reads.size(), [&](size_t i) -> Status {
    parities[i] = GACC_TRY(parity(reads[i]));
    return {};
  }));
  GACC_TRY(device_.run(program, samples));
  GACC_TRY(device_.run_each(writes.size(), [&](size_t i) -> Status {
    GACC_TRY(device_.read(writes[i].offset, in(first_, writes[i])));
    return put_back(i);
  }));
  if (!inputs.empty()) GACC_TRY(device_.write_all(inputs));
  GACC_TRY(device_.run(program, samples));

  std::vector<std::string> differences(writes.size()), changes(reads.size());
  GACC_TRY(device_.run_each(writes.size(), [&](size_t i) -> Status {
    differences[i] = GACC_TRY(difference(planned, writes[i]));
    return {};
  }));
  GACC_TRY(device_.run_each(reads.size(), [&](size_t i) -> Status {
    changes[i] = GACC_TRY(change(reads[i], parities[i]));
    return {};
  }));
  // A change of what is read comes first: what was written may follow from it.
  std::string found;
  for (const std::vector<std::string>* texts : {&changes, &differences})
    for (const std::string& text : *texts)
      if (found.empty()) found = text;
  counts_.launches += program == Program::step;
  counts_.updates += program == Program::update;
  if (found.empty()) return {};
  GACC_TRY(device_.run_each(writes.size(), put_back));
  counts_.difference = fmt::format("{}: {}", name_of(program, made_[static_cast<size_t>(program)]), found);
  return Status::error("--recheck: {}. It was made twice from the same state: this machine computes wrong",
                       counts_.difference);
}

}  // namespace gacc
