// NumPy's .npz: a zip file of .npy entries, stored or deflated. The central directory is what counts; every
// size and offset in it is checked against the file, local headers against it, and the data against its CRC.

#include <algorithm>
#include <set>

#include "runtime/atomic_file.h"
#include "runtime/byte_order.h"
#include "runtime/data/array.h"
#include "runtime/data/gzip.h"
#include "runtime/text.h"

namespace gacc {
namespace {

struct Entry {
  std::string_view name;
  uint16_t flags = 0, method = 0;
  uint32_t crc = 0;
  uint64_t packed = 0, unpacked = 0, local = 0;  // local: offset of the local header
  uint64_t start = 0;                            // of the data, once located
};

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64Locator = 0x07064b50, kEnd64 = 0x06064b50;

uint16_t u16(std::string_view bytes, size_t at) { return read_little<uint16_t>(bytes.data() + at); }
uint32_t u32(std::string_view bytes, size_t at) { return read_little<uint32_t>(bytes.data() + at); }
uint64_t u64(std::string_view bytes, size_t at) { return read_little<uint64_t>(bytes.data() + at); }

// The place of the central directory, from the end record (which may be followed by a comment).
struct Directory {
  uint64_t entries = 0, size = 0, offset = 0;
};

Result<Directory> find_directory(std::string_view file, std::string_view name) {
  constexpr size_t kEndSize = 22, kLocatorSize = 20, kEnd64Size = 56;
  if (file.size() < kEndSize || file.substr(0, 2) != "PK")
    return Status::error("{}: is no npz file (a zip made by numpy.savez)", name);
  const size_t lowest = file.size() > kEndSize + 65535 ? file.size() - kEndSize - 65535 : 0;
  for (size_t at = file.size() - kEndSize + 1; at-- > lowest;) {
    if (u32(file, at) != kEnd || at + kEndSize + u16(file, at + 20) != file.size()) continue;
    if (u16(file, at + 4) != 0 || u16(file, at + 6) != 0)
      return Status::error("{}: is one part of a split zip file", name);
    Directory directory = {u16(file, at + 10), u32(file, at + 12), u32(file, at + 16)};
    if (at >= kLocatorSize && u32(file, at - kLocatorSize) == kEnd64Locator) {  // zip64
      const uint64_t end64 = u64(file, at - kLocatorSize + 8);
      const size_t locator = at - kLocatorSize;
      if (end64 > locator || locator - end64 < kEnd64Size || u32(file, end64) != kEnd64)
        return Status::error("{}: its zip64 directory is damaged", name);
      directory = {u64(file, end64 + 32), u64(file, end64 + 40), u64(file, end64 + 48)};
    }
    if (directory.offset > at || directory.size > at - directory.offset)
      return Status::error("{}: its zip directory lies outside the file", name);
    return directory;
  }
  return Status::error("{}: is cut off: the zip directory at its end is missing", name);
}

// Replaces the fields that are all ones by those of the zip64 extra field.
bool read_zip64(std::string_view extra, Entry& entry) {
  while (extra.size() >= 4) {
    const uint16_t id = u16(extra, 0), size = u16(extra, 2);
    if (extra.size() < 4u + size) return false;
    if (id == 1) {
      std::string_view body = extra.substr(4, size);
      for (uint64_t* field : {&entry.unpacked, &entry.packed, &entry.local}) {
        if (*field != 0xffffffffu) continue;
        if (body.size() < 8) return false;
        *field = u64(body, 0);
        body.remove_prefix(8);
      }
      return true;
    }
    extra.remove_prefix(4u + size);
  }
  return true;  // no such field: the sizes are what they are
}

Result<std::vector<Entry>> read_directory(std::string_view file, std::string_view name,
                                          const Directory& directory) {
  constexpr size_t kHeader = 46;
  std::vector<Entry> entries;
  std::string_view rest = file.substr(directory.offset, directory.size);
  for (uint64_t i = 0; i < directory.entries; ++i) {
    const auto damaged = [&] {
      return Status::error("{}: its zip directory is damaged at entry {}", name, i + 1);
    };
    if (rest.size() < kHeader || u32(rest, 0) != kCentral) return damaged();
    const size_t name_size = u16(rest, 28), extra = u16(rest, 30), comment = u16(rest, 32);
    if (rest.size() - kHeader < name_size + extra + comment) return damaged();
    Entry& entry = entries.emplace_back(Entry{.name = rest.substr(kHeader, name_size),
                                              .flags = u16(rest, 8),
                                              .method = u16(rest, 10),
                                              .crc = u32(rest, 16),
                                              .packed = u32(rest, 20),
                                              .unpacked = u32(rest, 24),
                                              .local = u32(rest, 42)});
    if (!read_zip64(rest.substr(kHeader + name_size, extra), entry)) return damaged();
    rest.remove_prefix(kHeader + name_size + extra + comment);
  }
  if (!rest.empty())
    return Status::error("{}: its zip directory has {} too many", name, counted(rest.size(), "byte"));
  return entries;
}

// Finds the data of every entry; they must lie before the directory and must not overlap.
Status locate(std::string_view file, std::string_view name, const Directory& directory,
              std::vector<Entry>& entries) {
  constexpr size_t kHeader = 30;
  const std::string_view body = file.substr(0, directory.offset);
  for (Entry& entry : entries) {
    auto damaged = [&] {
      return Status::error("{}: entry {} is damaged or lies outside the file", name, in_quotes(entry.name));
    };
    if (entry.local > body.size() || body.size() - entry.local < kHeader || u32(body, entry.local) != kLocal)
      return damaged();
    const uint64_t name_size = u16(body, entry.local + 26), extra = u16(body, entry.local + 28);
    entry.start = entry.local + kHeader + name_size + extra;
    if (entry.start > body.size() || body.size() - entry.start < entry.packed) return damaged();
    if (body.substr(entry.local + kHeader, name_size) != entry.name) return damaged();
  }
  std::vector<Entry> by_place = entries;
  std::ranges::sort(by_place, {}, &Entry::local);
  for (size_t i = 1; i < by_place.size(); ++i)
    if (by_place[i].local < by_place[i - 1].start + by_place[i - 1].packed)
      return Status::error("{}: entries {} and {} overlap", name, in_quotes(by_place[i - 1].name),
                           in_quotes(by_place[i].name));
  return {};
}

// The entry's bytes; `storage` keeps them where they were deflated.
Result<std::string_view> unpack(std::string_view file, const Entry& entry, std::string_view name,
                                std::string& storage) {
  std::string_view bytes = file.substr(entry.start, entry.packed);
  if (entry.flags & 1) return Status::error("{}: is encrypted", name);
  if (entry.method == 0) {
    if (entry.packed != entry.unpacked)
      return Status::error("{}: is stored, but its two sizes differ: {} and {}", name, entry.packed,
                           entry.unpacked);
  } else if (entry.method == 8) {
    if (entry.unpacked > static_cast<uint64_t>(kMostUnzipped))
      return Status::error("{}: unpacks to {} bytes; the limit is {}", name, entry.unpacked, kMostUnzipped);
    storage = GACC_TRY(inflate_exactly(bytes, static_cast<int64_t>(entry.unpacked), name));
    bytes = storage;
  } else {
    return Status::error("{}: is compressed with method {}; known are 0 (stored) and 8 (deflated)", name,
                         entry.method);
  }
  if (crc32_of(bytes) != entry.crc)
    return Status::error("{}: its checksum is wrong: the file is damaged", name);
  return bytes;
}

}  // namespace

Status parse_npz(std::string_view bytes, std::string_view name, const std::vector<std::string>* wanted,
                 std::vector<NamedArray>& arrays, std::vector<std::string>& names) {
  arrays.clear();
  names.clear();
  const Directory directory = GACC_TRY(find_directory(bytes, name));
  std::vector<Entry> entries = GACC_TRY(read_directory(bytes, name, directory));
  GACC_TRY(locate(bytes, name, directory, entries));
  std::set<std::string_view> seen;
  for (const Entry& entry : entries) {
    std::string_view array_name = entry.name;
    if (array_name.ends_with(".npy")) array_name.remove_suffix(4);
    if (!seen.insert(array_name).second)
      return Status::error("{}: has two entries {}", name, in_quotes(array_name));
    names.emplace_back(array_name);
    if (wanted && std::ranges::find(*wanted, array_name) == wanted->end()) continue;
    std::string storage;
    const std::string full = fmt::format("{}:{}", name, in_quotes(array_name));
    const std::string_view data = GACC_TRY(unpack(bytes, entry, full, storage));
    NamedArray& array = arrays.emplace_back(NamedArray{names.back(), {}});
    GACC_TRY(parse_npy(data, full, array.array));
  }
  return {};
}

}  // namespace gacc
