// Attention over the packed projections of a sequence, as one op that never makes the [T, T] matrix: forward
// keeps the output and two numbers of each query, its largest score m_i and the logarithm l_i of its sum of
// exponentials, and backward computes the probabilities again from them. Memory is linear in T.
//
// qkv [B, T, (H + 2 K) D]: H heads of queries, K of keys and K of values of a position side by side, each of D
// channels (heads.h). A head of keys and values meets H / K heads of queries; its gradients are sums over them.
//   x_ij = scale q_i k_j       s_ij = x_ij, or softcap tanh(x_ij / softcap)              m_i = max_j s_ij
//                              (causal: j <= i only; window W: i - W < j <= i only; documents: positions of the
//                              same number only)
//   l_i = log(sum_j exp(s_ij - m_i))                       p_ij = exp((s_ij - m_i) - l_i)
//   out_i = sum_j z_ij p_ij v_j                            z_ij = 1, or the dropout factor 0 or 1 / (1 - p)
// Gradients, with dp_ij = z_ij (d_out_i v_j) and delta_i = d_out_i out_i = sum_j p_ij dp_ij:
//   dx_ij = p_ij (dp_ij - delta_i), times 1 - (s_ij / softcap)^2 with a cap
//   d_q_i = scale sum_j dx_ij k_j       d_k_j = scale sum_i dx_ij q_i       d_v_j = sum_i z_ij p_ij d_out_i
//
// `scale` 0 is 1 / sqrt(D), `softcap` 0 none.
//
// A head may have a sink: a score s that every query of it sees beside those of its keys, and that has no value. So
// there is one term more in the sum of exponentials, exp(s - m_i), and
//   l_i = log(sum_j exp(s_ij - m_i) + exp(s - m_i))        d_s = - sum_i exp((s - m_i) - l_i) delta_i
// while all other formulas stay: `attention.sinks` is `attention`, whose l_i and out_i are mended, and its gradient is
// `attention.grad`.
//
// Documents are two operands behind all others: the numbers and the spans that `documents` and `documents.spans`
// make (documents.cpp). Spans only say where kernels need not look.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/ops/heads.h"

namespace gacc::ir {

namespace {

struct Sizes : Heads {
  int64_t length;  // T
};

Sizes sizes(const OpView& op) { return {heads_of(op), op.operand(0).shape[1]}; }

void expect_window(const OpView& op) {
  const int64_t window = op.integer("window");
  if (window < 0 || window >= sizes(op).length)
    refuse(op, Kind::out_of_range, "window is {}, not in [0, {})", window, sizes(op).length);
  if (window > 0 && !op.flag("causal"))
    refuse(op, Kind::conflict, "a window is of earlier positions: causal = true");
}

// Random numbers tell the elements of a sample's probabilities [H, T, T] apart by 32 bits.
void expect_probabilities(const OpView& op, size_t first) {
  expect_dropout(op, first);
  const Sizes s = sizes(op);
  if (static_cast<double>(s.heads) * static_cast<double>(s.length) * static_cast<double>(s.length) >= 0x1p32)
    refuse(op, Kind::out_of_range, {0}, "dropout takes fewer than 2^32 probabilities a sample");
}

// Numbers and spans, from operand `first` on.
void expect_documents(const OpView& op, size_t first) {
  const int64_t length = sizes(op).length;
  const Type wanted[] = {{DType::i32, {kBatch, length}},
                         {DType::i32, {kBatch, kSpanPlanes, span_blocks(length)}}};
  for (size_t i = 0; i < 2; ++i)
    if (op.operand(first + i) != wanted[i])
      refuse(op, Kind::shape_mismatch, {0, first + i}, "it must be {}", type_text(wanted[i]));
}

Types results(const OpView& op) {
  const Type qkv = op.operand(0);
  const Sizes s = sizes(op);
  return {{qkv.dtype, {kBatch, s.length, s.width()}}, {DType::f32, {kBatch, s.heads, 2, s.length}}};
}

// Operands qkv, m and l, delta, d_out.
Types gradient_results(const OpView& op) {
  const Sizes s = sizes(op);
  const Type wanted[] = {{DType::f32, {kBatch, s.heads, 2, s.length}},
                         {DType::f32, {kBatch, s.length, s.heads}},
                         {op.operand(0).dtype, {kBatch, s.length, s.width()}}};
  for (size_t i = 1; i < 4; ++i)
    if (op.operand(i) != wanted[i - 1])
      refuse(op, Kind::shape_mismatch, {0, i}, "it must be {}", type_text(wanted[i - 1]));
  return {op.operand(0)};
}

// delta [B, T, H].
Operand delta_of(GradBuilder& g, const std::string& name) {
  const Sizes s = sizes(g.view());
  const Shape heads{kBatch, s.length, s.heads, s.channels};
  const Operand out = g.b.make("reshape", name + ".out", {g.result(0)}, {{"shape", heads}});
  const Operand d_out = g.b.make("reshape", name + ".heads", {*g.d_result(0)}, {{"shape", heads}});
  const Operand dot = g.b.make("row_dot", name + ".dot", {d_out, out});
  return g.b.make("reshape", name + ".delta", {dot}, {{"shape", Shape{kBatch, s.length, s.heads}}});
}

// Adds d_qkv by the op `kind`, which takes the forward op's operands from `behind` on, too.
void add_d_qkv(GradBuilder& g, const std::string& kind, const Operand& delta, int64_t behind) {
  std::vector<Operand> operands{g.operand(0), g.result(1), delta, *g.d_result(0)};
  operands.insert(operands.end(), g.op().operands.begin() + behind, g.op().operands.end());
  g.add(0, g.b.make(kind, g.d_name(0), std::move(operands), g.op().attrs));
}

void gradient(GradBuilder& g) {
  if (!only_first(g, "its statistics") || !g.wanted(0)) return;
  add_d_qkv(g, std::string(g.op().info->name) + ".grad", delta_of(g, g.d_name(0)), 1);
}

// m or l of the statistics [B, H, 2, T], as [B, H, 1, T].
Operand statistic(Builder& b, const std::string& name, const Operand& statistics, int64_t which) {
  return b.make("slice", name, {statistics}, {{"axis", int64_t{1}}, {"from", which}, {"size", int64_t{1}}});
}

// s - m, [B, H, 1, T].
Operand sinks_above(Builder& b, const std::string& name, const Operand& sinks, const Operand& largest) {
  const Shape heads{b.type(sinks).shape.front(), 1, 1};
  return b.make("sub", name + ".above", {b.reshaped(name + ".sinks", sinks, heads), largest});
}

// Returns shares [B, H, 1, T] as [B, T, H].
Operand by_position(Builder& b, const std::string& name, const Operand& shares) {
  const Shape of = b.type(shares).shape;
  const Operand rows = b.reshaped(name + ".shares", shares, {kBatch, of[1], of[3]});
  return b.make("permute", name + ".turned", {rows}, {{"axes", std::vector<int64_t>{1, 0}}});
}

void sinks_gradient(GradBuilder& g) {
  if (!only_first(g, "its statistics")) return;
  const Operand delta = delta_of(g, g.d_name(g.wanted(0) ? 0 : 1));
  if (g.wanted(0)) add_d_qkv(g, "attention.grad", delta, 2);
  if (!g.wanted(1)) return;
  const std::string own = g.d_name(1);
  const Operand above = sinks_above(g.b, own, g.operand(1), statistic(g.b, own + ".largest", g.result(1), 0));
  const Operand log = statistic(g.b, own + ".log", g.result(1), 1);
  const Operand share = g.b.make("exp", own + ".share", {g.b.make("sub", own + ".shifted", {above, log})});
  const Operand product = g.b.make("mul", own + ".product", {by_position(g.b, own, share), delta});
  g.add(1, g.b.make("neg", own, {g.b.make("column_sum", own + ".sum", {product})}));
}

// share = exp(l of the keys alone - l of all), by which the sink makes the output smaller.
std::vector<Operand> expand_sinks(Builder& b, const Op& op) {
  const std::string name = take_name(b, op, 0), statistics = take_name(b, op, 1);
  std::vector<Operand> operands = op.operands;
  const Operand sinks = operands[1];
  operands.erase(operands.begin() + 1);
  const std::vector<ValueId> seen =
      b.make_n("attention", {name + ".seen", statistics + ".seen"}, std::move(operands), op.attrs);
  const Shape of_scores = b.type(seen[1]).shape;  // [B, H, 2, T]
  const Type out = b.type(seen[0]);               // [B, T, H D]
  const int64_t heads = of_scores[1], length = of_scores[3];
  // log(exp(l) + exp(above)), from the larger one of the two.
  const Operand largest = statistic(b, statistics + ".largest", seen[1], 0),
                log = statistic(b, statistics + ".log", seen[1], 1);
  const Operand above = sinks_above(b, statistics, sinks, largest);
  const Operand top = b.make("maximum", statistics + ".top", {log, above});
  const auto below = [&](const std::string& of, const Operand& x) {
    return b.make("exp", statistics + of, {b.make("sub", statistics + of + ".below", {x, top})});
  };
  const Operand sum = b.make("add", statistics + ".sum", {below(".keys", log), below(".sink", above)});
  const Operand all = b.make("add", statistics + ".all", {top, b.make("log", statistics + ".more", {sum})});
  const Operand share = b.make("exp", name + ".share", {b.make("sub", name + ".less", {log, all})});
  const Operand factor =
      b.reshaped(name + ".factor", by_position(b, name, share), {kBatch, length, heads, 1});
  Operand wide = b.reshaped(name + ".by_head", seen[0], {kBatch, length, heads, out.shape[2] / heads});
  if (out.dtype != DType::f32) wide = b.make("cast", name + ".wide", {wide}, {{"to", std::string("f32")}});
  Operand mended = b.make("mul", name + ".mended", {wide, factor});
  if (out.dtype != DType::f32)
    mended = b.make("cast", name + ".rounded", {mended}, {{"to", std::string(dtype_text(out.dtype))}});
  return {b.reshaped(name, mended, out.shape),
          b.make("concat", statistics, {largest, all}, {{"axis", int64_t{1}}})};
}

// One head of one sample, for the references: pointers to element (0, 0) of its parts.
struct Head {
  Sizes s;
  bool causal;
  int64_t window;
  int64_t sample, head;
  const double* qkv;
  double scale, softcap;
  const EvalView* view;
  size_t words;             // the first operand of four words for dropout; 0: none
  const double* documents;  // the sample's numbers; null: none

  // Returns the index of a position's channels of a head of queries, keys or values, in qkv and in its gradient.
  int64_t at(int64_t position, int64_t of) const {
    return (sample * s.length + position) * s.row() + of * s.channels;
  }
  const double* query(int64_t i) const { return qkv + at(i, head); }
  const double* key(int64_t j) const { return qkv + at(j, s.key(head)); }
  const double* value(int64_t j) const { return qkv + at(j, s.value(head)); }
  double dot(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t c = 0; c < s.channels; ++c) sum += a[c] * b[c];
    return sum;
  }
  // Query i sees keys from first_key(i) to keys(i) - 1.
  int64_t first_key(int64_t i) const { return window > 0 ? std::max<int64_t>(i - window + 1, 0) : 0; }
  int64_t keys(int64_t i) const { return causal ? i + 1 : s.length; }
  template <class F>
  void each_key(int64_t i, F f) const {
    for (int64_t j = first_key(i); j < keys(i); ++j)
      if (documents == nullptr || documents[i] == documents[j]) f(j);
  }
  // Returns the index of m of query i among the statistics; l comes T later.
  size_t statistic(int64_t i) const {
    return static_cast<size_t>((sample * s.heads + head) * 2 * s.length + i);
  }
  double score(int64_t i, int64_t j) const { return capped_score(dot(query(i), key(j)) * scale, softcap); }
  // The derivative of a score by what is capped.
  double slope(double score) const { return softcap > 0 ? 1 - (score / softcap) * (score / softcap) : 1; }
  double factor(int64_t i, int64_t j) const {
    if (words == 0) return 1;
    const auto word = [&](size_t k) {
      return static_cast<uint32_t>(static_cast<int64_t>(view->operand(words + k).data[0]));
    };
    const uint32_t key[2] = {word(0), word(1)};
    const uint64_t ordinal = (uint64_t{word(3)} << 32 | word(2)) + static_cast<uint64_t>(sample);
    const double p = view->op.real("p");
    const double u = sample_uniform_value(key, static_cast<uint32_t>(view->op.integer("stream")), ordinal,
                                          static_cast<uint32_t>((head * s.length + i) * s.length + j));
    return u < static_cast<double>(static_cast<float>(p)) ? 0 : 1 / (1 - p);
  }
};

// The number of operands without documents.
size_t plain_operands(const OpInfo& info) { return static_cast<size_t>(-info.operands); }

template <class F>
void each_head(EvalView& view, size_t words, F f) {
  const Sizes s = sizes(view.op);
  const size_t plain = plain_operands(*view.op.op.info);
  const double* documents = view.op.op.operands.size() > plain ? view.operand(plain).data.data() : nullptr;
  const Tensor& qkv = view.operand(0);
  for (int64_t b = 0; b < qkv.shape[0]; ++b) {
    for (int64_t h = 0; h < s.heads; ++h)
      f(Head{.s = s,
             .causal = view.op.flag("causal"),
             .window = view.op.integer("window"),
             .sample = b,
             .head = h,
             .qkv = qkv.data.data(),
             .scale = score_scale(view.op),
             .softcap = view.op.real("softcap"),
             .view = &view,
             .words = words,
             .documents = documents == nullptr ? nullptr : documents + b * s.length});
  }
}

// `sinks`: one of each head; null: none.
void forward_reference(EvalView& view, size_t words, const double* sinks = nullptr) {
  each_head(view, words, [&](const Head& head) {
    const Sizes& s = head.s;
    std::vector<double> scores(static_cast<size_t>(s.length));
    for (int64_t i = 0; i < s.length; ++i) {
      double top = -std::numeric_limits<double>::infinity(), sum = 0;
      head.each_key(i, [&](int64_t j) {
        double& score = scores[j];
        score = head.score(i, j);
        top = std::isnan(score) || std::isnan(top) ? std::nan("") : std::fmax(top, score);
      });
      head.each_key(i, [&](int64_t j) { sum += std::exp(scores[j] - top); });
      if (sinks != nullptr) sum += std::exp(sinks[head.head] - top);
      double* out =
          view.result(0).data.data() + (head.sample * s.length + i) * s.width() + head.head * s.channels;
      head.each_key(i, [&](int64_t j) {
        const double p = std::exp(scores[j] - top) / sum * head.factor(i, j);
        for (int64_t c = 0; c < s.channels; ++c) out[c] += p * head.value(j)[c];
      });
      view.result(1).data[head.statistic(i)] = top;
      view.result(1).data[head.statistic(i + s.length)] = std::log(sum);
    }
  });
}

void gradient_reference(EvalView& view, size_t words) {
  each_head(view, words, [&](const Head& head) {
    const Sizes& s = head.s;
    double* d_qkv = view.result(0).data.data();
    for (int64_t i = 0; i < s.length; ++i) {
      const int64_t at = head.sample * s.length + i;
      const double* dy = view.operand(3).data.data() + at * s.width() + head.head * s.channels;
      const double top = view.operand(1).data[head.statistic(i)];
      const double log = view.operand(1).data[head.statistic(i + s.length)];
      const double delta = view.operand(2).data[at * s.heads + head.head];
      head.each_key(i, [&](int64_t j) {
        const double score = head.score(i, j), p = std::exp(score - top - log), z = head.factor(i, j);
        const double ds = p * (z * head.dot(dy, head.value(j)) - delta) * head.slope(score) * head.scale;
        double *dq = d_qkv + head.at(i, head.head), *dk = d_qkv + head.at(j, s.key(head.head)),
               *dv = d_qkv + head.at(j, s.value(head.head));
        for (int64_t c = 0; c < s.channels; ++c) {
          dq[c] += ds * head.key(j)[c];
          dk[c] += ds * head.query(i)[c];
          dv[c] += z * p * dy[c];
        }
      });
    }
  });
}

}  // namespace

int64_t estimated_document(const OpView& op) {
  const size_t plain = plain_operands(*op.op.info);
  return op.op.operands.size() > plain ? *op.module.settings.train.documents : 0;
}

namespace {

// `products`: multiply-adds for each pair of positions and channel.
Cost cost(const OpView& op, int64_t products) {
  const Sizes s = sizes(op);
  const int64_t twice =
      twice_seen_pairs(s.length, op.flag("causal"), op.integer("window"), estimated_document(op));
  return {.flops = products * op.module.micro_batch() * twice * s.width(), .bytes = moved_bytes(op)};
}

const std::vector<AttrSpec> kHeadAttrs = {{"causal", false}, {"heads", int64_t{1}}, {"kv_heads", int64_t{0}},
                                          {"scale", 0.0},    {"softcap", 0.0},      {"window", int64_t{0}}};
const std::vector<AttrSpec> kDropoutAttrs = {
    kHeadAttrs[0], kHeadAttrs[1], kHeadAttrs[2],          {"p", 0.5},
    kHeadAttrs[3], kHeadAttrs[4], {"stream", int64_t{0}}, kHeadAttrs[5]};

// Dropout's operands begin at `words`; 0: there is no dropout.
void expect_operands(const OpView& op, size_t words) {
  const size_t plain = plain_operands(*op.op.info), count = op.op.operands.size();
  if (count != plain && count != plain + 2)
    refuse(op, Kind::out_of_range, "it takes {} operands, or {} with documents, not {}", plain, plain + 2,
           count);
  expect_heads(op);
  expect_window(op);
  expect_scores(op);
  if (words != 0) expect_probabilities(op, words);
  if (count > plain) expect_documents(op, plain);
}

template <size_t words>
OpInfo forward(std::string_view name, std::string_view summary, const std::vector<AttrSpec>& attrs) {
  return {.name = name,
          .summary = summary,
          .operands = words == 0 ? -1 : -static_cast<int>(words + 4),
          .results = 2,
          .attrs = attrs,
          .infer = [](const OpView& op) -> Types {
            expect_operands(op, words);
            return results(op);
          },
          .gradient = gradient,
          .reference = [](EvalView& view) { forward_reference(view, words); },
          .cost = [](const OpView& op) { return cost(op, 2); },
          .saves = Saves::operands,
          .precision = Precision::half,
          .recompute = Recompute::costly};
}

template <size_t words>
OpInfo backward(const OpInfo& of, std::string_view name, std::string_view summary,
                const std::vector<AttrSpec>& attrs) {
  return {.name = name,
          .summary = summary,
          .operands = words == 0 ? -4 : -static_cast<int>(words + 4),
          .keeps = operand_bits({1, 2}),
          .attrs = attrs,
          .infer = [](const OpView& op) -> Types {
            expect_operands(op, words);
            return gradient_results(op);
          },
          .reference = [](EvalView& view) { gradient_reference(view, words); },
          .cost = [](const OpView& op) { return cost(op, 7); },
          .precision = Precision::half,
          .recompute = Recompute::costly,
          .gradient_of = &of};
}

}  // namespace

extern const OpInfo op_row_dot{
    .name = "row_dot",
    .summary = "sum of x * y over the last axis, which stays with extent 1; in f32",
    .operands = 2,
    .local = true,
    .infer = [](const OpView& op) -> Types {
      expect_columns(op, 0);
      expect_float(op, 0);
      if (op.operand(0).shape != op.operand(1).shape)
        refuse(op, Kind::shape_mismatch, {0, 1}, "the shapes must be one");
      return {{DType::f32, row_shape(op.operand(0).shape)}};
    },
    // d_x = dy * y    d_y = dy * x
    .gradient =
        [](GradBuilder& g) {
          for (size_t i = 0; i < 2; ++i)
            if (g.wanted(i)) g.add(i, g.b.make("mul", g.d_name(i), {g.operand(1 - i), *g.d_result()}));
        },
    .expand =
        [](Builder& b, const Op& op) {
          const std::string name = take_name(b, op, 0);
          std::vector<Operand> wide;  // products of halves would be rounded to halves
          for (const Operand& operand : op.operands) {
            const bool f32 = b.type(operand).dtype == DType::f32;
            wide.push_back(f32 ? operand
                               : b.make("cast", b.name(*as_value(operand)) + ".wide", {operand},
                                        {{"to", std::string("f32")}}));
          }
          const Operand product = b.make("mul", name + ".product", wide);
          return std::vector<Operand>{b.make("row_sum", name, {product})};
        },
    .reference =
        [](EvalView& view) {
          const Tensor &x = view.operand(0), &y = view.operand(1);
          const int64_t columns = column_count(x);
          for (size_t i = 0; i < x.data.size(); ++i)
            view.result().data[i / static_cast<size_t>(columns)] += x.data[i] * y.data[i];
        },
    .saves = Saves::operands,
    .precision = Precision::f32,
};

extern const OpInfo op_attention = forward<0>(
    "attention",
    "softmax(scale q k^T) v by heads over qkv [B,T,(heads + 2 kv_heads) D]; results: out "
    "[B,T,heads D] and, of each query's scores, the largest and the log of the sum of exp(score - "
    "largest) [B,heads,2,T]. kv_heads 0 are as many as heads; fewer are shared by neighbouring heads. "
    "scale 0 is 1 / sqrt(D). With softcap a score x is softcap tanh(x / softcap); 0: x itself. "
    "With window a query sees itself and the window - 1 positions before it; 0: all before it. Two "
    "more operands, numbers [B,T] of `documents` and their `documents.spans`: a query sees keys of its "
    "number alone. Never makes the [T,T] matrix",
    kHeadAttrs);

extern const OpInfo op_attention_dropout = forward<1>(
    "attention.dropout",
    "`attention` with dropout of its probabilities; operands: qkv, seed low and high, first sample's "
    "ordinal low and high; with documents, numbers and spans",
    kDropoutAttrs);

extern const OpInfo op_attention_sinks{
    .name = "attention.sinks",
    .summary =
        "`attention` whose heads each see one score more, of no value; operands: qkv, the scores [heads], "
        "and "
        "with documents, numbers and spans",
    .operands = -2,
    .results = 2,
    .keeps = operand_bits({1}),
    .attrs = kHeadAttrs,
    .infer = [](const OpView& op) -> Types {
      expect_operands(op, 0);
      const Type wanted{DType::f32, {sizes(op).heads}};
      if (op.operand(1) != wanted)
        refuse(op, Kind::shape_mismatch, {0, 1}, "it must be {}", type_text(wanted));
      return results(op);
    },
    .gradient = sinks_gradient,
    .expand = expand_sinks,
    .reference = [](EvalView& view) { forward_reference(view, 0, view.operand(1).data.data()); },
    .cost = [](const OpView& op) { return cost(op, 2); },
    .saves = Saves::operands,
    .precision = Precision::half,
    .recompute = Recompute::costly,
};

extern const OpInfo op_attention_grad = backward<0>(
    op_attention, "attention.grad",
    "d_qkv of `attention`; operands: qkv, statistics (its second result), delta [B,T,heads] (the sums of "
    "d_out * out), d_out; with documents, numbers and spans",
    kHeadAttrs);

extern const OpInfo op_attention_dropout_grad = backward<4>(
    op_attention_dropout, "attention.dropout.grad",
    "d_qkv of `attention.dropout`; operands: qkv, statistics, delta, d_out, seed and ordinal as there; with "
    "documents, numbers and spans",
    kDropoutAttrs);

}  // namespace gacc::ir
