// GGUFs: what is written is read again, and every damage is named with its place.
#include "runtime/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace gacc {
namespace {

std::vector<float> numbers(size_t count) {
  std::vector<float> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = static_cast<float>(i % 17) - 8;
  return all;
}

GgufOutput output(const std::string& name, const std::string& type, std::vector<int64_t> shape) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  return {name, type, std::move(shape), gguf_data(type, numbers(count), name).take()};
}

std::string small_file() {
  GgufMetadata metadata;
  metadata.add("general.architecture", "llama");
  metadata.add("llama.rope.freq_base", 10000.0f);
  return gguf_bytes(metadata,
                    {output("token_embd.weight", "Q8_0", {3, 64}), output("output_norm.weight", "F32", {5}),
                     output("blk.0.attn_q.weight", "BF16", {2, 3})});
}

// The error of a file in which `bytes` stand at a place.
std::string error_with(size_t at, std::string_view bytes) {
  std::string file = small_file();
  file.replace(at, bytes.size(), bytes);
  Gguf gguf;
  return parse_gguf(file, "f.gguf", gguf).text();
}

template <class T>
std::string bytes_of(T number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

TEST(Gguf, WhatIsWrittenIsRead) {
  const std::string file = small_file();
  Gguf gguf;
  const Status status = parse_gguf(file, "f.gguf", gguf);
  ASSERT_TRUE(status) << status.text();
  EXPECT_EQ(gguf.text("general.architecture"), "llama");
  EXPECT_EQ(gguf.number("llama.rope.freq_base"), 10000.0);
  EXPECT_EQ(json_of(gguf.metadata[1]), "10000.0");
  ASSERT_EQ(gguf.tensors.size(), 3u);
  for (const GgufTensor& tensor : gguf.tensors) {
    EXPECT_EQ(tensor.begin % 32, 0u);
    const StoredTensor stored{tensor.name, tensor.type, tensor.shape,
                              std::string_view(file).substr(tensor.begin, tensor.size)};
    std::vector<float> read(static_cast<size_t>(elements_of(stored)));
    read_elements(stored, 0, read);
    const std::vector<float> want = numbers(read.size());
    const float bound = tensor.type == "Q8_0" ? 8.0f / 127 : 0.0f;
    for (size_t i = 0; i < read.size(); ++i) EXPECT_NEAR(read[i], want[i], bound) << tensor.name;
  }
  EXPECT_EQ(gguf.tensors[0].shape, (std::vector<int64_t>{3, 64}));
  EXPECT_EQ(gguf.tensors[2].type, "BF16");
}

TEST(Gguf, EveryEndIsNamed) {
  const std::string file = small_file();
  Gguf gguf;
  for (size_t size = 0; size + 1 < file.size(); ++size) {
    const Status status = parse_gguf(std::string_view(file).substr(0, size), "f.gguf", gguf);
    if (status) {
      EXPECT_GT(size + 32, file.size());  // padding alone is gone
      continue;
    }
    EXPECT_TRUE(status.text().starts_with("f.gguf: ")) << status.text();
  }
}

TEST(Gguf, WrongFieldsAreNamedWithTheirPlaces) {
  const std::string file = small_file();
  const auto behind = [&](std::string_view text) { return file.find(text) + text.size(); };
  EXPECT_EQ(error_with(0, "GGML"), "f.gguf: is no GGUF: it does not begin with \"GGUF\"");
  EXPECT_EQ(error_with(4, bytes_of(uint32_t{1})),
            "f.gguf: is a GGUF of version 1; versions 2 and 3 are read");
  EXPECT_EQ(
      error_with(4, bytes_of(uint32_t{3u << 24})),
      "f.gguf: is a GGUF of version 50331648, with its bytes in the other order; versions 2 and 3 are read");
  EXPECT_NE(error_with(8, bytes_of(uint64_t{1} << 60)).find("cannot be in the"), std::string::npos);
  EXPECT_EQ(error_with(behind("general.architecture"), bytes_of(uint32_t{13})),
            "f.gguf: byte 56: the value of \"general.architecture\" has the type 13; there are 0 to 12");
  EXPECT_NE(error_with(behind("general.architecture") + 4, bytes_of(uint64_t{1} << 62))
                .find("the file ends in the value of \"general.architecture\""),
            std::string::npos);
  EXPECT_NE(
      error_with(behind("token_embd.weight"), bytes_of(uint32_t{5})).find("has 5 axes; there are 1 to 4"),
      std::string::npos);
  EXPECT_NE(error_with(behind("token_embd.weight") + 4, bytes_of(uint64_t{63}))
                .find("has rows of 63 numbers, and Q8_0 has blocks of 32"),
            std::string::npos);
  EXPECT_NE(error_with(behind("token_embd.weight") + 20, bytes_of(uint32_t{6}))
                .find("has the type Q5_0; known are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K and Q6_K"),
            std::string::npos);
  EXPECT_NE(
      error_with(behind("token_embd.weight") + 24, bytes_of(uint64_t{32})).find("begins at 32 of the data"),
      std::string::npos);
  EXPECT_NE(error_with(file.find("output_norm.weight"), "token_embd.weight!").find("begins"), 0u);
}

TEST(Gguf, AMutatedFileIsRefusedWithItsNameOrHarmless) {
  const std::string file = small_file();
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string mutated = file;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % (i % 2 ? 300 : mutated.size());
      if (random() % 8 == 0)
        mutated.erase(at, 1 + random() % 40);
      else
        mutated[at] = static_cast<char>(random());
    }
    Gguf gguf;
    const Status status = parse_gguf(mutated, "f.gguf", gguf);
    if (!status) {
      EXPECT_TRUE(status.text().starts_with("f.gguf: ")) << status.text();
      EXPECT_EQ(status.text().find('\n'), std::string::npos);
      continue;
    }
    for (const GgufTensor& tensor : gguf.tensors) {
      ASSERT_LE(tensor.begin + tensor.size, mutated.size());
      const StoredTensor stored{tensor.name, tensor.type, tensor.shape,
                                std::string_view(mutated).substr(tensor.begin, tensor.size)};
      std::vector<float> read(static_cast<size_t>(elements_of(stored)));
      read_elements(stored, 0, read);
    }
  }
}

TEST(Gguf, NumbersBeyondATypeAreErrorsWithTheTensorsName) {
  EXPECT_EQ(gguf_data("F16", std::vector<float>{1, 70000}, "w").status().text(),
            "tensor \"w\" cannot be F16: its number 1 is 70000, which is beyond that type");
  EXPECT_TRUE(gguf_data("BF16", std::vector<float>{1, 70000}, "w"));
}

}  // namespace
}  // namespace gacc
