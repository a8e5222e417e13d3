// CSV: what is read, and where an error is said to be.
#include "runtime/data/csv.h"

#include <cmath>

#include "runtime/text.h"
#include "tests/data/make_files.h"

namespace gacc::test {
namespace {

std::string csv_error(const std::string& text) {
  Table table;
  return parse_csv(text, "f.csv", table).text();
}

TEST(Csv, ReadsQuotesSpacesAndLineEnds) {
  Table table;
  std::string text =
      "\xef\xbb\xbf a , \"b, \"\"c\"\"\" \r\n\r\n1, +2.5\r\n\"3\",-4e-1\n\ninf,nan\n1e999,1e-999";
  ASSERT_EQ(parse_csv(text, "f", table).text(), "");
  EXPECT_EQ(table.columns, (std::vector<std::string>{"a", "b, \"c\""}));
  EXPECT_EQ(table.lines, (std::vector<int64_t>{3, 4, 6, 7}));
  ASSERT_EQ(table.values.size(), 8u);
  EXPECT_EQ(table.values[1], 2.5);
  EXPECT_EQ(table.values[3], -0.4);
  EXPECT_TRUE(std::isinf(table.values[4]) && std::isnan(table.values[5]) && std::isinf(table.values[6]));
  EXPECT_EQ(table.values[7], 0);
}

TEST(Csv, CountsLinesWithinQuotes) {
  EXPECT_TRUE(csv_error("\"a\nb\",c\n1,2\n3,x\n").starts_with("f.csv:4: column 2 (\"c\"): \"x\""));
}

TEST(Csv, OtherSeparatorsAreNamed) {
  EXPECT_EQ(csv_error("a;b\n1,5;2\n"),
            "f.csv:1: its fields are separated by semicolons; say sep=';' (numbers have points)");
  EXPECT_EQ(csv_error("\na\tb\n1\t2\n"),
            "f.csv:2: its fields are separated by tabs; say sep=tab (numbers have points)");
  Table table;
  EXPECT_EQ(parse_csv("a,b\n1,2\n", "f.csv", table, {.separator = ';'}).text(),
            "f.csv:1: its fields are separated by commas; leave sep= out");
  ASSERT_EQ(parse_csv("a; b,c\n1 ;2\n", "f.csv", table, {.separator = ';'}).text(), "");
  EXPECT_EQ(table.columns, (std::vector<std::string>{"a", "b,c"}));
  ASSERT_EQ(parse_csv("a\t b\t\"c\td\"\n1\t\t3 \n", "f.csv", table, {.separator = '\t', .gaps = true}).text(),
            "");
  EXPECT_EQ(table.columns, (std::vector<std::string>{"a", "b", "c\td"}));
  EXPECT_TRUE(std::isnan(table.at(0, 1)));
  EXPECT_EQ(table.at(0, 2), 3);
}

TEST(Csv, GapsAreNumbersThatAreNone) {
  Table table;
  ASSERT_EQ(parse_csv("a,b\n,NA\nnan,null\nN/A,1\n", "f.csv", table, {.separator = ',', .gaps = true}).text(),
            "");
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(std::isnan(table.values[i])) << i;
  EXPECT_EQ(table.values[5], 1);
  EXPECT_TRUE(parse_csv("a,b\n1,none\n", "f.csv", table, {.separator = ',', .gaps = true})
                  .text()
                  .starts_with("f.csv:2: column 2 (\"b\"): \"none\" is no number;"));
}

TEST(Csv, LinesMayEndInCr) {
  Table table;
  ASSERT_EQ(parse_csv("a,b\r1,2\r3,4\r", "f.csv", table).text(), "");
  EXPECT_EQ(table.values, (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(table.lines, (std::vector<int64_t>{2, 3}));
}

TEST(Csv, Utf16IsNamed) {
  EXPECT_EQ(csv_error(std::string("\xff\xfe"
                                  "a\0\n\0",
                                  6)),
            "f.csv: is text in UTF-16; save it as UTF-8");
}

TEST(Csv, ANameThatIsNoUtf8IsNamed) {  // as parameters' files, which keep the names, hold it not
  EXPECT_EQ(csv_error("a,\xc3\xa9,m\xe9\n1,2,3\n"),
            "f.csv:1: the name of column 3 is no UTF-8: \"m\\xe9\"; save the file as UTF-8");
}

TEST(Csv, ALineThatEndsInASeparatorIsNamed) {
  EXPECT_EQ(csv_error("a,b,\n1,2,\n"), "f.csv:1: column 3 has no name: does the line end with a separator?");
}

TEST(Csv, AColumnThatIsNotReadMayHoldAnything) {
  Table table;
  const auto second_is_unread = [] {
    return Result(std::vector<ColumnUse>{{}, {.kind = ColumnUse::Kind::unread}});
  };
  ASSERT_EQ(parse_csv("a,b\n1,cat\n2,\n", "f.csv", table, {}, second_is_unread).text(), "");
  EXPECT_EQ(table.values, (std::vector<double>{1, 0, 2, 0}));
}

TEST(Csv, NoMeanIsOfferedForATarget) {
  Table table;
  const auto second_is_target = [] {
    return Result(std::vector<ColumnUse>{{}, {.kind = ColumnUse::Kind::target}});
  };
  EXPECT_EQ(parse_csv("a,b\n1,\n", "f.csv", table, {}, second_is_target).text(),
            "f.csv:2: column 2 (\"b\"): the field is empty; missing=drop leaves the line out");
}

TEST(Csv, TextsAreNumbersOrColumns) {
  Table table;
  const std::vector<std::string> colors = {"red", "blue"}, kinds = {"b", "None"};
  const auto choose = [&] {
    return Result(
        std::vector<ColumnUse>{{.values = &colors}, {}, {.kind = ColumnUse::Kind::target, .values = &kinds}});
  };
  const CsvOptions options = {.gaps = true, .missing = {"?", "-9"}};
  ASSERT_EQ(parse_csv("color,n,kind\nblue,true,None\n?,-9,b\nred,False,?\n", "f.csv", table, options, choose)
                .text(),
            "");
  EXPECT_EQ(table.columns, (std::vector<std::string>{"color=red", "color=blue", "n", "kind"}));
  EXPECT_EQ(table.in_file, (std::vector<size_t>{0, 0, 1, 2}));
  EXPECT_EQ(std::vector(table.values.begin(), table.values.begin() + 4), (std::vector<double>{0, 1, 1, 1}));
  for (const size_t gap : {4, 5, 6, 11}) EXPECT_TRUE(std::isnan(table.values[gap])) << gap;
  EXPECT_EQ(table.values[7], 0);
  EXPECT_EQ(std::vector(table.values.begin() + 8, table.values.begin() + 11), (std::vector<double>{1, 0, 0}));
  EXPECT_EQ(parse_csv("color,n,kind\nblu,1,b\n", "f.csv", table, options, choose).text(),
            "f.csv:2: column 1 (\"color\"): \"blu\" is none of its values; did you mean \"blue\"? (they are "
            "\"red\" "
            "and \"blue\")");
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"--", "; na=-- makes a missing field of it"}, {"\xff", ""}, {std::string(80, '-') + "\xff", ""}};
  for (const auto& [field, advice] : fields)
    EXPECT_EQ(parse_csv("color,n,kind\n" + field + ",1,b\n", "f.csv", table, options, choose).text(),
              fmt::format("f.csv:2: column 1 (\"color\"): {} is none of its values (they are \"red\" and "
                          "\"blue\"){}",
                          in_quotes(field), advice));
  EXPECT_EQ(parse_csv("n\n-9\n", "f.csv", table, {.missing = {"-9"}}).text(),
            "f.csv:2: column 1 (\"n\"): \"-9\" is a mark of a missing field; missing=mean fills it in, "
            "missing=drop "
            "leaves the line out");
  EXPECT_EQ(parse_csv("color,n,kind\nred,1,\n", "f.csv", table, {}, choose).text(),
            "f.csv:2: column 3 (\"kind\"): the field is empty; missing=drop leaves the line out");
}

TEST(Csv, ErrorsNameLineAndColumn) {
  const std::string or_else = "; missing=mean fills it in, missing=drop leaves the line out";
  EXPECT_EQ(csv_error(""), "f.csv: is empty");
  EXPECT_EQ(csv_error("\n\r\n"), "f.csv: is empty");
  EXPECT_EQ(csv_error("a,b\n1,\"2,5\"\n"),
            "f.csv:2: column 2 (\"b\"): \"2,5\" is no number: numbers have points, and no commas");
  EXPECT_EQ(csv_error("a,b\n1,\n"), "f.csv:2: column 2 (\"b\"): the field is empty" + or_else);
  EXPECT_EQ(csv_error("a,b\n1,NA\n"), "f.csv:2: column 2 (\"b\"): \"NA\" is no number" + or_else);
  EXPECT_EQ(csv_error("a,b,a\n"), "f.csv:1: columns 1 and 3 are both called \"a\"; rename one");
  EXPECT_EQ(csv_error("a,b\n1,2\n\n1,2,3\n"), "f.csv:4: has 3 fields, the header has 2");
  EXPECT_EQ(csv_error("a,b\n1\n"), "f.csv:2: has 1 field, the header has 2");
  EXPECT_EQ(csv_error("a,b\n1,\"2\n3,4\n"), "f.csv:2: the quote that opens field 2 is never closed");
  EXPECT_EQ(csv_error("a,b\n\"1\"2,3\n"), "f.csv:2: field 1 goes on after its closing quote");
  EXPECT_EQ(csv_error("1.5,2\n3,4\n"),
            "f.csv:1: the first line must name the columns, but it holds numbers only");
}

// A terminal, and whoever reads standard error, can show every message.
TEST(Csv, ErrorsAreUtf8) {
  EXPECT_EQ(csv_error("gr\xc3\xb6\xc3\x9f"
                      "e\nx\n"),
            "f.csv:2: column 1 (\"gr\xc3\xb6\xc3\x9f"
            "e\"): \"x\" is no number; drop=gr\xc3\xb6\xc3\x9f"
            "e leaves the column out, and `columns` of the input states its words");
  EXPECT_EQ(csv_error("a\n\xff\xfe\xe2\x82\n"),
            "f.csv:2: column 1 (\"a\"): \"\\xff\\xfe\\xe2\\x82\" is no number; drop=a leaves the column out, "
            "and `columns` of the input states its words");
  EXPECT_EQ(csv_error(std::string("a\n1\n\0\n", 6)), "f.csv:3: is no text: byte 5 of the file is 0");
}

TEST(Csv, NumbersThatCountTheColumnsAreNames) { EXPECT_EQ(csv_error("0,1,2\n5,6,7\n"), ""); }

TEST(Csv, FindsColumnsByNameThenByNumber) {
  Table table;
  ASSERT_TRUE(parse_csv("width,2,depth,height\n", "f", table));
  const auto index = [&](const char* column) {
    Result<size_t> found = find_column(table, column, "f");
    EXPECT_EQ(found.status().text(), "");
    return found ? found.take() : table.columns.size();
  };
  EXPECT_EQ(index("height"), 3u);
  EXPECT_EQ(index("2"), 1u);  // it is called so
  EXPECT_EQ(index("3"), 3u);
  EXPECT_EQ(find_column(table, "4", "f").status().text(), "f: has no column 4: its 4 columns count from 0");
  EXPECT_EQ(find_column(table, "hieght", "f").status().text(),
            "f: has no column \"hieght\"; did you mean \"height\"? (it has \"width\", \"2\", \"depth\" and "
            "\"height\")");
}

}  // namespace
}  // namespace gacc::test
