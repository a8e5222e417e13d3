// Collects and prints reports.
#include "emulator/report.h"

#include <fmt/format.h>

namespace gacc::emulator {

const char* defect_name(Defect defect) {
  static constexpr const char* names[] = {// in the order of Defect
                                          "out-of-bounds access",
                                          "misaligned access",
                                          "uninitialised read of memory",
                                          "uninitialised read of a register",
                                          "shared-memory race",
                                          "global-memory race",
                                          "divergent barrier",
                                          "bad warp mask",
                                          "integer division by zero",
                                          "deadlock",
                                          "endless kernel",
                                          "trap"};
  return names[static_cast<size_t>(defect)];
}

std::string Report::render() const {
  std::string times = count == 1 ? "" : fmt::format(", {} times", count);
  return fmt::format("{}: line {}: {}: {}, block ({},{},{}) thread ({},{},{}){}", kernel, line,
                     defect_name(defect), text, block.x, block.y, block.z, thread.x, thread.y, thread.z,
                     times);
}

Report* Reports::add(Defect defect, const std::string& kernel, int line) {
  auto [place, fresh] = index_.try_emplace({defect, kernel, line}, reports_.size());
  if (!fresh) {
    ++reports_[place->second].count;
    return nullptr;
  }
  Report& report = reports_.emplace_back();
  report.defect = defect;
  report.kernel = kernel;
  report.line = line;
  return &report;
}

}  // namespace gacc::emulator
