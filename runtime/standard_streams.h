// Standard input, output and error of a command, as the caller left them: perhaps closed, perhaps a full disk
// or a terminal that is gone. None of that may damage a file or end a run that goes well.
#pragma once
#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace gacc {

// Called first in main. A descriptor that the caller has closed (`gacc-exec ... >&-`) would be given to the
// next file that is opened, and what is meant for the reader would be written into a log or a checkpoint. It
// is taken here by something that can be neither read nor written. And a file beyond the limit of its size
// becomes an error like a full disk.
void hold_standard_streams();

// To standard error, in the place of a moving line. What cannot be written is lost, and that is all.
void to_stderr(std::string_view text);

// Shows a line on standard error, a terminal, in the place of the one before, as far as it has columns. Any thread may
// call these.
void show_moving_line(std::string_view text);
// Removes it, if there is one: before something else is written to the terminal.
void clear_moving_line();
// Returns how many columns such a line may have.
size_t moving_line_columns();

template <class... Args>
void print_stderr(fmt::format_string<Args...> form, Args&&... args) {
  to_stderr(fmt::format(form, std::forward<Args>(args)...));
}

}  // namespace gacc
