// Event files, read back by a decoder of their own, and the checksum against its published values.
#include "runtime/tell/tensorboard.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "runtime/atomic_file.h"

namespace gacc {
namespace {

uint64_t little(std::string_view bytes, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), size);
  return value;
}

uint32_t masked(std::string_view bytes) {
  uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

uint64_t take_varint(std::string_view& from) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    auto byte = static_cast<uint8_t>(from.at(0));
    from.remove_prefix(1);
    value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return value;
  }
}

// A message as a list of "field=value" words, nested messages in braces: "2=1 5={1={1=loss 2=0.5}}".
// Fixed 32 bits are a float, fixed 64 bits ("time") are left out; `messages` says which fields are messages.
std::string decode(std::string_view from, std::string_view messages) {
  std::string out;
  while (!from.empty()) {
    uint64_t key = take_varint(from);
    std::string value;
    if ((key & 7) == 0) value = fmt::format("{}", take_varint(from));
    if ((key & 7) == 1) {
      value = "time";
      EXPECT_GT(std::bit_cast<double>(little(from, 8)), 1.6e9);
      from.remove_prefix(8);
    }
    if ((key & 7) == 5) {
      value = fmt::format("{}", std::bit_cast<float>(static_cast<uint32_t>(little(from, 4))));
      from.remove_prefix(4);
    }
    if ((key & 7) == 2) {
      size_t size = take_varint(from);
      bool message = messages.find(static_cast<char>('0' + (key >> 3))) != std::string_view::npos;
      value = message ? "{" + decode(from.substr(0, size), (key >> 3) == 5 ? "1" : "") + "}"
                      : std::string(from.substr(0, size));
      from.remove_prefix(size);
    }
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", key >> 3, value);
  }
  return out;
}

// The events of the folder's files, in the order of their names.
std::vector<std::string> events_of(const std::string& folder) {
  std::vector<std::string> files, events;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    const std::string bytes = read_file(file).take();
    for (std::string_view rest = bytes; !rest.empty();) {
      size_t size = little(rest, 8);
      EXPECT_EQ(little(rest.substr(8), 4), masked(rest.substr(0, 8)));
      EXPECT_EQ(little(rest.substr(12 + size), 4), masked(rest.substr(12, size)));
      events.push_back(decode(rest.substr(12, size), "57"));
      rest.remove_prefix(16 + size);
    }
  }
  return events;
}

TEST(EventFile, crc32c) {  // RFC 3720, appendix B.4
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(EventFile, what_is_written_reads_back) {
  char name[] = "/tmp/gacc-events-XXXXXX";
  std::string root = mkdtemp(name), folder = root + "/runs/one";
  {
    EventFile events;
    EXPECT_FALSE(events.is_open());
    const Figure one[] = {{"loss", 0.5}};
    ASSERT_TRUE(events.write(1, one));  // nothing to do
    ASSERT_TRUE(events.open(folder));
    ASSERT_TRUE(events.write(1, one));
    const Figure two[] = {{"loss", std::numeric_limits<double>::quiet_NaN()}, {"eval/accuracy", 0.25}};
    ASSERT_TRUE(events.write(300, two));
    ASSERT_TRUE(events.close());
    EventFile resumed;
    ASSERT_TRUE(resumed.open(folder, 299));
    ASSERT_TRUE(resumed.write(300, one));
    ASSERT_TRUE(resumed.close());
  }
  EXPECT_EQ(events_of(folder),
            (std::vector<std::string>{"1=time 3=brain.Event:2", "1=time 2=1 5={1={1=loss 2=0.5}}",
                                      "1=time 2=300 5={1={1=loss 2=nan} 1={1=eval/accuracy 2=0.25}}",
                                      "1=time 3=brain.Event:2", "1=time 2=300 7={1=1}",
                                      "1=time 2=300 5={1={1=loss 2=0.5}}"}));
  std::filesystem::remove_all(root);
}

TEST(EventFile, a_folder_that_cannot_be_made_is_an_error) {
  EventFile events;
  EXPECT_EQ(events.open("/dev/null/runs").text(),
            "cannot write TensorBoard events to /dev/null/runs: Not a directory");
  EXPECT_EQ(events.open("/sys/runs").text().find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace gacc
