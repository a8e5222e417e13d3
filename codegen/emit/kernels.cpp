// The kernel emitters, one for each form of ir/kernel.h, written over Target and Evaluator.
//
// Order: at every point all memory is read before anything is written, because a result may lie in the bytes
// of an operand (ir::may_reuse).
#include "codegen/emit/blocks.h"
#include "codegen/emit/evaluator.h"
#include "codegen/emit/handwritten/emitters.h"

namespace gacc::codegen {

namespace {

using ir::Lowering;

// The loop nests of hand-written kernels (kernels/handwritten.h).
struct Emitter {
  const ir::OpInfo* op;
  void (*emit)(Target& target);
};

constexpr Emitter kEmitters[] = {
    {&ir::op_attention, emit_attention},
    {&ir::op_attention_dropout, emit_attention},
    {&ir::op_attention_grad, emit_attention_gradient},
    {&ir::op_attention_dropout_grad, emit_attention_gradient},
    {&ir::op_delta_rule, emit_delta_rule},
    {&ir::op_delta_rule_grad_written, emit_delta_written},
    {&ir::op_delta_rule_grad_queries, emit_delta_queries},
    {&ir::op_delta_rule_grad_keys, emit_delta_keys},
    {&ir::op_delta_rule_grad_decay, emit_delta_decay},
    {&ir::op_documents, emit_documents},
    {&ir::op_documents_spans, emit_document_spans},
    {&ir::op_documents_lengths, emit_document_lengths},
    {&ir::op_cache_put, emit_cache_put},
    {&ir::op_cache_scores, emit_cache_scores},
    {&ir::op_cache_read, emit_cache_read},
    {&ir::op_rope, emit_rope},
    {&ir::op_max_pool2d, emit_max_pool},
    {&ir::op_max_pool2d_grad, emit_max_pool_gradient},
    {&ir::op_batch_matmul, emit_batch_product},
    {&ir::op_permute, emit_permute},
    {&ir::op_concat, emit_concat},
    {&ir::op_slice, emit_slice},
    {&ir::op_dequantize, emit_dequantize},
    {&ir::op_embedding, emit_embedding},
    {&ir::op_embedding_grad, emit_embedding_gradient},
    {&ir::op_embedding_grad_acc, emit_embedding_gradient},
    {&ir::op_avg_pool2d, emit_mean_pool},
    {&ir::op_avg_pool2d_grad, emit_mean_pool_gradient},
    {&ir::op_conv2d, emit_conv},
    {&ir::op_conv2d_grad, emit_conv_images},
    {&ir::op_conv2d_weight_grad, emit_conv_weight},
};

class KernelEmitter {
 public:
  explicit KernelEmitter(Target& target) : t_(target), body_(target.body), e_(target) {}

  bool emit(const std::string& name) {
    bool known = true;
    t_.begin(name);
    e_.begin_function();
    switch (body_.form) {
      case ir::KernelForm::pointwise:
        if (body_.blocks())
          quantize();
        else
          pointwise();
        break;
      case ir::KernelForm::rowwise:
        rowwise();
        break;
      case ir::KernelForm::handwritten:
        known = handwritten();
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
  const Member& member(int32_t m) const { return body_.members[m]; }

  // Members with something to do at every point of a stage.
  struct Stage {
    std::vector<int32_t> stores, reduces;
    std::vector<Reduction> reductions;
  };
  // Says whether a reduction keeps what its additions lose, in a second buffer (`total_sum.kept`).
  static bool keeps(const Member& member) {
    return member.kind != Lowering::pointwise && member.stores.size() == 2;
  }
  // A sum that is carried: a reduction's, or what its additions lose.
  struct Carrier {
    size_t reduction;
    bool low;
  };
  std::vector<Carrier> carriers(const Stage& all) const {
    std::vector<Carrier> list;
    for (size_t r = 0; r < all.reduces.size(); ++r) {
      list.push_back({r, false});
      if (keeps(member(all.reduces[r]))) list.push_back({r, true});
    }
    return list;
  }
  Stage stage(int number) const {
    Stage s;
    for (size_t m = 0; m < body_.members.size(); ++m) {
      const Member& member = body_.members[m];
      if (body_.stage_of(member) != number || member.per_row) continue;
      if (member.kind != Lowering::pointwise) {
        s.reduces.push_back(static_cast<int32_t>(m));
        s.reductions.push_back({member.combine, t_.type_of(member.types[0])});
      } else if (std::ranges::any_of(member.stores, [](int32_t slot) { return slot >= 0; })) {
        s.stores.push_back(static_cast<int32_t>(m));
      }
    }
    return s;
  }

  // Emits a stage at one point: the reductions' terms and all stored values first, then the stores.
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
    for (const int32_t m : s.reduces) terms.push_back(e_.value(member(m).inputs[0]));
    for (const int32_t m : s.stores) e_.prepare(m, pending);
    return terms;
  }

  void pointwise() {
    const Stage all = stage(0);
    t_.points([&](Value* row) { e_.begin_row(row); }, [&](const Point& point) { visit(all, point); });
  }

  // An op whose result lies in blocks: an item is a block, a row of the domain.
  void quantize() {
    const Member& only = member(0);
    t_.items([&](Value* block) {
      e_.begin_row(block);
      store_block(t_, only.stores[0], block, [&](Value* column) {
        e_.begin_point({block, column, nullptr, 1});
        return e_.result(0, 0);
      });
    });
  }

  void rowwise() {
    t_.rows([&](Value* row) {
      e_.begin_row(row);
      for (int number = 0; number < body_.stages; ++number) {
        row_values(row, number);
        const Stage s = stage(number);
        if (s.stores.empty() && s.reduces.empty()) continue;
        e_.begin_stage();
        std::vector<Evaluator::Pending> pending;
        const Target::Terms sums =
            t_.reduce(row, t_.index(0), t_.column_count(), s.reductions, [&](const Point& p) {
              const Target::Terms terms = look(s, p, pending);
              if (ends_group(p)) e_.flush(pending), pending.clear();
              return terms;
            });
        for (size_t i = 0; i < s.reduces.size(); ++i) {
          const Member& reduction = member(s.reduces[i]);
          e_.set_row_value(s.reduces[i], 0, t_.round(sums[i], reduction.types[0]));
          store_sum(reduction, row, sums[i]);
        }
      }
    });
  }

  // Says whether the stores of a stage follow this point. Those of vectors in registers wait for some more of these:
  // nothing tells ptxas that it may load past a store.
  bool ends_group(const Point& p) const {
    constexpr int kTogether = 4;
    return p.turn < 0 || (p.turn + 1) % kTogether == 0 || p.turn + 1 == body_.held;
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
    const std::vector<Carrier> carried_sums = carriers(all);
    std::vector<Reduction> reductions;
    for (const Carrier& each : carried_sums) reductions.push_back(all.reductions[each.reduction]);
    t_.column_blocks(
        reductions,
        [&](const Target::Columns& block) {
          Target::Carried sums;
          for (const Point& point : block.points)
            for (const auto& [r, low] : carried_sums)
              sums.push_back(first_sum(member(all.reduces[r]), low ? 1 : 0, point, all.reductions[r]));
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
          for (size_t i = 0; i < sums.size(); ++i) {
            const auto& [r, low] = carried_sums[i];
            store_sum(member(all.reduces[r]), low ? 1 : 0, point, index, sums[i]);
          }
        });
  }

  // Returns the value that the sums of a point's columns start from, of that result of the op.
  Value* first_sum(const Member& member, size_t result, const Point& point, const Reduction& reduction) {
    Value* none = t_.splat(Math::neutral(reduction.how, reduction.type), point.lanes);
    if (!member.ordered) return none;
    const auto held = [&] { return Target::Carried{t_.load(member.old[result], point.column, point)}; };
    if (body_.side == 0) return held()[0];  // a host's point has a mask
    return t_.either(t_.b.CreateICmpULT(point.column, t_.column_count()), held,
                     [&] { return Target::Carried{none}; })[0];
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
        add_terms(all, terms, point.lanes, sums.data() + p * (sums.size() / block.points.size()));
        if (count == 1) e_.flush(pending), pending.clear();
      }
    }
    e_.flush(pending);
    return sums;
  }

  // Adds a term to each of the carried sums, which lie as carriers() says.
  void add_terms(const Stage& all, const Target::Terms& terms, unsigned lanes, Value** sums) {
    for (size_t r = 0; r < terms.size(); ++r) {
      Value* const term = t_.splat(terms[r], lanes);
      Value*& sum = *sums++;
      Value* const before = sum;
      sum = t_.math.combine(all.reductions[r].how, before, term);
      if (!keeps(member(all.reduces[r]))) continue;
      // Finds what the addition lost, exactly: Knuth, The Art of Computer Programming 2, section 4.2.2, theorem B. Then
      // the sum takes what is large enough of all that was lost, so that the rest keeps its digits, too.
      Value* const added = t_.b.CreateFSub(sum, before);
      Value* const lost =
          t_.b.CreateFAdd(t_.b.CreateFSub(before, t_.b.CreateFSub(sum, added)), t_.b.CreateFSub(term, added));
      Value*& low = *sums++;
      Value* const all_lost = t_.b.CreateFAdd(low, lost);
      Value* const whole = t_.b.CreateFAdd(sum, all_lost);
      low = t_.b.CreateFSub(all_lost, t_.b.CreateFSub(whole, sum));
      sum = whole;
    }
  }

  // Stores a reduction's sum, of each lane of the point, where that result of the op lies.
  void store_sum(const Member& member, size_t result, const Point& point, Value* index, Value* sum) {
    if (member.stores[result] < 0) return;
    Value* value = sum;
    if (member.old[result] >= 0) {
      Value* old = t_.load(member.old[result], index, point);
      if (member.accumulate && !member.ordered) value = t_.math.combine(member.combine, old, sum);
      if (Value* open = e_.gate(member)) value = t_.b.CreateSelect(open, value, old);
    }
    t_.store(member.stores[result], index, value, point);
  }

  // The same of a row or part.
  void store_sum(const Member& member, Value* index, Value* sum) {
    if (member.stores[0] >= 0) t_.once([&] { store_sum(member, 0, {}, index, sum); });
  }

  // False when there is no emitter, which is a bug.
  bool handwritten() {
    if (body_.by_tiles) return t_.emit_by_tiles();
    const auto* found = std::ranges::find(kEmitters, body_.op, &Emitter::op);
    if (found == std::end(kEmitters)) return false;
    found->emit(t_);
    return true;
  }

  // Every element after the other, by one thread.
  void total_in_order(const Stage& all) {
    t_.once([&] {
      const std::vector<Carrier> carried_sums = carriers(all);
      Target::Carried sums;
      for (const auto& [r, low] : carried_sums)
        sums.push_back(t_.load_one(member(all.reduces[r]).old[low ? 1 : 0], t_.index(0)));
      sums = t_.loop(
          t_.index(0), t_.row_count(), t_.index(1), sums, [&](Value* row, const Target::Carried& rows) {
            e_.begin_row(row);
            return t_.loop(t_.index(0), t_.column_count(), t_.index(1), rows,
                           [&](Value* column, Target::Carried carried) {
                             add_terms(all, visit(all, {row, column, nullptr, 1}), 1, carried.data());
                             return carried;
                           });
          });
      for (size_t i = 0; i < sums.size(); ++i) {
        const auto& [r, low] = carried_sums[i];
        store_sum(member(all.reduces[r]), low ? 1 : 0, {}, t_.index(0), sums[i]);
      }
    });
  }

  void total_reduce() {
    const Stage all = stage(0);
    if (!all.reduces.empty() && member(all.reduces[0]).ordered)
      return t_.parts([&](Value*) { total_in_order(all); });
    t_.parts([&](Value* part) {
      const auto [low, high] = t_.part_rows(part, body_.flat ? t_.column_count() : t_.row_count());
      const auto on_point = [&](const Point& p) { return visit(all, p); };
      Target::Terms sums;
      if (body_.flat) {
        e_.begin_row(t_.index(0));
        sums = t_.reduce(t_.index(0), low, high, all.reductions, on_point);
      } else {
        sums = t_.reduce_rows(
            low, high, all.reductions, [&](Value* row) { e_.begin_row(row); }, on_point);
      }
      for (size_t i = 0; i < sums.size(); ++i) store_sum(member(all.reduces[i]), part, sums[i]);
    });
  }

  Target& t_;
  const Body& body_;
  Evaluator e_;
};

}  // namespace

bool emit_kernel(Target& target, const std::string& name, std::string& problem) {
  if (KernelEmitter(target).emit(name)) return true;
  problem = "nothing emits `" + std::string(target.body.op->name) + "`";
  return false;
}

}  // namespace gacc::codegen
