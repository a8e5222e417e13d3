// Attention and dropout.
#include <algorithm>
#include <cmath>

#include "frontend/layers.h"
#include "frontend/rope_scaling.h"

namespace gacc::frontend {

namespace {

// The path makes the random stream, so every layer has masks of its own.
Layer lower_dropout(LayerContext& l) {
  const double p = l.keys.real("p");
  if (p == 0 || !l.training()) return {l.input};
  if (ir::elements(l.shape(), 1) >= int64_t{1} << 32)
    throw Refused(l.error(Kind::out_of_range, l.keys.type_at,
                          "layer `{}` drops of {} per sample; it can tell 2^32 - 1 elements apart",
                          l.spec.name, l.shape_text()));
  std::vector<ir::Operand> operands = l.layers.parameters.sample_words();
  operands.insert(operands.begin(), l.x());
  return {
      {l.b.make("dropout", l.path, std::move(operands), {{"p", p}, {"stream", Parameters::stream(l.path)}})}};
}

void check_attention(const Values& keys, Diag& diag) {
  if (keys.has("window") && !keys.flag("causal") && keys["causal"].good)
    diag.error(Kind::conflict, keys.at("window"),
               "`window` counts earlier positions; it needs `causal = true`");
  if (!keys.has("kv_heads") || keys.integer("heads") < 1) return;
  const int64_t heads = keys.integer("heads"), kv_heads = keys.integer("kv_heads");
  if (heads % kv_heads != 0)
    diag.error(Kind::out_of_range, keys.at("kv_heads"),
               "`kv_heads` must divide `heads`; {} does not divide {}", kv_heads, heads)
        .note(keys.at("heads"), "the heads are set here");
}

// Returns the documents that the layer names; null for none.
const LayerLowering::Documents* documents_of(LayerContext& l) {
  if (!l.keys.has("documents")) return nullptr;
  const LayerLowering::Documents* documents = l.layers.documents();
  if (documents == nullptr) throw Refused();  // reported
  if (documents->length != l.shape()[1])
    l.refuse(Kind::shape_mismatch, l.keys.at("documents"), "`{}` has {} positions, {} gives {}",
             l.keys.text("documents"), documents->length, l.input.label, l.shape()[1]);
  return documents;
}

// Rotary positions of texts that are turned by their length: each position's document, or the text that `predict`
// reads. A window without documents is a text.
ir::ValueId rope_by_length(LayerContext& l, const LayerLowering::Documents* documents,
                           const std::vector<ir::Operand>& operands, ir::Attrs attrs,
                           const RopeScaling& scaling, const Location& at) {
  const std::string name = l.path + ".rope";
  if (documents == nullptr && l.b.region().kind != ir::RegionKind::predict)
    return l.b.make("rope", name, operands, std::move(attrs));
  ir::Operand length = l.layers.parameters.text_length(l.shape()[1]);  // which `decode` asks for in any case
  if (documents != nullptr) {
    const ir::ValueId lengths = l.b.make("documents.lengths", name + ".lengths", {documents->numbers});
    const ir::ValueId rows =
        l.b.make("reshape", name + ".rows", {lengths}, {{"shape", ir::Shape{ir::kBatch, l.shape()[1], 1}}});
    length = l.b.make("cast", name + ".tokens", {rows}, {{"to", std::string("f32")}});
  }
  auto& known = l.b.module().results.predict_short_text;
  if (known.given() && *known != scaling.original)
    l.refuse(Kind::unsupported, at,
             "layers of one model have one `original_max_position_embeddings`, and {} is {} elsewhere",
             scaling.original, *known);
  known = scaling.original;
  ir::Attrs of_short = attrs;
  of_short["scales"] = scaling.short_scales;
  const ir::ValueId in_long = l.b.make("rope", name + ".long", operands, std::move(attrs));
  const ir::ValueId in_short = l.b.make("rope", name + ".short", operands, std::move(of_short));
  const ir::ValueId is_long =
      l.b.make("greater", name + ".is_long", {length, static_cast<double>(scaling.original)});
  return l.b.make("select", name, {is_long, in_long, in_short});
}

// Rotary positions of qkv; in documents, those that count from the begin of each.
ir::ValueId with_rope(LayerContext& l, const Values& rope, ir::ValueId qkv, ir::Attrs attrs,
                      int64_t channels) {
  const double wanted = rope.real("partial") * static_cast<double>(channels), rotated = std::round(wanted);
  if (std::abs(wanted - rotated) > 1e-6 || rotated < 2 || std::fmod(rotated, 2) != 0)
    throw Refused(l.error(Kind::out_of_range, rope.at("partial"),
                          "`rope` turns {} of the {} channels of a head; they go in pairs", wanted,
                          channels));
  RopeScaling made;
  attrs["theta"] = rope.real("theta");
  attrs["rotated"] = static_cast<int64_t>(rotated);
  attrs["interleaved"] = rope.text("layout") == "interleaved";
  if (const Values* scaling = rope.find("scaling")) {
    const int64_t turned = std::get<int64_t>(attrs["rotated"]);
    if (scaling->type == nullptr || !check_rope_scaling(*scaling, turned, l.b.diag())) throw Refused();
    made = rope_scaling(*scaling, rope.real("theta"), turned, l.shape()[1]);
    attrs["scales"] = made.scales;
    attrs["magnitude"] = made.magnitude;
  }
  std::vector<ir::Operand> operands{qkv};
  const auto* documents = documents_of(l);
  if (documents != nullptr) operands.emplace_back(documents->positions);
  if (!made.short_scales.empty())
    return rope_by_length(l, documents, operands, std::move(attrs), made, rope.at("scaling"));
  return l.b.make("rope", l.path + ".rope", std::move(operands), std::move(attrs));
}

// qkv with queries and keys by the root of their mean square, of each head or of all heads together, times a weight for
// each channel.
ir::ValueId with_norms(LayerContext& l, const Values& norm, ir::ValueId qkv, const ir::Attrs& heads,
                       int64_t channels) {
  KeyValue always_default;  // `init` is for the products' weights
  always_default.value = std::string("default");
  std::vector<ir::Operand> parts;
  for (const ir::ValueId part :
       l.b.make_n("split_heads", {l.path + ".q", l.path + ".k", l.path + ".v"}, {qkv}, heads))
    parts.emplace_back(part);
  const bool together = norm.text("over") == "all";
  const double offset = offset_of(norm);
  for (size_t i = 0; i < 2; ++i) {
    const std::string name = i == 0 ? "q_norm" : "k_norm";
    const std::string path = fmt::format("{}.{}", l.path, name);
    const ir::Shape apart = l.b.type(parts[i]).shape;  // [B,T,H,D]
    const int64_t size = together ? apart[2] * channels : channels;
    const ir::BufferId weight = l.layers.parameters.get(
        path + ".weight", {size}, always_default,
        offset == 1 ? Parameters::Standard::zeros : Parameters::Standard::ones, {}, l.trains(), norm.place);
    ir::Operand x = parts[i];
    if (together)
      x = l.b.make("reshape", path + ".rows", {x}, {{"shape", ir::Shape{apart[0], apart[1], size}}});
    x = l.b.make_n("rms_norm", {together ? path + ".normal" : path, path + ".rstd"}, {x, weight},
                   {{"eps", norm.real("eps")}, {"offset", offset}})
            .front();
    parts[i] = together ? l.b.make("reshape", path, {x}, {{"shape", apart}}) : x;
  }
  return l.b.make("join_heads", l.path + ".normal", std::move(parts));
}

// The heads' rows of qkv.weight: queries, keys, values.
struct Rows {
  std::string_view name;
  int64_t begin, count;
};

// qkv, and what adapts all of it or some of its parts; the others get zeros.
ir::ValueId adapted(LayerContext& l, const Values& by, ir::ValueId qkv, std::span<const Rows> parts) {
  const std::string name = l.path + ".qkv", weight = name + ".weight";
  const auto sum = [&](ir::ValueId change) { return l.b.make("add", name + ".adapted", {qkv, change}); };
  if (adapts(by, "qkv")) return sum(l.adapter(by, name, l.x(), l.b.type(qkv).shape.back(), weight));
  if (std::ranges::none_of(parts, [&](const Rows& part) { return adapts(by, part.name); })) return qkv;
  std::vector<ir::Operand> changes;
  for (const auto& [part, begin, count] : parts) {
    const std::string path = fmt::format("{}.{}", l.path, part);
    ir::Shape shape = l.shape();
    shape.back() = count;
    changes.emplace_back(adapts(by, part)
                             ? l.adapter(by, path, l.x(), count, weight, begin)
                             : l.b.make("broadcast", path + ".unchanged", {0.0}, {{"shape", shape}}));
  }
  return sum(l.b.make("concat", name + ".change", changes, {{"axis", int64_t{1}}}));
}

// x [B,T,C] -> qkv [B,T,(H + 2 K) D] -> norms, rope, the same -> heads [B,T,H D] -> y [B,T,C]
Layer lower_attention(LayerContext& l) {
  l.need_positions();
  const ir::Shape shape = l.shape();
  const int64_t length = shape[1], width = shape[2], heads = l.keys.integer("heads");
  if (!l.keys.has("head_dim") && width % heads != 0)
    l.refuse(Kind::shape_mismatch, l.keys.at("heads"), "layer `{}` cannot divide {} features into {} heads",
             l.spec.name, width, heads);
  const double p = l.keys.real("dropout");
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  if (p > 0 && real(heads) * real(length) * real(length) >= 0x1p32)
    throw Refused(l.error(Kind::out_of_range, l.keys.type_at,
                          "layer `{}` drops of {} heads of {} x {} probabilities; it can tell 2^32 - 1 apart",
                          l.spec.name, heads, length, length));
  const int64_t channels = l.keys.has("head_dim") ? l.keys.integer("head_dim") : width / heads,
                kv_heads = l.keys.has("kv_heads") ? l.keys.integer("kv_heads") : heads,
                queries = heads * channels;
  if (!ir::fits({3, heads, channels, width}, 1) ||
      !ir::fits({3, heads, channels, length}, l.model.micro_batch))
    throw Refused(l.error(Kind::out_of_range, l.keys.type_at, "layer `{}` is too large", l.spec.name));
  ir::ValueId qkv =
      l.projection("qkv.", l.path + ".qkv", l.x(), (heads + 2 * kv_heads) * channels, l.keys.on("bias"));
  const Rows parts[] = {{"q", 0, queries},
                        {"k", queries, kv_heads * channels},
                        {"v", queries + kv_heads * channels, kv_heads * channels}};
  for (const std::string_view suffix : {"weight", "bias"})
    l.layers.parameters.parts.insert_or_assign(fmt::format("{}.qkv.{}", l.path, suffix),
                                               std::vector{parts[0].count, parts[1].count, parts[2].count});
  const Values* by = l.adapting();
  if (by != nullptr) qkv = adapted(l, *by, qkv, parts);
  ir::Attrs attrs{{"heads", heads}};
  if (kv_heads != heads) attrs["kv_heads"] = kv_heads;
  if (const Values* norm = l.keys.find("qk_norm")) qkv = with_norms(l, *norm, qkv, attrs, channels);
  if (const Values* rope = l.keys.find("rope")) qkv = with_rope(l, *rope, qkv, attrs, channels);
  std::vector<ir::Operand> operands{qkv};
  attrs["causal"] = l.keys.flag("causal");
  if (l.keys.has("window") && l.keys.integer("window") < length) attrs["window"] = l.keys.integer("window");
  for (const char* of_scores : {"scale", "softcap"})
    if (l.keys.has(of_scores)) attrs[of_scores] = l.keys.real(of_scores);
  const bool drops = p > 0 && l.training();
  if (drops) {
    for (const ir::Operand& word : l.layers.parameters.sample_words()) operands.push_back(word);
    attrs["p"] = p;
    attrs["stream"] = Parameters::stream(l.path);
  }
  if (const auto* documents = documents_of(l)) {
    operands.emplace_back(documents->numbers);
    operands.emplace_back(documents->spans);
  }
  const auto results =
      l.b.make_n(drops ? "attention.dropout" : "attention", {l.path + ".heads", l.path + ".softmax"},
                 std::move(operands), std::move(attrs));
  const bool adapted_too = by != nullptr && adapts(*by, "proj");
  const ir::ValueId y = l.projection("proj.", adapted_too ? l.path + ".base" : l.path, results.front(), width,
                                     l.keys.flag("bias"));
  if (!adapted_too) return {{y}};
  const ir::ValueId change =
      l.adapter(*by, l.path + ".proj", results.front(), width, l.path + ".proj.weight");
  return {{l.b.make("add", l.path, {y, change})}};
}

}  // namespace

const LayerType layers::dropout{
    .schema = {.name = "dropout",
               .says = "Zeros with probability p, the rest by 1 / (1 - p); evaluations drop nothing.",
               .keys = {{"p", Form::real, required, "the probability of a zero", below_one}},
               .example = "p = 0.1"},
    .lower = lower_dropout,
};

const LayerType layers::attention{
    .schema =
        {.name = "attention",
         .says =
             "Self-attention of [positions, features]; qkv.weight [3 C, C], qkv.bias, proj.weight [C, "
             "C], proj.bias. With kv_heads and head_dim, qkv.weight is [(heads + 2 kv_heads) * head_dim, C], "
             "in the order q, k, v, and proj.weight [C, heads * head_dim].",
         .keys = {{"heads", Form::integer, required, "divides the features", extent},
                  {"kv_heads", Form::integer, no_default,
                   "heads of keys and values, each for heads / kv_heads neighbouring heads; default: heads",
                   extent},
                  {"head_dim", Form::integer, no_default, "channels of a head; default: C / heads", extent},
                  {"causal", Form::flag, false, "true: a position sees those before it and itself"},
                  Key{"bias", Form::flag, true, "false: no bias; \"qkv\": none on proj"}.or_one_of({"qkv"}),
                  Key{"rope", Form::table, no_default,
                      "rotary positions, of queries and keys; \"none\", as of a copy by a pattern: none"}
                      .or_one_of({"none"})
                      .of(tables::rope),
                  Key{"qk_norm", Form::table, no_default, "norms of queries and keys"}.of(tables::qk_norm),
                  {"scale", Form::real, no_default,
                   "what products of queries and keys are multiplied by; default: 1 / sqrt(head_dim)",
                   above(0)},
                  {"softcap", Form::real, no_default,
                   "a score x, scaled, is softcap * tanh(x / softcap) before the softmax", above(0)},
                  {"window", Form::integer, no_default,
                   "a position sees itself and the window - 1 before it; needs causal", extent},
                  {"documents", Form::text, no_default,
                   "an i32 input [positions] with the number of each position's document: a position "
                   "sees those of its own alone, and positions start at 0 in each. A negative number: "
                   "of none, which sees itself alone, and whose target counts nothing"},
                  {"dropout", Form::real, 0.0, "the probability of a zero among the weights", below_one},
                  Key{"proj_init", Form::table, no_default, "how proj.weight starts; default: as init says"}
                      .or_one_of(starts)
                      .of(tables::init),
                  lora_key},
         .example = "heads = 2\ncausal = true"},
    .weight = true,
    .bias = true,
    .check = check_attention,
    .lower = lower_attention,
};

}  // namespace gacc::frontend
