// PTX: a module's kernels through LLVM's NVPTX back end. Target names are checked here, because LLVM only
// warns about one that it does not know and then writes a file that nothing accepts.
#include "codegen/nvptx.h"

#include <fmt/format.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>

#include <algorithm>
#include <mutex>

#include "codegen/artifact_plan.h"
#include "codegen/emit/gemm.h"
#include "codegen/emit/target.h"
#include "codegen/merge.h"
#include "codegen/merge_plan.h"

extern "C" {
void LLVMInitializeNVPTXTargetInfo();
void LLVMInitializeNVPTXTarget();
void LLVMInitializeNVPTXTargetMC();
void LLVMInitializeNVPTXAsmPrinter();
}

namespace gacc::codegen {

namespace {

constexpr const char* kTriple = "nvptx64-nvidia-cuda";

std::unique_ptr<llvm::TargetMachine> device_machine(std::string_view target, std::string& problem) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
    // Blocks stay in program order: ptxas places them anyway, and threads that part meet again before what
    // follows in the text, which is where the emulator (and a reader) expects a barrier.
    auto& options = llvm::cl::getRegisteredOptions();
    const auto placement = options.find("disable-block-placement");
    if (placement != options.end()) placement->second->addOccurrence(0, "disable-block-placement", "true");
  });
#if LLVM_VERSION_MAJOR >= 22
  const llvm::Triple triple(kTriple);
#else
  const std::string triple = kTriple;
#endif
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(triple, problem);
  if (found == nullptr) return nullptr;
  llvm::TargetOptions options;
  options.AllowFPOpFusion =
      llvm::FPOpFusion::Strict;  // add.rn, mul.rn, fma.rn as written: ptxas does not fuse them again
  // LLVM's choice for sm_75, PTX 6.3, has no ldmatrix.
  return std::unique_ptr<llvm::TargetMachine>(found->createTargetMachine(
      triple, llvm::StringRef(target.data(), target.size()), target == "sm_75" ? "+ptx65" : "", options,
      std::nullopt, std::nullopt, llvm::CodeGenOptLevel::Default));
}

// The distinct kernels of the matrix products, in order of first use.
bool choose_products(const ir::Module& module, int capability, DeviceCode& code, std::string& problem) {
  for (const ir::RegionKind kind : ir::all_regions) {
    const ir::Region& region = module.region(kind);
    const std::vector<Call>& calls = code.program.calls(kind);
    std::vector<Epilogue>& epilogues = code.epilogues[static_cast<size_t>(kind)];
    if (module.phase == ir::Phase::planned) epilogues = find_epilogues(module, region, code.program, calls);
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].kernel.form != ir::KernelForm::gemm) continue;
      const std::optional<GemmKernel> kernel =
          choose_product(module, region, calls, i, epilogues, capability, problem);
      if (!kernel) return false;
      if (std::find(code.products.begin(), code.products.end(), *kernel) == code.products.end())
        code.products.push_back(*kernel);
    }
  }
  return true;
}

// "mul_adam_fill_14" -> "mul_adam_fill"
std::string without_number(const std::string& entry) { return entry.substr(0, entry.rfind('_')); }

// A whole program as one kernel, in phases; nothing and a sentence in `problem` where that cannot be.
// `levels`: its launch_levels, at least one.
std::optional<PlanLaunch> one_kernel(const ir::Module& module, const PlanProgram& program,
                                     const std::vector<int>& levels, llvm::Module& device,
                                     std::string& problem) {
  MergeRequest request{program.name + "_persistent", {}, module.micro_batch()};
  for (size_t i = 0; i < levels.size(); ++i) {
    if (levels[i] == kInItsProduct) continue;
    const auto level = static_cast<size_t>(levels[i]);
    if (request.phases.size() <= level) request.phases.resize(level + 1);
    request.phases[level].push_back(i);
  }
  return emit_merged(device, request, program.launches, problem);
}

// The update's launches that are independent of each other become one; and, unless launch.mode is "graph",
// all of them, with barriers of the grid in between.
void merge_update(const ir::Module& module, llvm::Module& device, DeviceCode& code) {
  PlanProgram& update = code.programs[static_cast<size_t>(ir::RegionKind::update)];
  std::vector<PlanLaunch>& launches = update.launches;
  const std::vector<int> levels =
      launch_levels(module, module.update, code.program.calls(ir::RegionKind::update));
  const int count = levels.empty() ? 0 : *std::max_element(levels.begin(), levels.end()) + 1;
  std::string reason;  // why some cannot be merged: then they stay as they are
  if (count > 1 && launch_mode(module).update)
    update.persistent = one_kernel(module, update, levels, device, reason);
  std::vector<PlanLaunch> merged;
  for (int level = 0; level < count; ++level) {
    MergeRequest request{"", {{}}, module.micro_batch()};
    for (size_t i = 0; i < launches.size(); ++i) {
      if (levels[i] == level) request.phases[0].push_back(i);
    }
    const std::vector<size_t>& together = request.phases[0];
    const PlanLaunch& first = launches[together.front()];
    request.name = fmt::format("update_{}_{}", level, without_number(first.kernel));
    const bool kernels =
        std::none_of(together.begin(), together.end(), [&](size_t i) { return launches[i].kernel.empty(); });
    std::optional<PlanLaunch> one;
    if (together.size() > 1 && kernels) one = emit_merged(device, request, launches, reason);
    if (one) {
      merged.push_back(std::move(*one));
    } else {
      for (const size_t i : together) merged.push_back(launches[i]);
    }
  }
  launches = std::move(merged);
}

// The whole of `step` as one kernel, where launch.mode wants it.
bool make_persistent(const ir::Module& module, llvm::Module& device, DeviceCode& code, std::string& problem) {
  const LaunchMode mode = launch_mode(module);
  PlanProgram& step = code.programs[static_cast<size_t>(ir::RegionKind::step)];
  if (!mode.persistent || step.launches.empty()) return true;
  const std::vector<int> levels = launch_levels(module, module.step, code.program.calls(ir::RegionKind::step),
                                                code.epilogues[static_cast<size_t>(ir::RegionKind::step)]);
  step.persistent = one_kernel(module, step, levels, device, problem);
  step.persistent_required = mode.required;
  return step.persistent || !mode.required;
}

}  // namespace

std::vector<std::string_view> known_targets() {
#if LLVM_VERSION_MAJOR >= 22
  return {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"};
#else
  return {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"};
#endif
}

bool check_target(std::string_view target, Diag& diag) {
  const std::vector<std::string_view> known = known_targets();
  if (std::find(known.begin(), known.end(), target) != known.end()) return true;
  if (target == "sm_100" || target == "sm_120") {
    diag.error(Kind::unsupported, {},
               "target {} needs LLVM 22, this gacc was built with LLVM {}; PTX for sm_90 runs on such a GPU: "
               "--target sm_90",
               target, LLVM_VERSION_MAJOR);
    return false;
  }
  diag.error(Kind::unknown_value, {}, "unknown target \"{}\"{}; known are {}", target,
             did_you_mean(target, known), fmt::join(known, " "));
  return false;
}

std::optional<DeviceCode> emit_nvptx(const ir::Module& module, std::string_view target, Diag& diag) {
  if (!check_target(target, diag)) return std::nullopt;
  std::string problem;
  const auto failed = [&]() -> std::optional<DeviceCode> {
    diag.error(Kind::invalid_ir, {}, "internal error: {}", problem);
    return std::nullopt;
  };
  std::optional<Program> program = make_program(module, Purpose::device, problem, capability(target));
  if (!program) return failed();
  const std::unique_ptr<llvm::TargetMachine> machine = device_machine(target, problem);
  if (machine == nullptr) return failed();

  DeviceCode code;
  code.program = std::move(*program);
  if (!choose_products(module, capability(target), code, problem)) {
    diag.error(Kind::unsupported, {}, "{}", problem);
    return std::nullopt;
  }
  llvm::LLVMContext context;
  llvm::Module device("gacc", context);
#if LLVM_VERSION_MAJOR >= 22
  device.setTargetTriple(llvm::Triple(kTriple));
#else
  device.setTargetTriple(kTriple);
#endif
  device.setDataLayout(machine->createDataLayout());
  for (const Body& body : code.program.functions) {
    const std::unique_ptr<Target> emitter = make_nvptx_target(device, body, capability(target));
    if (!emit_kernel(*emitter, body.name, problem)) return failed();
    set_block(*emitter->function, body.block, body.resident);
    code.entries.push_back(body.name);
  }
  for (const GemmKernel& kernel : code.products) {
    const std::optional<GemmEpilogue>& epilogue = kernel.epilogue;
    const Body* then = epilogue ? &code.program.functions[static_cast<size_t>(epilogue->function)] : nullptr;
    set_block(*emit_gemm(device, kernel, capability(target), then), kernel.tile->threads());
  }
  if (!optimize(device, machine.get(), problem)) return failed();
  // Once planned, launches that need not wait for each other are merged; the plan then has those.
  if (module.phase == ir::Phase::planned) {
    Plan plan;
    plan.target = target;
    if (!add_programs(module, code, plan, problem)) return failed();
    code.programs = std::move(plan.programs);
    merge_update(module, device, code);
    if (!make_persistent(module, device, code, problem)) {
      diag.error(Kind::unsupported, {}, "`launch.mode = \"persistent\"`: {}", problem);
      return std::nullopt;
    }
    drop_unused(device, code.programs);
    llvm::raw_string_ostream why(problem);
    problem.clear();
    if (llvm::verifyModule(device, &why)) return failed();
  }
  llvm::raw_string_ostream ir(code.llvm_ir);
  device.print(ir, nullptr);

  llvm::SmallVector<char, 0> text;
  llvm::raw_svector_ostream out(text);
  llvm::legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, out, nullptr, llvm::CodeGenFileType::AssemblyFile)) {
    problem = "LLVM cannot write PTX";
    return failed();
  }
  passes.run(device);
  code.ptx.assign(text.data(), text.size());
  return code;
}

}  // namespace gacc::codegen
