// The object cache: hits, misses, damage, and its bound.
#include "codegen/host/cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

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

std::string numbered_key(int i) {
  const std::string number = std::to_string(i);
  return std::string(32 - number.size(), 'a') + number;
}

TEST_F(CacheTest, KeepsTheNewest) {
  const Cache cache(folder_);
  const std::string others[] = {folder_ + "/mine.o", folder_ + "/" + numbered_key(1) + ".c"};
  for (const std::string& other : others) std::ofstream(other) << "not the cache's";
  for (int i = 0; i < Cache::kEntries + 10; ++i) {
    cache.store(numbered_key(i), "object");
    fs::last_write_time(cache.path(numbered_key(i)),
                        fs::file_time_type::clock::now() - std::chrono::hours(1000 - i));
  }
  cache.store("last", "object");
  EXPECT_FALSE(cache.load(numbered_key(0)));
  EXPECT_TRUE(cache.load(numbered_key(Cache::kEntries + 9)));
  EXPECT_TRUE(cache.load("last"));
  for (const std::string& other : others) EXPECT_TRUE(fs::exists(other)) << other << " is no entry";
}

TEST_F(CacheTest, AnEntryOfAnotherKeyIsNone) {
  const Cache cache(folder_);
  cache.store("a", "of a");
  cache.store("b", "of b");
  fs::copy_file(cache.path("a"), cache.path("b"), fs::copy_options::overwrite_existing);
  EXPECT_FALSE(cache.load("b")) << "other weights would be run";
  cache.store("b", "of b");
  EXPECT_EQ(cache.load("b"), "of b");
}

TEST_F(CacheTest, WhatOthersCanWriteIsNoEntry) {
  const Cache cache(folder_);
  cache.store("a", "object");
  for (const fs::perms more : {fs::perms::others_write, fs::perms::group_write}) {
    fs::permissions(cache.path("a"), more, fs::perm_options::add);
    EXPECT_FALSE(cache.load("a"));
    fs::permissions(cache.path("a"), more, fs::perm_options::remove);
    EXPECT_TRUE(cache.load("a"));
  }
  fs::rename(cache.path("a"), folder_ + "/elsewhere");
  fs::create_symlink(folder_ + "/elsewhere", cache.path("a"));
  EXPECT_FALSE(cache.load("a")) << "a link";
  cache.store("a", "new");
  EXPECT_EQ(cache.load("a"), "new");
  EXPECT_FALSE(fs::is_symlink(cache.path("a")));
  fs::remove(cache.path("a"));
  ASSERT_EQ(mkfifo(cache.path("a").c_str(), 0600), 0);
  EXPECT_FALSE(cache.load("a")) << "a pipe, which nobody writes to";
  cache.store("a", "new");
  EXPECT_EQ(cache.load("a"), "new");
}

TEST_F(CacheTest, ALinkIsNoFolder) {
  fs::create_directory(folder_ + "/mine");
  fs::create_directory_symlink(folder_ + "/mine", folder_ + "/gacc");
  setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  EXPECT_FALSE(Cache::open().enabled());
  unsetenv("XDG_CACHE_HOME");
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
