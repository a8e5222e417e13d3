// See artifact_plan.h.
#include "codegen/artifact_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

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
    launch.arguments.push_back({PlanArgument::Kind::address, *offset});
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
  const std::optional<codegen::GemmKernel> builtin = codegen::choose_product(
      module, region, calls, product, code.epilogues[static_cast<size_t>(kind)], capability, problem);
  if (!launch || !builtin) return std::nullopt;
  launch->builtin = {builtin->name(), builtin->tile->threads(), builtin->tile->m, builtin->tile->n};
  return launch;
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

// The bias that a library may add in an epilogue's place: one kernel reads the product, adds a vector and
// writes where the product was.
std::optional<PlanBias> library_bias(const ir::Module& module, const ir::Region& region,
                                     const std::vector<codegen::Call>& calls, const ir::StorageRoots& root,
                                     const codegen::Epilogue& epilogue, const PlanLaunch& launch) {
  constexpr int64_t kAlignment = 16;  // of a bias, for the library
  const ir::Kernel& kernel = calls[epilogue.kernel].kernel;
  if (epilogue.part.keeps || kernel.members.size() != 1 || launch.type != "f32" || launch.result != "f32")
    return std::nullopt;
  const ir::ValueId product = region.ops[calls[epilogue.product].kernel.members.front().op].results[0];
  const ir::Op& op = region.ops[kernel.members.front().op];
  const std::optional<int64_t> vector = added_vector(module, region, op, root, product);
  const bool in_place = arena_offset(module, region, ir::Operand(op.results[0])) == launch.c;
  if (!vector || *vector % kAlignment != 0 || !in_place) return std::nullopt;
  return PlanBias{*vector, launch.builtin.does};
}

// Gives products their epilogues: the built-in ones what these take, and those of a library a bias.
// `launched`: the launch of each call, or -1.
void add_epilogues(const ir::Module& module, const ir::Region& region,
                   const std::vector<codegen::Call>& calls, const std::vector<codegen::Epilogue>& epilogues,
                   const std::vector<int64_t>& launched, PlanProgram& program) {
  const ir::StorageRoots root(region);
  for (const codegen::Epilogue& epilogue : epilogues) {
    PlanLaunch& launch = program.launches[static_cast<size_t>(launched[epilogue.product])];
    PlanBuiltin& builtin = launch.builtin;
    builtin.does = launched[epilogue.kernel];
    launch.bias = library_bias(module, region, calls, root, epilogue, launch);
    // As the entry takes them (codegen/emit/gemm.h): addresses of the kernel and of the product, and so
    // their extents.
    const std::vector<PlanArgument>& own = program.launches[static_cast<size_t>(builtin.does)].arguments;
    const std::vector<PlanArgument> product = builtin_arguments(launch);
    for (const PlanArgument::Kind kind : {PlanArgument::Kind::address, PlanArgument::Kind::extent})
      for (const auto* arguments : {&own, &product})
        std::copy_if(arguments->begin(), arguments->end(), std::back_inserter(builtin.arguments),
                     [&](const PlanArgument& argument) { return argument.kind == kind; });
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

bool choose_kernels(const ir::Module& module, int capability, codegen::DeviceCode& code,
                    std::string& problem) {
  for (const codegen::Body& body : code.program.functions) code.entries.push_back(body.name);
  for (const ir::RegionKind kind : ir::all_regions) {
    const ir::Region& region = module.region(kind);
    const std::vector<codegen::Call>& calls = code.program.calls(kind);
    std::vector<codegen::Epilogue>& epilogues = code.epilogues[static_cast<size_t>(kind)];
    if (module.phase == ir::Phase::planned)
      epilogues = codegen::find_epilogues(module, region, code.program, calls);
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].kernel.form != ir::KernelForm::gemm) continue;
      const std::optional<codegen::GemmKernel> kernel =
          codegen::choose_product(module, region, calls, i, epilogues, capability, problem);
      if (!kernel) return false;
      // The distinct ones, in order of first use.
      if (std::find(code.products.begin(), code.products.end(), *kernel) == code.products.end())
        code.products.push_back(*kernel);
    }
  }
  return true;
}

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
    add_epilogues(module, region, calls, code.epilogues[static_cast<size_t>(kind)], launched, program);
    // The update's launches are merged, and then run in another order (merge_update in nvptx.cpp).
    if (kind == ir::RegionKind::step || kind == ir::RegionKind::eval)
      add_workspaces(module, region, calls, launched, program);
    plan.programs.push_back(std::move(program));
  }
  return true;
}

}  // namespace gacc
