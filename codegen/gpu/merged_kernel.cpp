// The kernel, for T the threads of a place of function f:
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
#include "codegen/nvptx/instructions.h"

namespace gacc::codegen {

namespace {

using llvm::Function;
using llvm::Value;

constexpr unsigned kGlobal = 1, kConstant = 4;  // address spaces
constexpr uint64_t kTableBytes = 48 * 1024;     // of the 64 KiB of constant memory of a module
// Set in a word of the table whose rest is to be multiplied with the samples of the launch.
constexpr uint64_t kTimesBatch = uint64_t{1} << 63;

// The fields of a record of the table; arguments that differ from call to call follow kArguments.
enum Field : int64_t { kPart, kSync, kDown, kDownBy, kAcross, kAcrossBy, kArguments };

// Returns an argument as the table holds it: an offset in the arena, or an extent.
uint64_t table_word(const PlanArgument& argument) {
  if (argument.kind == PlanArgument::Kind::address) return static_cast<uint64_t>(argument.offset);
  return static_cast<uint64_t>(argument.extent) | (argument.times_batch ? kTimesBatch : 0);
}
uint64_t table_word(const PlanTask::Count& count) {
  return static_cast<uint64_t>(count.factor) | (count.batch ? kTimesBatch : 0);
}

// A part and who calls it.
struct SharedPart : Part {
  std::vector<const PlanTask*> tasks{};
  // Returns true if an argument is the same in all calls: then it is no entry of the table.
  bool same(size_t argument) const {
    return std::ranges::all_of(tasks, [&](const PlanTask* task) {
      return table_word(task->arguments[argument]) == table_word(tasks.front()->arguments[argument]);
    });
  }
};

// Returns true if a place of `after` has shared memory that threads of another place may still use for `before`:
// after its own turn a place has waited for its threads (finish_turn).
bool shares_across(const Part& before, const Part& after) {
  const bool same_places = before.threads == after.threads &&
                           (before.shared_bytes == after.shared_bytes || before.places + after.places == 2);
  return before.shared_bytes > 0 && after.shared_bytes > 0 && !same_places;
}

// Returns the bytes of the module's constant memory in use.
uint64_t constant_bytes(const llvm::Module& module) {
  uint64_t bytes = 0;
  for (const llvm::GlobalVariable& variable : module.globals())
    if (variable.getAddressSpace() == kConstant)
      bytes += module.getDataLayout().getTypeAllocSize(variable.getValueType());
  return bytes;
}

class Merger {
 public:
  Merger(llvm::Module& module, const PlanMerged& merged)
      : module_(module), merged_(merged), b_(module.getContext()), block_(merged.block) {}

  void run() {
    for (const std::vector<PlanTask>& phase : merged_.phases)
      for (const PlanTask& task : phase) add_task(task);
    std::vector<Part*> parts;
    for (SharedPart& part : parts_) parts.push_back(&part);
    place_shared(module_, merged_.name + "_shared", parts);
    make_table();
    emit();
    for (SharedPart& part : parts_) part.function->eraseFromParent();
  }

 private:
  void add_task(const PlanTask& task) {
    const auto [found, fresh] = part_of_.emplace(task.entry, parts_.size());
    if (fresh) {
      SharedPart& part = parts_.emplace_back();
      part.threads = task.threads;
      part.places = task.places;
      part.shared_bytes = task.shared;
      make_part(module_, task.entry, part);
    }
    parts_[found->second].tasks.push_back(&task);
  }

  // Words of 64 bits: where each phase's tasks begin, then a record for every task.
  void make_table() {
    size_t most = 0;  // arguments that differ
    for (const SharedPart& part : parts_) {
      size_t own = 0;
      for (size_t i = 0; i < part.tasks.front()->arguments.size(); ++i) own += !part.same(i);
      most = std::max(most, own);
    }
    stride_ = kArguments + static_cast<int64_t>(most);
    std::vector<uint64_t> words = {0};
    for (const std::vector<PlanTask>& phase : merged_.phases) {
      words.push_back(words.back() + phase.size());
      for (const PlanTask& task : phase) batch_ = batch_ || task.batch();
    }
    for (const std::vector<PlanTask>& phase : merged_.phases) {
      const SharedPart* user = nullptr;  // of the phase's tasks so far the last that uses shared memory
      for (size_t t = 0; t < phase.size(); ++t) {
        const PlanTask& task = phase[t];
        const size_t number = part_of_.at(task.entry);
        const SharedPart& part = parts_[number];
        if (user == nullptr || part.shared_bytes > 0) user = &part;
        const bool sync =
            t + 1 < phase.size() && shares_across(*user, parts_[part_of_.at(phase[t + 1].entry)]);
        sync_ = sync_ || sync;
        std::vector<uint64_t> record = {number, static_cast<uint64_t>(sync)};
        if (batch_) {
          record.insert(record.end(), {table_word(task.down), static_cast<uint64_t>(task.down.by),
                                       table_word(task.across), static_cast<uint64_t>(task.across.by)});
        } else {
          record.insert(record.end(), {static_cast<uint64_t>(task.blocks(1)), 0, 0, 0});
        }
        for (size_t a = 0; a < task.arguments.size(); ++a)
          if (!part.same(a)) record.push_back(table_word(task.arguments[a]));
        record.resize(static_cast<size_t>(stride_), 0);
        words.insert(words.end(), record.begin(), record.end());
      }
    }
    // Constant memory for what fits: its reads are the same for all threads of a warp.
    const bool small = words.size() * 8 + constant_bytes(module_) <= kTableBytes;
    llvm::Constant* values = llvm::ConstantDataArray::get(module_.getContext(), words);
    table_ = new llvm::GlobalVariable(module_, values->getType(), true, llvm::GlobalValue::InternalLinkage,
                                      values, merged_.name + "_table", nullptr,
                                      llvm::GlobalValue::NotThreadLocal, small ? kConstant : kGlobal);
    table_->setAlignment(llvm::Align(16));
  }

  llvm::BasicBlock* block(const char* name) {
    return llvm::BasicBlock::Create(module_.getContext(), name, kernel_);
  }
  Value* entry_at(Value* index) {  // of the table, 64 bits
    return b_.CreateAlignedLoad(b_.getInt64Ty(), b_.CreateInBoundsGEP(b_.getInt64Ty(), table_, index),
                                llvm::Align(8));
  }
  Value* field(Value* record, int64_t which) { return entry_at(b_.CreateAdd(record, word(which))); }
  llvm::ConstantInt* word(int64_t value) { return b_.getInt32(static_cast<uint32_t>(value)); }
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
    // The number of blocks of work that the phase has had so far: an idle block takes the next task's first.
    begun_ = b_.CreateAlloca(b_.getInt32Ty());
    const auto tasks = static_cast<int64_t>(merged_.phases.size()) + 1;
    const auto phase = [&](Value* p) {
      b_.CreateStore(word(0), begun_);
      loop(low(entry_at(p)), low(field(p, 1)), word(1),
           [&](Value* t) { this->task(b_.CreateAdd(b_.CreateMul(t, word(stride_)), word(tasks))); });
    };
    if (!merged_.persistent) {
      phase(merged_.phases.size() == 1 ? word(0) : low(kernel_->getArg(2)));
    } else {
      const auto phases = static_cast<int64_t>(merged_.phases.size());
      loop(word(0), word(phases), word(1), [&](Value* p) {
        phase(p);
        when(b_.CreateICmpNE(p, word(phases - 1)), [&] { grid_barrier(); });
      });
    }
    b_.CreateRetVoid();
    // The one variable of the kernel becomes a value that flows.
    llvm::DominatorTree tree(*kernel_);
    llvm::PromoteMemToReg({begun_}, tree);
    for (llvm::CallInst* call : calls_) {
      llvm::InlineFunctionInfo info;
      llvm::InlineFunction(*call, info);
    }
  }

  void task(Value* record) {
    Value* number = low(field(record, kPart));
    Value* blocks = nullptr;
    if (batch_) {
      const auto count = [&](int64_t of, int64_t by) {
        Value *all = low(at_batch(field(record, of))), *each = low(field(record, by));
        return b_.CreateUDiv(b_.CreateSub(b_.CreateAdd(all, each), word(1)), each);
      };
      blocks = b_.CreateMul(count(kDown, kDownBy), count(kAcross, kAcrossBy));
    } else {
      blocks = low(field(record, kDown));
    }
    for (size_t p = 0; p < parts_.size(); ++p) {
      const auto run = [&] { part(parts_[p], record, blocks); };
      if (parts_.size() == 1)
        run();
      else
        when(b_.CreateICmpEQ(number, word(p)), run);
    }
    if (sync_) when(b_.CreateICmpNE(low(field(record, kSync)), word(0)), [&] { gpu::barrier(b_); });
  }

  void part(const SharedPart& part, Value* record, Value* blocks) {
    Value *place = b_.CreateUDiv(thread_, word(part.threads)),
          *places = b_.CreateMul(grid_, word(part.places)),
          *rank = b_.CreateSub(thread_, b_.CreateMul(place, word(part.threads)));
    Value* begun = b_.CreateLoad(b_.getInt32Ty(), begun_);
    b_.CreateStore(b_.CreateAdd(begun, blocks), begun_);  // by all threads, or they would disagree later
    const auto take = [&] {
      Value* id = b_.CreateAdd(b_.CreateMul(place, grid_), work_);
      Value* first = b_.CreateSub(b_.CreateAdd(id, places), b_.CreateURem(begun, places));
      first = b_.CreateSelect(b_.CreateICmpUGE(first, places), b_.CreateSub(first, places), first);
      when(b_.CreateICmpULT(first, blocks), [&] {
        std::vector<Value*> arguments;
        int64_t next = kArguments;
        for (size_t a = 0; a < part.tasks.front()->arguments.size(); ++a) {
          Value* value = part.same(a) ? b_.getInt64(table_word(part.tasks.front()->arguments[a]))
                                      : field(record, next++);
          if (part.function->getArg(static_cast<unsigned>(a))->getType()->isPointerTy())
            value = b_.CreateInBoundsGEP(b_.getInt8Ty(), arena_, value);
          else if (std::ranges::any_of(part.tasks,
                                       [&](const PlanTask* task) { return task->arguments[a].times_batch; }))
            value = at_batch(value);
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
    if (part.places * part.threads == block_)
      take();
    else
      when(b_.CreateICmpULT(place, word(part.places)), take);
  }

  void grid_barrier() {
    llvm::GlobalVariable* counter = module_.getGlobalVariable("gacc_grid_barrier", /*AllowInternal=*/true);
    if (counter == nullptr) {
      counter = new llvm::GlobalVariable(module_, b_.getInt32Ty(), false, llvm::GlobalValue::InternalLinkage,
                                         word(0), "gacc_grid_barrier", nullptr,
                                         llvm::GlobalValue::NotThreadLocal, kGlobal);
      counter->setAlignment(llvm::Align(4));
    }
    Value* mine = b_.CreateSelect(b_.CreateICmpEQ(work_, word(0)),
                                  b_.CreateSub(b_.getInt32(0x80000001U), grid_), word(1));
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

  llvm::Module& module_;
  const PlanMerged& merged_;
  llvm::IRBuilder<> b_;
  std::vector<SharedPart> parts_;
  std::map<std::string, size_t> part_of_;  // by entry
  std::vector<llvm::CallInst*> calls_;
  const int64_t block_;
  llvm::GlobalVariable* table_ = nullptr;  // in constant memory if it fits there
  int64_t stride_ = 0;                     // words of a record
  bool sync_ = false;                      // some task ends with a barrier of the block: its record's kSync
  bool batch_ = false;  // some task has more blocks of work for more samples; else kDown is their number
  Function* kernel_ = nullptr;
  Value *arena_ = nullptr, *samples_ = nullptr, *thread_ = nullptr, *work_ = nullptr, *grid_ = nullptr;
  llvm::AllocaInst* begun_ = nullptr;
};

}  // namespace

void emit_merged(llvm::Module& module, const PlanMerged& merged) { Merger(module, merged).run(); }

}  // namespace gacc::codegen
