// Places of keys and values in the tree, sizes, and overrides.
#include "frontend/schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "frontend/frontend.h"
#include "ir/text/size_text.h"

namespace gacc::frontend {
namespace {

Node parse(std::string_view text) {
  Diag diag("t.toml", std::string(text));
  std::optional<Node> node = parse_toml(text, diag);
  EXPECT_TRUE(node.has_value()) << diag.render();
  return node ? std::move(*node) : Node{};
}

Location place(int32_t line, int32_t column, int32_t length) {
  return {.line = line, .column = column, .length = length};
}

TEST(TomlTree, EveryKeyAndValueHasItsPlace) {
  const Node root = parse("[train]\nmicro_batch = 32\nname = 'é' \n[a]\nxs = [1, 22]\nt = { k = 0.5 }\n");
  const Node& train = *root.find("train");
  EXPECT_EQ(train.at, place(1, 1, 7));
  EXPECT_EQ(train.entries[0].key_at, place(2, 1, 11));
  EXPECT_EQ(train.find("micro_batch")->at, place(2, 15, 2));
  EXPECT_EQ(train.find("name")->at, place(3, 8, 4)) << "columns and lengths count bytes";
  EXPECT_EQ(root.find("a")->find("xs")->items[1].at, place(5, 10, 2));
  EXPECT_EQ(root.find("a")->find("t")->find("k")->at, place(6, 11, 3));
}

TEST(TomlTree, KeepsTheOrderOfTheFile) {
  const Node root = parse("[inputs.zebra]\n[inputs.ant]\n[model]\n");
  EXPECT_EQ(root.entries[0].key, "inputs");
  EXPECT_EQ(root.find("inputs")->entries[0].key, "zebra");
}

TEST(TomlTree, HandlesMarksAndLineEnds) {
  EXPECT_EQ(parse("\xEF\xBB\xBFkey = 1\n").entries[0].value.at, place(1, 10, 1))
      << "the mark has three bytes";
  EXPECT_EQ(parse("a = 1\r\nb = 2\r\n").find("b")->at, place(2, 5, 1));
  EXPECT_TRUE(parse("").entries.empty());
}

// Another encoding, or line ends of which TOML knows nothing, in one sentence.
TEST(TomlTree, NamesOtherEncodingsAndLineEnds) {
  const std::string wide("\xFF\xFE[\0m\0]\0\n\0", 10);
  for (const auto& [text, expected] :
       {std::pair(wide, "UTF-16"), std::pair(std::string("\xFE\xFF\0[", 4), "UTF-16"),
        std::pair(std::string("a = 1\rb = 2\r"), "carriage return alone")}) {
    Diag diag("t.toml", text);
    EXPECT_FALSE(parse_toml(text, diag).has_value());
    EXPECT_EQ(diag.reports().size(), 1U);
    EXPECT_NE(diag.render().find(expected), std::string::npos) << diag.render();
  }
}

// Places and messages take linear time, whatever the length of a line and the number of errors.
TEST(TomlTree, LongLinesAndManyErrorsAreQuick) {
  std::string weights = "class_weights = [", tables;
  for (int i = 0; i < 50257; ++i) weights += "1.25, ";
  for (int i = 0; i < 20000; ++i) tables += "[unknown" + std::to_string(i) + "]\n";
  const auto begin = std::chrono::steady_clock::now();
  const Node root = parse(weights + "]");
  EXPECT_EQ(root.entries[0].value.items.back().at.column, 18 + 50256 * 6);
  Diag diag("t.toml", weights + "{}, {}]\n" + tables);
  const std::optional<Node> wrong = parse_toml(diag.source(), diag);
  ASSERT_TRUE(wrong);
  read_table(*wrong, tables::file, diag, "a model file", "");
  const std::string text = diag.render();
  EXPECT_LT(text.size(), 100000U);
  EXPECT_NE(text.find("more errors are not shown"), std::string::npos);
  size_t longest = 0;
  for (size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    longest = std::max(longest, end - at);
  }
  EXPECT_LT(longest, 300U);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(TomlTree, RefusesDeepKeysAndDeepValues) {
  std::string keys = "a", lists = "a = ";
  for (int i = 0; i < 100000; ++i) keys += ".a";
  for (int i = 0; i < 100000; ++i) lists += '[';
  for (const std::string& text : {keys + " = 1", "[" + keys + "]", lists}) {
    Diag diag("t.toml", text);
    EXPECT_FALSE(parse_toml(text, diag).has_value());
    EXPECT_EQ(diag.reports().size(), 1U);
  }
  // Dots in strings and comments nest nothing.
  const std::string dots(200, '.');
  EXPECT_EQ(parse("a = \"" + dots + "\" # " + dots + "\nb = '" + dots + "'\n").entries.size(), 2U);
}

// Bare keys are ASCII. The library would name what it expected instead of the quotes that are missing.
TEST(TomlTree, RefusesBareCharactersOutsideAscii) {
  for (const char* text :
       {"\xd2\x87 = 1", "a = 1\n[inputs\xd2\x87]\n", "a = \xff", "a = \"\"\"b\"\"\"\"\"\xd2\x87"}) {
    Diag diag("t.toml", text);
    EXPECT_FALSE(parse_toml(text, diag).has_value());
    EXPECT_NE(diag.render().find("must stand in quotes"), std::string::npos) << diag.render();
  }
  EXPECT_EQ(parse("\"\xd2\x87\" = '\xd2\x87' # \xd2\x87\nm = \"\"\"\xd2\x87\"\"\"\"\"\n").entries.size(), 2U);
}

// Where toml++ up to 3.4 asks whether a character is a blank, with undefined behaviour for some (the
// sanitizers see it): behind a backslash that ends a line of a string, and behind a quote that opens none.
TEST(TomlTree, AnyCharacterStandsInAString) {
  for (const std::string character : {"\u00e9", "\u047d", "\u2c5e", "\ufb26", "\ufefe", "\U0001f600"}) {
    EXPECT_EQ(parse("a = \"\"\"x\\\n  " + character + "\"\"\"").find("a")->text, "x" + character);
    for (const std::string& text :
         {"s = 5'" + character + "'", "s = 5\"\"\"" + character, "s = \"\\" + character + "\"",
          "s = \"\"\"\\" + character + "\"\"\"", "a'" + character + "' = 1"}) {
      Diag diag("t.toml", text);
      EXPECT_FALSE(parse_toml(text, diag).has_value()) << text;
      EXPECT_EQ(diag.render().find("t.toml:1:"), 0U) << diag.render();
    }
  }
}

TEST(Sizes, AreNumbersWithAUnit) {
  EXPECT_EQ(ir::parse_bytes("1500B"), 1500);
  EXPECT_EQ(ir::parse_bytes("64KiB"), 65536);
  EXPECT_EQ(ir::parse_bytes("512MiB"), 512LL << 20);
  EXPECT_EQ(ir::parse_bytes("1.5GiB"), 3LL << 29);
  EXPECT_EQ(ir::parse_bytes("2KB"), 2000);
  EXPECT_EQ(ir::parse_bytes("1.5MB"), 1500000);
  EXPECT_EQ(ir::parse_bytes("3GB"), 3000000000);
  for (const char* wrong :
       {"", "B", "12", "12 apples", "-1B", "0B", "nanB", "infGB", "1e3B", "0x10B", "99999999999GiB"}) {
    EXPECT_FALSE(ir::parse_bytes(wrong).has_value()) << wrong;
  }
}

TEST(Ranges, SayWhatWouldFit) {
  EXPECT_EQ(extent.text(0), "at least 1");
  EXPECT_EQ(extent.text(1e12), "at most 2147483647");
  EXPECT_EQ(below_one.text(1), "at least 0 and below 1");
  EXPECT_EQ(above(0).text(0), "above 0");
  EXPECT_EQ(any_number.text(0), "a finite number");
  EXPECT_FALSE(below_one.contains(1));
  EXPECT_TRUE(below_one.contains(0));
  EXPECT_FALSE(above(0).contains(0));
}

TEST(Overrides, ReachTablesLayersAndBlocks) {
  Node root = parse(
      "[train]\naccumulate = 4\n[[layers]]\ntype = 'linear'\n[[layers]]\ntype = 'sequential'\nname = "
      "'block'\n"
      "[[layers.layers]]\ntype = 'relu'\n[[layers.layers]]\ntype = 'relu'\n");
  Diag diag;
  apply_overrides(root,
                  {{"train.accumulate", "8"},
                   {"train.accumulate", "16"},  // the last one wins
                   {"train.tail", "drop"},
                   {"optimizer.betas", "[0.9, 0.99]"},
                   {"layers.linear_0.features", "7"},
                   {"layers.block.relu_1.p", "true"},
                   {"layers.block.layers.relu_0.p", "false"},
                   {"layers.block.repeat", "3"}},
                  diag);
  EXPECT_EQ(diag.render(), "");
  EXPECT_EQ(root.find("train")->find("accumulate")->integer, 16);
  EXPECT_EQ(root.find("train")->find("accumulate")->at.origin, "--set train.accumulate=16");
  EXPECT_EQ(root.find("train")->find("tail")->text, "drop");
  EXPECT_EQ(root.find("optimizer")->find("betas")->items.size(), 2U);
  const Node& layers = *root.find("layers");
  EXPECT_EQ(layers.items[0].find("features")->integer, 7);
  EXPECT_EQ(layers.items[1].find("repeat")->integer, 3);
  EXPECT_TRUE(layers.items[1].find("layers")->items[1].find("p")->flag);
  EXPECT_FALSE(layers.items[1].find("layers")->items[0].find("p")->flag);
}

TEST(Overrides, AcceptValuesAndBareWordsOnly) {
  for (const char* value :
       {"1", "1.5", "true", "\"text\"", "word", "512MiB", "a-b_c", "\u00e9", "{ normal = 0.02 }", "[1, 2]"}) {
    Node root;
    Diag diag;
    apply_overrides(root, {{"a.b", value}}, diag);
    EXPECT_FALSE(diag.failed()) << value;
  }
  for (const char* value : {"", "[", "two words", "1\nx = 2", "\"open", "\xff", "a\xed\xa0\x80"}) {
    Node root;
    Diag diag;
    apply_overrides(root, {{"a.b", value}}, diag);
    EXPECT_TRUE(diag.failed()) << value;
  }
  for (const char* key : {"", ".", "a.", ".a", "a..b"}) {
    Node root;
    Diag diag;
    apply_overrides(root, {{key, "1"}}, diag);
    EXPECT_TRUE(diag.failed()) << key;
  }
}

}  // namespace
}  // namespace gacc::frontend
