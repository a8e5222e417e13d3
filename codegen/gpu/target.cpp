// The GPU's schedule: one thread of a grid. Pointwise: a thread has `vector` neighbouring elements. Rows: a
// team has one (some lanes of a warp, or a block), its threads take turns along the columns. Columns: a block
// has some, of one part of the rows. Parts: one block each. What threads do together is convergent, or LLVM
// would duplicate or move it.
#include <llvm/IR/Module.h>

#include <algorithm>
#include <bit>

#include "codegen/gpu/target.h"
#include "codegen/nvptx/instructions.h"

namespace gacc::codegen {

namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kGlobal = 1;  // address space

class NvptxTarget final : public Target {
 public:
  NvptxTarget(llvm::Module& module, const Body& body, const GpuTarget& gpu)
      : Target(module, body, nvptx_instructions(gpu.bf16)), block_(body.block) {
    index_type = body.wide_index ? b.getInt64Ty() : b.getInt32Ty();
    lanes_ = static_cast<unsigned>(body.vector);
    group_ = static_cast<unsigned>(body.form == ir::KernelForm::rowwise ? body.team : block_);
  }

  void begin(const std::string& name) override {
    std::vector<llvm::Type*> types(body.slots.size(), b.getPtrTy(kGlobal));
    types.resize(body.slots.size() + static_cast<size_t>(body.extents), b.getInt64Ty());
    function = llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), types, false),
                                      llvm::Function::ExternalLinkage, name, module);
    function->setCallingConv(llvm::CallingConv::PTX_Kernel);
    function->addFnAttr(llvm::Attribute::NoUnwind);
    // No `noalias`: operands may share bytes (ir::may_reuse), and loads of written memory must not become
    // ld.global.nc.
    b.SetInsertPoint(llvm::BasicBlock::Create(module.getContext(), "entry", function));
    for (size_t i = 0; i < types.size(); ++i) {
      llvm::Argument* argument = function->getArg(static_cast<unsigned>(i));
      if (i < body.slots.size()) {
        operands.push_back(argument);
      } else {
        extents.push_back(b.CreateTrunc(argument, index_type));
        constants.push_back(b.CreateTrunc(argument, b.getInt32Ty()));
      }
    }
    thread_ = special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
    group_block_ = special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
  }

  void points(const OnRow& on_row, const OnPoint& on_point) override {
    Value* item = global_thread();
    Value* vector = index(body.vector);
    Value* element = b.CreateMul(item, vector);
    Value* across = column_count();
    if (body.gaps) across = b.CreateAnd(b.CreateAdd(across, index(body.vector - 1)), index(-body.vector));
    Value* all = body.flat ? across : b.CreateMul(row_count(), across);
    branch(b.CreateICmpULT(element, all), [&] {
      Point point{index(0), element, nullptr, static_cast<unsigned>(body.vector)};
      if (!body.flat) {
        point.row = b.CreateUDiv(element, across);
        point.column = b.CreateSub(element, b.CreateMul(point.row, across));
      }
      on_row(point.row);
      if (!body.gaps) return on_point(point);
      const auto visit = [&](Value* mask) {
        point.mask = mask;
        on_point(point);
        return Carried{};
      };
      Value* whole = b.CreateICmpULE(b.CreateAdd(point.column, index(body.vector)), column_count());
      either(
          whole, [&] { return visit(nullptr); }, [&] { return visit(before_gap(point, column_count())); });
    });
  }

  void rows(const OnRow& on_row) override {
    Value* row = block_index();
    if (group_ < block_) {
      Value* team = b.CreateLShr(thread_, b.getInt32(static_cast<uint32_t>(std::countr_zero(group_))));
      row = b.CreateAdd(b.CreateMul(row, index(block_ / group_)), to_index(team));
    }
    branch(b.CreateICmpULT(row, row_count()), [&] { on_row(row); });
  }

  // A block: `side` threads side by side, and strips of rows. Strip s has rows s, s + strips, .. of the part;
  // their sums meet in shared memory, where a thread adds those of one column from strip 0 on.
  void column_blocks(const std::vector<Reduction>& reductions, const OnColumns& on_block,
                     const OnSums& on_sums) override {
    const int64_t wide = body.side * body.vector, strips = block_ / body.side;
    Value* pieces = b.CreateUDiv(b.CreateAdd(column_count(), index(wide - 1)), index(wide));
    Value* part = b.CreateUDiv(block_index(), pieces);
    Value* begin = b.CreateMul(b.CreateURem(block_index(), pieces), index(wide));
    Value* thread = to_index(thread_);
    Value* column = b.CreateAdd(begin, b.CreateMul(b.CreateURem(thread, index(body.side)), index(lanes_)));
    const auto [low, high] = part_rows(part, row_count());
    // Threads without columns have no rows either, but reach the barriers.
    Value* last = b.CreateSelect(b.CreateICmpULT(column, column_count()), high, index(0));
    Value* first = b.CreateAdd(low, b.CreateUDiv(thread, index(body.side)));
    // So many elements at once, of all operands, as there are registers for.
    const auto operands = static_cast<int>(std::ranges::count_if(
        body.slots, [](const Slot& s) { return s.read && s.access == ir::Access::element; }));
    const int cost = body.cost, elements = (cost <= 8 ? 64 : cost <= 40 ? 32 : 16) / std::max(operands, 1);
    const int at_once = std::clamp(elements / body.vector, 1, 8);
    const Carried mine =
        on_block({{{nullptr, column, nullptr, lanes_}}, first, last, index(strips), at_once});
    llvm::Type* word = b.getInt32Ty();
    llvm::GlobalVariable* shared = gpu::shared_array(
        module, word, static_cast<uint64_t>(block_ * body.vector), function->getName().str());
    const auto place = [&](Value* at) { return b.CreateInBoundsGEP(word, shared, at); };
    Value* own = b.CreateURem(thread_, b.getInt32(static_cast<uint32_t>(wide)));
    Terms sums;
    for (size_t r = 0; r < reductions.size(); ++r) {
      if (r > 0) gpu::barrier(b);
      b.CreateAlignedStore(mine[r], place(b.CreateMul(thread_, b.getInt32(lanes_))),
                           llvm::Align(std::min<uint64_t>(4 * lanes_, 16)));
      gpu::barrier(b);
      const auto read = [&](Value* strip) {
        Value* at = b.CreateAdd(b.CreateMul(strip, b.getInt32(static_cast<uint32_t>(wide))), own);
        return b.CreateAlignedLoad(reductions[r].type, place(at), llvm::Align(4));
      };
      sums.push_back(loop(b.getInt32(1), b.getInt32(static_cast<uint32_t>(strips)), b.getInt32(1),
                          {read(b.getInt32(0))}, [&](Value* strip, const Carried& sum) {
                            return Carried{math.combine(reductions[r].how, sum[0], read(strip))};
                          })[0]);
    }
    column = b.CreateAdd(begin, thread);
    Value* owns = b.CreateAnd(b.CreateICmpULT(thread, index(wide)), b.CreateICmpULT(column, column_count()));
    branch(owns, [&] {
      on_sums({nullptr, column, nullptr, 1}, b.CreateAdd(b.CreateMul(part, column_count()), column), sums);
    });
  }

  void items(const std::function<void(Value*)>& on_item) override {
    Value* item = global_thread();
    branch(b.CreateICmpULT(item, extents[0]), [&] { on_item(item); });
  }

  void parts(const std::function<void(Value*)>& on_part) override { on_part(block_index()); }

  void once(const std::function<void()>& store) override {
    branch(b.CreateICmpEQ(rank(), b.getInt32(0)), store);
  }

 protected:
  Carried walk(Value* row, Value* low, Value* high, const std::vector<Reduction>& reductions,
               Carried accumulators, const OnTerms& on_point) override {
    Value* first = b.CreateAdd(low, b.CreateMul(to_index(rank()), index(body.vector)));
    Value* step = index(static_cast<int64_t>(group_) * body.vector);
    Point point{row, nullptr, nullptr, static_cast<unsigned>(body.vector)};
    const auto visit = [&](Value* column, Carried& carried) {
      point.column = column;
      accumulate(reductions, on_point(point), point, carried);
    };
    for (int64_t turn = 0; turn < body.held; ++turn) {
      point.turn = static_cast<int>(turn);
      visit(first, accumulators);
      first = b.CreateNSWAdd(first, step);  // so that all have one address, and an offset
    }
    point.turn = -1;
    if (body.holds_all) return accumulators;
    if (!body.gaps) {
      return loop(first, high, step, accumulators, [&](Value* column, Carried carried) {
        visit(column, carried);
        return carried;
      });
    }
    // Whole vectors, and for one thread the one that ends in the gap.
    accumulators.push_back(first);
    accumulators = loop(first, b.CreateAnd(high, index(-body.vector)), step, accumulators,
                        [&](Value* column, Carried carried) {
                          visit(column, carried);
                          carried.back() = b.CreateAdd(column, step);
                          return carried;
                        });
    Value* next = accumulators.back();
    accumulators.pop_back();
    return loop(next, high, step, accumulators, [&](Value* column, Carried carried) {
      point.column = column;
      point.mask = before_gap(point, high);
      visit(column, carried);
      return carried;
    });
  }

  // A butterfly inside each warp; then, for a block, each warp does the same with all warps' results, from shared
  // memory. Neighbouring reductions use different words, so one barrier each is enough: who writes words again has
  // passed the barrier of the reduction between, which nobody reaches before having read them. This holds because no
  // reduction stands in a loop; where a merged kernel repeats the whole, a barrier follows each turn.
  Value* across_threads(ir::Combine how, Value* value) override {
    const unsigned lanes = std::min(group_, kWarp);
    value = butterfly(how, value, lanes, lanes);
    const unsigned warps = group_ / kWarp;
    if (warps <= 1) return value;
    llvm::GlobalVariable* shared = scratch(warps);
    llvm::Type* word = b.getInt32Ty();
    const auto place = [&](Value* warp) { return b.CreateInBoundsGEP(word, shared, warp); };
    Value* lane = b.CreateAnd(thread_, b.getInt32(kWarp - 1));
    branch(b.CreateICmpEQ(lane, b.getInt32(0)), [&] {
      b.CreateAlignedStore(b.CreateBitCast(value, word), place(b.CreateLShr(thread_, 5)), llvm::Align(4));
    });
    gpu::barrier(b);
    Value* bits = b.CreateAlignedLoad(word, place(b.CreateAnd(lane, b.getInt32(warps - 1))), llvm::Align(4));
    return butterfly(how, b.CreateBitCast(bits, value->getType()), warps);
  }

  // Combines the values of `count` neighbours among the `team` threads that run together; each of them gets the result.
  Value* butterfly(ir::Combine how, Value* value, unsigned count, unsigned team = kWarp) {
    for (unsigned distance = count / 2; distance > 0; distance /= 2)
      value = math.combine(how, value, gpu::exchange(b, value, distance, team));
    return value;
  }

  bool emit_by_tiles() override {
    const ir::OpInfo* forward = body.op->gradient_of != nullptr ? body.op->gradient_of : body.op;
    const bool convolution = forward == &ir::op_conv2d;
    const bool attention = forward == &ir::op_attention || forward == &ir::op_attention_dropout;
    if (convolution) emit_conv_product(*this);
    if (attention) emit_attention_mma(*this);
    return convolution || attention;
  }

  llvm::Align alignment(const Point& point, ir::DType dtype) const override {
    // The widest access is 16 bytes.
    return llvm::Align(std::min<uint64_t>(static_cast<uint64_t>(ir::dtype_bytes(dtype)) * point.lanes, 16));
  }

 private:
  // The lanes whose columns are below `end`.
  Value* before_gap(const Point& point, Value* end) {
    Value* columns = b.CreateAdd(splat(point.column, point.lanes), iota(index_type, point.lanes));
    return b.CreateICmpULT(columns, splat(end, point.lanes));
  }
  Value* special(llvm::Intrinsic::ID id) { return gpu::special(b, id); }
  Value* to_index(Value* word) { return b.CreateZExt(word, index_type); }
  Value* block_index() { return to_index(group_block_); }
  Value* global_thread() { return b.CreateAdd(b.CreateMul(block_index(), index(block_)), to_index(thread_)); }
  // The thread's number among those that share its row.
  Value* rank() { return group_ < block_ ? b.CreateAnd(thread_, b.getInt32(group_ - 1)) : thread_; }

  // One word of shared memory a warp, in two arrays by turns.
  llvm::GlobalVariable* scratch(unsigned words) {
    std::swap(shared_[0], shared_[1]);
    if (shared_[0] == nullptr)
      shared_[0] = gpu::shared_array(module, b.getInt32Ty(), words, function->getName().str());
    return shared_[0];
  }

  int64_t block_;
  unsigned group_;  // threads that share a row or part: lanes of a warp, or the block
  Value *thread_ = nullptr, *group_block_ = nullptr;
  llvm::GlobalVariable* shared_[2] = {};
};

}  // namespace

std::unique_ptr<Target> make_nvptx_target(llvm::Module& module, const Body& body, const GpuTarget& gpu) {
  return std::make_unique<NvptxTarget>(module, body, gpu);
}

}  // namespace gacc::codegen
