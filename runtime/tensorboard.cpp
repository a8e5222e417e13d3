// The wire format of tensorflow/core/util/event.proto, as far as it takes to show curves.
#include "runtime/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "runtime/atomic_file.h"

namespace gacc {
namespace {

// Field numbers of the messages.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSessionLog = 7, kSummaryValue = 1, kValueTag = 1, kValueSimple = 2, kSessionStatus = 1;
constexpr uint64_t kSessionStart = 1;  // SessionLog.START

// Wire types.
constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void put_varint(std::string& to, uint64_t value) {
  for (; value >= 128; value >>= 7) to += static_cast<char>(value | 128);
  to += static_cast<char>(value);
}

void put_key(std::string& to, int field, int wire) {
  put_varint(to, static_cast<uint64_t>(field << 3 | wire));
}

template <class T>
void put_little(std::string& to, T value) {
  for (size_t i = 0; i < sizeof value; ++i) to += static_cast<char>(value >> (8 * i));
}

void put_bytes(std::string& to, int field, std::string_view bytes) {
  put_key(to, field, kBytes);
  put_varint(to, bytes.size());
  to += bytes;
}

void put_number(std::string& to, int field, uint64_t value) {
  put_key(to, field, kVarint);
  put_varint(to, value);
}

std::string begin_event(int64_t step) {
  std::string event;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  put_key(event, kEventWallTime, kFixed64);
  put_little(event, std::bit_cast<uint64_t>(now));
  if (step != 0) put_number(event, kEventStep, static_cast<uint64_t>(step));
  return event;
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
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  char host[256] = "localhost";
  if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
  auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  // TensorBoard reads a folder's files in the order of their names, so a resumed run's must come last. Two
  // runs within a second are told apart by the number at the end.
  for (int number = 0;; ++number) {
    path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, seconds + number, host, getpid(),
                        number);
    const std::string prefix = fmt::format("events.out.tfevents.{:010}", seconds + number);
    bool later_exists = false;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("events.out.tfevents.") && name.substr(0, prefix.size()) >= prefix)
        later_exists = true;
    }
    if (later_exists && number < 1000) continue;
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (fd_ >= 0) break;
    if (errno != EEXIST || number >= 1000)
      return Status::error("cannot write TensorBoard events to {}: {}", folder,
                           error ? error.message() : std::generic_category().message(errno));
  }
  std::string event = begin_event(0);
  put_bytes(event, kEventFileVersion, "brain.Event:2");
  if (Status status = write_event(event); !status || !resume) return status;
  // A session that starts at a step makes TensorBoard drop what it has read of this step and later ones.
  event = begin_event(*resume + 1);
  std::string session;
  put_number(session, kSessionStatus, kSessionStart);
  put_bytes(event, kEventSessionLog, session);
  return write_event(event);
}

Status EventFile::write(int64_t step, std::span<const Scalar> scalars) {
  if (fd_ < 0 || scalars.empty()) return {};
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, kValueTag, scalar.tag);
    put_key(value, kValueSimple, kFixed32);
    put_little(value, std::bit_cast<uint32_t>(static_cast<float>(scalar.value)));
    put_bytes(summary, kSummaryValue, value);
  }
  std::string event = begin_event(step);
  put_bytes(event, kEventSummary, summary);
  Status status = write_event(event);
  shows_ = shows_ || status.ok();
  return status;
}

Status EventFile::write_event(std::string_view event) {
  std::string record;
  put_little(record, static_cast<uint64_t>(event.size()));
  put_little(record, masked(crc32c(record)));
  record += event;
  put_little(record, masked(crc32c(event)));
  if (!write_all(fd_, record)) {
    const int error = errno;
    (void)!ftruncate(fd_, bytes_);
    return Status::error("cannot write {}: {}", path_, std::generic_category().message(error));
  }
  bytes_ += static_cast<int64_t>(record.size());
  return {};
}

Status EventFile::close() {
  if (fd_ < 0) return {};
  int error = fsync(fd_) != 0 && errno != EINVAL ? errno : 0;
  if (::close(fd_) != 0 && error == 0) error = errno;
  fd_ = -1;
  return error == 0 ? Status()
                    : Status::error("cannot write {}: {}", path_, std::generic_category().message(error));
}

}  // namespace gacc
