// The gated delta rule (Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule", 2024):
// a memory of constant size in place of attention's keys and values. Each head has a matrix S [K, V], which forgets,
// and in which each position writes what its key does not find yet:
//   S_t = a_t S_{t-1} + k_t w_t'      a_t = exp(decay_t), S_0 = 0      w_t = beta_t r_t
//   r_t = v_t - a_t S_{t-1}' k_t      what is lacking                  out_t = S_t' q_t
//
// The gradient, with D_t that by S_t of everything from position t on:
//   D_t = q_t d_out_t' + a_{t+1} (D_{t+1} - k_{t+1} d_v_{t+1}')        d_w_t = D_t' k_t      d_v_t = beta_t d_w_t
//   d_beta_t = r_t d_w_t        d_q_t = S_t d_out_t                    d_k_t = D_t w_t - a_t S_{t-1} d_v_t
//   d_decay_t = sum of S_{t-1} * a_t (D_t - k_t d_v_t')
// Neither S_t nor D_t is kept for every position: both are computed again, S forwards and D backwards, for d_w by
// columns of values and for d_q and d_k by rows of keys. d_decay needs both at one position. That is done at the begin
// of each chunk, where S is kept. Between them it is what goes on to the next position, less what begins here, and what
// ends here; E_t = a_{t+1} (D_{t+1} - k_{t+1} d_v_{t+1}') is that of D_t which later positions make:
//   d_decay_t = d_decay_{t+1} - k_t' E_t w_t + a_t (q_t' S_{t-1} d_out_t - k_t' S_{t-1} d_v_t)
// Rounding errors of this sum stay within a chunk. What a position reads of its own writing is in none of the terms, so
// that they are small where the state is forgotten fast.
#include "ir/ops/delta_rule.h"

#include <algorithm>
#include <cmath>

namespace gacc::ir {

namespace {

// The shape of an operand or a result: one number a head for each position, the channels of its heads, ...
enum class Part : uint8_t {
  numbers,      // [B,T,H]
  shared_keys,  // [B,T,G K]
  keys,         // [B,T,H K]
  values,       // [B,T,H V]
  states,       // [B,chunks,H K,V]
  products,     // [B,chunks,H,K]
  sums,         // [B,chunks,H]
};

// The operands and results of an op of the family.
struct DeltaForm {
  const OpInfo* op;
  std::vector<Part> operands, results;
  std::optional<size_t> keys{}, values{};  // the operands that tell K and V
};

const DeltaForm& delta_form(const OpView& op) {
  using enum Part;
  static const DeltaForm forms[] = {
      {&op_delta_rule, {shared_keys, shared_keys, values, numbers, numbers}, {values, values}, 1, 2},
      {&op_delta_rule_grad_written, {shared_keys, shared_keys, numbers, numbers, values}, {values}, 1, 4},
      {&op_delta_rule_grad_queries,
       {shared_keys, shared_keys, numbers, values, values, values, numbers},
       {keys, keys, keys, states},
       1,
       3},
      {&op_delta_rule_grad_keys,
       {shared_keys, shared_keys, numbers, values, values, values, numbers, keys, keys, states},
       {keys, keys, products},
       1,
       3},
      {&op_delta_rule_grad_decay, {numbers, sums}, {numbers}},
  };
  return *std::ranges::find(forms, op.op.info, &DeltaForm::op);
}

Shape part_shape(Part part, const DeltaRule& s) {
  switch (part) {
    case Part::numbers:
      return {kBatch, s.length, s.heads};
    case Part::shared_keys:
      return {kBatch, s.length, s.key_heads * s.keys};
    case Part::keys:
      return {kBatch, s.length, s.heads * s.keys};
    case Part::values:
      return {kBatch, s.length, s.heads * s.values};
    case Part::states:
      return {kBatch, s.chunks(), s.heads * s.keys, s.values};
    case Part::products:
      return {kBatch, s.chunks(), s.heads, s.keys};
    case Part::sums:
      return {kBatch, s.chunks(), s.heads};
  }
  return {};
}

// Refuses the operand unless it is [B,T,C] with as many channels for each of so many heads.
void expect_head_channels(const OpView& op, size_t operand, int64_t heads) {
  const Shape shape = op.operand(operand).shape;
  if (shape.size() != 3 || !has_batch(shape))
    refuse(op, Kind::shape_mismatch, {operand}, "it must be [B,T,C]");
  if (shape[2] % heads != 0)
    refuse(op, Kind::shape_mismatch, {operand}, "{} channels do not divide into {} heads", shape[2], heads);
}

Types infer_delta_rule(const OpView& op) {
  const DeltaForm& form = delta_form(op);
  const int64_t heads = op.integer("heads"), key_heads = op.integer("key_heads");
  if (heads < 1) refuse(op, Kind::out_of_range, "heads is {}, not at least 1", heads);
  if (key_heads < 0 || (key_heads > 0 && heads % key_heads != 0))
    refuse(op, Kind::out_of_range, "{} heads of values do not divide into {} of keys", heads, key_heads);
  if (op.integer("chunk") < 1)
    refuse(op, Kind::out_of_range, "chunk is {}, not at least 1", op.integer("chunk"));
  expect_float(op, 0);
  const int64_t first_heads = form.operands.front() == Part::shared_keys && key_heads > 0 ? key_heads : heads;
  for (const size_t i : {size_t{0}, form.keys.value_or(0)}) expect_head_channels(op, i, first_heads);
  expect_head_channels(op, form.values.value_or(0), form.values ? heads : first_heads);
  const DeltaRule s = delta_rule_of(op);
  for (size_t i = 0; i < form.operands.size(); ++i) {
    const Shape wanted = part_shape(form.operands[i], s);
    if (op.operand(i).shape != wanted)
      refuse(op, Kind::shape_mismatch, {i}, "it must be {}", type_text({op.operand(i).dtype, wanted}));
  }
  Types types;
  for (const Part part : form.results) types.push_back({DType::f32, part_shape(part, s)});
  return types;
}

// --- the gradient in ops

void delta_rule_gradient(GradBuilder& g) {
  if (!only_first(g, "what a position lacks")) return;
  const DeltaRule s = delta_rule_of(g.view());
  Builder& b = g.b;
  const std::string name = g.d_name(2);
  const Operand q = g.operand(0), k = g.operand(1), decay = g.operand(3), d_out = *g.d_result();
  const Attrs attrs = g.op().attrs;
  const Shape by_head{kBatch, s.length, s.heads, s.values}, column{kBatch, s.length, s.heads, 1};
  const Shape rows = part_shape(Part::values, s), each = part_shape(Part::numbers, s);
  const Operand beta = b.reshaped(name + ".beta", g.operand(4), column);
  const auto heads = [&](const std::string& suffix, const Operand& x) {
    return b.reshaped(name + suffix + ".heads", x, by_head);
  };
  const auto times_beta = [&](const std::string& product, const Operand& x, const std::string& result) {
    return b.reshaped(result, b.make("mul", product, {beta, x}), rows);
  };
  const auto dot = [&](const std::string& suffix, const Operand& x, const Operand& y) {
    const Operand sum = b.make("row_dot", name + suffix + ".dot", {x, y});
    return b.reshaped(name + suffix, sum, each);
  };
  // Sums the channels of the heads that share one of keys.
  const auto over_group = [&](size_t operand, const Operand& x) -> Operand {
    if (s.group() == 1) return x;
    const std::string of = g.d_name(operand);
    const Operand apart = b.reshaped(of + ".apart", x, {kBatch, s.length, s.key_heads, s.group(), s.keys});
    const Operand last =
        b.make("permute", of + ".group", {apart}, {{"axes", std::vector<int64_t>{0, 1, 3, 2}}});
    const Operand sum = b.make("row_sum", of + ".sum", {last});
    return b.reshaped(of + ".shared", sum, part_shape(Part::shared_keys, s));
  };

  const Operand d_written =
      b.make("delta_rule.grad.written", name + ".written", {q, k, decay, g.operand(4), d_out}, attrs);
  const Operand d_written_heads = heads(".written", d_written), lacking = heads(".lacking", g.result(1));
  if (g.wanted(4)) g.add(4, dot(".beta.sum", d_written_heads, lacking));
  const Operand d_v = times_beta(name + ".scaled", d_written_heads, name);
  if (g.wanted(2)) g.add(2, d_v);
  if (!g.wanted(0) && !g.wanted(1) && !g.wanted(3)) return;

  const Operand written = times_beta(name + ".write.scaled", lacking, name + ".write");
  const Operand own = dot(".own", heads(".write", written), heads(".d_out", d_out));
  const std::vector<ValueId> forwards =
      b.make_n("delta_rule.grad.queries",
               {g.d_name(0) + ".each", g.d_name(1) + ".before", name + ".ended", name + ".states"},
               {q, k, decay, written, d_v, d_out, own}, attrs);
  if (g.wanted(0)) g.add(0, over_group(0, forwards[0]));
  if (!g.wanted(1) && !g.wanted(3)) return;
  const std::vector<ValueId> backwards =
      b.make_n("delta_rule.grad.keys", {g.d_name(1) + ".each", name + ".terms", name + ".products"},
               {q, k, decay, written, d_v, d_out, own, forwards[1], forwards[2], forwards[3]}, attrs);
  if (g.wanted(1)) g.add(1, over_group(1, backwards[0]));
  if (!g.wanted(3)) return;
  const auto sum = [&](const std::string& suffix, const Operand& x, const Shape& shape) {
    return b.reshaped(name + suffix, b.make("row_sum", name + suffix + ".sum", {x}), shape);
  };
  const Operand terms = b.reshaped(name + ".terms.heads", backwards[1], {kBatch, s.length, s.heads, s.keys});
  const Operand each_term = sum(".terms.each", terms, each);
  const Operand carried = sum(".carried", backwards[2], part_shape(Part::sums, s));
  g.add(3, b.make("delta_rule.grad.decay", g.d_name(3), {each_term, carried}, attrs));
}

// --- the references

// A head of a sample: where its parts begin, and how far positions are apart.
struct DeltaHead {
  DeltaRule s;
  int64_t sample, head;

  int64_t position(int64_t t) const { return sample * s.length + t; }
  int64_t number(int64_t t) const { return position(t) * s.heads + head; }
  int64_t shared(int64_t t) const { return (position(t) * s.key_heads + head / s.group()) * s.keys; }
  int64_t key(int64_t t) const { return number(t) * s.keys; }
  int64_t value(int64_t t) const { return number(t) * s.values; }
  int64_t state(int64_t chunk) const {
    return (sample * s.chunks() + chunk) * s.heads * s.keys * s.values + head * s.keys * s.values;
  }
  int64_t product(int64_t chunk) const { return ((sample * s.chunks() + chunk) * s.heads + head) * s.keys; }
  int64_t sum(int64_t chunk) const { return (sample * s.chunks() + chunk) * s.heads + head; }
};

template <class F>
void each_delta_head(EvalView& view, F f) {
  const DeltaRule s = delta_rule_of(view.op);
  for (int64_t b = 0; b < view.operand(0).shape[0]; ++b)
    for (int64_t h = 0; h < s.heads; ++h) f(DeltaHead{s, b, h});
}

// A matrix [K, V].
struct StateMatrix {
  int64_t rows, columns;
  std::vector<double> data = std::vector<double>(static_cast<size_t>(rows * columns));

  double& at(int64_t row, int64_t column) { return data[static_cast<size_t>(row * columns + column)]; }
  // this = factor * (this + scale * column * row')
  void update(double factor, double scale, const double* column, const double* row) {
    for (int64_t k = 0; k < rows; ++k)
      for (int64_t v = 0; v < columns; ++v) at(k, v) = factor * (at(k, v) + scale * column[k] * row[v]);
  }
  double by_column(const double* column, int64_t v) {
    double sum = 0;
    for (int64_t k = 0; k < rows; ++k) sum += at(k, v) * column[k];
    return sum;
  }
  double by_row(int64_t k, const double* row) {
    double sum = 0;
    for (int64_t v = 0; v < columns; ++v) sum += at(k, v) * row[v];
    return sum;
  }
};

void delta_rule_reference(EvalView& view) {
  const auto in = [&](size_t i) { return view.operand(i).data.data(); };
  each_delta_head(view, [&](const DeltaHead& head) {
    const DeltaRule& s = head.s;
    StateMatrix state{s.keys, s.values};
    for (int64_t t = 0; t < s.length; ++t) {
      const double *q = in(0) + head.shared(t), *k = in(1) + head.shared(t), *v = in(2) + head.value(t);
      double *out = &view.result(0).data[head.value(t)], *lacking = &view.result(1).data[head.value(t)];
      state.update(std::exp(in(3)[head.number(t)]), 0, k, v);
      for (int64_t c = 0; c < s.values; ++c) lacking[c] = v[c] - state.by_column(k, c);
      state.update(1, in(4)[head.number(t)], k, lacking);
      for (int64_t c = 0; c < s.values; ++c) out[c] = state.by_column(q, c);
    }
  });
}

void written_reference(EvalView& view) {
  const auto in = [&](size_t i) { return view.operand(i).data.data(); };
  each_delta_head(view, [&](const DeltaHead& head) {
    const DeltaRule& s = head.s;
    StateMatrix d_state{s.keys, s.values};
    for (int64_t t = s.length; t-- > 0;) {
      const double *k = in(1) + head.shared(t), beta = in(3)[head.number(t)];
      double* d_written = &view.result().data[head.value(t)];
      d_state.update(1, 1, in(0) + head.shared(t), in(4) + head.value(t));
      for (int64_t c = 0; c < s.values; ++c) d_written[c] = d_state.by_column(k, c);
      d_state.update(std::exp(in(2)[head.number(t)]), -beta, k, d_written);
    }
  });
}

void queries_reference(EvalView& view) {
  const auto in = [&](size_t i) { return view.operand(i).data.data(); };
  each_delta_head(view, [&](const DeltaHead& head) {
    const DeltaRule& s = head.s;
    StateMatrix state{s.keys, s.values};
    for (int64_t t = 0; t < s.length; ++t) {
      if (t % s.chunk == 0)
        std::ranges::copy(state.data, view.result(3).data.begin() + head.state(t / s.chunk));
      const double *q = in(0) + head.shared(t), *k = in(1) + head.shared(t), *written = in(3) + head.value(t);
      state.update(std::exp(in(2)[head.number(t)]), 0, k, written);
      for (int64_t r = 0; r < s.keys; ++r) {
        const int64_t at = head.key(t) + r;
        const double read = state.by_row(r, in(5) + head.value(t));
        const double before = -state.by_row(r, in(4) + head.value(t));
        view.result(0).data[at] = read + k[r] * in(6)[head.number(t)];
        view.result(1).data[at] = before;
        view.result(2).data[at] = q[r] * read + k[r] * before;
      }
      state.update(1, 1, k, written);
    }
  });
}

void keys_reference(EvalView& view) {
  const auto in = [&](size_t i) { return view.operand(i).data.data(); };
  each_delta_head(view, [&](const DeltaHead& head) {
    const DeltaRule& s = head.s;
    StateMatrix d_state{s.keys, s.values};
    for (int64_t t = s.length; t-- > 0;) {
      const double *q = in(0) + head.shared(t), *k = in(1) + head.shared(t);
      for (int64_t r = 0; r < s.keys; ++r) {
        const int64_t at = head.key(t) + r;
        const double later = d_state.by_row(r, in(3) + head.value(t));
        view.result(0).data[at] = in(7)[at] + later + q[r] * in(6)[head.number(t)];
        view.result(1).data[at] = in(8)[at] - k[r] * later;
      }
      d_state.update(1, 1, q, in(5) + head.value(t));
      d_state.update(std::exp(in(2)[head.number(t)]), -1, k, in(4) + head.value(t));
      if (t % s.chunk != 0) continue;
      const double* state = in(9) + head.state(t / s.chunk);
      for (int64_t r = 0; r < s.keys; ++r)
        view.result(2).data[head.product(t / s.chunk) + r] = d_state.by_row(r, state + r * s.values);
    }
  });
}

void decay_reference(EvalView& view) {
  each_delta_head(view, [&](const DeltaHead& head) {
    const DeltaRule& s = head.s;
    double sum = 0;
    for (int64_t t = s.length; t-- > 0;) {
      const bool next = (t + 1) % s.chunk == 0 && t + 1 < s.length;
      if (next) sum = view.operand(1).data[head.sum((t + 1) / s.chunk)];
      sum += view.operand(0).data[head.number(t)];
      view.result().data[head.number(t)] = sum;
    }
  });
}

// `products`: multiply-adds for each position and element of a head's state.
template <int64_t products>
Cost delta_rule_cost(const OpView& op) {
  const DeltaRule s = delta_rule_of(op);
  const int64_t elements = op.module.micro_batch() * s.length * s.heads * s.keys * s.values;
  return {.flops = 2 * products * elements, .bytes = moved_bytes(op)};
}

const std::vector<AttrSpec> kDeltaAttrs = {
    {"chunk", int64_t{64}}, {"heads", int64_t{1}}, {"key_heads", int64_t{0}}};

}  // namespace

DeltaRule delta_rule_of(const OpView& op) {
  const DeltaForm& form = delta_form(op);
  const int64_t key_heads = op.integer("key_heads");
  DeltaRule s{.length = op.operand(0).shape[1],
              .heads = op.integer("heads"),
              .key_heads = key_heads > 0 ? key_heads : op.integer("heads"),
              .chunk = std::min(op.integer("chunk"), op.operand(0).shape[1])};
  if (form.keys) s.keys = op.operand(*form.keys).shape[2] / s.key_heads;
  if (form.values) s.values = op.operand(*form.values).shape[2] / s.heads;
  return s;
}

extern const OpInfo op_delta_rule{
    .name = "delta_rule",
    .summary =
        "the gated delta rule: a matrix of state for each head, S = exp(decay) S + k (beta r)' with r = v - "
        "exp(decay) S' k, read by out = S' q, from position to position; operands: q and k [B,T,key_heads "
        "K], "
        "v [B,T,heads V], decay and beta [B,T,heads]; results: out and r [B,T,heads V]. key_heads 0 are as "
        "many as heads; fewer are shared by neighbouring heads. The gradient keeps S every `chunk` positions",
    .operands = 5,
    .results = 2,
    .attrs = kDeltaAttrs,
    .infer = infer_delta_rule,
    .gradient = delta_rule_gradient,
    .reference = delta_rule_reference,
    .cost = delta_rule_cost<3>,
    .saves = Saves::operands,
    .precision = Precision::f32,
    .recompute = Recompute::costly,
};

extern const OpInfo op_delta_rule_grad_written{
    .name = "delta_rule.grad.written",
    .summary =
        "the gradient by what `delta_rule` writes, beta r [B,T,heads V]; operands: q, k, decay, beta, d_out",
    .operands = 5,
    .attrs = kDeltaAttrs,
    .infer = infer_delta_rule,
    .reference = written_reference,
    .cost = delta_rule_cost<3>,
    .precision = Precision::f32,
    .recompute = Recompute::costly,
    .gradient_of = &op_delta_rule,
};

extern const OpInfo op_delta_rule_grad_queries{
    .name = "delta_rule.grad.queries",
    .summary =
        "of `delta_rule`, for each head: d_q [B,T,heads K], the part of d_k that the state before a position "
        "makes, the terms of d_decay that end at a position, over K, and the state before each chunk "
        "[B,chunks,heads K,V]; operands: q, k, decay, beta r, d_v, d_out, and the sums of beta r * d_out "
        "[B,T,heads]",
    .operands = 7,
    .results = 4,
    .attrs = kDeltaAttrs,
    .infer = infer_delta_rule,
    .reference = queries_reference,
    .cost = delta_rule_cost<3>,
    .precision = Precision::f32,
    .recompute = Recompute::costly,
    .gradient_of = &op_delta_rule,
};

extern const OpInfo op_delta_rule_grad_keys{
    .name = "delta_rule.grad.keys",
    .summary =
        "of `delta_rule`, for each head: d_k [B,T,heads K], the terms of d_decay over K, and the sums over V "
        "of the state before each chunk times its gradient [B,chunks,heads,K]; operands: those of "
        "`delta_rule.grad.queries`, and its second, third and fourth result",
    .operands = 10,
    .results = 3,
    .attrs = kDeltaAttrs,
    .infer = infer_delta_rule,
    .reference = keys_reference,
    .cost = delta_rule_cost<3>,
    .precision = Precision::f32,
    .recompute = Recompute::costly,
    .gradient_of = &op_delta_rule,
};

extern const OpInfo op_delta_rule_grad_decay{
    .name = "delta_rule.grad.decay",
    .summary =
        "d_decay of `delta_rule` [B,T,heads]: the sum from each position to its chunk's end of the terms "
        "[B,T,heads], and the following chunk's [B,chunks,heads]; operands: the terms, the chunks'",
    .operands = 2,
    .attrs = kDeltaAttrs,
    .infer = infer_delta_rule,
    .reference = decay_reference,
    .precision = Precision::f32,
    .gradient_of = &op_delta_rule,
};

}  // namespace gacc::ir
