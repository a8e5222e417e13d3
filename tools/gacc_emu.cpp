// gacc-emu: lists the kernels of a PTX file as the emulator reads them. A file it cannot read exits 1, naming
// the line and the opcode.
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "runtime/emulator/emulator.h"

int main(int argc, char** argv) {
  if (argc == 2 && !std::strcmp(argv[1], "--version")) return fmt::print("gacc-emu {}\n", GACC_VERSION), 0;
  if (argc != 2 || argv[1][0] == '-') {
    bool help = argc == 2 && (!std::strcmp(argv[1], "--help") || !std::strcmp(argv[1], "-h"));
    fmt::print(
        help ? stdout : stderr,
        "usage: gacc-emu FILE.ptx\nLists the file's kernels with parameters, registers and shared memory.\n");
    return help ? 0 : 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  if (!file) return fmt::print(stderr, "gacc-emu: error: cannot open `{}`\n", argv[1]), 1;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() && !file.eof())
    return fmt::print(stderr, "gacc-emu: error: cannot read `{}`\n", argv[1]), 1;
  std::vector<gacc::emulator::KernelInfo> kernels;
  if (gacc::Status status = gacc::emulator::list_kernels(text, kernels); !status)
    return fmt::print(stderr, "{}: error: {}\n", argv[1], status.text()), 1;
  for (const auto& kernel : kernels) {
    fmt::print("{}: {} registers, {} bytes shared, {} bytes local", kernel.name, kernel.registers,
               kernel.shared_bytes, kernel.local_bytes);
    if (kernel.max_threads > 0) fmt::print(", at most {} threads", kernel.max_threads);
    fmt::print("\n");
    for (const auto& param : kernel.params)
      fmt::print("  {:>4}  {:<5} {:>3} bytes  {}\n", param.offset, param.type, param.bytes, param.name);
  }
  return 0;
}
