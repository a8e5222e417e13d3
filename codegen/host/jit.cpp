// Host code: a program's kernels through LLVM's native back end into object files in memory, and from those into this
// process (ORC, without a compiler: loading cached objects runs no code generation).
#include "codegen/host/jit.h"

#include <fmt/format.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/Object/Archive.h>
#include <llvm/Object/ArchiveWriter.h>
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

constexpr size_t kFunctionsOfObject = 8;
constexpr const char* kArchive = "gacc-host";

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

// The object file of the functions [first, last).
std::string compile_object(const ModuleKernels& program, size_t first, size_t last, std::string& problem) {
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
  for (size_t i = first; i < last; ++i) {
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

void run_in_order(int64_t tasks, const std::function<void(int64_t)>& task) {
  for (int64_t i = 0; i < tasks; ++i) task(i);
}

std::string compile_host(const ModuleKernels& program, std::string& problem, const RunTasks& run) {
  const size_t count = program.functions.size();
  std::vector<std::string> objects(ceil_divide(count, kFunctionsOfObject)), problems(objects.size());
  run(std::ssize(objects), [&](int64_t i) {
    const size_t first = static_cast<size_t>(i) * kFunctionsOfObject;
    objects[i] = compile_object(program, first, std::min(first + kFunctionsOfObject, count), problems[i]);
  });
  std::vector<llvm::NewArchiveMember> members;
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects[i].empty()) return problem = std::move(problems[i]), std::string();
    members.emplace_back(llvm::MemoryBufferRef(objects[i], kArchive));
  }
  auto archive =
      llvm::writeArchiveToBuffer(members, llvm::SymtabWritingMode::NoSymtab, llvm::object::Archive::K_GNU,
                                 /*Deterministic=*/true, /*Thin=*/false);
  if (!archive) return problem = llvm::toString(archive.takeError()), std::string();
  return (*archive)->getBuffer().str();
}

HostCode::HostCode() = default;
HostCode::~HostCode() = default;

std::unique_ptr<HostCode> HostCode::load(std::string_view objects, const ModuleKernels& program,
                                         std::string& problem) {
  const auto failed = [&](llvm::Error error) {
    problem = llvm::toString(std::move(error));
    return nullptr;
  };
  std::unique_ptr<HostCode> code(new HostCode);
  auto jit = llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(host_machine()).create();
  if (!jit) return failed(jit.takeError());
  code->jit_ = std::move(*jit);
  // The bytes may come from a file that somebody damaged: the linker trusts its input, so look first.
  const llvm::MemoryBufferRef bytes(llvm::StringRef(objects.data(), objects.size()), kArchive);
  auto archive = llvm::object::Archive::create(bytes);
  if (!archive) return failed(archive.takeError());
  llvm::Error damaged = llvm::Error::success();
  for (const llvm::object::Archive::Child& member : (*archive)->children(damaged)) {
    auto object = member.getMemoryBufferRef();
    if (!object) return failed(llvm::joinErrors(object.takeError(), std::move(damaged)));
    auto parsed = llvm::object::ObjectFile::createObjectFile(*object);
    if (!parsed) return failed(llvm::joinErrors(parsed.takeError(), std::move(damaged)));
    if (llvm::Error error =
            code->jit_->addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(object->getBuffer(), kArchive)))
      return failed(llvm::joinErrors(std::move(error), std::move(damaged)));
  }
  if (damaged) return failed(std::move(damaged));
  for (size_t i = 0; i < program.functions.size(); ++i) {
    auto address = code->jit_->lookup(symbol(i));
    if (!address) return failed(address.takeError());
    code->functions_.push_back(address->toPtr<HostFunction>());
  }
  return code;
}

}  // namespace gacc::codegen
