// See artifact_plan.h.
#include "codegen/artifact_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/product_workspace.h"

namespace gacc {

namespace {

// Constants lifted out of a body travel among the extents as their 32 bits; the plan carries no negative
// extents.
PlanArgument argument(const codegen::Extent& extent) {
  PlanArgument result{PlanArgument::Kind::extent};
  result.extent = extent.factor < 0 ? extent.factor & 0xffffffff : extent.factor;
  result.times_batch = extent.times_batch;
  return result;
}

PlanArgument address(int64_t offset) { return {PlanArgument::Kind::address, offset}; }

std::optional<PlanLaunch> kernel_launch(const ir::Module& module, const ir::Region& region,
                                        const codegen::Call& call, const std::string& entry,
                                        std::string& problem) {
  PlanLaunch launch;
  launch.kernel = entry;
  for (const ir::Operand& operand : call.operands) {
    const std::optional<int64_t> offset = arena_offset(module, region, operand);
    if (!offset) {
      problem = fmt::format("kernel {}: {} has no place in the arena", entry,
                            operand_text(module, region, operand));
      return std::nullopt;
    }
    launch.arguments.push_back(address(*offset));
  }
  for (const codegen::Extent& extent : call.extents) launch.arguments.push_back(argument(extent));
  launch.block = call.block;
  launch.grid = argument(call.items);
  launch.per_block = call.per_block;
  return launch;
}

// Of call number `product`.
std::optional<PlanLaunch> product_launch(const ir::Module& module, ir::RegionKind kind,
                                         const codegen::DeviceCode& code, size_t product, int capability,
                                         std::string& problem) {
  const ir::Region& region = module.region(kind);
  const std::vector<codegen::Call>& calls = code.program.calls(kind);
  std::optional<PlanLaunch> launch = gemm_launch(module, region, calls[product].kernel, problem);
  const std::optional<codegen::GemmKernel> builtin =
      codegen::choose_product(module, region, code.program, calls, product,
                              code.epilogues[static_cast<size_t>(kind)], capability, problem);
  if (!launch || !builtin) return std::nullopt;
  launch->builtin = {builtin->name(), builtin->tile->threads(), builtin->tile->m, builtin->tile->n};
  return launch;
}

// Gives the built-in products what their epilogues take. `launched`: the launch of each call, or -1.
void add_arguments(const std::vector<codegen::Epilogue>& epilogues, const std::vector<int64_t>& launched,
                   PlanProgram& program) {
  for (const codegen::Epilogue& epilogue : epilogues) {
    PlanLaunch& launch = program.launches[static_cast<size_t>(launched[epilogue.product])];
    PlanBuiltin& builtin = launch.builtin;
    builtin.does = launched[epilogue.kernel];
    // As the entry takes them (codegen/emit/gemm.h): the kernel's operands, the product's, and so its
    // extents.
    const std::vector<PlanArgument>& own = program.launches[static_cast<size_t>(builtin.does)].arguments;
    const auto extents = std::find_if(own.begin(), own.end(), [](const PlanArgument& argument) {
      return argument.kind == PlanArgument::Kind::extent;
    });
    builtin.arguments.assign(own.begin(), extents);
    for (const int64_t offset : {launch.a, launch.b, launch.c}) builtin.arguments.push_back(address(offset));
    builtin.arguments.insert(builtin.arguments.end(), extents, own.end());
    builtin.arguments.insert(builtin.arguments.end(), {launch.m, launch.n, launch.k});
  }
}

// The vector that `op` adds to each row of `product` ([.., n] f32), when that is all it does and the vector
// is a parameter, which no step writes.
std::optional<int64_t> added_vector(const ir::Module& module, const ir::Region& region, const ir::Op& op,
                                    const ir::StorageRoots& root, ir::ValueId product) {
  if (op.info->name != "add" || op.when) return std::nullopt;
  for (const size_t at : {size_t{0}, size_t{1}}) {
    const ir::BufferId* vector = ir::as_buffer(op.operands[at]);
    if (vector == nullptr || root(op.operands[1 - at]) != ir::Operand(product)) continue;
    const ir::Buffer& buffer = module[*vector];
    const ir::Shape row = {region[product].type.shape.back()};
    const bool fits = buffer.type.shape == row && buffer.type.dtype == ir::DType::f32;
    if (fits && buffer.kind == ir::BufferKind::param) return buffer.offset;
  }
  return std::nullopt;
}

// Notes which products a library may give their bias (PlanBias). `launched`: the launch of each call, or -1.
void add_biases(const ir::Module& module, const ir::Region& region, const std::vector<codegen::Call>& calls,
                const std::vector<int64_t>& launched, PlanProgram& program) {
  constexpr int64_t kAlignment = 16;  // of a bias, for the library
  // 1. Who reads each value: its readers' number, and the last of them.
  const ir::StorageRoots root(region);
  std::vector<int> readers(region.values.size(), 0);
  std::vector<size_t> reader(region.values.size(), 0);
  const auto index = [&](const ir::Operand& operand) -> std::optional<size_t> {
    const ir::Operand owner = root(operand);
    const ir::ValueId* value = ir::as_value(owner);
    return value != nullptr ? std::optional(static_cast<size_t>(value->index)) : std::nullopt;
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    if (launched[i] < 0) continue;
    for (const ir::Operand& operand : calls[i].kernel.reads)
      if (const std::optional<size_t> value = index(operand)) ++readers[*value], reader[*value] = i;
  }
  for (const ir::Yield& yield : region.yields)
    if (const std::optional<size_t> value = index(yield.what)) ++readers[*value];
  // 2. Products that one kernel reads, which adds a vector and whose result takes the product's place.
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kernel.form != ir::KernelForm::gemm) continue;
    PlanLaunch& launch = program.launches[static_cast<size_t>(launched[i])];
    if (launch.accumulate || launch.type != "f32" || launch.result != "f32") continue;
    const ir::ValueId product = region.ops[calls[i].kernel.members.front().op].results[0];
    const auto at = static_cast<size_t>(product.index);
    if (readers[at] != 1 || reader[at] <= i) continue;
    const ir::Kernel& kernel = calls[reader[at]].kernel;
    if (kernel.members.size() != 1 || kernel.form != ir::KernelForm::pointwise) continue;
    const ir::Op& op = region.ops[kernel.members.front().op];
    const std::optional<int64_t> vector = added_vector(module, region, op, root, product);
    if (!vector || *vector % kAlignment != 0) continue;
    if (arena_offset(module, region, ir::Operand(op.results[0])) == launch.c)
      launch.bias = PlanBias{*vector, launched[reader[at]]};
  }
}

// Gives every product the bytes of the arena that hold nothing while it runs.
void add_workspaces(const ir::Module& module, const ir::Region& region,
                    const std::vector<codegen::Call>& calls, const std::vector<int64_t>& launched,
                    PlanProgram& program) {
  std::vector<ir::Kernel> kernels;
  for (const codegen::Call& call : calls) kernels.push_back(call.kernel);
  const std::vector<std::optional<PlanWorkspace>> found = product_workspaces(module, region, kernels);
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i]) program.launches[static_cast<size_t>(launched[i])].workspace = found[i];
}

}  // namespace

bool add_programs(const ir::Module& module, const codegen::DeviceCode& code, Plan& plan,
                  std::string& problem) {
  if (!code.programs.empty()) {
    plan.programs = code.programs;
    return true;
  }
  plan.programs.clear();
  for (const ir::RegionKind kind : ir::all_regions) {
    const ir::Region& region = module.region(kind);
    PlanProgram program{std::string(ir::region_text(kind)), {}};
    std::vector<int64_t> launched;
    const std::vector<codegen::Call>& calls = code.program.calls(kind);
    for (size_t i = 0; i < calls.size(); ++i) {
      const codegen::Call& call = calls[i];
      const bool none = call.kernel.form == ir::KernelForm::alias;
      launched.push_back(none ? -1 : static_cast<int64_t>(program.launches.size()));
      if (none) continue;
      std::optional<PlanLaunch> launch =
          call.kernel.form == ir::KernelForm::gemm
              ? product_launch(module, kind, code, i, codegen::capability(plan.target), problem)
              : kernel_launch(module, region, call, code.entries[static_cast<size_t>(call.function)],
                              problem);
      if (!launch) return false;
      program.launches.push_back(std::move(*launch));
    }
    // The update's launches are merged, and then run in another order (merge_update in nvptx.cpp).
    if (kind == ir::RegionKind::step || kind == ir::RegionKind::eval) {
      add_biases(module, region, calls, launched, program);
      add_workspaces(module, region, calls, launched, program);
    }
    add_arguments(code.epilogues[static_cast<size_t>(kind)], launched, program);
    plan.programs.push_back(std::move(program));
  }
  return true;
}

}  // namespace gacc
