// The kernel emitters, one for each form of ir/kernel.h, written over Target and Evaluator.
//
// Order: at every point all memory is read before anything is written, because a result may lie in the bytes
// of an operand (ir::may_reuse).
#include "codegen/emit/evaluator.h"
#include "codegen/emit/special.h"

namespace gacc::codegen {

namespace {

using ir::Lowering;

class KernelEmitter {
 public:
  explicit KernelEmitter(Target& target) : t_(target), body_(target.body), e_(target) {}

  bool emit(const std::string& name) {
    bool known = true;
    t_.begin(name);
    e_.begin_function();
    switch (body_.form) {
      case ir::KernelForm::pointwise:
        pointwise();
        break;
      case ir::KernelForm::rowwise:
        rowwise();
        break;
      case ir::KernelForm::special:
        known = emit_special(t_);
        break;
      case ir::KernelForm::column_reduce:
        column_reduce();
        break;
      default:
        total_reduce();
    }
    t_.end();
    return known;
  }

 private:
  // Members with something to do at every point of a stage.
  struct Stage {
    std::vector<int32_t> stores, reduces;
    std::vector<Reduction> reductions;
  };
  Stage stage(int number) const {
    Stage s;
    for (size_t m = 0; m < body_.members.size(); ++m) {
      const Member& member = body_.members[m];
      if (body_.stage_of(member) != number || member.per_row) continue;
      if (member.kind != Lowering::pointwise) {
        s.reduces.push_back(static_cast<int32_t>(m));
        s.reductions.push_back({member.combine, t_.type_of(member.types[0])});
      } else if (std::any_of(member.stores.begin(), member.stores.end(),
                             [](int32_t slot) { return slot >= 0; })) {
        s.stores.push_back(static_cast<int32_t>(m));
      }
    }
    return s;
  }

  // What a stage does at one point: the reductions' terms and all stored values first, then the stores.
  Target::Terms visit(const Stage& s, const Point& point) {
    std::vector<Evaluator::Pending> pending;
    Target::Terms terms = look(s, point, pending);
    e_.flush(pending);
    return terms;
  }

  // The same before the stores.
  Target::Terms look(const Stage& s, const Point& point, std::vector<Evaluator::Pending>& pending) {
    e_.begin_point(point);
    Target::Terms terms;
    for (const int32_t m : s.reduces)
      terms.push_back(e_.value(body_.members[static_cast<size_t>(m)].inputs[0]));
    for (const int32_t m : s.stores) e_.prepare(m, pending);
    return terms;
  }

  void pointwise() {
    const Stage all = stage(0);
    t_.points([&](Value* row) { e_.begin_row(row); }, [&](const Point& point) { visit(all, point); });
  }

  void rowwise() {
    t_.rows([&](Value* row) {
      e_.begin_row(row);
      for (int number = 0; number < body_.stages; ++number) {
        row_values(row, number);
        const Stage s = stage(number);
        if (s.stores.empty() && s.reduces.empty()) continue;
        const Target::Terms sums = t_.reduce(row, t_.index(0), t_.column_count(), s.reductions,
                                             [&](const Point& p) { return visit(s, p); });
        for (size_t i = 0; i < s.reduces.size(); ++i) {
          const ir::DType dtype = body_.members[static_cast<size_t>(s.reduces[i])].types[0];
          e_.set_row_value(s.reduces[i], 0, t_.round(sums[i], dtype));
          store_sum(s.reduces[i], row, sums[i]);
        }
      }
    });
  }

  // The ops of a stage with one result a row.
  void row_values(Value* row, int number) {
    e_.begin_point({row, t_.index(0), nullptr, 1});
    std::vector<Evaluator::Pending> pending;
    for (size_t m = 0; m < body_.members.size(); ++m) {
      const Member& member = body_.members[m];
      if (member.stage != number || !member.per_row) continue;
      for (size_t r = 0; r < member.types.size(); ++r) {
        const auto [i, k] = std::pair(static_cast<int32_t>(m), static_cast<int32_t>(r));
        e_.set_row_value(i, k, e_.result(i, k));
      }
      e_.prepare(static_cast<int32_t>(m), pending);
    }
    if (!pending.empty()) t_.once([&] { e_.flush(pending); });
  }

  void column_reduce() {
    const Stage all = stage(0);
    const size_t each = all.reductions.size();
    t_.column_blocks(
        all.reductions,
        [&](const Target::Columns& block) {
          Target::Carried sums;
          for (const Point& point : block.points) {
            for (const Reduction& r : all.reductions)
              sums.push_back(t_.splat(Math::neutral(r.how, r.type), point.lanes));
          }
          // Several rows at once as long as there are so many, then one by one: the order is the same.
          Value* next = block.first;
          if (block.at_once > 1) {
            Value* ahead = t_.b.CreateMul(block.step, t_.index(block.at_once - 1));
            Value* low = t_.b.CreateSub(block.last, ahead);
            Value* high = t_.b.CreateSelect(t_.b.CreateICmpULT(ahead, block.last), low, t_.index(0));
            Value* step = t_.b.CreateMul(block.step, t_.index(block.at_once));
            sums.push_back(next);
            sums = t_.loop(next, high, step, sums, [&](Value* row, const Target::Carried& carried) {
              Target::Carried after = add_rows(all, block, row, block.at_once, carried);
              after.back() = t_.b.CreateAdd(row, step);
              return after;
            });
            next = sums.back();
            sums.pop_back();
          }
          return t_.loop(next, block.last, block.step, sums, [&](Value* row, const Target::Carried& carried) {
            return add_rows(all, block, row, 1, carried);
          });
        },
        [&](const Point& point, Value* index, const Target::Terms& sums) {
          for (size_t r = 0; r < each; ++r)
            store_columns(body_.members[static_cast<size_t>(all.reduces[r])], point, index, sums[r]);
        });
  }

  // Adds `count` rows from `row` on to the sums of every point. What they store comes after all of them, or
  // of a row alone after each point.
  Target::Carried add_rows(const Stage& all, const Target::Columns& block, Value* row, int count,
                           Target::Carried sums) {
    std::vector<Evaluator::Pending> pending;
    for (int i = 0; i < count; ++i) {
      if (i > 0) row = t_.b.CreateAdd(row, block.step);
      e_.begin_row(row);
      for (size_t p = 0; p < block.points.size(); ++p) {
        Point point = block.points[p];
        point.row = row;
        const Target::Terms terms = look(all, point, pending);
        for (size_t r = 0; r < terms.size(); ++r) {
          Value*& sum = sums[p * terms.size() + r];
          sum = t_.math.combine(all.reductions[r].how, sum, t_.splat(terms[r], point.lanes));
        }
        if (count == 1) e_.flush(pending), pending.clear();
      }
    }
    e_.flush(pending);
    return sums;
  }

  void store_columns(const Member& member, const Point& point, Value* index, Value* sum) {
    for (size_t r = 0; r < member.stores.size(); ++r) {
      if (member.stores[r] < 0) continue;
      Value* value = sum;
      if (member.old[r] >= 0) {
        Value* old = t_.load(member.old[r], index, point);
        if (member.accumulate) value = t_.math.combine(member.combine, old, sum);
        if (Value* open = e_.gate(member)) value = t_.b.CreateSelect(open, value, old);
      }
      t_.store(member.stores[r], index, value, point);
    }
  }

  void store_sum(int32_t m, Value* index, Value* sum) {
    const Member& member = body_.members[static_cast<size_t>(m)];
    for (size_t r = 0; r < member.stores.size(); ++r) {
      if (member.stores[r] < 0) continue;
      t_.once([&] {
        Value* value = sum;
        if (member.old[r] >= 0) {
          Value* old = t_.load_one(member.old[r], index);
          if (member.accumulate) value = t_.math.combine(member.combine, old, sum);
          if (Value* open = e_.gate(member)) value = t_.b.CreateSelect(open, value, old);
        }
        t_.store_one(member.stores[r], index, value);
      });
    }
  }

  void total_reduce() {
    const Stage all = stage(0);
    t_.parts([&](Value* part) {
      const auto [low, high] = t_.part_rows(part, body_.flat ? t_.column_count() : t_.row_count());
      Value *first = low, *last = high;
      const auto on_point = [&](const Point& p) { return visit(all, p); };
      Target::Terms sums;
      if (body_.flat) {
        e_.begin_row(t_.index(0));
        sums = t_.reduce(t_.index(0), first, last, all.reductions, on_point);
      } else {
        sums = t_.reduce_rows(
            first, last, all.reductions, [&](Value* row) { e_.begin_row(row); }, on_point);
      }
      for (size_t i = 0; i < sums.size(); ++i) store_sum(all.reduces[i], part, sums[i]);
    });
  }

  Target& t_;
  const Body& body_;
  Evaluator e_;
};

}  // namespace

bool emit_kernel(Target& target, const std::string& name, std::string& problem) {
  if (KernelEmitter(target).emit(name)) return true;
  problem = "nothing emits `" + target.body.special + "`";
  return false;
}

}  // namespace gacc::codegen
