#include <algorithm>

#include "compiler/plan/plan_of.h"
#include "ir/op_info.h"
#include "ir/text/text.h"
#include "runtime/atomic_file.h"

namespace gacc {

namespace {

// Returns what a region leaves: a digest for each op that writes and for each yield, in no order.
std::vector<uint32_t> results_of(const ir::Module& module, const ir::Region& region) {
  std::vector<std::string> values(region.values.size());  // each as an expression's digest
  const auto text = [&](const ir::Operand& operand) {
    const ir::ValueId* value = ir::as_value(operand);
    return value != nullptr ? values[ir::index(*value)] : ir::operand_text(module, region, operand);
  };
  const auto type = [&](ir::ValueId value) {
    const ir::Type& full = region[value].type;
    return ir::type_text({full.dtype, full.shape});  // without the pitch
  };
  for (const ir::ValueId input : region.inputs)
    values[ir::index(input)] = fmt::format("input {}: {}", region[input].name, type(input));
  std::vector<uint32_t> results;
  for (const ir::Op& op : region.ops) {
    if (op.info == &ir::op_host_fetch) {  // where a weight lies changes nothing
      values[ir::index(op.results.front())] = text(op.operands.front());
      continue;
    }
    std::string line(op.info->name);
    op.each_operand([&](const ir::Operand& operand) { line += ", " + text(operand); });
    if (op.when) line += " when";
    for (const auto& [key, value] : op.attrs) line += fmt::format(" {} = {}", key, ir::attr_text(value));
    for (const ir::ValueId result : op.results) line += " : " + type(result);
    const uint32_t digest = crc32_of(line);
    for (size_t i = 0; i < op.results.size(); ++i)
      values[ir::index(op.results[i])] = fmt::format("%{:08x}.{}", digest, i);
    if (op.info->writes != 0) results.push_back(digest);
  }
  for (const ir::Yield& yield : region.yields) results.push_back(crc32_of(text(yield.what)));
  return results;
}

}  // namespace

uint32_t operations_digest(const ir::Module& module) {
  uint32_t digest = 0;
  for (const ir::Region* region : {&module.step, &module.eval}) {
    std::vector<uint32_t> results = results_of(module, *region);
    std::ranges::sort(results);
    for (const uint32_t result : results) digest = crc32_of(fmt::format("{:08x}\n", result), digest);
    digest = crc32_of("end\n", digest);
  }
  return digest;
}

}  // namespace gacc
