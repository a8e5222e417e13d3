#include "runtime/standard_streams.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <mutex>

namespace gacc {

namespace {

std::mutex mutex;
bool shows = false;  // a moving line

void write(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

void clear() {
  if (!std::exchange(shows, false)) return;
  write("\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace

void hold_standard_streams() {
  signal(SIGXFSZ, SIG_IGN);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      if (open("/", O_PATH) < 0) return;  // open gives the lowest free number: this one
}

// Not fmt::print, which throws where the text cannot be written.
void to_stderr(std::string_view text) {
  const std::lock_guard lock(mutex);
  clear();
  write(text);
}

void show_moving_line(std::string_view text) {
  size_t end = 0, columns = 0;  // of what is shown; a letter of UTF-8 has one byte that continues none
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  for (const size_t most = moving_line_columns(); end < text.size(); ++end)
    if (!continues(end) && ++columns > most) break;
  const std::lock_guard lock(mutex);
  write("\r\x1b[K");
  write(text.substr(0, end));
  std::fflush(stderr);
  shows = true;
}

void clear_moving_line() {
  const std::lock_guard lock(mutex);
  clear();
}

size_t moving_line_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79;
}

}  // namespace gacc
