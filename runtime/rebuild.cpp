// See rebuild.h. The compiler runs as a process of its own, with the signals this one has blocked let
// through.
#include "runtime/rebuild.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "runtime/atomic_file.h"

extern char** environ;

namespace gacc {
namespace {

constexpr int kCompilerFault = 3;  // gaccc's exit status for an internal error; lower ones refuse the input

// Runs a command with its output in a file; `code` is the exit status, 128 + N after a signal.
Status run_command(std::vector<std::string> words, const std::string& output, int& code) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t child = 0;
  const int failure =
      posix_spawn(&child, words.front().c_str(), &files, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) return Status::error("cannot run {}: {}", words.front(), std::strerror(failure));
  int ended = 0;
  while (waitpid(child, &ended, 0) < 0)
    if (errno != EINTR) return Status::error("cannot wait for {}: {}", words.front(), std::strerror(errno));
  code = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
  return {};
}

// The line that says what is wrong.
std::string reason(const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);)
    if (line.find("error") != std::string::npos || line.starts_with("gaccc: ")) return line;
  return "no reason given";
}

}  // namespace

Rebuilder::Rebuilder(const Artifact& artifact, std::string folder)
    : artifact_(artifact), compiler_(std::move(folder) + "/gaccc") {}

Rebuilder::~Rebuilder() {
  std::error_code none;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, none);
}

Result<std::string> Rebuilder::folder() {
  if (!folder_.empty()) return folder_;
  const char* place = getenv("TMPDIR");
  std::string name = fmt::format("{}/gacc-verify-XXXXXX", place && *place ? place : "/tmp");
  if (!mkdtemp(name.data())) return Status::error("cannot make a folder {}: {}", name, std::strerror(errno));
  return folder_ = name;
}

Status Rebuilder::prepare() {
  if (artifact_.model.empty()) return Status::error("the artifact has no record of its model");
  if (access(compiler_.c_str(), X_OK) != 0)
    return Status::error("{} is not there (Debian package gacc-compiler)", compiler_);
  return write_file_atomically(GACC_TRY(folder()) + "/model.toml", artifact_.model);
}

Result<Artifact> Rebuilder::compile(const std::vector<std::pair<std::string, std::string>>& settings) {
  faulty_ = false;
  GACC_TRY(prepare());
  const std::string product = folder_ + "/step.ptx", output = folder_ + "/output";
  std::vector<std::string> words = {compiler_,  folder_ + "/model.toml", "-o", product,
                                    "--target", artifact_.plan.target};
  // A later --set of a key replaces an earlier one, but is an error where both are given; so only the last.
  std::vector<std::pair<std::string, std::string>> all;
  for (const std::string& set : artifact_.overrides) {
    const size_t equals = std::min(set.find('='), set.size());
    all.emplace_back(set.substr(0, equals), set.substr(std::min(equals + 1, set.size())));
  }
  for (const auto& setting : settings) {
    std::erase_if(all, [&](const auto& earlier) { return earlier.first == setting.first; });
    all.emplace_back(setting.first, setting.second);
  }
  for (const auto& [key, value] : all) words.insert(words.end(), {"--set", key + "=" + value});
  int code = 0;
  GACC_TRY(run_command(words, output, code));
  faulty_ = code >= kCompilerFault;
  if (code != 0) {
    std::string why = reason(GACC_TRY(read_file(output)));
    if (const size_t at = why.find(folder_); at != std::string::npos) why.erase(at, folder_.size() + 1);
    return Status::error("gaccc gives up with exit {}: {}", code, why);
  }
  return load_artifact(product);
}

}  // namespace gacc
