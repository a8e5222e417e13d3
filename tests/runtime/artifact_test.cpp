// The artifact text: it comes back as it was, and every cut and every flipped bit is refused.
#include "runtime/artifact.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/runtime/fake_device.h"

namespace gacc {
namespace {

Artifact small_artifact() {
  return {test::tiny_plan(4, 3, "flush"), "module \"tiny\"\n\nstep() {\n}\n",
          "//\n.version 7.0\n.target sm_80\n"};
}

std::string reading(std::string_view text) {
  Artifact artifact;
  return read_artifact(text, "step.ptx", artifact).text();
}

TEST(Artifact, round_trip) {
  Artifact artifact = small_artifact(), back;
  std::string text = write_artifact(artifact);
  ASSERT_EQ(reading(text), "");
  ASSERT_TRUE(read_artifact(text, "step.ptx", back));
  EXPECT_EQ(back.ir, artifact.ir);
  EXPECT_EQ(back.ptx, artifact.ptx);
  EXPECT_EQ(to_json(back.plan), to_json(artifact.plan));
  EXPECT_EQ(write_artifact(back), text);
}

TEST(Artifact, everything_before_the_ptx_is_a_comment) {
  std::string text = write_artifact(small_artifact());
  std::string_view head = std::string_view(text).substr(0, text.find("//end\n"));
  for (size_t at = 0; at < head.size(); at = head.find('\n', at) + 1) EXPECT_EQ(head.substr(at, 2), "//");
}

TEST(Artifact, every_truncation_is_refused) {
  std::string text = write_artifact(small_artifact());
  for (size_t length = 0; length < text.size(); ++length)
    EXPECT_NE(reading(std::string_view(text).substr(0, length)), "") << length;
  EXPECT_NE(reading(text + "\n"), "");
}

TEST(Artifact, every_flipped_bit_is_refused) {
  std::string text = write_artifact(small_artifact());
  for (size_t i = 0; i < text.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string altered = text;
      altered[i] = static_cast<char>(altered[i] ^ (1 << bit));
      ASSERT_NE(reading(altered), "") << "byte " << i << " bit " << bit;
    }
}

TEST(Artifact, errors_say_what_the_file_is) {
  std::string text = write_artifact(small_artifact());
  EXPECT_EQ(reading(""), "step.ptx: not a gacc artifact: it is empty");
  EXPECT_EQ(reading("[model]\nname = \"x\"\n"),
            "step.ptx: not a gacc artifact: it looks like a model file; compile it with gaccc first");
  EXPECT_EQ(reading("model = { name = \"x\" }\n"),
            "step.ptx: not a gacc artifact: it looks like a model file; compile it with gaccc first");
  EXPECT_EQ(reading(std::string("\x02\0\0\0\0\0\0\0{}", 10)),
            "step.ptx: not a gacc artifact: it looks like a safetensors file");
  EXPECT_EQ(reading("module @x source(\"x.toml\") phase(planned) arena(256) {\n"),
            "step.ptx: not a gacc artifact: it looks like gacc's textual IR");
  EXPECT_EQ(reading(".version 7.0\n.target sm_80\n"),
            "step.ptx: not a gacc artifact: it is PTX without gacc's plan");
  EXPECT_EQ(reading("// gacc artifact 9 bytes=0 crc32=00000000\n"),
            "step.ptx: artifact format 9, this gacc reads format 1; compile the model again with its gaccc");
  EXPECT_EQ(reading(std::string_view(text).substr(0, text.size() - 5)).substr(0, 35),
            "step.ptx: the artifact is cut off: ");
}

}  // namespace
}  // namespace gacc
