// safetensors: the bytes written, what is read, and every lie a header can tell.
#include "runtime/safetensors.h"

#include <cmath>

#include "tests/data/load_safetensors.h"
#include "tests/data/make_files.h"

namespace gacc::test {
namespace {

std::string file(const std::string& header, const std::string& data) {
  return little(uint64_t{header.size()}) + header + data;
}
std::string error(const std::string& bytes) {
  std::vector<NamedTensor> tensors;
  return parse_safetensors(bytes, "f", tensors).text();
}

TEST(Safetensors, WritesExactlyTheseBytes) {
  Folder folder;
  std::string path = folder.path("w.safetensors");
  ASSERT_EQ(
      save_safetensors(path, {{"b", {2, 1}, {1, -2}}, {"a.w", {}, {0.5f}}, {"c", {0}, {}}}, {{"z", "\"1\""}})
          .text(),
      "");
  std::string header =
      R"({"__metadata__":{"format":"pt","z":"\"1\""},"a.w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},"c":{"dtype":"F32","shape":[0],"data_offsets":[12,12]}})";
  while (header.size() % 8 != 0) header += ' ';
  EXPECT_EQ(contents(path), file(header, raw<float>({0.5f, 1, -2})));
  std::vector<NamedTensor> tensors;
  Metadata metadata;
  ASSERT_EQ(load_safetensors(path, tensors, &metadata).text(), "");
  EXPECT_EQ(metadata, (Metadata{{"format", "pt"}, {"z", "\"1\""}}));
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a.w");
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(tensors[1].data, (std::vector<float>{1, -2}));
  EXPECT_TRUE(tensors[2].data.empty());
}

TEST(Safetensors, ReadsHalvesMetadataAndAnyOrder) {
  std::string header =
      R"({"z":{"data_offsets":[0,4],"dtype":"BF16","shape":[2]},"__metadata__":{"format":"pt"},"a":{"shape":[3],"dtype":"F16","data_offsets":[4,10]}}  )";
  std::vector<NamedTensor> tensors;
  std::string data = raw<uint16_t>({0x3f80, 0xc000, 0x3c00, 0x7bff, 0x8001});
  ASSERT_EQ(parse_safetensors(file(header, data), "f", tensors).text(), "");
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].data, (std::vector<float>{1, 65504, -0x1p-24f}));
  EXPECT_EQ(tensors[1].data, (std::vector<float>{1, -2}));
}

// A state_dict of PyTorch: what counts its batches is left out, any other integer is refused.
TEST(Safetensors, LeavesOutHowManyBatchesPyTorchSaw) {
  std::string header =
      R"({"bn.bias":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},"bn.num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})";
  std::vector<NamedTensor> tensors;
  ASSERT_EQ(parse_safetensors(file(header, little(int64_t{7}) + raw<float>({2})), "f", tensors).text(), "");
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].name, "bn.bias");
  EXPECT_EQ(tensors[0].data, (std::vector<float>{2}));
  header = R"({"bn.count":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})";
  EXPECT_EQ(error(file(header, little(int64_t{7}))),
            "f: tensor \"bn.count\" has the type \"I64\"; known are F32, F16 and BF16");
}

TEST(Safetensors, NumbersMustBeFinite) {
  const auto with = [](const std::string& dtype, const std::string& data) {
    return error(file(R"({"fc.weight":{"dtype":")" + dtype + R"(","shape":[2,3],"data_offsets":[0,)" +
                          std::to_string(data.size()) + "]}}",
                      data));
  };
  EXPECT_EQ(with("F32", raw<float>({0, 1, 2, 3, -INFINITY, NAN})),
            "f: tensor \"fc.weight\" holds -inf at [1, 1]; a parameter is a finite number");
  EXPECT_EQ(with("F16", raw<uint16_t>({0, 0, 0x7e00, 0, 0, 0})),
            "f: tensor \"fc.weight\" holds nan at [0, 2]; a parameter is a finite number");
  EXPECT_EQ(with("BF16", raw<uint16_t>({0x7f80, 0, 0, 0, 0, 0})),
            "f: tensor \"fc.weight\" holds inf at [0, 0]; a parameter is a finite number");
}

TEST(Safetensors, TheEmptyFileOfTensorsIsFine) { EXPECT_EQ(error(file("{}", "")), ""); }

TEST(Safetensors, RefusesHostileHeaders) {
  EXPECT_NE(error("abc").find("is no safetensors file: it has 3 bytes"), std::string::npos);
  EXPECT_NE(error(little(~uint64_t{0}) + "{}")
                .find("its header would have 18446744073709551615 bytes, 2 are there"),
            std::string::npos);
  EXPECT_NE(error(file("[1]", "")).find("does not begin with {"), std::string::npos);
  EXPECT_EQ(error(file("{\"a\":", "")), "f: its header is no valid JSON near its byte 6");
  std::string deep = "{\"a\":" + std::string(100000, '{');
  EXPECT_NE(error(file(deep, "")).find("f: its header"), std::string::npos);
  std::string lists = R"({"a":{"shape":)" + std::string(100000, '[');
  EXPECT_EQ(error(file(lists, "")), "f: its header has a list where it does not belong, at \"shape\"");
  EXPECT_EQ(error(file("{\"a\":1}", "")), "f: its header has a number where it does not belong, at \"a\"");
  EXPECT_EQ(error(file(R"({"a":{"dtype":"F32","shape":[1]}})", "1234")),
            "f: its header lacks dtype, shape or data_offsets for the tensor \"a\"");
  EXPECT_EQ(error(file(R"({"a":{"dtype":"F32","dtype":"F32"}})", "")),
            "f: its header has \"dtype\" twice at the tensor \"a\"");
  EXPECT_EQ(error(file(R"({"a":{"dtype":"F32","sha":[1]}})", "")),
            "f: its header has an unknown key \"sha\" at the tensor \"a\"");
  EXPECT_EQ(error(file(R"({"a":{"shape":[-1]}})", "")),
            "f: its header has a negative number where it does not belong, at \"shape\"");
  EXPECT_EQ(error(file(R"({"a":{"shape":[1.5]}})", "")),
            "f: its header has a fraction where it does not belong, at \"shape\"");
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape, int begin,
                   int end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin,
                     end);
}

TEST(Safetensors, RefusesWrongSizesAndPlaces) {
  EXPECT_EQ(error(file("{" + tensor("a", "I64", "[1]", 0, 8) + "}", "12345678")),
            "f: tensor \"a\" has the type \"I64\"; known are F32, F16 and BF16");
  EXPECT_EQ(error(file("{" + tensor("a", "F32", "[1]", 0, 4) + "}", "123")),
            "f: tensor \"a\" lies outside the 3 bytes of data that the file has");
  EXPECT_EQ(error(file("{" + tensor("a", "F32", "[1]", 4, 0) + "}", "1234")),
            "f: tensor \"a\" lies outside the 4 bytes of data that the file has");
  EXPECT_EQ(error(file("{" + tensor("a", "F32", "[2, 3]", 0, 4) + "}", "1234")),
            "f: tensor \"a\" of shape [2, 3] and type F32 does not fill its 4 bytes");
  EXPECT_EQ(error(file("{" + tensor("a", "F32", "[4294967296,4294967296]", 0, 0) + "}", "")),
            "f: tensor \"a\" of shape [4294967296, 4294967296] and type F32 does not fill its 0 bytes");
  EXPECT_EQ(error(file("{" + tensor("a", "F32", "[1]", 0, 4) + "," + tensor("b", "F32", "[1]", 2, 6) + "}",
                       "123456")),
            "f: tensors \"a\" and \"b\" overlap");
  EXPECT_EQ(error(file("{" + tensor("a", "F32", "[1]", 2, 6) + "}", "123456")),
            "f: 2 bytes before the tensor \"a\" belong to none");
  EXPECT_EQ(error(file("{" + tensor("a", "F32", "[1]", 0, 4) + "}", "123456")),
            "f: has 2 bytes after its last tensor");
  EXPECT_EQ(error(file("{" + tensor("a", "F32", "[1]", 0, 4) + "," + tensor("a", "F32", "[1]", 4, 8) + "}",
                       "12345678")),
            "f: has two tensors \"a\"");
}

TEST(Safetensors, DoesNotWriteWhatItWouldNotRead) {
  Folder folder;
  std::string path = folder.path("w");
  EXPECT_FALSE(save_safetensors(path, {{"a", {2}, {1}}}).ok());
  EXPECT_FALSE(save_safetensors(path, {{"a", {1}, {1}}, {"a", {1}, {1}}}).ok());
  EXPECT_FALSE(save_safetensors(path, {{"__metadata__", {1}, {1}}}).ok());
  EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace gacc::test
