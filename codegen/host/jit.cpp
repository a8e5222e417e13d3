// Host code: a program's kernels through LLVM's native back end into an object file in memory, and from an
// object file into this process (ORC, without a compiler: loading a cached object runs no code generation).
#include "codegen/host/jit.h"

#include <fmt/format.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Support/MD5.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "codegen/host/most_isa.h"
#include "codegen/host/target.h"

namespace gacc::codegen {

namespace {

struct Cpu {
  std::string triple, name, features;
  unsigned lanes = 4;  // of a vector of floats
  bool fma = false, f16c = false;
};

// Says whether a CPU's feature is beyond what the program may use.
bool is_beyond(llvm::StringRef feature) {
  const auto begins = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* name) { return feature.find(name) == 0; });
  };
  if (most_isa() == Isa::avx512) return false;
  if (begins({"avx512", "avx10", "amx", "evex512"})) return true;
  return most_isa() == Isa::sse && begins({"avx", "fma", "f16c", "xop", "vaes", "vpclmulqdq", "gfni"});
}

const Cpu& host_cpu() {
  static const Cpu found = [] {
    Cpu cpu;
    cpu.triple = llvm::sys::getProcessTriple();
    cpu.name = llvm::sys::getHostCPUName().str();
    llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
    for (auto& feature : features) feature.second = feature.second && !is_beyond(feature.first());
    std::set<std::string> list;  // a StringMap has no order of its own
    for (const auto& feature : features) list.insert((feature.second ? "+" : "-") + feature.first().str());
    cpu.features = fmt::format("{}", fmt::join(list, ","));
    const auto has = [&](const char* feature) { return features.lookup(feature); };
    cpu.fma = has("fma") || llvm::Triple(cpu.triple).isAArch64();
    cpu.f16c = has("f16c") || llvm::Triple(cpu.triple).isAArch64();
    cpu.lanes = has("avx512f") && has("avx512vl") && has("avx512dq") ? 16 : has("avx2") ? 8 : 4;
    return cpu;
  }();
  return found;
}

llvm::orc::JITTargetMachineBuilder host_machine() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
  llvm::orc::JITTargetMachineBuilder machine{llvm::Triple(host_cpu().triple)};
  machine.setCPU(host_cpu().name).setRelocationModel(llvm::Reloc::PIC_).setCodeModel(llvm::CodeModel::Small);
  machine.getFeatures() = llvm::SubtargetFeatures(host_cpu().features);
  machine.getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;  // only written multiply-adds are fused
  return machine;
}

std::string symbol(size_t function) { return fmt::format("kernel_{}", function); }

}  // namespace

std::string host_key(std::initializer_list<std::string_view> parts) {
  const Cpu& cpu = host_cpu();
  llvm::MD5 hash;
  const auto add = [&](std::string_view part) { hash.update(fmt::format("{} {}", part.size(), part)); };
  add(LLVM_VERSION_STRING);
  for (const std::string& part : {cpu.triple, cpu.name, cpu.features}) add(part);
  for (const std::string_view part : parts) add(part);
  return std::string(hash.result().digest());
}

std::string_view host_vectors() {
  const unsigned lanes = host_cpu().lanes;
  return lanes == 16 ? "avx512" : lanes == 8 ? "avx2" : "sse";
}

std::string compile_host(const ModuleKernels& program, std::string& problem) {
  const auto failed = [&](std::string why) {
    problem = std::move(why);
    return std::string();
  };
  auto machine = host_machine().createTargetMachine();
  if (!machine) return failed(llvm::toString(machine.takeError()));
  llvm::LLVMContext context;
  llvm::Module module("gacc-host", context);
#if LLVM_VERSION_MAJOR >= 22
  module.setTargetTriple((*machine)->getTargetTriple());
#else
  module.setTargetTriple((*machine)->getTargetTriple().str());
#endif
  module.setDataLayout((*machine)->createDataLayout());
  const Cpu& cpu = host_cpu();
  for (size_t i = 0; i < program.functions.size(); ++i) {
    const std::unique_ptr<Target> target =
        make_host_target(module, program.functions[i], cpu.lanes, cpu.fma, cpu.f16c);
    if (!emit_kernel(*target, symbol(i), problem)) return failed("internal error: " + problem);
    target->function->addFnAttr("target-cpu", cpu.name);
    target->function->addFnAttr("target-features", cpu.features);
    // Without these LLVM cuts vectors of 16 into two on the CPUs that it thinks prefer it.
    target->function->addFnAttr("prefer-vector-width", fmt::format("{}", 32 * cpu.lanes));
    target->function->addFnAttr("min-legal-vector-width", fmt::format("{}", 32 * cpu.lanes));
  }
  if (!optimize(module, machine->get(), problem))
    return failed("internal error: a host kernel is not valid LLVM IR: " + problem);
  llvm::SmallVector<char, 0> object;
  llvm::raw_svector_ostream out(object);
  llvm::legacy::PassManager passes;
  if ((*machine)->addPassesToEmitFile(passes, out, nullptr, llvm::CodeGenFileType::ObjectFile))
    return failed("LLVM cannot write object files for this machine");
  passes.run(module);
  return {object.data(), object.size()};
}

HostCode::HostCode() = default;
HostCode::~HostCode() = default;

std::unique_ptr<HostCode> HostCode::load(std::string_view object, const ModuleKernels& program,
                                         std::string& problem) {
  const auto failed = [&](llvm::Error error) {
    problem = llvm::toString(std::move(error));
    return nullptr;
  };
  std::unique_ptr<HostCode> code(new HostCode);
  // The bytes may come from a file that somebody damaged: the linker below trusts its input, so look first.
  const llvm::MemoryBufferRef bytes(llvm::StringRef(object.data(), object.size()), "gacc-host");
  auto parsed = llvm::object::ObjectFile::createObjectFile(bytes);
  if (!parsed) return failed(parsed.takeError());

  auto jit = llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(host_machine()).create();
  if (!jit) return failed(jit.takeError());
  code->jit_ = std::move(*jit);
  if (llvm::Error error =
          code->jit_->addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(bytes.getBuffer(), "gacc-host")))
    return failed(std::move(error));
  for (size_t i = 0; i < program.functions.size(); ++i) {
    auto address = code->jit_->lookup(symbol(i));
    if (!address) return failed(address.takeError());
    code->functions_.push_back(address->toPtr<HostFunction>());
  }
  return code;
}

}  // namespace gacc::codegen
