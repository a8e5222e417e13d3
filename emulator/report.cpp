// Collects and prints reports.
#include "emulator/report.h"

#include <fmt/format.h>

namespace gacc::emulator {

const char* defect_name(Defect defect) {
  switch (defect) {
    case Defect::out_of_bounds:
      return "out-of-bounds access";
    case Defect::misaligned:
      return "misaligned access";
    case Defect::uninitialised_memory:
      return "uninitialised read of memory";
    case Defect::uninitialised_register:
      return "uninitialised read of a register";
    case Defect::shared_race:
      return "shared-memory race";
    case Defect::global_race:
      return "global-memory race";
    case Defect::divergent_barrier:
      return "divergent barrier";
    case Defect::bad_shuffle:
      return "bad warp mask";
    case Defect::division_by_zero:
      return "integer division by zero";
    case Defect::deadlock:
      return "deadlock";
    case Defect::endless:
      return "endless kernel";
    case Defect::trap:
      return "trap";
  }
  return "defect";
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
