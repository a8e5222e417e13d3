// gacc-emu: lists the kernels of a PTX file as the emulator reads them. A file it cannot read exits 1, naming
// the line and the opcode.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "emulator/emulator.h"
#include "runtime/atomic_file.h"
#include "runtime/standard_streams.h"
#include "tools/command_line.h"

namespace {

using namespace gacc;

std::string kernel_text(const emulator::KernelInfo& kernel) {
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
  std::string word;
  CLI::App app("Lists the kernels of a PTX file: parameters, registers and shared memory.", "gacc-emu");
  app.add_option("FILE", word, "the PTX, an artifact for instance")->type_name("")->required();
  app.set_version_flag("--version", "gacc-emu " GACC_VERSION);
  app.footer(R"(Examples:
    gacc-emu step.ptx

Exit status:
    0 done   1 the file is wrong, or has what the emulator does not know   2 the command line is wrong
)");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  const Result<std::string> text = read_file(word);
  if (!text) return exit_status(text.status());
  std::vector<emulator::KernelInfo> kernels;
  if (const Status status = emulator::list_kernels(*text, kernels); !status) {
    print_stderr("{}: error: {}\n", word, status.text());
    return kFailed;
  }
  std::string out;
  for (const auto& kernel : kernels) out += kernel_text(kernel);
  return exit_status(write_output("-", out));
}
