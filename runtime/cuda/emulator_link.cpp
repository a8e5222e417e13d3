#include "runtime/cuda/emulator_link.h"

#include <algorithm>

#include "runtime/cuda/libraries.h"

namespace gacc::cuda {

Status EmulatorLink::open(const Driver& driver) {
  Symbols symbols(driver.library);
  symbols.find(count_, "gacc_emu_report_count");
  symbols.find(text_, "gacc_emu_reports");
  symbols.find(declare_, "gacc_emu_declare_live");
  symbols.find(executed_, "gacc_emu_executed");
  symbols.find(values_, "gacc_emu_values");
  if (symbols.missing() == nullptr) return {};
  return Status::error("libgacc-emu.so is not gacc's emulator: it lacks gacc_emu_report_count and its like");
}

void EmulatorLink::declare_live(const Plan& plan, Pointer arena) const {
  for (const NamedBytes& range : named_bytes(plan))
    declare_live(arena, range.offset, range.bytes, range.name.c_str());
}

Status EmulatorLink::values(Stream stream, Pointer arena, const std::vector<PlanValue>& values) const {
  std::vector<int64_t> numbers;
  for (const PlanValue& value : values)
    numbers.insert(numbers.end(), {value.offset, value.bytes, value.first, value.last});
  if (values_(stream, arena, numbers.data(), values.size()) == 0) return {};
  return Status::error("the emulator does not take the plan's values");
}

int64_t EmulatorLink::reports(std::string& text) const {
  const size_t count = count_();
  text.clear();
  if (count == 0) return 0;
  text.resize(text_(nullptr, 0) + 1);  // the text's length; then the text and a zero
  text_(text.data(), text.size());
  text.resize(text.find('\0'));
  return static_cast<int64_t>(count);
}

std::vector<NamedBytes> named_bytes(const Plan& plan) {
  // 1. Buffers, and the gaps between them.
  std::vector<NamedBytes> ranges, gaps;
  for (const PlanBuffer& buffer : plan.buffers)
    if (buffer.bytes > 0 && buffer.in.empty() && buffer.offset < plan.arena_bytes)
      ranges.push_back({buffer.offset, buffer.room, buffer.name});
  std::ranges::sort(ranges, {}, &NamedBytes::offset);
  int64_t end = 0;
  for (const NamedBytes& range : ranges) {
    if (range.offset > end) gaps.push_back({end, range.offset - end, "values"});
    end = range.offset + range.bytes;
  }
  if (plan.arena_bytes > end) gaps.push_back({end, plan.arena_bytes - end, "values"});
  // 2. A gap holds values when a launch or an input points into it; else it is padding. It begins with the
  // first.
  std::vector<int64_t> used;
  for (const PlanInput& input : plan.inputs) used.insert(used.end(), {input.step_offset, input.eval_offset});
  for (const PlanProgram& program : plan.programs)
    for (const PlanLaunch& launch : program.launches) {
      if (launch.kernel.empty() && !launch.copy) used.insert(used.end(), {launch.a, launch.b, launch.c});
      if (launch.workspace) used.push_back(launch.workspace->offset);
      used.insert(used.end(), launch.touches.begin(), launch.touches.end());
      for (const PlanArgument& argument : launch.arguments)
        if (argument.kind == PlanArgument::Kind::address) used.push_back(argument.offset);
    }
  std::ranges::sort(used);
  for (NamedBytes& gap : gaps) {
    const auto first = std::ranges::lower_bound(used, gap.offset);
    if (first == used.end() || *first >= gap.offset + gap.bytes) continue;
    gap.bytes -= *first - gap.offset;
    gap.offset = *first;
    ranges.push_back(gap);
  }
  std::ranges::sort(ranges, {}, &NamedBytes::offset);
  return ranges;
}

}  // namespace gacc::cuda
