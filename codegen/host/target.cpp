// The host's schedule: loops over vectors of the machine's width, several at a time where the work is cheap,
// and a masked vector for what is left. The function works on items [begin, end) of its unit.
#include <llvm/IR/Module.h>

#include <algorithm>

#include "codegen/host/target.h"

namespace gacc::codegen {

namespace {

std::unique_ptr<Instructions> host_instructions(bool fma, bool f16c) {
  auto made = std::make_unique<Instructions>();
  made->fma = fma;
  made->f16 = f16c;
  return made;
}

class HostTarget final : public Target {
 public:
  HostTarget(llvm::Module& module, const Body& body, unsigned lanes, bool fma, bool f16c)
      : Target(module, body, host_instructions(fma, f16c)), width_(lanes) {
    index_type = b.getInt64Ty();
    lanes_ = width_;
    // Sums need several accumulators to hide the latency of an addition, and always the same number of them:
    // a sum that is recomputed in another kernel has the same bits. How often the code stands in the loop is
    // free.
    const bool sums = body.form == ir::KernelForm::rowwise || body.form == ir::KernelForm::total_reduce;
    copies_ = sums ? 4 : 1;
    unroll_ = body.cost > 40 ? 1 : sums ? 4 : body.cost > 8 ? 1 : 2;
  }

  void begin(const std::string& name) override {
    llvm::Type* i64 = b.getInt64Ty();
    llvm::Type* type[] = {b.getPtrTy(), b.getPtrTy(), i64, i64};
    function = llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), type, false),
                                      llvm::Function::ExternalLinkage, name, module);
    function->addFnAttr(llvm::Attribute::NoUnwind);
    b.SetInsertPoint(llvm::BasicBlock::Create(module.getContext(), "entry", function));
    for (size_t i = 0; i < body.slots.size(); ++i)
      operands.push_back(b.CreateAlignedLoad(
          b.getPtrTy(), b.CreateConstGEP1_64(b.getPtrTy(), function->getArg(0), i), llvm::Align(8)));
    for (int32_t i = 0; i < body.extents; ++i) {
      extents.push_back(b.CreateAlignedLoad(
          i64, b.CreateConstGEP1_64(i64, function->getArg(1), static_cast<uint64_t>(i)), llvm::Align(8)));
      constants.push_back(b.CreateTrunc(extents.back(), b.getInt32Ty()));
    }
    low_ = function->getArg(2), high_ = function->getArg(3);
  }

  void points(const OnRow& on_row, const OnPoint& on_point) override {
    const auto every = [&](const Point& p) { return on_point(p), Terms{}; };
    if (body.flat) {
      on_row(index(0));
      reduce(index(0), low_, high_, {}, every);
    } else {
      rows([&](Value* row) {
        on_row(row);
        reduce(row, index(0), column_count(), {}, every);
      });
    }
  }

  void rows(const OnRow& on_row) override { each(low_, high_, index(1), on_row); }

  void column_blocks(const std::vector<Reduction>& reductions, const OnColumns& on_block,
                     const OnSums& on_sums) override {
    Value* width = extents[static_cast<size_t>(body.chunk) + 1];
    Value* pieces = b.CreateUDiv(b.CreateAdd(column_count(), b.CreateSub(width, index(1))), width);
    rows([&](Value* item) {
      Value* part = b.CreateUDiv(item, pieces);
      Value* low = b.CreateMul(b.CreateURem(item, pieces), width);
      Value* high = smaller(b.CreateAdd(low, width), column_count());
      const auto [first, last] = part_rows(part, row_count());
      Value* base = b.CreateMul(part, column_count());
      const auto block = [&, first = first, last = last](const std::vector<Point>& points) {
        const Carried sums = on_block({points, first, last, index(1)});
        for (size_t p = 0; p < points.size(); ++p) {
          const auto own = sums.begin() + static_cast<std::ptrdiff_t>(p * reductions.size());
          on_sums(points[p], b.CreateAdd(base, points[p].column),
                  Terms(own, own + static_cast<std::ptrdiff_t>(reductions.size())));
        }
      };
      constexpr unsigned blocks = 4;
      Value* middle = whole(low, high, blocks * width_);
      each(low, middle, index(blocks * width_), [&](Value* column) {
        std::vector<Point> points;
        for (unsigned k = 0; k < blocks; ++k)
          points.push_back({nullptr, b.CreateAdd(column, index(k * width_)), nullptr, width_});
        block(points);
      });
      each(middle, high, index(width_), [&](Value* column) {
        block({{nullptr, column, mask(column, high), width_}});
      });
    });
  }

  void items(const std::function<void(Value*)>& on_item) override { rows(on_item); }
  void parts(const std::function<void(Value*)>& on_part) override { rows(on_part); }
  void once(const std::function<void()>& store) override { store(); }

 protected:
  Carried walk(Value* row, Value* low, Value* high, const std::vector<Reduction>& reductions,
               Carried accumulators, const OnTerms& on_point) override {
    // The accumulators take turns, so vector i of the walk always goes to the same one.
    const auto visit = [&](const Point& point, Carried& carried) {
      accumulate(reductions, on_point(point), point, carried);
      std::rotate(carried.begin(), carried.begin() + static_cast<std::ptrdiff_t>(reductions.size()),
                  carried.end());
    };
    Value* middle = low;
    if (body.cost < kMaskedCost) {
      const unsigned step = unroll_ * width_;
      middle = whole(low, high, step);
      accumulators = loop(low, middle, index(step), accumulators, [&](Value* column, Carried carried) {
        for (unsigned copy = 0; copy < unroll_; ++copy)
          visit({row, b.CreateAdd(column, index(copy * width_)), nullptr, width_}, carried);
        return carried;
      });
    }
    return loop(middle, high, index(width_), accumulators, [&](Value* column, Carried carried) {
      visit({row, column, mask(column, high), width_}, carried);
      return carried;
    });
  }

  llvm::Align alignment(const Point&, ir::DType dtype) const override {
    return llvm::Align(static_cast<uint64_t>(ir::dtype_bytes(dtype)));
  }

 private:
  // low plus the largest multiple of `step` that fits below high; low <= high.
  Value* whole(Value* low, Value* high, unsigned step) {
    return b.CreateAdd(low, b.CreateAnd(b.CreateSub(high, low), index(-static_cast<int64_t>(step))));
  }
  Value* mask(Value* column, Value* high) {
    Value* left = smaller(b.CreateSub(high, column), index(width_));
    return b.CreateICmpULT(iota(b.getInt32Ty(), width_), splat(b.CreateTrunc(left, b.getInt32Ty()), width_));
  }

  unsigned width_, unroll_ = 1;
  Value *low_ = nullptr, *high_ = nullptr;
};

}  // namespace

std::unique_ptr<Target> make_host_target(llvm::Module& module, const Body& body, unsigned lanes, bool fma,
                                         bool f16c) {
  return std::make_unique<HostTarget>(module, body, lanes, fma, f16c);
}

}  // namespace gacc::codegen
