// NVIDIA's assembler, where there is one.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace gacc::codegen {

// "" where there is none.
inline std::string find_ptxas() {
  for (const char* path : {"/usr/local/cuda/bin/ptxas", "/usr/bin/ptxas"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return std::system("command -v ptxas > /dev/null 2>&1") == 0 ? "ptxas" : "";
}

// Expects that ptxas accepts the text; what it said. A text that it refuses stays in /tmp.
inline std::string assemble(const std::string& ptx, const std::string& target, const std::string& options) {
  char folder[] = "/tmp/gacc-ptx-XXXXXX";
  EXPECT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/all.ptx", log = std::string(folder) + "/log";
  std::ofstream(path) << ptx;
  const int status = std::system(fmt::format("{} {} -arch={} -o {}/all.cubin {} > {} 2>&1", find_ptxas(),
                                             options, target, folder, path, log)
                                     .c_str());
  std::ifstream in(log);
  const std::string messages((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(status, 0) << path << ": " << messages.substr(0, 2000);
  if (status == 0) std::filesystem::remove_all(folder);
  return messages;
}

// Expects `kernels` kernels, none of which has a stack or spills more than `most` bytes of registers.
inline void expect_no_spills(const std::string& ptx, const std::string& target, size_t kernels,
                             int most = 0) {
  const std::string messages = assemble(ptx, target, "-v");
  size_t reports = 0;
  const std::regex spills("(\\d+) bytes stack frame, (\\d+) bytes spill stores, (\\d+) bytes spill loads");
  for (std::sregex_iterator at(messages.begin(), messages.end(), spills), end; at != end; ++at, ++reports) {
    for (int i : {1, 2, 3}) EXPECT_LE(std::stoi((*at)[static_cast<size_t>(i)]), most) << messages;
  }
  EXPECT_EQ(reports, kernels);
}

}  // namespace gacc::codegen
