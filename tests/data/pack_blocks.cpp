// What tests/parity/blocks.py compares: numbers of standard input as blocks on standard output, or back.
//     pack_blocks pack|unpack FORMAT
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/blocks.h"

int main(int count, char** words) {
  const gacc::BlockFormat* format = count == 3 ? gacc::block_format(words[2]) : nullptr;
  if (format == nullptr) return 2;
  std::string in, out;
  char part[1 << 16];
  while (const size_t got = std::fread(part, 1, sizeof part, stdin)) in.append(part, got);
  if (std::strcmp(words[1], "pack") == 0) {
    std::vector<float> numbers(in.size() / sizeof(float));
    std::memcpy(numbers.data(), in.data(), in.size());
    out.resize(numbers.size() / static_cast<size_t>(format->numbers) * static_cast<size_t>(format->bytes));
    if (const gacc::Status status =
            gacc::quantize(*format, numbers, reinterpret_cast<std::byte*>(out.data()), "w");
        !status) {
      std::fprintf(stderr, "%s\n", status.text().c_str());
      return 1;
    }
  } else {
    std::vector<float> numbers(in.size() / static_cast<size_t>(format->bytes) *
                               static_cast<size_t>(format->numbers));
    gacc::dequantize(*format, reinterpret_cast<const std::byte*>(in.data()), 0, numbers);
    out.assign(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  }
  return std::fwrite(out.data(), 1, out.size(), stdout) == out.size() ? 0 : 1;
}
