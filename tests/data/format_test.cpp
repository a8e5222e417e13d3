// Every file format, read back from bytes made by hand.
#include "runtime/data/array.h"
#include "runtime/data/gzip.h"
#include "tests/data/make_files.h"

namespace gacc::test {
namespace {

TEST(Idx, ReadsEveryElementType) {
  Array array;
  ASSERT_EQ(parse_idx(idx_header(0x08, {2, 2}) + std::string("\0\1\2\xff", 4), "f", array).text(), "");
  EXPECT_EQ(array.dtype, "u8");
  EXPECT_EQ(array.shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(values<uint8_t>(array.bytes), (std::vector<uint8_t>{0, 1, 2, 255}));
  ASSERT_TRUE(parse_idx(idx_header(0x09, {1}) + "\xff", "f", array));
  EXPECT_EQ(values<int8_t>(array.bytes), std::vector<int8_t>{-1});
  ASSERT_TRUE(parse_idx(idx_header(0x0b, {2}) + big<int16_t>(-300) + big<int16_t>(5), "f", array));
  EXPECT_EQ(values<int16_t>(array.bytes), (std::vector<int16_t>{-300, 5}));
  ASSERT_TRUE(parse_idx(idx_header(0x0c, {1}) + big<int32_t>(-70000), "f", array));
  EXPECT_EQ(values<int32_t>(array.bytes), std::vector<int32_t>{-70000});
  ASSERT_TRUE(parse_idx(idx_header(0x0d, {1}) + big(1.5f), "f", array));
  EXPECT_EQ(values<float>(array.bytes), std::vector<float>{1.5f});
  ASSERT_TRUE(parse_idx(idx_header(0x0e, {1}) + big(-2.25), "f", array));
  EXPECT_EQ(values<double>(array.bytes), std::vector<double>{-2.25});
}

TEST(Idx, RefusesWhatIsNone) {
  Array array;
  EXPECT_EQ(parse_idx("", "f", array).text(), "f: is no IDX file: it has 0 bytes, the header alone has 4");
  EXPECT_EQ(parse_idx("abcdefg", "f", array).text(), "f: is no IDX file: it begins with 61 62 63 64");
  EXPECT_EQ(parse_idx(idx_header(0x0a, {1}) + "x", "f", array).text(),
            "f: is no IDX file: it begins with 00 00 0a 01");
  EXPECT_EQ(parse_idx(idx_header(0x08, {}), "f", array).text(), "f: holds a single number, not samples");
  EXPECT_EQ(parse_idx(idx_header(0x08, {2}) + "xyz", "f", array).text(),
            "f: its header says [2] of u8, which is 2 bytes, but there are 3");
  EXPECT_EQ(parse_idx(idx_header(0x0e, {0xffffffff, 0xffffffff, 0xffffffff}), "f", array).text(),
            "f: its header says [4294967295, 4294967295, 4294967295] of f64, which is too many bytes, but "
            "there are 0");
}

template <class T>
std::vector<T> read_npy(const std::string& descr, const std::string& data, const std::string& dtype) {
  Array array;
  Status status = parse_npy(npy(descr, "(2,)", data), "f", array);
  EXPECT_EQ(status.text(), "") << descr;
  EXPECT_EQ(array.dtype, dtype) << descr;
  return values<T>(array.bytes);
}

TEST(Npy, ReadsEveryElementType) {
  EXPECT_EQ(read_npy<float>("<f4", raw<float>({1.5f, -2}), "f32"), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(read_npy<float>(">f4", big(1.5f) + big(-2.f), "f32"), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(read_npy<double>("<f8", raw<double>({0.1, -2}), "f64"), (std::vector<double>{0.1, -2}));
  EXPECT_EQ(read_npy<float>("<f2", raw<uint16_t>({0x3c00, 0x0001}), "f32"),
            (std::vector<float>{1, 0x1p-24f}));
  EXPECT_EQ(read_npy<uint8_t>("|u1", raw<uint8_t>({7, 255}), "u8"), (std::vector<uint8_t>{7, 255}));
  EXPECT_EQ(read_npy<int8_t>("|i1", raw<int8_t>({7, -1}), "i8"), (std::vector<int8_t>{7, -1}));
  EXPECT_EQ(read_npy<int8_t>("|b1", raw<uint8_t>({0, 1}), "i8"), (std::vector<int8_t>{0, 1}));
  EXPECT_EQ(read_npy<uint16_t>("<u2", raw<uint16_t>({7, 65535}), "u16"), (std::vector<uint16_t>{7, 65535}));
  EXPECT_EQ(read_npy<int16_t>("<i2", raw<int16_t>({7, -9}), "i16"), (std::vector<int16_t>{7, -9}));
  EXPECT_EQ(read_npy<int32_t>("<i4", raw<int32_t>({7, -9}), "i32"), (std::vector<int32_t>{7, -9}));
  EXPECT_EQ(read_npy<int64_t>("<u4", raw<uint32_t>({7, 0xffffffff}), "i64"),
            (std::vector<int64_t>{7, 0xffffffff}));
  EXPECT_EQ(read_npy<int64_t>("<i8", raw<int64_t>({7, -1}), "i64"), (std::vector<int64_t>{7, -1}));
  EXPECT_EQ(read_npy<int64_t>(">i8", big<int64_t>(7) + big<int64_t>(-1), "i64"),
            (std::vector<int64_t>{7, -1}));
  EXPECT_EQ(read_npy<int64_t>("<u8", raw<uint64_t>({7, 8}), "i64"), (std::vector<int64_t>{7, 8}));
}

TEST(Npy, ReadsVersionsAndShapes) {
  for (int version = 1; version <= 3; ++version) {
    Array array;
    ASSERT_EQ(parse_npy(npy("|u1", "(2, 3)", "abcdef", version), "f", array).text(), "") << version;
    EXPECT_EQ(array.shape, (std::vector<int64_t>{2, 3}));
  }
}

// As NumPy saves the transpose of an array, and the values of a pandas table.
TEST(Npy, ReadsFortranOrder) {
  Array array;
  ASSERT_EQ(parse_npy(npy("|u1", "(2, 3)", "adbecf", 1, true), "f", array).text(), "");
  EXPECT_EQ(array.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(array.bytes.data(), "abcdef", 6), 0);
  ASSERT_EQ(parse_npy(npy(">i2", "(2, 2, 2)",
                          big<int16_t>(1) + big<int16_t>(5) + big<int16_t>(3) + big<int16_t>(7) +
                              big<int16_t>(2) + big<int16_t>(6) + big<int16_t>(4) + big<int16_t>(8),
                          1, true),
                      "f", array)
                .text(),
            "");
  const int16_t want[] = {1, 2, 3, 4, 5, 6, 7, 8};
  ASSERT_EQ(array.bytes.size(), sizeof want);
  EXPECT_EQ(std::memcmp(array.bytes.data(), want, sizeof want), 0);
  ASSERT_EQ(parse_npy(npy("<f2", "(1, 2)", std::string("\0\x3c\0\x40", 4), 1, true), "f", array).text(), "");
  const float halves[] = {1, 2};
  EXPECT_EQ(std::memcmp(array.bytes.data(), halves, sizeof halves), 0);
  EXPECT_EQ(parse_npy(npy("|u1", "(0, 3)", "", 1, true), "f", array).text(), "");
}

TEST(Npy, RefusesWithAReason) {
  auto error = [](const std::string& bytes) {
    Array array;
    return parse_npy(bytes, "f", array).text();
  };
  EXPECT_EQ(error("nothing"), "f: is no npy file: it does not begin with \\x93NUMPY");
  EXPECT_EQ(error(npy("|u1", "(1,)", "x", 4)), "f: has npy version 4; known are 1, 2 and 3");
  EXPECT_EQ(error(npy("|u1", "()", "x")), "f: holds a single number, not samples");
  EXPECT_EQ(error(npy("<U3", "(1,)", "abcd")),
            "f: holds elements of type \"<U3\"; known are f2, f4, f8, i1, i2, i4, i8, u1, u2, u4, u8 and b1");
  EXPECT_EQ(error(npy("<u8", "(1,)", little(~uint64_t{0}))), "f: holds unsigned numbers beyond 2^63 - 1");
  EXPECT_EQ(error(npy("<f4", "(3,)", "1234")),
            "f: its header says [3] of \"<f4\", which is 12 bytes, but there are 4");
  EXPECT_NE(error(npy("<f4", "(99999999999, 99999999999)", "")).find("too many bytes"), std::string::npos);
  EXPECT_NE(error(npy("<f4", "(x,)", "")).find("f: its header is damaged: \"{'descr'"), std::string::npos);
  EXPECT_NE(error(npy("<f4", "(99999999999999999999,)", "")).find("damaged"), std::string::npos);
}

TEST(Npz, ReadsStoredAndDeflatedEntriesAndZip64) {
  for (bool zip64 : {false, true}) {
    std::string file = zip({{"image.npy", npy("|u1", "(2, 2)", "abcd"), true},
                            {"label.npy", npy("<i4", "(2,)", raw<int32_t>({1, 2}))}},
                           zip64);
    std::vector<NamedArray> arrays;
    std::vector<std::string> names;
    ASSERT_EQ(parse_npz(file, "f", nullptr, arrays, names).text(), "");
    EXPECT_EQ(names, (std::vector<std::string>{"image", "label"}));
    ASSERT_EQ(arrays.size(), 2u);
    EXPECT_EQ(values<char>(arrays[0].array.bytes), (std::vector<char>{'a', 'b', 'c', 'd'}));
    EXPECT_EQ(values<int32_t>(arrays[1].array.bytes), (std::vector<int32_t>{1, 2}));
    std::vector<std::string> wanted = {"label"};
    ASSERT_TRUE(parse_npz(file, "f", &wanted, arrays, names));
    ASSERT_EQ(arrays.size(), 1u);
    EXPECT_EQ(arrays[0].name, "label");
    EXPECT_EQ(names.size(), 2u);
  }
}

std::string npz_error(const std::string& bytes) {
  std::vector<NamedArray> arrays;
  std::vector<std::string> names;
  return parse_npz(bytes, "f", nullptr, arrays, names).text();
}

TEST(Npz, RefusesDamage) {
  std::string array = npy("|u1", "(4,)", "abcd");
  std::string file = zip({{"x.npy", array}});
  EXPECT_EQ(npz_error(""), "f: is no npz file (a zip made by numpy.savez)");
  EXPECT_EQ(npz_error(file.substr(0, file.size() - 1)),
            "f: is cut off: the zip directory at its end is missing");
  std::string altered = file;
  altered[altered.find("abcd")] = 'z';
  EXPECT_EQ(npz_error(altered), "f:\"x\": its checksum is wrong: the file is damaged");
  EXPECT_EQ(npz_error(zip({{"x.npy", array}, {"x.npy", array}})), "f: has two entries \"x\"");
  EXPECT_EQ(npz_error(zip({{"x.txt", "hello"}})),
            "f:\"x.txt\": is no npy file: it does not begin with \\x93NUMPY");
  // Two directory entries for one place.
  std::string twice = zip({{"x.npy", array}, {"y.npy", array}});
  size_t second = twice.rfind("PK\1\2");
  twice.replace(second + 42, 4, little(0u));
  twice.replace(second + 46, 1, "x");
  EXPECT_EQ(npz_error(twice), "f: entries \"x.npy\" and \"x.npy\" overlap");
  // A deflated entry that claims gigabytes.
  std::string bomb = zip({{"x.npy", array, true}});
  bomb.replace(bomb.rfind("PK\1\2") + 24, 4, little(0xfffffff0u));
  EXPECT_NE(npz_error(bomb).find("f:\"x\": claims to hold 4294967280 bytes in"), std::string::npos);
  std::string encrypted = file;
  encrypted[encrypted.rfind("PK\1\2") + 8] |= 1;
  EXPECT_EQ(npz_error(encrypted), "f:\"x\": is encrypted");
  std::string method = file;
  method[method.rfind("PK\1\2") + 10] = 12;
  EXPECT_EQ(npz_error(method),
            "f:\"x\": is compressed with method 12; known are 0 (stored) and 8 (deflated)");
}

TEST(Gzip, UnpacksMembersUpToTheLimit) {
  const std::string text(100000, 'x');
  const auto unpacked = [](const std::string& bytes, int64_t limit) {
    Result<std::string> out = gunzip(bytes, "f", limit);
    return out ? out.take() : out.status().text();
  };
  EXPECT_EQ(unpacked(gzip(text), kMostUnzipped), text);
  EXPECT_EQ(unpacked(gzip("one") + gzip("two") + std::string(5, '\0'), kMostUnzipped), "onetwo");
  EXPECT_EQ(unpacked(gzip(""), kMostUnzipped), "");
  EXPECT_TRUE(gunzip(gzip(text), "f", 100000));
  EXPECT_EQ(unpacked(gzip(text), 99999), "f: unpacks to more than 99999 bytes, which is the limit");
  EXPECT_EQ(unpacked(gzip("one") + "junk", kMostUnzipped),
            "f: there are 4 bytes after the end of the gzip data");
  std::string altered = gzip(text);
  altered[altered.size() - 8] ^= 1;
  EXPECT_EQ(unpacked(altered, kMostUnzipped), "f: the gzip data is damaged (incorrect data check)");
}

}  // namespace
}  // namespace gacc::test
