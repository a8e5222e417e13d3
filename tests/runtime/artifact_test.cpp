// The artifact text: it comes back as it was, and every cut and every flipped bit is refused.
#include "runtime/artifact.h"

#include <gtest/gtest.h>
#include <zlib.h>

namespace gacc {
namespace {

Artifact small_artifact() {
  return {.ir = "module \"tiny\"\n\nstep() {\n}\n", .ptx = "//\n.version 7.0\n.target sm_80\n"};
}

std::string reading(std::string_view text) { return read_artifact(text, "step.ptx").status().text(); }

TEST(Artifact, round_trip) {
  const Artifact artifact = small_artifact();
  const std::string text = write_artifact(artifact);
  ASSERT_EQ(reading(text), "");
  const Artifact back = read_artifact(text, "step.ptx").take();
  EXPECT_EQ(back.ir, artifact.ir);
  EXPECT_EQ(back.ptx, artifact.ptx);
  EXPECT_EQ(write_artifact(back), text);
}

// ptxas takes ASCII alone, also in comments; names, comments and paths come back as they were.
TEST(Artifact, any_text_is_written_in_ascii) {
  Artifact artifact = small_artifact();
  artifact.overrides = {"model.name=\u00e9", "a=\\u00e9 \\xc3"};
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  artifact.ir = "module @\"caf\u00e9\" source(\"\xf6/\\\\.toml\") {\n" + bytes + "\n}\n";
  artifact.model =
      "# \u20ac, \\xe2\\x82\\xac, \\\\x5c and \\u20ac are not the same \\\r\n\n\t" + bytes + "\n";
  const std::string text = write_artifact(artifact);
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
  ASSERT_EQ(reading(text), "");
  const Artifact back = read_artifact(text, "step.ptx").take();
  EXPECT_EQ(back.ir, artifact.ir);
  EXPECT_EQ(back.model, artifact.model);
  EXPECT_EQ(back.overrides, artifact.overrides);
  EXPECT_EQ(back.ptx, artifact.ptx);
}

// With the checksum made right, a line that write_artifact never writes is refused by its number.
TEST(Artifact, damaged_escapes_are_refused) {
  Artifact artifact = small_artifact();
  artifact.ir = "module \"tiny\"\n\u00e9\n";
  artifact.model = "# \u00e9\n";
  const std::string text = write_artifact(artifact);
  const auto altered = [&](std::string_view line, std::string_view by) {
    std::string body = text.substr(text.find('\n') + 1);
    body.replace(body.find(line), line.size(), by);
    const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(body.data()), body.size());
    return reading(
        fmt::format("// gacc artifact {} bytes={} crc32={:08x}\n", kArtifactVersion, body.size(), crc) +
        body);
  };
  const std::string_view ir = "//ir \\xc3\\xa9\n", model = "//model # \\xc3\\xa9\n";
  EXPECT_EQ(altered(ir, ir), "");
  for (const std::string line : {"\\", "\\x", "\\xc", "\\xc3\\xa", "\\xC3", "\\xg3", "\\u00e9", "\\\\",
                                 "\\x41", "\\x0a", "\u00e9", "\t", "a\x7f"}) {
    EXPECT_EQ(altered(ir, "//ir " + line + "\n"),
              "step.ptx: the artifact's IR is damaged: its line 2 is not ASCII with \\xNN for other bytes")
        << line;
    EXPECT_EQ(altered(model, "//model " + line + "\n"),
              "step.ptx: the artifact's model is damaged: its line 1 is not ASCII with \\xNN for other bytes")
        << line;
  }
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
            "step.ptx: not a gacc artifact: it is PTX without gacc's IR");
  EXPECT_EQ(reading("// gacc artifact 8 bytes=0 crc32=00000000\n"),
            "step.ptx: artifact format 8, this gacc reads format 9; compile the model again with its gaccc");
  EXPECT_EQ(reading(std::string_view(text).substr(0, text.size() - 5)).substr(0, 35),
            "step.ptx: the artifact is cut off: ");
}

}  // namespace
}  // namespace gacc
