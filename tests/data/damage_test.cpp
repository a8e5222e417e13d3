// Damaged files: cut at every byte, and with every bit turned, each format gives an array or an error in one
// line, never a crash; a file that is cut is always an error.
#include <functional>

#include "runtime/data/array.h"
#include "runtime/data/csv.h"
#include "runtime/data/gzip.h"
#include "tests/data/load_safetensors.h"
#include "tests/data/make_files.h"

namespace gacc::test {
namespace {

struct Format {
  std::string name, file;
  std::function<Status(const std::string&)> read;
};

Status read_npz_bytes(const std::string& bytes) {
  std::vector<NamedArray> arrays;
  std::vector<std::string> names;
  return parse_npz(bytes, "f", nullptr, arrays, names);
}

std::vector<Format> formats() {
  auto idx = [](const std::string& bytes) {
    Array array;
    return parse_idx(bytes, "f", array);
  };
  auto npy_reader = [](const std::string& bytes) {
    Array array;
    return parse_npy(bytes, "f", array);
  };
  auto gz = [](const std::string& bytes) { return gunzip(bytes, "f", 1 << 20).status(); };
  auto tensors = [](const std::string& bytes) {
    std::vector<NamedTensor> result;
    return parse_safetensors(bytes, "f", result);
  };
  std::string header =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}} )";
  std::string array = npy("<f4", "(2, 1)", raw<float>({1, 2}));
  return {
      {"idx", idx_header(0x0b, {2, 2}) + "abcdefgh", idx},
      {"npy", array, npy_reader},
      {"npy2", npy("<f2", "(2, 1)", "abcd", 2), npy_reader},
      {"npz", zip({{"x.npy", array, true}, {"y.npy", array}}), read_npz_bytes},
      {"npz64", zip({{"x.npy", array, true}, {"y.npy", array}}, true), read_npz_bytes},
      {"gzip", gzip("some text, some text"), gz},
      {"safetensors", little(uint64_t{header.size()}) + header + "0123456789ab", tensors},
  };
}

bool is_one_line(const std::string& text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) < 0x20) return false;
  return !text.empty();
}

TEST(Damage, EveryTruncationIsAnError) {
  for (const Format& format : formats()) {
    ASSERT_EQ(format.read(format.file).text(), "") << format.name;
    for (size_t size = 0; size < format.file.size(); ++size) {
      Status status = format.read(format.file.substr(0, size));
      EXPECT_FALSE(status.ok()) << format.name << " cut to " << size;
      EXPECT_TRUE(is_one_line(status.text())) << format.name << ": " << status.text();
    }
  }
}

TEST(Damage, NoTurnedBitCrashes) {
  for (const Format& format : formats())
    for (size_t i = 0; i < format.file.size() * 8; ++i) {
      std::string file = format.file;
      file[i / 8] = static_cast<char>(file[i / 8] ^ (1 << (i % 8)));
      Status status = format.read(file);
      if (!status) {
        EXPECT_TRUE(is_one_line(status.text())) << format.name << ": " << status.text();
      }
    }
}

TEST(Damage, BytesAfterTheEndAreAnError) {
  for (const Format& format : formats()) EXPECT_FALSE(format.read(format.file + "x").ok()) << format.name;
}

TEST(Damage, CsvCutAnywhereNeverCrashes) {
  std::string file = "a,b,\"c \"\"d\"\"\"\r\n1,2.5,-3e4\r\n\"4\",5,6\n";
  Table table;
  ASSERT_EQ(parse_csv(file, "f", table).text(), "");
  for (size_t size = 0; size < file.size(); ++size)
    for (int bit = 0; bit <= 8; ++bit) {
      std::string damaged = file.substr(0, size + 1);
      damaged[size] = static_cast<char>(damaged[size] ^ (bit == 8 ? 0 : 1 << bit));
      Status status = parse_csv(damaged, "f", table);
      if (!status) {
        EXPECT_TRUE(is_one_line(status.text())) << status.text();
      }
      if (status.ok()) {
        EXPECT_EQ(table.values.size(), table.lines.size() * table.columns.size());
      }
    }
}

}  // namespace
}  // namespace gacc::test
