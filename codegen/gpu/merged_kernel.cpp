// See merged_kernel.h. The kernel, for T the threads of a place of function f:
//
//   for every phase, or for that of the launch:
//     for every task of it:                          from the table; the same for all threads
//       f: place = thread / T; id = place * blocks of the grid + block
//          for (t = id rotated by the blocks of work before; t < blocks of work; t += places):
//            f(arguments, t)
//     barrier of the grid
//
// The barrier is the arrival counter of cooperative groups: block 0 adds 2^31 - (blocks - 1), the others 1,
// so the top bit flips with the last arrival and the counter is ready for the next barrier, whatever its
// number of blocks. Release and acquire are inline assembly, because LLVM's NVPTX back end loses or refuses
// them.
#include "codegen/gpu/merged_kernel.h"

#include <fmt/format.h>
#include <llvm/IR/Dominators.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Module.h>
#include <llvm/Transforms/Utils/Cloning.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

#include <algorithm>
#include <map>

#include "codegen/gpu/merge_part.h"
#include "codegen/gpu/merge_table.h"
#include "codegen/nvptx/threads.h"

namespace gacc::codegen {

namespace {

using llvm::Function;
using llvm::Value;

constexpr unsigned kGlobal = 1;  // address space

class Merger {
 public:
  Merger(llvm::Module& module, const PlanMerged& merged, std::string& problem)
      : module_(module), merged_(merged), problem_(problem), b_(module.getContext()), block_(merged.block) {}

  bool run() {
    std::vector<size_t> part_of;
    for (const std::vector<PlanTask>& phase : merged_.phases) {
      for (const PlanTask& task : phase) {
        if (!add_task(task)) return false;
        part_of.push_back(part_of_.at(task.entry));
      }
    }
    std::vector<Part*> parts;
    for (SharedPart& part : parts_) parts.push_back(&part);
    place_shared(module_, merged_.name + "_shared", parts);
    table_ = make_table(module_, merged_, parts_, part_of);
    emit();
    for (SharedPart& part : parts_) part.function->eraseFromParent();
    return true;
  }

 private:
  bool add_task(const PlanTask& task) {
    auto [found, fresh] = part_of_.emplace(task.entry, parts_.size());
    if (fresh) {
      SharedPart& part = parts_.emplace_back();
      part.threads = task.threads;
      part.places = task.places;
      part.shared_bytes = task.shared;
      if (!make_part(module_, task.entry, part, problem_)) return false;
    }
    parts_[found->second].tasks.push_back(&task);
    return true;
  }

  llvm::BasicBlock* block(const char* name) {
    return llvm::BasicBlock::Create(module_.getContext(), name, kernel_);
  }
  Value* entry_at(Value* index) {  // of the table, 64 bits
    return b_.CreateAlignedLoad(b_.getInt64Ty(), b_.CreateInBoundsGEP(b_.getInt64Ty(), table_.words, index),
                                llvm::Align(8));
  }
  Value* field(Value* record, int64_t which) {
    return entry_at(b_.CreateAdd(record, b_.getInt32(static_cast<uint32_t>(which))));
  }
  Value* low(Value* wide) { return b_.CreateTrunc(wide, b_.getInt32Ty()); }
  // An entry of the table that may be times the samples.
  Value* at_batch(Value* entry) {
    Value* factor = b_.CreateAnd(entry, b_.getInt64(~kTimesBatch));
    return b_.CreateSelect(b_.CreateICmpSLT(entry, b_.getInt64(0)), b_.CreateMul(factor, samples_), factor);
  }

  // for (i = from; i < to; i += step) body(i), all 32 bits wide; the same for all threads of a place.
  template <class OnStep>
  void loop(Value* from, Value* to, Value* step, const OnStep& on_step) {
    llvm::BasicBlock *before = b_.GetInsertBlock(), *head = block("loop"), *inside = block("turn"),
                     *exit = block("done");
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    llvm::PHINode* i = b_.CreatePHI(b_.getInt32Ty(), 2);
    i->addIncoming(from, before);
    b_.CreateCondBr(b_.CreateICmpULT(i, to), inside, exit);
    b_.SetInsertPoint(inside);
    on_step(i);
    i->addIncoming(b_.CreateAdd(i, step), b_.GetInsertBlock());
    b_.CreateBr(head);
    b_.SetInsertPoint(exit);
  }
  template <class Then>
  void when(Value* condition, const Then& then) {
    llvm::BasicBlock *yes = block("then"), *after = block("after");
    b_.CreateCondBr(condition, yes, after);
    b_.SetInsertPoint(yes);
    then();
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
  }

  void emit() {
    std::vector<llvm::Type*> parameters = {b_.getPtrTy(kGlobal), b_.getInt64Ty()};
    if (!merged_.persistent) parameters.push_back(b_.getInt64Ty());  // the phase
    llvm::FunctionType* type = llvm::FunctionType::get(b_.getVoidTy(), parameters, false);
    kernel_ = Function::Create(type, llvm::GlobalValue::ExternalLinkage, merged_.name, module_);
    kernel_->setCallingConv(llvm::CallingConv::PTX_Kernel);
    kernel_->addFnAttr(llvm::Attribute::NoUnwind);
    // One block to a multiprocessor is enough: left alone, ptxas would rather spill than have fewer.
    set_block(*kernel_, block_, 1);
    b_.SetInsertPoint(block("entry"));
    arena_ = kernel_->getArg(0), samples_ = kernel_->getArg(1);
    thread_ = gpu::special(b_, llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
    work_ = gpu::special(b_, llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
    grid_ = gpu::special(b_, llvm::Intrinsic::nvvm_read_ptx_sreg_nctaid_x);
    // How many blocks of work the phase had so far: who is idle takes the next task's first.
    begun_ = b_.CreateAlloca(b_.getInt32Ty());
    const auto tasks = static_cast<int64_t>(merged_.phases.size()) + 1;
    const auto phase = [&](Value* p) {
      b_.CreateStore(b_.getInt32(0), begun_);
      loop(low(entry_at(p)), low(field(p, 1)), b_.getInt32(1), [&](Value* t) {
        this->task(b_.CreateAdd(b_.CreateMul(t, b_.getInt32(static_cast<uint32_t>(table_.stride))),
                                b_.getInt32(static_cast<uint32_t>(tasks))));
      });
    };
    if (!merged_.persistent) {
      phase(merged_.phases.size() == 1 ? b_.getInt32(0) : low(kernel_->getArg(2)));
    } else {
      const auto phases = static_cast<uint32_t>(merged_.phases.size());
      loop(b_.getInt32(0), b_.getInt32(phases), b_.getInt32(1), [&](Value* p) {
        phase(p);
        when(b_.CreateICmpNE(p, b_.getInt32(phases - 1)), [&] { grid_barrier(); });
      });
    }
    b_.CreateRetVoid();
    promote();
    for (llvm::CallInst* call : calls_) {
      llvm::InlineFunctionInfo info;
      llvm::InlineFunction(*call, info);
    }
  }

  void task(Value* record) {
    Value* number = low(field(record, MergeTable::kPart));
    Value* blocks = nullptr;
    if (table_.batch) {
      const auto count = [&](int64_t of, int64_t by) {
        Value *all = low(at_batch(field(record, of))), *each = low(field(record, by));
        return b_.CreateUDiv(b_.CreateSub(b_.CreateAdd(all, each), b_.getInt32(1)), each);
      };
      blocks = b_.CreateMul(count(MergeTable::kDown, MergeTable::kDownBy),
                            count(MergeTable::kAcross, MergeTable::kAcrossBy));
    } else {
      blocks = low(field(record, MergeTable::kDown));
    }
    for (size_t p = 0; p < parts_.size(); ++p) {
      const auto run = [&] { part(parts_[p], record, blocks); };
      if (parts_.size() == 1) {
        run();
      } else {
        when(b_.CreateICmpEQ(number, b_.getInt32(static_cast<uint32_t>(p))), run);
      }
    }
    if (table_.sync)
      when(b_.CreateICmpNE(low(field(record, MergeTable::kSync)), b_.getInt32(0)), [&] { gpu::barrier(b_); });
  }

  void part(const SharedPart& part, Value* record, Value* blocks) {
    const auto constant = [&](int64_t value) { return b_.getInt32(static_cast<uint32_t>(value)); };
    Value *place = b_.CreateUDiv(thread_, constant(part.threads)),
          *places = b_.CreateMul(grid_, constant(part.places)),
          *rank = b_.CreateSub(thread_, b_.CreateMul(place, constant(part.threads)));
    Value* begun = b_.CreateLoad(b_.getInt32Ty(), begun_);
    b_.CreateStore(b_.CreateAdd(begun, blocks), begun_);  // by all threads, or they would disagree later
    const auto take = [&] {
      Value* id = b_.CreateAdd(b_.CreateMul(place, grid_), work_);
      Value* first = b_.CreateSub(b_.CreateAdd(id, places), b_.CreateURem(begun, places));
      first = b_.CreateSelect(b_.CreateICmpUGE(first, places), b_.CreateSub(first, places), first);
      when(b_.CreateICmpULT(first, blocks), [&] {
        std::vector<Value*> arguments;
        int64_t next = MergeTable::kArguments;
        for (size_t a = 0; a < part.tasks.front()->arguments.size(); ++a) {
          Value* value = part.same(a) ? b_.getInt64(table_word(part.tasks.front()->arguments[a]))
                                      : field(record, next++);
          if (part.function->getArg(static_cast<unsigned>(a))->getType()->isPointerTy()) {
            value = b_.CreateInBoundsGEP(b_.getInt8Ty(), arena_, value);
          } else if (std::any_of(part.tasks.begin(), part.tasks.end(),
                                 [&](const PlanTask* task) { return task->arguments[a].times_batch; })) {
            value = at_batch(value);
          }
          arguments.push_back(value);
        }
        loop(first, blocks, places, [&](Value* t) {
          std::vector<Value*> all = arguments;
          all.insert(all.end(), {rank, t, place});
          calls_.push_back(b_.CreateCall(part.function, all));
          finish_turn(b_, part, place);
        });
      });
    };
    if (part.places * part.threads == block_) {
      take();
    } else {
      when(b_.CreateICmpULT(place, constant(part.places)), take);
    }
  }

  void grid_barrier() {
    llvm::GlobalVariable* counter = module_.getGlobalVariable("gacc_grid_barrier", /*AllowInternal=*/true);
    if (counter == nullptr) {
      counter = new llvm::GlobalVariable(module_, b_.getInt32Ty(), false, llvm::GlobalValue::InternalLinkage,
                                         b_.getInt32(0), "gacc_grid_barrier", nullptr,
                                         llvm::GlobalValue::NotThreadLocal, kGlobal);
      counter->setAlignment(llvm::Align(4));
    }
    Value* mine = b_.CreateSelect(b_.CreateICmpEQ(work_, b_.getInt32(0)),
                                  b_.CreateSub(b_.getInt32(0x80000001U), grid_), b_.getInt32(1));
    // One piece, so that nothing is moved between its lines and its threads meet again where it ends.
    const char* text =
        "{\n\t"
        ".reg .pred %others, %waits;\n\t"
        ".reg .b32 %before, %now;\n\t"
        "bar.sync 0;\n\t"
        "setp.ne.u32 %others, $2, 0;\n\t"
        "@%others bra MET_${:uid};\n\t"
        "atom.add.release.gpu.global.u32 %before, [$0], $1;\n"
        "WAIT_${:uid}:\n\t"
        "ld.acquire.gpu.global.u32 %now, [$0];\n\t"
        "xor.b32 %now, %now, %before;\n\t"
        "setp.ge.s32 %waits, %now, 0;\n\t"
        "@%waits bra WAIT_${:uid};\n"
        "MET_${:uid}:\n\t"
        "bar.sync 0;\n\t"
        "}";
    llvm::FunctionType* type = llvm::FunctionType::get(
        b_.getVoidTy(), {b_.getPtrTy(kGlobal), b_.getInt32Ty(), b_.getInt32Ty()}, false);
    b_.CreateCall(type, llvm::InlineAsm::get(type, text, "l,r,r,~{memory}", true), {counter, mine, thread_})
        ->setConvergent();
  }

  // The one variable of the kernel becomes a value that flows.
  void promote() {
    llvm::DominatorTree tree(*kernel_);
    llvm::PromoteMemToReg({begun_}, tree);
  }

  llvm::Module& module_;
  const PlanMerged& merged_;
  std::string& problem_;
  llvm::IRBuilder<> b_;
  std::vector<SharedPart> parts_;
  std::map<std::string, size_t> part_of_;  // by entry
  std::vector<llvm::CallInst*> calls_;
  const int64_t block_;
  MergeTable table_;
  Function* kernel_ = nullptr;
  Value *arena_ = nullptr, *samples_ = nullptr, *thread_ = nullptr, *work_ = nullptr, *grid_ = nullptr;
  llvm::AllocaInst* begun_ = nullptr;
};

}  // namespace

bool emit_merged(llvm::Module& module, const PlanMerged& merged, std::string& problem) {
  return Merger(module, merged, problem).run();
}

}  // namespace gacc::codegen
