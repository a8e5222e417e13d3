#include "runtime/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

namespace gacc {

void hold_standard_streams() {
  signal(SIGXFSZ, SIG_IGN);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      if (open("/", O_PATH) < 0) return;  // open gives the lowest free number: this one
}

// Not fmt::print, which throws where the text cannot be written.
void to_stderr(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace gacc
