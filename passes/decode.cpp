// Going on with a text by one position at a time: `decode` is `predict` for one position, with the keys and values of
// the positions before it in caches.
//
//   predict(%tokens : i32[B,T]) {                  decode(%tokens : i32[B,1], %decode.position : i32[B,1],
//                                                         %a.keys : f32[K D,T], %a.values : f32[T,K D]) {
//     %x = embedding %tokens, @table                 %x = embedding %tokens, @table : f32[B,1,C]
//     %y = add %x, @positions : f32[B,T,C]           %positions = embedding %decode.position, @positions
//                                                    %y = add %x, %positions : f32[B,1,C]
//     %qkv = rope ..                                 %qkv = rope .., %decode.position
//     %a, .. = attention %qkv {causal, ..}   →       %a.keys.2 = cache.put %a.keys, %qkv, %decode.position {keys}
//                                                    %a.values.2 = cache.put %a.values, %qkv, %decode.position
//                                                    %a.scores = cache.scores %qkv, %a.keys.2, %decode.position
//                                                    %a.weights = softmax %a.scores
//                                                    %a = cache.read %a.weights, %a.values.2, %decode.position
//     yield output %out                              yield output %out, rows %a.keys.2, rows %a.values.2
//   }                                              }
//
// Only of models whose positions meet in causal attention alone (ir/positions.h): then all other ops work on each
// position by itself, and what they read is either of that position or the same for all.
#include <algorithm>

#include "ir/builder.h"
#include "ir/ops/heads.h"
#include "ir/positions.h"
#include "passes/analysis/by_row.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

class Decoder {
 public:
  Decoder(Module& module, Diag& diag)
      : module_(module),
        from_(module.predict),
        to_(module.decode),
        build_(module, module.decode, diag),
        known_(from_.values.size()) {}

  // False where an op has no form for one position.
  bool run() {
    const ValueId output = *as_value(from_.yields.front().what);
    length_ = from_[output].type.shape[1];
    position_ = to_.add_value("decode.position", {DType::i32, {kBatch, 1}});
    const ValueId tokens = token_inputs(from_).front();
    const ValueId token = to_.add_value(from_[tokens].name, {DType::i32, {kBatch, 1}});
    known_[index(tokens)] = {token, true};
    to_.inputs = {token, position_};
    for (const Op& op : from_.ops)
      if (!convert(op)) return false;
    if (to_.inputs.size() == 2) return false;  // nothing to be kept
    to_.yields = {Yield{.role = YieldRole::output, .what = known_[index(output)].what}};
    for (const ValueId cache : kept_) to_.yields.push_back({.role = YieldRole::rows, .what = cache});
    remove_dead(to_);
    return true;
  }

 private:
  // The stand-in for a value of predict. `moves`: it differs from position to position.
  struct Known {
    Operand what{};
    bool moves = false;
  };

  Known known(const Operand& operand) const {
    const ValueId* value = as_value(operand);
    return value == nullptr ? Known{operand, false} : known_[index(*value)];
  }

  bool convert(const Op& op) {
    if (op.info == &op_documents_spans) return true;
    if (op.info == &op_documents) {  // a text is one document
      known_[index(op.results[1])] = {position_, true};
      return true;
    }
    if (op.info == &op_documents_lengths) {
      const std::optional<BufferId> length = module_.find(Named::text_length);
      if (!length) return false;
      build_.like(op);
      const ValueId tokens =
          build_.make("broadcast", name_of(op) + ".text", {*length}, {{"shape", Shape{kBatch, 1}}});
      const ValueId number =
          build_.make("cast", name_of(op), {tokens}, {{"to", std::string(dtype_text(DType::i32))}});
      known_[index(op.results.front())] = {number, true};
      return true;
    }
    build_.like(op);
    bool moves = false;
    for (const Operand& operand : op.operands) moves = moves || known(operand).moves;
    if (op.info == &op_attention || op.info == &op_attention_sinks) return attend(op);
    if (find_attr(op, "causal") != nullptr) return false;
    const bool of_positions = std::ranges::any_of(
        op.results, [&](ValueId result) { return has_rows(from_[result].type.shape, length_); });
    std::vector<Operand> operands;
    for (const Operand& operand : op.operands) {
      Operand each = known(operand).what;
      if (of_positions && !known(operand).moves && is_per_position(op, operand)) {
        if (build_.type(each).shape.size() != 2) return false;
        each = build_.make("embedding", name_of(op) + ".row", {position_, each});
        moves = true;
      }
      operands.push_back(each);
    }
    Attrs attrs = op.attrs;
    if (const auto shape = attrs.find("shape"); of_positions && shape != attrs.end())
      std::get<std::vector<int64_t>>(shape->second).at(1) = 1;
    if (op.info == &op_rope && operands.size() == 1) operands.emplace_back(position_);
    std::vector<std::string> names;
    for (const ValueId result : op.results) names.push_back(from_[result].name);
    const std::vector<ValueId> made =
        build_.make_n(op.info->name, names, std::move(operands), std::move(attrs));
    for (size_t i = 0; i < made.size(); ++i) known_[index(op.results[i])] = {made[i], moves};
    return true;
  }

  // Tells whether a pointwise op reads another row of what has no batch at each position.
  bool is_per_position(const Op& op, const Operand& operand) const {
    if (op.info->lowering != Lowering::pointwise) return false;
    const Shape shape = operand_type(module_, from_, operand).shape,
                &to = from_[op.results.front()].type.shape;
    return !has_batch(shape) && shape.size() + 1 == to.size() && shape.front() == length_ && length_ > 1;
  }

  std::string name_of(const Op& op) const { return from_[op.results.front()].name; }

  bool attend(const Op& op) {
    const OpView view{module_, from_, op};
    const Heads h = heads_of(view);
    const std::string name = name_of(op);
    const Operand qkv = known(op.operands.front()).what;
    const DType dtype = build_.type(qkv).dtype;
    const int64_t channels = h.kv_heads * h.channels, window = view.integer("window");
    const Attrs heads{{"heads", h.heads}, {"kv_heads", h.kv_heads}};
    const auto cached = [&](const std::string& of, Shape shape, bool keys) {
      const ValueId cache = to_.add_value(of, {dtype, std::move(shape)});
      to_.inputs.push_back(cache);
      Attrs attrs = heads;
      attrs["keys"] = keys;
      kept_.push_back(build_.make("cache.put", of, {cache, qkv, position_}, std::move(attrs)));
      return kept_.back();
    };
    const ValueId keys = cached(name + ".keys", {channels, length_}, true);
    const ValueId values = cached(name + ".values", {length_, channels}, false);
    Attrs scoring = heads;
    scoring["window"] = window;
    for (const char* of_scores : {"scale", "softcap"}) scoring[of_scores] = view.real(of_scores);
    const ValueId scores =
        build_.make("cache.scores", name + ".scores", {qkv, keys, position_}, std::move(scoring));
    const ValueId weights = op.info == &op_attention_sinks
                                ? weights_beside(known(op.operands[1]).what, scores, name)
                                : build_.make("softmax", name + ".weights", {scores});
    known_[index(op.results.front())] = {build_.make("cache.read", name, {weights, values, position_},
                                                     {{"kv_heads", h.kv_heads}, {"window", window}}),
                                         true};
    return true;
  }

  // The softmax of scores [B, H, T] and of one more for each head, whose weight is for nothing.
  ValueId weights_beside(const Operand& sinks, const Operand& scores, const std::string& name) {
    const int64_t heads = build_.type(scores).shape[1];
    const Operand column =
        build_.make("broadcast", name + ".sinks", {build_.reshaped(name + ".sink", sinks, {heads, 1})},
                    {{"shape", Shape{kBatch, heads, 1}}});
    const Operand all = build_.make("concat", name + ".all", {scores, column}, {{"axis", int64_t{1}}});
    const Operand shares = build_.make("softmax", name + ".shares", {all});
    return build_.make("slice", name + ".weights", {shares},
                       {{"axis", int64_t{1}}, {"from", int64_t{0}}, {"size", length_}});
  }

  Module& module_;
  const Region& from_;
  Region& to_;
  Builder build_;
  std::vector<Known> known_;  // by value of predict
  int64_t length_ = 0;        // T
  ValueId position_{};
  std::vector<ValueId> kept_{};  // the caches with this position
};

}  // namespace

bool decode(Module& module, const Options&, Diag& diag) {
  // A text of the IR may say what does not hold.
  if (*module.results.predict_positions != "causal" || mixes_positions(module, module.predict) != "")
    return true;
  if (!Decoder(module, diag).run()) module.decode = Region{RegionKind::decode};
  return !diag.failed();
}

}  // namespace gacc::passes
