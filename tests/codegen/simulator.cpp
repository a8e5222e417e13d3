// GPU kernels on the CPU: their special registers and collectives become calls of functions below, and each
// thread of a block is a fiber that gives way at every collective.
#include "tests/codegen/simulator.h"

#include <algorithm>
#include <cstdio>
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
#include "codegen/host/target.h"

namespace gacc::codegen {

namespace {

// The block being run. Collectives of one warp come in the same order for all its threads, so a thread is at
// most one collective ahead of another, and two mail boxes a thread are enough.
struct Block {
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(64 << 10);
    bool done = false;
    int collectives = 0;
    int last = 0;          // which shuffle it waits in; -1: a barrier
    uint32_t members = 0;  // lanes of its warp that must wait there, too
    uint32_t mail[2] = {0, 0};
  };
  std::vector<Fiber> fibers;
  ucontext_t scheduler;
  size_t current = 0;
  uint32_t number = 0;
  void (*entry)(const int64_t*) = nullptr;
  const int64_t* arguments = nullptr;
};
Block* block = nullptr;

void give_way(int kind, uint32_t members) {
  Block::Fiber& self = block->fibers[block->current];
  self.last = kind;
  self.members = members;
  ++self.collectives;
  swapcontext(&self.context, &block->scheduler);
}

extern "C" uint32_t sim_thread() { return static_cast<uint32_t>(block->current); }
extern "C" uint32_t sim_block() { return block->number; }
extern "C" void sim_barrier() { give_way(-1, ~0U); }
// Of the thread whose number is this one's bits in `own`, xor `other`.
extern "C" uint32_t sim_shuffle(uint32_t value, uint32_t own, uint32_t other, uint32_t members) {
  const size_t self = block->current;
  const int box = block->fibers[self].collectives & 1;
  block->fibers[self].mail[box] = value;
  give_way(static_cast<int>((own & 31) << 5 | other), members);
  return block->fibers[(self & own) ^ other].mail[box];
}

extern "C" uint32_t sim_ballot(uint32_t condition) {
  const size_t self = block->current;
  const int box = block->fibers[self].collectives & 1;
  block->fibers[self].mail[box] = condition;
  give_way(1 << 10, ~0U);
  uint32_t votes = 0;
  for (size_t lane = 0; lane < 32; ++lane) votes |= block->fibers[self / 32 * 32 + lane].mail[box] << lane;
  return votes;
}

void run_fiber() {
  block->entry(block->arguments);
  block->fibers[block->current].done = true;
}

// On its own: getcontext returns twice, as far as the compiler knows.
__attribute__((noinline)) void start(Block::Fiber& fiber) {
  fiber.done = false;
  fiber.collectives = 0;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = fiber.stack.size();
  fiber.context.uc_link = &block->scheduler;
  makecontext(&fiber.context, run_fiber, 0);
}

// One block of `threads`; "" or what its threads did that a GPU forbids.
std::string run_block(size_t threads) {
  block->fibers.resize(threads);
  for (Block::Fiber& fiber : block->fibers) start(fiber);
  for (bool alive = true; alive;) {
    alive = false;
    for (block->current = 0; block->current < threads; ++block->current) {
      Block::Fiber& fiber = block->fibers[block->current];
      if (fiber.done) continue;
      swapcontext(&block->scheduler, &fiber.context);
      alive = alive || !fiber.done;
    }
    const auto at_barrier = [](const Block::Fiber& fiber) { return !fiber.done && fiber.last < 0; };
    const bool all = at_barrier(block->fibers[0]);
    for (size_t i = 0; i < threads; ++i) {
      const Block::Fiber& fiber = block->fibers[i];
      bool met = at_barrier(fiber) == all;
      for (size_t lane = 0; lane < 32 && met && !fiber.done && !all; ++lane) {
        if ((fiber.members >> lane & 1) == 0) continue;
        const Block::Fiber& other = block->fibers[i / 32 * 32 + lane];
        met = !other.done && other.last == fiber.last;
      }
      if (!met) return fmt::format("thread {} of block {} misses others in a collective", i, block->number);
    }
  }
  return {};
}

}  // namespace

struct Simulator::Impl {
  const ModuleKernels& program;
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::vector<void (*)(const int64_t*)> entries;
};

namespace {

// Replaces what only a GPU has, and adds `call_NAME(const int64_t* arguments)`.
void make_runnable(llvm::Function& kernel) {
  llvm::Module& module = *kernel.getParent();
  llvm::IRBuilder<> b(module.getContext());
  llvm::Type* word = b.getInt32Ty();
  kernel.setCallingConv(llvm::CallingConv::C);
  std::vector<llvm::CallInst*> calls;
  for (llvm::Instruction& instruction : llvm::instructions(kernel)) {
    if (auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction)) calls.push_back(call);
  }
  for (llvm::CallInst* call : calls) {
    b.SetInsertPoint(call);
    llvm::Value* with = nullptr;
    if (call->getIntrinsicID() == llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x) {
      with = b.CreateCall(module.getOrInsertFunction("sim_thread", word));
    } else if (call->getIntrinsicID() == llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x) {
      with = b.CreateCall(module.getOrInsertFunction("sim_block", word));
    } else if (call->getIntrinsicID() == llvm::Intrinsic::nvvm_read_ptx_sreg_laneid) {
      with = b.CreateAnd(b.CreateCall(module.getOrInsertFunction("sim_thread", word)), b.getInt32(31));
    } else if (const auto* text = llvm::dyn_cast<llvm::InlineAsm>(call->getCalledOperand())) {
      const std::string code(text->getAsmString());
      if (code == "bar.sync 0;") {
        with = b.CreateCall(module.getOrInsertFunction("sim_barrier", b.getVoidTy()));
      } else if (code == "vote.sync.ballot.b32 $0, $1, 0xffffffff;") {
        with = b.CreateCall(module.getOrInsertFunction("sim_ballot", word, word),
                            {b.CreateZExt(call->getArgOperand(0), word)});
      } else {
        char mode[8];
        unsigned lane = 0, segment = 0;
        if (std::sscanf(code.c_str(), "shfl.sync.%4[a-z].b32 $0, $1, %u, %u, $2;", mode, &lane, &segment) !=
            3)
          fmt::print(stderr, "unknown assembly: {}\n", code), std::abort();
        const uint32_t own = std::string_view(mode) == "idx" ? ~uint32_t{31} | segment >> 8 : ~uint32_t{0};
        with =
            b.CreateCall(module.getOrInsertFunction("sim_shuffle", word, word, word, word, word),
                         {call->getArgOperand(0), b.getInt32(own), b.getInt32(lane), call->getArgOperand(1)});
      }
    } else {
      continue;
    }
    call->replaceAllUsesWith(with);
    call->eraseFromParent();
  }
  auto* entry = llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy()}, false),
                                       llvm::Function::ExternalLinkage, "call_" + kernel.getName(), module);
  b.SetInsertPoint(llvm::BasicBlock::Create(module.getContext(), "entry", entry));
  std::vector<llvm::Value*> arguments;
  for (llvm::Argument& argument : kernel.args()) {
    llvm::Value* value = b.CreateLoad(
        b.getInt64Ty(), b.CreateConstGEP1_64(b.getInt64Ty(), entry->getArg(0), argument.getArgNo()));
    arguments.push_back(argument.getType()->isPointerTy() ? b.CreateIntToPtr(value, argument.getType())
                                                          : value);
  }
  b.CreateCall(&kernel, arguments);
  b.CreateRetVoid();
}

}  // namespace

std::string host_llvm_ir(const ModuleKernels& program, unsigned lanes) {
  llvm::LLVMContext context;
  llvm::Module module("host", context);
  std::string problem, text;
  for (const Body& body : program.functions) {
    if (!emit_kernel(*make_host_target(module, body, lanes, /*fma=*/true, /*f16c=*/true), body.name, problem))
      return problem;
  }
  if (!optimize(module, nullptr, problem)) return problem;
  llvm::raw_string_ostream out(text);
  module.print(out, nullptr);
  return text;
}

Simulator::Simulator(const ModuleKernels& program, int capability) : impl_(new Impl{program, nullptr, {}}) {
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  llvm::ExitOnError sure("simulator: ");
  llvm::orc::JITTargetMachineBuilder machine = sure(llvm::orc::JITTargetMachineBuilder::detectHost());
  machine.getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;
  impl_->jit = sure(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(machine)).create());
  llvm::orc::LLJIT& jit = *impl_->jit;
  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = std::make_unique<llvm::Module>("simulated", *context);
  module->setDataLayout(jit.getDataLayout());
  std::string problem;
  const auto must = [&](bool done) {
    if (!done) fmt::print(stderr, "{}\n", problem), std::abort();
  };
  for (const Body& body : program.functions)
    must(emit_kernel(*make_nvptx_target(*module, body, GpuTarget(capability)), body.name, problem));
  must(optimize(*module, nullptr, problem));
  for (const Body& body : program.functions) make_runnable(*module->getFunction(body.name));
  llvm::orc::SymbolMap symbols;
  const auto define = [&](const char* name, auto* function) {
    symbols[jit.mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(function),
                                          llvm::JITSymbolFlags::Exported};
  };
  define("sim_thread", &sim_thread), define("sim_block", &sim_block), define("sim_barrier", &sim_barrier),
      define("sim_shuffle", &sim_shuffle), define("sim_ballot", &sim_ballot);
  sure(jit.getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols))));
  sure(jit.addIRModule(llvm::orc::ThreadSafeModule(std::move(module), std::move(context))));
  for (const Body& body : program.functions)
    impl_->entries.push_back(sure(jit.lookup("call_" + body.name)).toPtr<void (*)(const int64_t*)>());
}

Simulator::~Simulator() = default;

std::string Simulator::launch(const BodyCall& call, char* const* operands,
                              const std::vector<int64_t>& extents, int64_t batch) {
  std::vector<int64_t> arguments;
  for (size_t i = 0; i < call.operands.size(); ++i)
    arguments.push_back(reinterpret_cast<int64_t>(operands[i]));
  arguments.insert(arguments.end(), extents.begin(), extents.end());
  static Block the_block;
  block = &the_block;
  block->entry = impl_->entries[static_cast<size_t>(call.function)];
  block->arguments = arguments.data();
  const int64_t blocks = (call.items.at(batch) + call.per_block - 1) / call.per_block;
  for (int64_t i = 0; i < blocks; ++i) {
    block->number = static_cast<uint32_t>(i);
    if (std::string problem = run_block(static_cast<size_t>(call.block)); !problem.empty()) return problem;
  }
  return {};
}

}  // namespace gacc::codegen
