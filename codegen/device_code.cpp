// PTX: a module's kernels through LLVM's NVPTX back end. Target names are checked here, because LLVM only
// warns about one that it does not know and then writes a file that nothing accepts.
#include "codegen/device_code.h"

#include <fmt/format.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/CommandLine.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "codegen/gpu/merged_kernel.h"
#include "codegen/gpu/product.h"
#include "codegen/gpu/target.h"
#include "kernels/select.h"

extern "C" {
void LLVMInitializeNVPTXTargetInfo();
void LLVMInitializeNVPTXTarget();
void LLVMInitializeNVPTXTargetMC();
void LLVMInitializeNVPTXAsmPrinter();
}

namespace gacc::codegen {

namespace {

constexpr const char* kTriple = "nvptx64-nvidia-cuda";

std::unique_ptr<llvm::TargetMachine> device_machine(std::string_view target) {
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
  std::string problem;
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(triple, problem);
  if (found == nullptr) throw Unfit(problem);
  llvm::TargetOptions options;
  options.AllowFPOpFusion =
      llvm::FPOpFusion::Strict;  // add.rn, mul.rn, fma.rn as written: ptxas does not fuse them again
  // LLVM's choice for sm_75, PTX 6.3, has no ldmatrix.
  return std::unique_ptr<llvm::TargetMachine>(found->createTargetMachine(
      triple, llvm::StringRef(target.data(), target.size()), target == "sm_75" ? "+ptx65" : "", options,
      std::nullopt, std::nullopt, llvm::CodeGenOptLevel::Default));
}

// The distinct built-in products, in the order of first use.
std::vector<GemmKernel> choose_products(const ir::Module& module, const ModuleKernels& program,
                                        const GpuTarget& gpu) {
  std::vector<GemmKernel> products;
  for (const ir::RegionKind kind : ir::all_regions) {
    const ir::Region& region = module.region(kind);
    std::map<int32_t, const ir::CallSite*> scheduled;
    if (region.schedule)
      for (const ir::CallSite* call : ir::calls(*region.schedule)) scheduled[call->kernel] = call;
    for (const BodyCall& call : program.calls(kind)) {
      if (call.kernel.form != ir::KernelForm::gemm) continue;
      const GemmKernel kernel =
          region.schedule ? built_in(module, region, *scheduled.at(call.kernel.number), program, gpu)
                          : choose_gemm(module, region, call.kernel, gpu);
      if (!contains(products, kernel)) products.push_back(kernel);
    }
  }
  return products;
}

// LLVM breaks a load of more than 8 halves that are then widened into loads of 16 bits into f32 registers,
// which ptxas takes and which leave the bits of a half where a number of f32 should be. The first such line.
std::string_view unconverted_load(std::string_view ptx) {
  for (const std::string_view sign : {"b16 \t{%f", "b16 \t%f"}) {
    const size_t at = ptx.find(sign);
    if (at == std::string_view::npos) continue;
    const size_t begin = ptx.rfind('\n', at) + 1;
    return ptx.substr(begin, ptx.find('\n', at) - begin);
  }
  return {};
}

// Names that people have for a target: cards, and capabilities in CUDA's spellings.
std::string_view target_meant(std::string_view word) {
  std::string name;
  for (const char c : word)
    if (c != ' ' && c != '-' && c != '_' && c != '.')
      name += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const std::string_view prefix : {"nvidia", "geforce", "tesla", "compute", "sm", "cuda", "rtx"})
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"sm_75", "75 t4 2060 2070 2080 2080ti turing"},
      {"sm_80", "80 a100 a30 ampere"},
      {"sm_86", "86 a10 a10g a40 a4000 a5000 a6000 3060 3070 3080 3090 3090ti"},
      {"sm_89", "89 l4 l40 l40s 4060 4070 4080 4090 ada"},
      {"sm_90a", "90 90a h100 h200 gh200 hopper"},
      {"sm_100", "100 b100 b200 gb200 blackwell"},
      {"sm_120", "120 5070 5080 5090"}};
  for (const auto& [target, names] : kNames)
    if (!name.empty() && fmt::format(" {} ", names).find(fmt::format(" {} ", name)) != std::string::npos)
      return target;
  return "";
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
  if (contains(known, target)) return true;
  if (target == "sm_100" || target == "sm_120") {
    diag.error(Kind::unsupported, {},
               "target {} needs LLVM 22, this gacc was built with LLVM {}; PTX for sm_90 runs on such a GPU: "
               "--target sm_90",
               target, LLVM_VERSION_MAJOR);
    return false;
  }
  const std::string_view meant = target_meant(target);
  diag.error(Kind::unknown_value, {}, "unknown target \"{}\"{}; known are {}", target,
             meant.empty() ? did_you_mean(target, known) : fmt::format("; it is called {} here", meant),
             fmt::join(known, " "));
  return false;
}

std::optional<DeviceCode> emit_nvptx(const ir::Module& module, std::string_view target, Diag& diag,
                                     bool shows_llvm_ir) try {
  if (!check_target(target, diag)) return std::nullopt;
  const GpuTarget gpu(target);
  std::string problem;
  const auto must = [&](bool good) {
    if (!good) throw Unfit(problem);
  };
  std::optional<ModuleKernels> program = make_program(module, Purpose::device, problem, gpu);
  must(program.has_value());
  const std::unique_ptr<llvm::TargetMachine> machine = device_machine(target);

  DeviceCode code;
  code.program = std::move(*program);
  try {
    code.products = choose_products(module, code.program, gpu);
  } catch (const Unfit& unfit) {
    diag.error(Kind::unsupported, {}, "{}", unfit.what());
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
    const std::unique_ptr<Target> emitter = make_nvptx_target(device, body, gpu);
    must(emit_kernel(*emitter, body.name, problem));
    set_block(*emitter->function, body.block, body.resident);
  }
  for (const GemmKernel& kernel : code.products) {
    const std::optional<GemmEpilogue>& epilogue = kernel.epilogue;
    const Body* then = epilogue ? &code.program.functions[epilogue->function] : nullptr;
    set_block(*emit_gemm(device, kernel, gpu, then), kernel.tile->threads());
  }
  must(optimize(device, machine.get(), problem));
  if (module.phase == ir::Phase::scheduled) {
    for (const PlanMerged& merged : plan_merged(module, code.program)) emit_merged(device, merged);
    code.programs = plan_programs(module, code.program);
    drop_unused(device, code.programs);
    llvm::raw_string_ostream why(problem);
    must(!llvm::verifyModule(device, &why));
  }
  if (shows_llvm_ir) {
    llvm::raw_string_ostream ir(code.llvm_ir);
    device.print(ir, nullptr);
  }

  llvm::SmallVector<char, 0> text;
  llvm::raw_svector_ostream out(text);
  llvm::legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, out, nullptr, llvm::CodeGenFileType::AssemblyFile))
    throw Unfit("LLVM cannot write PTX");
  passes.run(device);
  code.ptx.assign(text.data(), text.size());
  if (const std::string_view load = unconverted_load(code.ptx); !load.empty())
    throw Unfit(fmt::format("halves are not converted to f32:{}", load));
  return code;
} catch (const Unfit& unfit) {
  diag.error(Kind::invalid_ir, {}, "{}", unfit.what());
  return std::nullopt;
}

}  // namespace gacc::codegen
