// See gemm_runner.h.
#include "tests/codegen/gemm/gemm_runner.h"

#include <cstdlib>

#include <fmt/format.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/TargetSelect.h>
#include <ucontext.h>

#include "codegen/gpu/target.h"

namespace gacc::codegen {

namespace {

using Entry = void (*)(const float*, const float*, float*, int64_t, int64_t, int64_t);

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(32 << 10);
  bool done = false;
};
std::vector<Fiber> fibers;
ucontext_t scheduler;
size_t current = 0;
uint32_t block = 0;
std::function<void()> body;

extern "C" uint32_t gemm_thread() { return static_cast<uint32_t>(current); }
extern "C" uint32_t gemm_block() { return block; }
extern "C" void gemm_barrier() { swapcontext(&fibers[current].context, &scheduler); }

void run_fiber() {
  body();
  fibers[current].done = true;
}

// On its own: getcontext returns twice, as far as the compiler knows.
__attribute__((noinline)) void start(Fiber& fiber) {
  fiber.done = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, run_fiber, 0);
}

std::string run_block(size_t threads) {
  if (fibers.size() != threads) fibers = std::vector<Fiber>(threads);
  for (Fiber& fiber : fibers) start(fiber);
  for (size_t alive = threads; alive > 0;) {
    alive = 0;
    for (current = 0; current < threads; ++current) {
      if (fibers[current].done) return fmt::format("thread {} of block {} misses a barrier", current, block);
      swapcontext(&scheduler, &fibers[current].context);
      alive += !fibers[current].done;
    }
    if (alive != 0 && alive != threads) return fmt::format("threads of block {} miss a barrier", block);
  }
  return {};
}

// Replaces what only a GPU has by calls of the functions above.
void make_runnable(llvm::Function& kernel) {
  llvm::Module& module = *kernel.getParent();
  llvm::IRBuilder<> b(module.getContext());
  kernel.setCallingConv(llvm::CallingConv::C);
  std::vector<llvm::CallInst*> calls;
  for (llvm::Instruction& instruction : llvm::instructions(kernel)) {
    if (auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction)) calls.push_back(call);
  }
  for (llvm::CallInst* call : calls) {
    const char* name = nullptr;
    if (call->getIntrinsicID() == llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x) name = "gemm_thread";
    if (call->getIntrinsicID() == llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x) name = "gemm_block";
    if (llvm::isa<llvm::InlineAsm>(call->getCalledOperand())) name = "gemm_barrier";
    if (name == nullptr) continue;
    b.SetInsertPoint(call);
    call->replaceAllUsesWith(b.CreateCall(module.getOrInsertFunction(name, call->getType())));
    call->eraseFromParent();
  }
}

}  // namespace

struct GemmRunner::Impl {
  std::vector<GemmKernel> kernels;
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::vector<Entry> entries;
};

GemmRunner::GemmRunner(const std::vector<GemmKernel>& kernels) : impl_(new Impl{kernels, nullptr, {}}) {
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  llvm::ExitOnError sure("simulated products: ");
  impl_->jit = sure(llvm::orc::LLJITBuilder().create());
  llvm::orc::LLJIT& jit = *impl_->jit;
  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = std::make_unique<llvm::Module>("products", *context);
  module->setDataLayout(jit.getDataLayout());
  for (const GemmKernel& kernel : kernels) emit_gemm(*module, kernel, GpuTarget(75));
  std::string problem;
  if (!optimize(*module, nullptr, problem)) fmt::print(stderr, "{}\n", problem), std::abort();
  for (const GemmKernel& kernel : kernels) make_runnable(*module->getFunction(kernel.name()));
  llvm::orc::SymbolMap symbols;
  const auto define = [&](const char* name, auto* function) {
    symbols[jit.mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(function),
                                          llvm::JITSymbolFlags::Exported};
  };
  define("gemm_thread", &gemm_thread), define("gemm_block", &gemm_block),
      define("gemm_barrier", &gemm_barrier);
  sure(jit.getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols))));
  sure(jit.addIRModule(llvm::orc::ThreadSafeModule(std::move(module), std::move(context))));
  for (const GemmKernel& kernel : kernels)
    impl_->entries.push_back(sure(jit.lookup(kernel.name())).toPtr<Entry>());
}

GemmRunner::~GemmRunner() = default;

std::string GemmRunner::run(size_t kernel, const float* a, const float* b, float* c, int64_t m, int64_t n,
                            int64_t k) {
  const GemmTile& tile = *impl_->kernels[kernel].tile;
  const Entry entry = impl_->entries[kernel];
  body = [=] { entry(a, b, c, m, n, k); };
  const int64_t blocks = ((m + tile.m - 1) / tile.m) * ((n + tile.n - 1) / tile.n);
  for (block = 0; block < static_cast<uint32_t>(blocks); ++block) {
    if (std::string problem = run_block(static_cast<size_t>(tile.threads())); !problem.empty())
      return problem;
  }
  return {};
}

}  // namespace gacc::codegen
