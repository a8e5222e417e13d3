// gacc-emu: lists the kernels of a PTX file as the emulator reads them. A file it cannot read exits 1, naming
// the line and the opcode.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "emulator/emulator.h"
#include "runtime/atomic_file.h"
#include "runtime/standard_streams.h"
#include "tools/command_line.h"

namespace {

int write_output(const std::string& text) {
  const bool whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) == 0 && whole) return 0;
  gacc::print_stderr("gacc-emu: error: cannot write standard output: {}\n", std::strerror(errno));
  return 1;
}

std::string kernel_text(const gacc::emulator::KernelInfo& kernel) {
  std::string text = fmt::format("{}: {} registers, {} bytes shared, {} bytes local", kernel.name,
                                 kernel.registers, kernel.shared_bytes, kernel.local_bytes);
  if (kernel.max_threads > 0) text += fmt::format(", at most {} threads", kernel.max_threads);
  text += "\n";
  for (const auto& param : kernel.params)
    text +=
        fmt::format("  {:>4}  {:<5} {:>3} bytes  {}\n", param.offset, param.type, param.bytes, param.name);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  gacc::hold_standard_streams();
  std::string word;
  CLI::App app("Lists the kernels of a PTX file: parameters, registers and shared memory.", "gacc-emu");
  app.add_option("FILE", word, "the PTX, an artifact for instance")->type_name("")->required();
  app.set_version_flag("--version", "gacc-emu " GACC_VERSION);
  app.footer(R"(Examples:
    gacc-emu step.ptx

Exit status:
    0 done   1 the file is wrong, or has what the emulator does not know   2 the command line is wrong
)");
  if (const std::optional<int> ended = gacc::parse_command_line(app, argc, argv)) return *ended;
  std::string text;
  if (gacc::Status status = gacc::read_file(word, text); !status)
    return gacc::print_stderr("gacc-emu: error: {}\n", status.text()), 1;
  std::vector<gacc::emulator::KernelInfo> kernels;
  if (gacc::Status status = gacc::emulator::list_kernels(text, kernels); !status)
    return gacc::print_stderr("{}: error: {}\n", word, status.text()), 1;
  std::string out;
  for (const auto& kernel : kernels) out += kernel_text(kernel);
  return write_output(out);
}
