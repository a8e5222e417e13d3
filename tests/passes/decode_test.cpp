// `decode`, position by position, gives what `predict` gives at each: in double, whatever positions are, and planned
// or not.
#include <algorithm>

#include "passes/pass.h"
#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;

constexpr int64_t kLength = 6, kClasses = 5;

// Two layers of attention over six tokens: `rope` and `window` are attributes and ops of theirs.
std::string text_model(const std::string& rope, const std::string& window, const std::string& documents) {
  const std::string operands = documents.empty() ? "" : ", %d.numbers, %d.spans";
  const std::string positions = documents.empty() ? "" : ", %d.positions";
  std::string forward = documents;
  forward += documents.empty() ? "    %w = add %e, @p : f32[B,6,12]\n"
                               : "    %p.rows = embedding %d.positions, @p : f32[B,6,12]\n"
                                 "    %w = add %e, %p.rows : f32[B,6,12]\n";
  std::string x = "w";
  for (const std::string layer : {"a", "b"}) {
    forward += fmt::format(
        "    %{0}.norm, %{0}.r = rms_norm %{1}, @n : f32[B,6,12], f32[B,6,1]\n"
        "    %{0}.qkv = matmul %{0}.norm, @{0}.qkv : f32[B,6,24] {{tb}}\n"
        "    %{0}.rope = rope %{0}.qkv{2} : f32[B,6,24] {{heads = 2, kv_heads = 1, rotated = {3}}}\n"
        "    %{0}, %{0}.s = attention %{0}.rope{4} : f32[B,6,12], f32[B,2,2,6] {{causal, heads = 2, kv_heads "
        "= 1{5}}}\n"
        "    %{0}.sum = add %{0}, %{1} : f32[B,6,12]\n",
        layer, x, positions, rope, operands, window);
    x = layer + ".sum";
  }
  forward += "    %out = matmul %b.sum, @e : f32[B,6,5] {tb}\n";
  const std::string inputs = documents.empty() ? "" : ", %d : i32[B,6]";
  return R"(module @gpt phase(model) {
  set inputs.x.range = 5
  set inputs.y.range = 5
  set optimizer.type = "sgd"
  set predict.positions = "causal"
  set train.micro_batch = 2
  param @e : f32[5,12]
  param @p : f32[6,12]
  param @n : f32[12]
  param @a.qkv : f32[24,12]
  param @b.qkv : f32[24,12]
  state @lr : f32[] given
  step(%x : i32[B,6], %y : i32[B,6])" +
         inputs + ") {\n    %e = embedding %x, @e : f32[B,6,12]\n" + forward +
         R"(    %target = reshape %y : i32[B,6,1] {shape = [-1, 6, 1]}
    %ce, %max, %log, %counted = cross_entropy %out, %target : f32[B,6,1], f32[B,6,1], f32[B,6,1], i32[B,6,1]
    %loss = total_sum %ce : f32[]
    %count = total_sum %counted : i32[]
    yield loss %loss, count %count
  }
  predict(%x : i32[B,6])" +
         inputs + ") {\n    %e = embedding %x, @e : f32[B,6,12]\n" + forward +
         "    yield output %out\n  }\n}\n";
}

const std::string kDocuments =
    "    %d.numbers, %d.positions, %d.reach = documents %d : i32[B,6], i32[B,6], i32[B,4,6]\n"
    "    %d.spans = documents.spans %d.reach : i32[B,4,1]\n";

// `length`: the tokens that a model is told the text has, where it asks.
void expect_decode_is_predict(const Module& module, const std::string& what, int length = 0) {
  State state = random_state(module, 3);
  if (length > 0) state.buffers["text.length"].data = {static_cast<double>(length)};
  Tensors inputs = random_inputs(module, RegionKind::predict, 1, 4);
  if (inputs.contains("d")) std::ranges::fill(inputs["d"].data, 0);
  const Region &predict = module.predict, &decode = module.decode;
  ASSERT_FALSE(decode.ops.empty()) << what;
  const Tensor all = evaluate(module, RegionKind::predict, 1, inputs, state)
                         .at(predict[*as_value(predict.yields[0].what)].name);
  Tensors next{{decode[decode.inputs[0]].name, {{1, 1}, {0}}},
               {decode[decode.inputs[1]].name, {{1, 1}, {0}}}};
  for (size_t i = 2; i < decode.inputs.size(); ++i) {
    const Value& cache = decode[decode.inputs[i]];
    next[cache.name] = {cache.type.shape,
                        std::vector<double>(static_cast<size_t>(elements(cache.type.shape, 1)))};
  }
  for (int64_t t = 0; t < kLength; ++t) {
    next[decode[decode.inputs[0]].name].data[0] = inputs["x"].data[t];
    next[decode[decode.inputs[1]].name].data[0] = static_cast<double>(t);
    const Tensors made = evaluate(module, RegionKind::decode, 1, next, state);
    const auto yielded = [&](size_t i) { return made.at(decode[*as_value(decode.yields[i].what)].name); };
    const Tensor rows{{kClasses}, {all.data.begin() + t * kClasses, all.data.begin() + (t + 1) * kClasses}};
    EXPECT_LT(largest_difference({{kClasses}, yielded(0).data}, rows), 1e-6) << what << ", position " << t;
    for (size_t i = 2; i < decode.inputs.size(); ++i) next[decode[decode.inputs[i]].name] = yielded(i - 1);
  }
}

// A score of no key for each head of the model's attention.
std::string with_sinks(std::string text) {
  for (const std::string layer : {"a", "b"}) {
    const std::string plain = "attention %" + layer + ".rope";
    for (size_t at = 0; (at = text.find(plain, at)) != std::string::npos; ++at)
      text.replace(at, plain.size(), fmt::format("attention.sinks %{0}.rope, @{0}.sinks", layer));
  }
  const std::string rate = "  state @lr";
  return text.insert(text.find(rate), "  param @a.sinks : f32[2]\n  param @b.sinks : f32[2]\n");
}

TEST(Decode, GivesWhatPredictGives) {
  const struct {
    std::string what, text;
  } cases[] = {{"rope", text_model("4", "", "")},
               {"a window", text_model("2", ", window = 3", "")},
               {"documents", text_model("6", "", kDocuments)},
               {"sinks", with_sinks(text_model("4", "", ""))},
               {"sinks and a window", with_sinks(text_model("2", ", window = 3", ""))},
               {"sinks and documents", with_sinks(text_model("6", "", kDocuments))}};
  for (const auto& [what, text] : cases) {
    expect_decode_is_predict(compiled(text, "decode"), what);
    expect_decode_is_predict(compiled(text, "plan-memory"), what + ", planned");
  }
}

// Turns texts of more than three tokens, as `length` says, by other factors than short ones.
std::string by_length(std::string text, const std::string& length) {
  for (const std::string layer : {"a", "b"}) {
    const size_t begin = text.find(fmt::format("    %{}.rope = rope", layer)), end = text.find('\n', begin);
    std::string made = text.substr(begin, end - begin), other = made;
    const std::string name = layer + ".rope =";
    made.replace(made.find(name), name.size(), layer + ".long =");
    other.replace(other.find(name), name.size(), layer + ".short =");
    other.insert(other.size() - 1, ", scales = [0.5, 0.25]");
    text.replace(begin, end - begin,
                 fmt::format("{0}\n{1}\n    %{2}.is_long = greater {3}, 3.0 : i32{4}\n"
                             "    %{2}.rope = select %{2}.is_long, %{2}.long, %{2}.short : f32[B,6,24]",
                             made, other, layer, length, length[0] == '@' ? "[]" : "[B,6,1]"));
  }
  const std::string rate = "  state @lr";
  return text.insert(text.find(rate), "  state @text.length : f32[] control\n");
}

TEST(Decode, KnowsHowLongTheTextIs) {
  const Module plain = compiled(by_length(text_model("4", "", ""), "@text.length"), "plan-memory");
  expect_decode_is_predict(plain, "a short text", 3);
  expect_decode_is_predict(plain, "a long text", 6);
  const std::string lengths =
      "    %d.lengths = documents.lengths %d.numbers : i32[B,6]\n"
      "    %d.rows = reshape %d.lengths : i32[B,6,1] {shape = [-1, 6, 1]}\n"
      "    %d.tokens = cast %d.rows : f32[B,6,1] {to = \"f32\"}\n";
  const Module packed =
      compiled(by_length(text_model("4", "", kDocuments + lengths), "%d.tokens"), "plan-memory");
  expect_decode_is_predict(packed, "a long text that is a document", 6);
}

TEST(Decode, IsOnlyOfModelsWhosePositionsMeetInCausalAttention) {
  std::string text = text_model("4", "", "");
  const std::string causal = "set predict.positions = \"causal\"";
  text.replace(text.find(causal), causal.size(),
               "set predict.positions = \"`attention` makes `a` of several\"");
  EXPECT_TRUE(compiled(text, "all").decode.ops.empty());
}

}  // namespace
}  // namespace gacc::test
