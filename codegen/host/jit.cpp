// Host code: a program's kernels through LLVM's native back end into an object file in memory, and from an
// object file into this process (ORC, without a compiler: loading a cached object runs no code generation).
#include "codegen/host/jit.h"

#include <fmt/format.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>

#include <algorithm>
#include <mutex>

#include "codegen/host/target.h"

namespace gacc::codegen {

namespace {

constexpr int kEmitterVersion = 8;  // raise it when the emitters change what they write

struct Cpu {
  std::string triple, name, features;
  unsigned lanes = 4;  // of a vector of floats
  bool fma = false, f16c = false;
};

void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
}

Cpu read_cpu() {
  Cpu cpu;
  cpu.triple = llvm::sys::getProcessTriple();
  cpu.name = llvm::sys::getHostCPUName().str();
#if LLVM_VERSION_MAJOR >= 19
  const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
#else
#error "LLVM 19 or newer is needed"
#endif
  std::vector<std::string> list;  // sorted: a StringMap has no order of its own
  for (const auto& feature : features) list.push_back((feature.second ? "+" : "-") + feature.first().str());
  std::sort(list.begin(), list.end());
  for (const std::string& feature : list) cpu.features += (cpu.features.empty() ? "" : ",") + feature;
  const auto has = [&](const char* feature) { return features.lookup(feature); };
  cpu.fma = has("fma") || llvm::Triple(cpu.triple).isAArch64();
  cpu.f16c = has("f16c") || llvm::Triple(cpu.triple).isAArch64();
  cpu.lanes = has("avx512f") && has("avx512vl") && has("avx512dq") ? 16 : has("avx2") ? 8 : 4;
  return cpu;
}

const Cpu& host_cpu() {
  static const Cpu cpu = read_cpu();
  return cpu;
}

std::unique_ptr<llvm::TargetMachine> host_machine(std::string& problem) {
  initialize();
  const Cpu& cpu = host_cpu();
#if LLVM_VERSION_MAJOR >= 22
  const llvm::Triple triple(cpu.triple);
#else
  const std::string& triple = cpu.triple;
#endif
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, problem);
  if (target == nullptr) return nullptr;
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;  // only the multiply-adds that are written are fused
  return std::unique_ptr<llvm::TargetMachine>(
      target->createTargetMachine(triple, cpu.name, cpu.features, options, llvm::Reloc::PIC_,
                                  llvm::CodeModel::Small, llvm::CodeGenOptLevel::Default, /*JIT=*/true));
}

std::string symbol(int32_t function) { return fmt::format("kernel_{}", function); }

std::unique_ptr<llvm::Module> host_module(llvm::LLVMContext& context, const Program& program,
                                          llvm::TargetMachine& machine, std::string& problem) {
  auto module = std::make_unique<llvm::Module>("gacc-host", context);
#if LLVM_VERSION_MAJOR >= 22
  module->setTargetTriple(machine.getTargetTriple());
#else
  module->setTargetTriple(machine.getTargetTriple().str());
#endif
  module->setDataLayout(machine.createDataLayout());
  const Cpu& cpu = host_cpu();
  for (size_t i = 0; i < program.functions.size(); ++i) {
    const std::unique_ptr<Target> target =
        make_host_target(*module, program.functions[i], cpu.lanes, cpu.fma, cpu.f16c);
    if (!emit_kernel(*target, symbol(static_cast<int32_t>(i)), problem)) {
      problem = "internal error: " + problem;
      return nullptr;
    }
    target->function->addFnAttr("target-cpu", cpu.name);
    target->function->addFnAttr("target-features", cpu.features);
    // Without these LLVM cuts vectors of 16 into two on the CPUs that it thinks prefer it.
    target->function->addFnAttr("prefer-vector-width", fmt::format("{}", 32 * cpu.lanes));
    target->function->addFnAttr("min-legal-vector-width", fmt::format("{}", 32 * cpu.lanes));
  }
  if (!optimize(*module, &machine, problem)) {
    problem = "internal error: a host kernel is not valid LLVM IR: " + problem;
    return nullptr;
  }
  return module;
}

}  // namespace

std::string host_key() {
  const Cpu& cpu = host_cpu();
  return fmt::format("gacc {} llvm {} {} {} {}", kEmitterVersion, LLVM_VERSION_STRING, cpu.triple, cpu.name,
                     cpu.features);
}

std::string_view host_vectors() {
  const unsigned lanes = host_cpu().lanes;
  return lanes == 16 ? "avx512" : lanes == 8 ? "avx2" : "sse";
}

std::string compile_host(const Program& program, std::string& problem) {
  const std::unique_ptr<llvm::TargetMachine> machine = host_machine(problem);
  if (machine == nullptr) return {};
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module = host_module(context, program, *machine, problem);
  if (module == nullptr) return {};
  llvm::SmallVector<char, 0> object;
  llvm::raw_svector_ostream out(object);
  llvm::legacy::PassManager passes;
  if (machine->addPassesToEmitFile(passes, out, nullptr, llvm::CodeGenFileType::ObjectFile)) {
    problem = "LLVM cannot write object files for this machine";
    return {};
  }
  passes.run(*module);
  return {object.data(), object.size()};
}

std::string host_llvm_ir(const Program& program) {
  std::string problem, text;
  const std::unique_ptr<llvm::TargetMachine> machine = host_machine(problem);
  llvm::LLVMContext context;
  const std::unique_ptr<llvm::Module> module =
      machine == nullptr ? nullptr : host_module(context, program, *machine, problem);
  if (module == nullptr) return problem;
  llvm::raw_string_ostream out(text);
  module->print(out, nullptr);
  return text;
}

struct HostCode::Impl {
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::vector<HostFunction> functions;
};

HostCode::HostCode() : impl_(std::make_unique<Impl>()) {}
HostCode::~HostCode() = default;
HostFunction HostCode::function(int32_t index) const { return impl_->functions[static_cast<size_t>(index)]; }

std::unique_ptr<HostCode> HostCode::load(std::string_view object, const Program& program,
                                         std::string& problem) {
  initialize();
  const auto failed = [&](llvm::Error error) {
    problem = llvm::toString(std::move(error));
    return nullptr;
  };
  std::unique_ptr<HostCode> code(new HostCode);
  // The bytes may come from a file that somebody damaged: the linker below trusts its input, so look first.
  const llvm::MemoryBufferRef bytes(llvm::StringRef(object.data(), object.size()), "gacc-host");
  auto parsed = llvm::object::ObjectFile::createObjectFile(bytes);
  if (!parsed) return failed(parsed.takeError());

  llvm::orc::JITTargetMachineBuilder machine{llvm::Triple(host_cpu().triple)};
  machine.setCodeModel(llvm::CodeModel::Small);
  auto jit = llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(machine)).create();
  if (!jit) return failed(jit.takeError());
  code->impl_->jit = std::move(*jit);
  llvm::orc::LLJIT& linker = *code->impl_->jit;
  if (llvm::Error error =
          linker.addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(bytes.getBuffer(), "gacc-host")))
    return failed(std::move(error));
  for (size_t i = 0; i < program.functions.size(); ++i) {
    auto address = linker.lookup(symbol(static_cast<int32_t>(i)));
    if (!address) return failed(address.takeError());
    code->impl_->functions.push_back(address->toPtr<HostFunction>());
  }
  return code;
}

}  // namespace gacc::codegen
