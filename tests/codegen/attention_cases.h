// Attention with its gradient at sizes around vectors, steps and blocks: what both targets' tests run.
#pragma once
#include "ir/text/text.h"
#include "tests/codegen/machine.h"
#include "tests/numeric/examples.h"

namespace gacc::codegen {

// Documents in the window: all of it one; eight of one length; runs of 1 to a third of it, and a tail that belongs to none; numbers in any
// order, some of none.
enum class Documents : uint8_t { none, one, eight, runs, scattered };

struct AttentionCase {
  int64_t length, heads, channels;
  bool causal, dropout;
  int64_t kv_heads = 0;  // as many as heads
  int64_t window = 0;    // none
  Documents documents = Documents::none;
  double scale = 0, softcap = 0;  // the root's; none
  int64_t row() const { return (heads + 2 * (kv_heads == 0 ? heads : kv_heads)) * channels; }
};

// `out`, `stats` and `d`, the gradient of sum(w * out), by the op's own gradient: delta is made from out and
// w.
inline ir::Module attention_module(const AttentionCase& c, int64_t micro_batch) {
  const int64_t width = c.heads * c.channels;
  std::string words = c.dropout ? ", @low, @high, @first.low, @first.high" : "", input, made, more;
  if (c.documents != Documents::none) {
    const std::string numbers = fmt::format("i32[B,{}]", c.length),
                      reach = fmt::format("i32[B,4,{}]", c.length);
    input = ", %documents : " + numbers;
    made = fmt::format(
        "%numbers, %positions, %reach = documents %documents : {0}, {0}, {1}\n"
        "%spans = documents.spans %reach : i32[B,4,{2}]\n"
        "%lengths = documents.lengths %numbers : {0}\n"
        "%tokens = cast %lengths : f32[B,{3}] {{to = \"f32\"}}",
        numbers, reach, (c.length + 63) / 64, c.length);
    more = ", metric tokens %tokens";
    words += ", %numbers, %spans";
  }
  const std::string name = c.dropout ? "attention.dropout" : "attention";
  const std::string attrs =
      fmt::format("{{causal = {}, heads = {}, kv_heads = {}, scale = {}, softcap = {}, window = {}{}}}",
                  c.causal, c.heads, c.kv_heads, ir::attr_text(c.scale), ir::attr_text(c.softcap), c.window,
                  c.dropout ? ", p = 0.25, stream = 77" : "");
  const std::string state = !c.dropout ? ""
                                       : "state @low : i32[] control\nstate @high : i32[]\n"
                                         "state @first.low : i32[] control\nstate @first.high : i32[]\n";
  const std::string shaped = fmt::format("[B,{},{},{}]", c.length, c.heads, c.channels);
  const std::string shape_attr = fmt::format("{{shape = [-1, {}, {}, {}]}}", c.length, c.heads, c.channels);
  return ir::parse_module(fmt::format(
      R"(set train.micro_batch = {micro}
    {state}
    eval(%qkv : f32[B,{t},{w3}], %w : f32[B,{t},{w}]{input}) {{
      {made}
      %out, %stats = {name} %qkv{words} : f32[B,{t},{w}], f32[B,{h},2,{t}] {attrs}
      %o = reshape %out : f32{shaped} {shape}
      %g = reshape %w : f32{shaped} {shape}
      %p = mul %o, %g : f32{shaped}
      %s = row_sum %p : f32[B,{t},{h},1]
      %delta = reshape %s : f32[B,{t},{h}] {{shape = [-1, {t}, {h}]}}
      %d = {name}.grad %qkv, %stats, %delta, %w{words} : f32[B,{t},{w3}] {attrs}
      yield metric d %d{more}
    }})",
      fmt::arg("micro", micro_batch), fmt::arg("t", c.length), fmt::arg("w3", c.row()), fmt::arg("w", width),
      fmt::arg("h", c.heads), fmt::arg("state", state), fmt::arg("name", name), fmt::arg("words", words),
      fmt::arg("input", input), fmt::arg("made", made), fmt::arg("more", more), fmt::arg("attrs", attrs),
      fmt::arg("shaped", shaped), fmt::arg("shape", shape_attr)));
}

// Sets the input `documents` as the case asks.
inline void set_documents(const AttentionCase& c, std::map<std::string, ir::Tensor>& inputs,
                          std::mt19937& random) {
  if (c.documents == Documents::none) return;
  std::vector<double>& numbers = inputs.at("documents").data;
  const int64_t tail = c.length / 8;
  int64_t number = 7, left = 1;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t position = static_cast<int64_t>(i) % c.length;
    if (left-- == 0) left = static_cast<int64_t>(random()) % (c.length / 3 + 1), number = (number + 3) % 11;
    if (c.documents == Documents::one) numbers[i] = 5;
    if (c.documents == Documents::eight) numbers[i] = static_cast<double>(8 * position / c.length);
    if (c.documents == Documents::runs)
      numbers[i] = position >= c.length - tail ? -1 : static_cast<double>(number);
    if (c.documents == Documents::scattered)
      numbers[i] = static_cast<double>(static_cast<int64_t>(random() % 4) - 1);
  }
}

// Queries and keys whose scores are far from zero (2^20 / sqrt(channels)), exact in f32, and differ by
// little: probabilities depend on the last bits. Values and `w` are small. channels >= 2.
inline std::map<std::string, ir::Tensor> far_scores(const AttentionCase& c, int64_t batch,
                                                    std::map<std::string, ir::Tensor> inputs) {
  const int64_t width = c.heads * c.channels;
  std::vector<double>& qkv = inputs.at("qkv").data;
  for (int64_t at = 0; at < batch * c.length; ++at) {
    double* row = qkv.data() + at * 3 * width;
    for (int64_t channel = 0; channel < width; ++channel) {
      const int64_t within = channel % c.channels;
      row[channel] = within == 0 ? 1024 : within == 1 ? static_cast<double>(1 + at % 3) : 0;
      row[width + channel] = within == 0 ? 1024 : within == 1 ? static_cast<double>(at * 5 % 4) : 0;
    }
  }
  return inputs;
}

}  // namespace gacc::codegen
