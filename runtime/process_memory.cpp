// See process_memory.h.
#include "runtime/process_memory.h"

#include <fmt/format.h>

#include <fstream>

namespace gacc {

int64_t process_peak_bytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  int64_t kibibytes = 0;
  while (file >> word && word != "VmHWM:") continue;
  return file >> kibibytes ? kibibytes * 1024 : 0;
}

std::string process_memory_text(int64_t arena, int64_t process) {
  if (process <= 0) return "";
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return fmt::format(
      "memory: {:.1f} MiB at most: the arena's {:.1f} MiB as planned, and {:.1f} MiB for the program, its "
      "code and the data",
      mib(process), mib(arena), mib(process - arena));
}

}  // namespace gacc
