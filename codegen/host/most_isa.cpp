#include "codegen/host/most_isa.h"

#include <cstdlib>
#include <string_view>

namespace gacc::codegen {

Isa most_isa() {
  static const Isa most = [] {
    const char* const said = std::getenv("ONEDNN_MAX_CPU_ISA");
    const std::string_view word = said == nullptr ? "" : said;
    if (word.starts_with("AVX2")) return Isa::avx2;
    return word == "AVX" || word == "SSE41" ? Isa::sse : Isa::avx512;
  }();
  return most;
}

}  // namespace gacc::codegen
