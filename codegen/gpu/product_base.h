// What the emitters of matrix products share: the kernel's function over Target, short names for its
// arithmetic, the ends of the block's collectives, and where elements of C go.
#pragma once
#include <llvm/IR/Module.h>

#include "codegen/emit/evaluator.h"
#include "codegen/gpu/block_code.h"
#include "codegen/gpu/product.h"
#include "codegen/gpu/target.h"

namespace gacc::codegen {

// A product's function; made before what writes into it.
struct ProductTarget {
  ProductTarget(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu, const Body* then)
      : body_(signature(kernel, then)), target_(make_nvptx_target(module, body_, gpu)) {}

  static int32_t extents_of(const GemmKernel& kernel) { return kernel.pitch ? 6 : 3; }
  // The epilogue's slots and extents come first, so that its members' numbers hold.
  static Body signature(const GemmKernel& kernel, const Body* then) {
    Body body;
    body.extents = 0;
    if (then != nullptr) body = *then;
    body.form = ir::KernelForm::gemm;
    body.slots.resize(body.slots.size() + 3);
    body.extents += extents_of(kernel);
    body.block = kernel.tile->threads();
    return body;
  }

  const Body body_;
  const std::unique_ptr<Target> target_;
};

class GemmBase : protected ProductTarget, protected BlockCode {
 protected:
  GemmBase(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu, const Body* then)
      : ProductTarget(module, kernel, gpu, then),
        BlockCode(*target_),
        kernel_(kernel),
        tile_(*kernel.tile),
        threads_(tile_.threads()),
        bytes_(static_cast<int>(ir::dtype_bytes(kernel.type))),
        c_bytes_(static_cast<int>(ir::dtype_bytes(kernel.result))),
        evaluator_(*target_) {}

  // The function, and where its block is in C: of the tile in `row0_`, `column0_`, the first element.
  void begin() {
    target_->begin(kernel_.name());
    const size_t slots = body_.slots.size() - 3,
                 extents = target_->constants.size() - static_cast<size_t>(extents_of(kernel_));
    a_address_ = target_->operands[slots], b_address_ = target_->operands[slots + 1];
    c_address_ = target_->operands[slots + 2];
    m_ = target_->constants[extents], n_ = target_->constants[extents + 1];
    k_ = target_->constants[extents + 2];
    const auto row = [&](size_t which, Value* dense) {
      return kernel_.pitch ? target_->constants[extents + 3 + which] : dense;
    };
    a_row_ = row(0, kernel_.transpose_a ? m_ : k_), b_row_ = row(1, kernel_.transpose_b ? k_ : n_);
    c_row_ = row(2, n_);
    thread_ = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
    Value* block = special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
    Value* across = b.CreateUDiv(b.CreateAdd(n_, word(tile_.n - 1)), word(tile_.n));
    Value* down = b.CreateUDiv(block, across);
    row0_ = b.CreateMul(down, word(tile_.m));
    column0_ = b.CreateMul(b.CreateSub(block, b.CreateMul(down, across)), word(tile_.n));
  }

  Value* in_bytes(Value* elements) { return b.CreateShl(elements, bytes_ == 2 ? 1 : 2); }
  // Whether an address and the step from row to row are multiples of `bytes`, a power of two.
  Value* multiple_of(int bytes, Value* address, Value* stride) {
    Value* low = b.CreateOr(b.CreatePtrToInt(address, b.getInt64Ty()), stride);
    return b.CreateICmpEQ(b.CreateAnd(low, b.getInt64(static_cast<uint64_t>(bytes - 1))), b.getInt64(0));
  }

  // Where the last of the runs of `count` elements begins whose places are multiples of that.
  Value* last_run(Value* extent, int count) {
    if (kernel_.pitch)
      extent = b.CreateAnd(b.CreateAdd(extent, word(count - 1)), word(-count));  // it may reach into the gap
    return b.CreateSub(extent, word(count));
  }

  Values either(Value* condition, const std::function<Values()>& yes, const std::function<Values()>& no) {
    return target_->either(condition, yes, no);
  }

  // An element of C.
  Value* c_address(Value* row, Value* column) {
    Value* index = b.CreateAdd(b.CreateMul(wide(row), wide(c_row_)), wide(column));
    return b.CreateInBoundsGEP(stored(c_bytes_), c_address_, index);
  }
  // Runs of `count` elements of C can be moved at once.
  Value* c_aligned(int count) {
    return multiple_of(count * c_bytes_, c_address_, wide(b.CreateShl(c_row_, c_bytes_ == 2 ? 1 : 2)));
  }

  // `each` puts the thread's elements: `count` at a time where rows of C allow it (true), else one by one. A
  // function that moves several at a time in its own kernel has such rows, whatever the launch.
  void put_runs(int count, const std::function<void(bool whole)>& each) {
    if (count == 1 || (kernel_.epilogue && !body_.flat && body_.vector >= count)) return each(true);
    const auto one = [&](bool whole) { return each(whole), Values{}; };
    either(
        c_aligned(count), [&] { return one(true); }, [&] { return one(false); });
  }
  // Between the products and the first put.
  void begin_epilogue() {
    if (kernel_.epilogue) evaluator_.begin_function();
  }
  // `count` finished elements of C from (row, column) on: into memory, through the epilogue, or both.
  void put(Value* row, Value* column, Value* value, int count) {
    if (!kernel_.epilogue || kernel_.epilogue->keeps) {
      Value* rounded = c_bytes_ == 2 ? target_->half.narrow(value, kernel_.result) : value;
      b.CreateAlignedStore(rounded, c_address(row, column), aligned_to(count * c_bytes_));
    }
    if (kernel_.epilogue) pass_on(row, column, target_->round(value, kernel_.result), count);
  }

  const GemmKernel& kernel_;
  const GemmTile& tile_;
  const int threads_;
  const int bytes_, c_bytes_;  // of an element of A and B, and of C
  Value *a_address_ = nullptr, *b_address_ = nullptr, *c_address_ = nullptr;
  Value *m_ = nullptr, *n_ = nullptr, *k_ = nullptr;
  Value *a_row_ = nullptr, *b_row_ = nullptr, *c_row_ = nullptr;    // elements from one row to the next
  Value *thread_ = nullptr, *row0_ = nullptr, *column0_ = nullptr;  // the block's first row and column of C

 private:
  // The epilogue at some elements: as in kernels.cpp, all its reads come before its writes.
  void pass_on(Value* row, Value* column, Value* value, int count) {
    const auto index = [&](Value* word) { return b.CreateZExtOrTrunc(word, target_->index_type); };
    Point point{index(row), index(column), nullptr, static_cast<unsigned>(count)};
    if (body_.flat) {
      point.column = b.CreateAdd(b.CreateMul(point.row, index(n_)), point.column);
      point.row = target_->index(0);
    }
    evaluator_.begin_row(point.row);
    evaluator_.begin_point(point);
    evaluator_.give(kernel_.epilogue->slot, value);
    std::vector<Evaluator::Pending> pending;
    for (size_t m = 0; m < body_.members.size(); ++m) evaluator_.prepare(static_cast<int32_t>(m), pending);
    evaluator_.flush(pending);
  }

  Evaluator evaluator_;
};

// The two emitters; `kernel`'s tile says which is meant.
llvm::Function* emit_ffma_gemm(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu,
                               const Body* then);
llvm::Function* emit_mma_gemm(llvm::Module& module, const GemmKernel& kernel, const GpuTarget& gpu,
                              const Body* then);

}  // namespace gacc::codegen
