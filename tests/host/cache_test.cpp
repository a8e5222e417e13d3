// The object cache: hits, misses, damage, and its bound.
#include "codegen/host/cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "codegen/host/jit.h"

namespace gacc::host {
namespace {

namespace fs = std::filesystem;

class CacheTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gacc-cache-XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string folder_;
};

TEST_F(CacheTest, ReturnsWhatWasStored) {
  const Cache cache(folder_);
  EXPECT_FALSE(cache.load("a"));
  const std::string object("\0\n bytes \xff", 10);
  cache.store("a", object);
  ASSERT_TRUE(cache.load("a"));
  EXPECT_EQ(*cache.load("a"), object);
  EXPECT_FALSE(cache.load("b"));
}

TEST_F(CacheTest, ADamagedEntryIsNone) {
  const Cache cache(folder_);
  const std::string object(1000, 'x');
  cache.store("a", object);
  const auto size = fs::file_size(cache.path("a"));
  for (const auto at : {uintmax_t{0}, uintmax_t{14}, size / 2, size - 1}) {
    cache.store("a", object);
    std::fstream file(cache.path("a"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('\x01');
    file.close();
    EXPECT_FALSE(cache.load("a")) << "byte " << at;
  }
  for (const uintmax_t length : {uintmax_t{0}, uintmax_t{5}, size - 1}) {
    cache.store("a", object);
    fs::resize_file(cache.path("a"), length);
    EXPECT_FALSE(cache.load("a")) << "cut to " << length;
  }
}

TEST_F(CacheTest, KeepsTheNewest) {
  const Cache cache(folder_);
  for (int i = 0; i < Cache::kEntries + 10; ++i) {
    const std::string key = "k" + std::to_string(i);
    cache.store(key, "object");
    fs::last_write_time(cache.path(key), fs::file_time_type::clock::now() - std::chrono::hours(1000 - i));
  }
  cache.store("last", "object");
  EXPECT_FALSE(cache.load("k0"));
  EXPECT_TRUE(cache.load("k" + std::to_string(Cache::kEntries + 9)));
  EXPECT_TRUE(cache.load("last"));
}

TEST_F(CacheTest, WorksWithoutAFolder) {
  const Cache off(""), missing(folder_ + "/none");
  for (const Cache* cache : {&off, &missing}) {
    cache->store("a", "object");
    EXPECT_FALSE(cache->load("a"));
  }
  setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  EXPECT_TRUE(Cache::open().enabled());
  fs::permissions(folder_ + "/gacc", fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(Cache::open().enabled()) << "others could put code there";
  setenv("GACC_CACHE", "off", 1);
  EXPECT_FALSE(Cache::open().enabled());
  unsetenv("GACC_CACHE");
  unsetenv("XDG_CACHE_HOME");
}

TEST(CacheKey, KeepsPartsApart) {
  using codegen::host_key;
  EXPECT_NE(host_key({"ab", "c"}), host_key({"a", "bc"}));
  EXPECT_NE(host_key({"a"}), host_key({"a", ""}));
  EXPECT_EQ(host_key({"a", "b"}), host_key({"a", "b"}));
  EXPECT_EQ(host_key({}).size(), 32u);
}

}  // namespace
}  // namespace gacc::host
