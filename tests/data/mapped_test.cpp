// Files that are too large to be read as a whole: samples come from the file, are checked as they come, and a
// file that changes is an error.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/data/loader.h"
#include "tests/data/make_files.h"
#include "tests/runtime/fake_device.h"

namespace gacc::test {
namespace {

Plan token_plan() {
  Plan plan;
  plan.micro_batch = 4;
  plan.inputs = {input("tokens", DType::i32, {8}), input("next", DType::i32, {8})};
  for (PlanInput& each : plan.inputs) each.range = 1000;
  return plan;
}

// A file of `size` bytes, zeros but for `start` and what is put elsewhere; it takes no room on a disk.
class Sparse {
 public:
  Sparse(std::string path, std::string_view start, int64_t size = kLeastMapped) : path_(std::move(path)) {
    std::ofstream(path_, std::ios::binary) << start;
    resize(size);
  }
  void resize(int64_t size) { std::filesystem::resize_file(path_, static_cast<uintmax_t>(size)); }
  void put(int64_t at, std::string_view bytes) {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(at);
    file << bytes;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string gathered(const Dataset& data, const Plan& plan, size_t index, std::vector<int64_t> order,
                     std::vector<int32_t>& out) {
  std::vector<std::byte> bytes(order.size() * 32);
  const Status status = data.gather(index, plan.inputs[index], order, bytes);
  out = values<int32_t>(bytes);
  return status.text();
}

TEST(Mapped, SamplesComeFromTheFile) {
  Folder folder;
  const Plan plan = token_plan();
  Sparse file(folder.path("t.bin"), raw<uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  const int64_t far = 16 * 500000;  // byte at which a sample begins
  file.put(far, raw<uint16_t>({11, 12}));
  Dataset data;
  ASSERT_EQ(load_dataset("tokens:" + file.path(), plan, data).text(), "");
  EXPECT_TRUE(data.columns[0].on_disk());
  EXPECT_EQ(data.samples, kLeastMapped / 16 - 1);
  std::vector<int32_t> got;
  ASSERT_EQ(gathered(data, plan, 1, {500000, 0}, got), "");
  EXPECT_EQ(got, (std::vector<int32_t>{12, 0, 0, 0, 0, 0, 0, 0, 2, 3, 4, 5, 6, 7, 8, 9}));
  ASSERT_EQ(gathered(data, plan, 0, {0, 1, 500000}, got), "");
  EXPECT_EQ(got[7], 8);
  EXPECT_EQ(got[8], 9);
  EXPECT_EQ(got[16], 11);
}

TEST(Mapped, ValuesAreCheckedAsTheyAreRead) {
  Folder folder;
  const Plan plan = token_plan();
  Sparse file(folder.path("t.bin"), "");
  file.put(16 * 700 + 6, raw<uint16_t>({1000}));
  Dataset data;
  ASSERT_EQ(load_dataset("tokens:" + file.path(), plan, data).text(), "");
  const std::string wrong = file.path() + ": token 5603: the value 1000 is not valid for the input ";
  std::vector<int32_t> got;
  EXPECT_EQ(gathered(data, plan, 0, {5, 701}, got), "");
  EXPECT_EQ(gathered(data, plan, 0, {5, 700}, got), wrong + "\"tokens\": it takes 0 to 999");
  EXPECT_EQ(gathered(data, plan, 1, {700, 5}, got), wrong + "\"next\": it takes 0 to 999");
  FakeDevice device(plan);
  Loader loader(data, plan, device);
  loader.start({0, 1, 2, 3, 4, 5, 6, 7, 700, 8}, 4);
  EXPECT_NE(loader.next(), nullptr);
  EXPECT_NE(loader.next(), nullptr);
  EXPECT_EQ(loader.next(), nullptr);
  EXPECT_EQ(loader.status().text(), wrong + "\"tokens\": it takes 0 to 999");
  EXPECT_EQ(loader.next(), nullptr);
  loader.start({0}, 4);
  EXPECT_TRUE(loader.status());
  EXPECT_NE(loader.next(), nullptr);
}

TEST(Mapped, AFileThatChangesIsAnError) {
  const std::string stays = "; its data must stay as they are";
  const struct {
    const char* what;
    std::string words;
    void (*change)(Sparse& file);
  } cases[] = {
      {"shrinks", " has 100 bytes now, and had 16777216 when the run began" + stays,
       [](Sparse& file) { file.resize(100); }},
      {"grows", " has 16777218 bytes now, and had 16777216 when the run began" + stays,
       [](Sparse& file) { file.resize(kLeastMapped + 2); }},
      {"is written to", " was written to while the run read it" + stays,
       [](Sparse& file) {
         file.put(0, "ab");
         std::filesystem::last_write_time(file.path(), std::filesystem::file_time_type{});
       }},
      {"is replaced", " was removed or replaced while the run read it" + stays,
       [](Sparse& file) {
         const Sparse other(file.path() + ".new", "xx");
         std::filesystem::rename(other.path(), file.path());
       }},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    Folder folder;
    const Plan plan = token_plan();
    Sparse file(folder.path("t.bin"), "");
    Dataset data;
    ASSERT_EQ(load_dataset("tokens:" + file.path(), plan, data).text(), "");
    each.change(file);
    std::vector<int32_t> got;
    EXPECT_EQ(gathered(data, plan, 0, {1, 900000}, got), file.path() + ":" + each.words);
  }
}

// Samples that are kept from the first epoch are not taken from the file again, which must stay all the same.
TEST(Mapped, AFileOfWhichAllIsKeptMustStay) {
  Folder folder;
  Plan plan;
  plan.micro_batch = 4;
  plan.inputs = {input("x", DType::f32, {int64_t{1} << 20})};
  const std::string start = npy("|u1", "(16, 1048576)", "");
  Sparse file(folder.path("x.npy"), start, std::ssize(start) + kLeastMapped);
  Dataset data;
  ASSERT_EQ(load_dataset("npy:x=" + file.path(), plan, data).text(), "");
  ASSERT_TRUE(data.columns[0].on_disk());
  FakeDevice device(plan);
  Loader loader(data, plan, device);
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader.start(epoch_order(16, 1, epoch, /*shuffle=*/true), 4);
    while (loader.next() != nullptr) continue;
    ASSERT_EQ(loader.status().text(), "");
  }
  file.resize(100);
  loader.start(epoch_order(16, 1, 2, /*shuffle=*/true), 4);
  EXPECT_EQ(loader.next(), nullptr);
  EXPECT_TRUE(loader.status().text().starts_with(file.path() + ": has 100 bytes now"))
      << loader.status().text();
}

// What lies in the file as it is needed is mapped, the rest converted.
TEST(Mapped, ArraysAreMappedWhereTheyLieAsNeeded) {
  Folder folder;
  Plan plan;
  plan.micro_batch = 4;
  plan.inputs = {input("x", DType::f32, {4096})};
  const auto header = [](const std::string& descr, bool fortran, int64_t rows) {
    return npy(descr, fmt::format("({}, 4096)", rows), "", 1, fortran);
  };
  const struct {
    std::string spec, start;
    int64_t bytes;
    bool mapped;
  } cases[] = {
      {"npy", header("<f4", false, 1024), 4, true},      {"npy", header("|u1", false, 4096), 1, true},
      {"npy", header(">f4", false, 1024), 4, false},     {"npy", header("<f4", true, 1024), 4, false},
      {"npy", header("<f2", false, 2048), 2, false},     {"idx", idx_header(0x08, {4096, 4096}), 1, true},
      {"idx", idx_header(0x0d, {1024, 4096}), 4, false},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.start.substr(0, 60));
    const auto first = static_cast<int64_t>(each.start.size());
    Sparse file(folder.path("x." + each.spec), each.start, first + kLeastMapped);
    Dataset data;
    ASSERT_EQ(load_dataset(each.spec + ":x=" + file.path(), plan, data).text(), "");
    EXPECT_EQ(data.columns[0].on_disk(), each.mapped);
    EXPECT_EQ(data.samples, kLeastMapped / each.bytes / 4096);
    std::vector<std::byte> batch(2 * 4096 * 4, std::byte{1});
    EXPECT_EQ(data.gather(0, plan.inputs[0], std::vector<int64_t>{3, 1000}, batch).text(), "");
    EXPECT_EQ(values<float>(batch), std::vector<float>(8192));
  }
}

}  // namespace
}  // namespace gacc::test
