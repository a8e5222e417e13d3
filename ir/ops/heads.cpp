// The heads of a position of qkv, [B,T,(H + 2 K) D], apart and together again.
#include "ir/ops/heads.h"

#include <cmath>

namespace gacc::ir {

Heads heads_of(const OpView& op, size_t operand) {
  const int64_t heads = op.integer("heads"), given = op.integer("kv_heads"),
                kv_heads = given == 0 ? heads : given;
  return {heads, kv_heads, op.operand(operand).shape[2] / (heads + 2 * kv_heads)};
}

void expect_heads(const OpView& op, size_t operand) {
  const Shape shape = op.operand(operand).shape;
  if (!is_float(op.operand(operand).dtype)) refuse(op, Kind::type_mismatch, {operand}, "it takes floats");
  const int64_t heads = op.integer("heads"), kv_heads = op.integer("kv_heads");
  const bool shaped = shape.size() == 3 && has_batch(shape) && heads >= 1 && heads <= shape[2];
  if (kv_heads == 0) {
    if (!shaped || shape[2] % (3 * heads) != 0)
      refuse(op, Kind::shape_mismatch, {operand}, "it must be [B,T,3 C] with C a multiple of {} heads",
             heads);
  } else if (!shaped || kv_heads < 1 || kv_heads > heads || heads % kv_heads != 0 ||
             shape[2] % (heads + 2 * kv_heads) != 0) {
    refuse(op, Kind::shape_mismatch, {operand},
           "it must be [B,T,(H + 2 K) D] with H = {} heads, a multiple of K = {} kv_heads", heads, kv_heads);
  }
}

double score_scale(const OpView& op) {
  const double given = op.real("scale");
  return given > 0 ? given : 1 / std::sqrt(static_cast<double>(heads_of(op).channels));
}

void expect_scores(const OpView& op) {
  for (const char* name : {"scale", "softcap"}) {
    const double value = op.real(name), used = static_cast<float>(value);
    if (!(value >= 0) || !std::isfinite(used) || (used == 0 && value != 0))
      refuse(op, Kind::out_of_range, "{} is {}; it must be a number of f32, 0 or more", name, value);
  }
}

double capped_score(double x, double cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

namespace {

const char* const kParts[] = {".q", ".k", ".v"};

Types infer_split(const OpView& op) {
  expect_heads(op);
  const Heads h = heads_of(op);
  const Type qkv = op.operand(0);
  Types types;
  for (const int64_t heads : {h.heads, h.kv_heads, h.kv_heads})
    types.push_back({qkv.dtype, {kBatch, qkv.shape[1], heads, h.channels}});
  return types;
}

Types infer_join(const OpView& op) {
  const DType dtype = common_dtype(op, 0);
  const Shape q = op.operand(0).shape, k = op.operand(1).shape;
  if (q.size() != 4 || !has_batch(q))
    refuse(op, Kind::shape_mismatch, {0}, "it must be heads of queries, [B,T,H,D]");
  if (k.size() != 4 || k[1] != q[1] || k[3] != q[3] || !has_batch(k) || q[2] % k[2] != 0)
    refuse(op, Kind::shape_mismatch, {0, 1}, "it must be heads of keys, [B,T,K,D], K dividing H");
  if (op.operand(2).shape != k) refuse(op, Kind::shape_mismatch, {1, 2}, "keys and values must be alike");
  return {{dtype, {kBatch, q[1], (q[2] + 2 * k[2]) * q[3]}}};
}

// d_qkv = join(d_q, d_k, d_v)
void split_gradient(GradBuilder& g) {
  std::vector<Operand> parts;
  for (size_t i = 0; i < 3; ++i) {
    const std::string name = g.d_name(0) + kParts[i];
    const Shape shape = g.b.type(g.result(i)).shape;
    parts.push_back(g.d_result(i) ? *g.d_result(i)
                                  : Operand(g.b.make("broadcast", name, {0.0}, {{"shape", shape}})));
  }
  g.add(0, g.b.make("join_heads", g.d_name(0), parts));
}

// d_q, d_k, d_v = split(d_qkv)
void join_gradient(GradBuilder& g) {
  const int64_t heads = g.b.type(g.operand(0)).shape[2], kv_heads = g.b.type(g.operand(1)).shape[2];
  std::vector<std::string> names;
  for (const char* part : kParts) names.push_back(g.d_name(0) + part);
  const std::vector<ValueId> parts =
      g.b.make_n("split_heads", names, {*g.d_result()}, {{"heads", heads}, {"kv_heads", kv_heads}});
  for (size_t i = 0; i < 3; ++i)
    if (g.wanted(i)) g.add(i, parts[i]);
}

std::vector<Operand> expand_split(Builder& b, const Op& op) {
  const std::string name = b.name(op.results[0]);
  const Shape shapes[] = {b.type(op.results[0]).shape, b.type(op.results[1]).shape,
                          b.type(op.results[2]).shape};
  Shape all = shapes[0];
  all[2] += shapes[1][2] + shapes[2][2];
  const Operand rows = b.make("reshape", name + ".rows", {op.operands[0]}, {{"shape", all}});
  std::vector<Operand> parts;
  int64_t from = 0;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t size = shapes[i][2];
    parts.emplace_back(
        b.make("slice", take_name(b, op, i), {rows}, {{"axis", int64_t{1}}, {"from", from}, {"size", size}}));
    from += size;
  }
  return parts;
}

std::vector<Operand> expand_join(Builder& b, const Op& op) {
  const Shape shape = b.type(op.results[0]).shape;
  const std::string name = take_name(b, op, 0);
  const Operand rows = b.make("concat", name + ".rows", op.operands, {{"axis", int64_t{1}}});
  return {b.make("reshape", name, {rows}, {{"shape", shape}})};
}

// Copies `count` numbers between a row of qkv and each of its three parts.
template <class Copy>
void each_part(const Heads& h, int64_t rows, Copy copy) {
  int64_t from = 0;
  const int64_t heads[] = {h.heads, h.kv_heads, h.kv_heads};
  for (size_t part = 0; part < 3; ++part) {
    const int64_t count = heads[part] * h.channels;
    for (int64_t row = 0; row < rows; ++row) copy(part, row * h.row() + from, row * count, count);
    from += count;
  }
}

void split_reference(EvalView& view) {
  const Heads h = heads_of(view.op);
  const std::vector<double>& x = view.operand(0).data;
  each_part(h, static_cast<int64_t>(x.size()) / h.row(),
            [&](size_t part, int64_t whole, int64_t own, int64_t n) {
              std::copy_n(x.begin() + whole, n, view.result(part).data.begin() + own);
            });
}

void join_reference(EvalView& view) {
  const Shape q = view.op.operand(0).shape, k = view.op.operand(1).shape;
  const Heads h{q[2], k[2], q[3]};
  std::vector<double>& y = view.result().data;
  each_part(h, static_cast<int64_t>(y.size()) / h.row(),
            [&](size_t part, int64_t whole, int64_t own, int64_t n) {
              std::copy_n(view.operand(part).data.begin() + own, n, y.begin() + whole);
            });
}

}  // namespace

extern const OpInfo op_split_heads{
    .name = "split_heads",
    .summary =
        "the heads of queries [B,T,H,D], of keys and of values [B,T,K,D] in qkv [B,T,(H + 2 K) D]; H is "
        "heads, K kv_heads (0: as many)",
    .results = 3,
    .copies = true,
    .local = true,
    .attrs = {{"heads", int64_t{1}}, {"kv_heads", int64_t{0}}},
    .infer = infer_split,
    .gradient = split_gradient,
    .expand = expand_split,
    .reference = split_reference,
    .precision = Precision::half,
};

extern const OpInfo op_join_heads{
    .name = "join_heads",
    .summary =
        "qkv [B,T,(H + 2 K) D] of heads of queries [B,T,H,D], of keys and of values [B,T,K,D], side by side",
    .operands = 3,
    .copies = true,
    .local = true,
    .infer = infer_join,
    .gradient = join_gradient,
    .expand = expand_join,
    .reference = join_reference,
    .precision = Precision::half,
};

}  // namespace gacc::ir
