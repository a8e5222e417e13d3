// The wire format of tensorflow/core/util/event.proto, as far as it takes to show curves.
#include "runtime/tell/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "runtime/atomic_file.h"
#include "runtime/byte_order.h"
#include "runtime/plugin.h"

namespace gacc {
namespace {

// Field numbers of the messages.
constexpr uint64_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
                   kEventSessionLog = 7, kSummaryValue = 1, kValueTag = 1, kValueSimple = 2,
                   kSessionStatus = 1;
constexpr uint64_t kSessionStart = 1;  // SessionLog.START

// Wire types.
constexpr uint64_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}

// A field of a message: its number and wire type, then the value.
std::string field(uint64_t number, uint64_t value) { return varint(number << 3 | kVarint) + varint(value); }
std::string field(uint64_t number, double value) {
  return varint(number << 3 | kFixed64).append(bytes_of(value));
}
std::string field(uint64_t number, float value) {
  return varint(number << 3 | kFixed32).append(bytes_of(value));
}
std::string field(uint64_t number, std::string_view bytes) {
  return (varint(number << 3 | kBytes) + varint(bytes.size())).append(bytes);
}

std::string begin_event(int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const std::string event = field(kEventWallTime, now.count());
  return step == 0 ? event : event + field(kEventStep, static_cast<uint64_t>(step));
}

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);  // Castagnoli, reflected
    table[i] = crc;
  }
  return table;
}();

// A checksum of data that itself holds checksums is no longer a good one; TFRecord rotates and offsets it.
uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8u; }

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 255];
  return ~crc;
}

EventFile::~EventFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!shows_) unlink(path_.c_str());
}

Status EventFile::open(const std::string& folder, std::optional<int64_t> resume) {
  std::error_code error, ignored;
  std::filesystem::create_directories(folder, error);
  const std::time_t seconds = std::time(nullptr);
  // TensorBoard reads a folder's files in the order of their names, so a resumed run's must come last. Two
  // runs within a second are told apart by the number at the end.
  constexpr std::string_view kName = "events.out.tfevents.";
  std::string last;  // of the folder's files
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (const std::string name = entry.path().filename().string(); name.starts_with(kName))
      last = std::max(last, name);
  for (int number = 0; fd_ < 0; ++number) {
    const std::string begin = fmt::format("{}{:010}", kName, seconds + number);
    if (last.substr(0, begin.size()) >= begin && number < 1000) continue;
    path_ = fmt::format("{}/{}.{}.{}.{}", folder, begin, host_name(), getpid(), number);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (fd_ < 0 && (errno != EEXIST || number >= 1000))
      return Status::error("cannot write TensorBoard events to {}: {}", folder,
                           error ? error.message() : system_reason(errno));
  }
  const std::string version = field(kEventFileVersion, std::string_view("brain.Event:2"));
  if (Status status = write_event(begin_event(0) + version); !status || !resume) return status;
  // A session that starts at a step makes TensorBoard drop what it has read of this step and later ones.
  return write_event(begin_event(*resume + 1) +
                     field(kEventSessionLog, field(kSessionStatus, kSessionStart)));
}

Status EventFile::write(int64_t step, std::span<const Figure> figures) {
  if (fd_ < 0 || figures.empty()) return {};
  std::string summary;
  for (const Figure& figure : figures)
    summary += field(kSummaryValue,
                     field(kValueTag, figure.tag) + field(kValueSimple, static_cast<float>(figure.value)));
  Status status = write_event(begin_event(step) + field(kEventSummary, summary));
  shows_ = shows_ || status.ok();
  return status;
}

Status EventFile::write_event(std::string_view event) {
  std::string record(bytes_of(uint64_t{event.size()}));
  record += bytes_of(masked(crc32c(record)));
  record.append(event) += bytes_of(masked(crc32c(event)));
  if (!write_all(fd_, record)) {
    const int error = errno;
    (void)!ftruncate(fd_, bytes_);
    return cannot_write(path_, error);
  }
  bytes_ += static_cast<int64_t>(record.size());
  return {};
}

Status EventFile::close() {
  if (fd_ < 0) return {};
  int error = fsync(fd_) != 0 && errno != EINVAL ? errno : 0;
  if (::close(fd_) != 0 && error == 0) error = errno;
  fd_ = -1;
  return error == 0 ? Status() : cannot_write(path_, error);
}

}  // namespace gacc
