// Files are the old ones or the new ones; every failure is one sentence with the path and the reason.
#include "runtime/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/data/make_files.h"

namespace gacc::test {
namespace {

TEST(AtomicFile, WritesAndReplaces) {
  Folder folder;
  std::string path = folder.path("a");
  ASSERT_EQ(write_file_atomically(path, "one").text(), "");
  EXPECT_EQ(contents(path), "one");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  ASSERT_TRUE(write_file_atomically(path, "two"));
  EXPECT_EQ(contents(path), "two");
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"a"});
}

TEST(AtomicFile, WithoutCommitTheOldFileStays) {
  Folder folder;
  std::string path = folder.put("a", "old");
  {
    AtomicFile file;
    ASSERT_TRUE(file.open(path));
    ASSERT_TRUE(file.write("new"));
    EXPECT_EQ(contents(path), "old");
  }
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(folder.files(), std::vector<std::string>{"a"});
}

// A full disk, played by a limit on the size of files.
TEST(AtomicFile, AFullDiskLeavesTheOldFile) {
  Folder folder;
  std::string path = folder.put("a", "old");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  auto* handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Status status = write_file_atomically(path, std::string(5000, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(status.text(), "cannot write " + path + ": File too large");
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(folder.files(), std::vector<std::string>{"a"});
}

TEST(AtomicFile, DevicesAreWrittenInPlace) {
  EXPECT_EQ(write_file_atomically("/dev/full", "x").text(),
            "cannot write /dev/full: No space left on device");
  EXPECT_EQ(write_file_atomically("/dev/null", "x").text(), "");
  struct stat info;
  ASSERT_EQ(stat("/dev/full", &info), 0);
  EXPECT_TRUE(S_ISCHR(info.st_mode));
}

TEST(AtomicFile, OpenFilesOfThisProcessAreWrittenInPlace) {
  Folder folder;
  std::string path = folder.put("a", "first ");
  int fd = ::open(path.c_str(), O_RDWR);
  struct stat before, after;
  fstat(fd, &before);
  ASSERT_EQ(write_file_atomically(fmt::format("/dev/fd/{}", fd), "second").text(), "");
  stat(path.c_str(), &after);
  close(fd);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(contents(path), "first second");
}

TEST(AtomicFile, LinksStayLinks) {
  Folder folder;
  std::string target = folder.put("target", "old"), link = folder.path("link");
  ASSERT_EQ(symlink("target", link.c_str()), 0);
  ASSERT_TRUE(write_file_atomically(link, "new"));
  struct stat info;
  ASSERT_EQ(lstat(link.c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
  EXPECT_EQ(contents(target), "new");
}

TEST(AtomicFile, ErrorsNameThePathAndTheReason) {
  Folder folder;
  EXPECT_EQ(write_file_atomically(folder.path("no/a"), "x").text(),
            "cannot write " + folder.path("no/a") + ": there is no folder " + folder.path("no"));
  EXPECT_EQ(write_file_atomically(folder.path("."), "x").text(),
            "cannot write " + folder.path(".") + ": it is a folder");
  EXPECT_EQ(write_file_atomically("", "x").text(), "cannot write a file without a name");
  std::string text = write_file_atomically(folder.put("file", "") + "/a", "x").text();
  EXPECT_NE(text.find("Not a directory"), std::string::npos) << text;
  if (geteuid() == 0) return;  // root may write everywhere
  ASSERT_EQ(chmod(folder.path("").c_str(), 0500), 0);
  EXPECT_EQ(write_file_atomically(folder.path("a"), "x").text(),
            "cannot write " + folder.path("a") + ": Permission denied");
  chmod(folder.path("").c_str(), 0700);
}

// Without a second name for the old file nothing stays of it; what has that name moves on.
TEST(AtomicFile, TheOldFileMayStayUnderAnotherName) {
  Folder folder;
  std::string path = folder.path("a"), kept = folder.path("a.old");
  const auto replace = [&](const char* text) {
    AtomicFile file;
    return file.open(path) && file.write(text) && file.commit(kept);
  };
  ASSERT_TRUE(replace("one"));
  EXPECT_EQ(folder.files(), std::vector<std::string>{"a"});
  ASSERT_TRUE(replace("two"));
  ASSERT_TRUE(replace("three"));
  ASSERT_TRUE(replace("four"));
  EXPECT_EQ(folder.files(), (std::vector<std::string>{"a", "a.old", "a.old.2", "a.old.3"}));
  EXPECT_EQ(contents(path), "four");
  EXPECT_EQ(contents(kept), "three");
  EXPECT_EQ(contents(kept + ".2"), "one");
  EXPECT_EQ(contents(kept + ".3"), "two");
  EXPECT_EQ(free_name(kept), kept + ".4");
  kept = folder.path("no/a.old");
  EXPECT_FALSE(replace("five"));
  EXPECT_EQ(contents(path), "four");
}

TEST(FileIdentity, IsTheFileAndNotItsName) {
  Folder folder;
  const std::string file = folder.put("a", "x");
  ASSERT_EQ(mkdir(folder.path("sub").c_str(), 0700), 0);
  ASSERT_EQ(symlink("a", folder.path("link").c_str()), 0);
  ASSERT_EQ(symlink("../link", folder.path("sub/far").c_str()), 0);
  ASSERT_EQ(symlink(".", folder.path("here").c_str()), 0);
  ASSERT_EQ(link(file.c_str(), folder.path("hard").c_str()), 0);
  for (const char* same : {"./a", "sub/../a", "link", "sub/far", "here/here/a", "hard", "no/../a"})
    EXPECT_EQ(identity_of(folder.path(same)), identity_of(file)) << same;
  // Not there yet.
  ASSERT_EQ(symlink("sub/new", folder.path("dangling").c_str()), 0);
  ASSERT_EQ(symlink("no/deep", folder.path("deeper").c_str()), 0);
  const auto missing = identity_of(folder.path("sub/new"));
  for (const char* same :
       {"sub/./new", "here/sub/new", "dangling", "here/dangling", "no/../sub/new", "sub/new/"})
    EXPECT_EQ(identity_of(folder.path(same)), missing) << same;
  EXPECT_EQ(identity_of(folder.path("deeper")), identity_of(folder.path("no/deep")));
  EXPECT_EQ(missing->missing, "new");
  for (const char* other : {"a", "sub", "new", "sub/ne", "sub/new/x", "here"})
    EXPECT_NE(identity_of(folder.path(other)), missing) << other;
  EXPECT_NE(identity_of(folder.path("no")), identity_of(folder.path("no/deep")));
  EXPECT_EQ(identity_of("/dev/null"), std::nullopt);
}

TEST(ReadFile, WhatNeverEndsIsRefused) {
  EXPECT_EQ(read_file("/dev/zero", 99).status().text(), "cannot read /dev/zero: it has more than 99 bytes");
  EXPECT_EQ(read_file("/dev/null").status().text(), "");
}

TEST(ReadFile, ReadsFilesAndPipesUpToTheLimit) {
  Folder folder;
  const std::string text(100000, 'x');
  std::string path = folder.put("a", text);
  EXPECT_EQ(*read_file(path), text);
  EXPECT_TRUE(read_file(path, 100000));
  EXPECT_EQ(read_file(path, 99999).status().text(), "cannot read " + path + ": it has more than 99999 bytes");
  EXPECT_EQ(*read_file(folder.put("empty", "")), "");
  std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { (void)write_file_atomically(pipe, text); });
  const Result<std::string> bytes = read_file(pipe);
  writer.join();
  EXPECT_EQ(*bytes, text);
  EXPECT_EQ(read_file(folder.path("no")).status().text(),
            "cannot read " + folder.path("no") + ": No such file or directory");
  EXPECT_EQ(read_file(folder.path(".")).status().text(),
            "cannot read " + folder.path(".") + ": it is a folder");
}

Status write_folder(const std::string& path, const char* text, bool commits = true) {
  constexpr std::string_view kOwn[] = {"a", "b"};
  AtomicFolder made;
  GACC_TRY(made.open(path, kOwn));
  GACC_TRY(write_file_atomically(made.file("a"), text));
  return commits ? made.commit() : Status();
}

TEST(AtomicFolder, IsTheOldOneOrTheNewOne) {
  Folder folder;
  const std::string path = folder.path("f");
  ASSERT_EQ(write_folder(path, "none", /*commits=*/false).text(), "");
  EXPECT_TRUE(folder.files().empty());
  ASSERT_EQ(write_folder(path + "/", "one").text(), "");
  EXPECT_EQ(contents(path + "/a"), "one");
  ASSERT_TRUE(write_file_atomically(path + "/b", "goes with the old folder"));
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  ASSERT_EQ(write_folder(path, "no", /*commits=*/false).text(), "");
  EXPECT_EQ(contents(path + "/a"), "one");
  ASSERT_EQ(write_folder(path, "two").text(), "");
  EXPECT_EQ(contents(path + "/a"), "two");
  EXPECT_NE(access((path + "/b").c_str(), F_OK), 0);
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_EQ(folder.files(), std::vector<std::string>{"f"});
  // Through a link, which stays one.
  ASSERT_EQ(symlink("f", folder.path("link").c_str()), 0);
  ASSERT_EQ(write_folder(folder.path("link"), "three").text(), "");
  EXPECT_EQ(contents(path + "/a"), "three");
  ASSERT_EQ(lstat(folder.path("link").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
}

TEST(AtomicFolder, NothingElseGoesWithTheOldOne) {
  Folder folder;
  const std::string path = folder.path("f"), file = folder.put("file", "text");
  ASSERT_TRUE(write_folder(path, "one"));
  ASSERT_TRUE(write_file_atomically(path + "/mine", "mine"));
  EXPECT_EQ(write_folder(path, "two").text(), "cannot write the folder " + path +
                                                  ": mine is in it, and would go with the old folder; name "
                                                  "one of its own");
  EXPECT_EQ(contents(path + "/a"), "one");
  EXPECT_EQ(write_folder(file, "two").text(), "cannot write the folder " + file + ": it is a file");
  EXPECT_EQ(write_folder(folder.path("no/f"), "two").text(),
            "cannot write " + folder.path("no/f") + ": there is no folder " + folder.path("no"));
  EXPECT_EQ(folder.files(), (std::vector<std::string>{"f", "file"}));
}

// A run that is killed leaves its temporary file; the next one that writes into the folder removes it.
TEST(AtomicFile, WhatKilledRunsLeftIsSwept) {
  Folder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t killed = fork();
  if (killed == 0) {
    AtomicFile file;
    constexpr std::string_view kOwn[] = {"a"};
    AtomicFolder inner;
    const bool open = file.open(folder.path("a")).ok() && inner.open(folder.path("f"), kOwn).ok() &&
                      write_file_atomically(inner.file("a"), "half").ok();
    (void)!write(ready[1], open ? "y" : "n", 1);
    while (true) pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  const std::vector<std::string> held = folder.files();
  EXPECT_EQ(held.size(), 2U);
  {
    AtomicFile beside;
    ASSERT_EQ(beside.open(folder.path("b")).text(), "");
    EXPECT_EQ(folder.files().size(), 3U) << "what a process holds stays";
  }
  kill(killed, SIGKILL);
  ASSERT_EQ(waitpid(killed, nullptr, 0), killed);
  EXPECT_EQ(folder.files(), held);
  folder.put(".gacc-mine", "not ours");
  ASSERT_EQ(write_file_atomically(folder.path("b"), "new").text(), "");
  EXPECT_EQ(folder.files(), (std::vector<std::string>{".gacc-mine", "b"}));
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace gacc::test
