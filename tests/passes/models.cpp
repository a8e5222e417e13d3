#include "tests/passes/models.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gacc::test {

using namespace ir;

std::string mlp() {
  return R"(module @mlp phase(model) {
  set inputs.y.range = 3
  set optimizer.type = "adam"
  set optimizer.weight_decay = 0.01
  set train.micro_batch = 8
  param @fc1.weight : f32[6,5]
  param @fc1.bias : f32[6]
  param @fc2.weight : f32[3,6]
  param @fc2.bias : f32[3]
  state @lr : f32[] given
  step(%x : f32[B,5], %y : i32[B]) {
    %fc1.mm = matmul %x, @fc1.weight : f32[B,6] {tb}
    %fc1.sum = add %fc1.mm, @fc1.bias : f32[B,6]
    %fc1 = relu %fc1.sum : f32[B,6]
    %fc2.mm = matmul %fc1, @fc2.weight : f32[B,3] {tb}
    %fc2 = add %fc2.mm, @fc2.bias : f32[B,3]
    %target = reshape %y : i32[B,1] {shape = [-1, 1]}
    %ce, %max, %log, %counted = cross_entropy %fc2, %target : f32[B,1], f32[B,1], f32[B,1], i32[B,1] {label_smoothing = 0.1}
    %loss = total_sum %ce : f32[]
    %count = total_sum %counted : i32[]
    yield loss %loss, count %count
  }
  eval(%x : f32[B,5], %y : i32[B]) {
    %fc1.mm = matmul %x, @fc1.weight : f32[B,6] {tb}
    %fc1.sum = add %fc1.mm, @fc1.bias : f32[B,6]
    %fc1 = relu %fc1.sum : f32[B,6]
    %fc2.mm = matmul %fc1, @fc2.weight : f32[B,3] {tb}
    %fc2 = add %fc2.mm, @fc2.bias : f32[B,3]
    %target = reshape %y : i32[B,1] {shape = [-1, 1]}
    %ce, %max, %log, %counted = cross_entropy %fc2, %target : f32[B,1], f32[B,1], f32[B,1], i32[B,1]
    %loss = total_sum %ce : f32[]
    %count = total_sum %counted : i32[]
    %best = row_argmax %fc2 : i32[B,1]
    %hit = equal %best, %target : i32[B,1]
    %hit.f = cast %hit : f32[B,1]
    %accuracy = total_sum %hit.f : f32[]
    yield loss %loss, count %count, metric accuracy %accuracy
  }
}
)";
}

std::string residual() {
  return R"(module @residual phase(model) {
  set optimizer.type = "sgd"
  set optimizer.momentum = 0.9
  set optimizer.nesterov = true
  set schedule.total = 9
  set schedule.type = "cosine"
  set train.clip_norm = 0.1
  set train.micro_batch = 8
  param @norm.weight : f32[5]
  param @norm.bias : f32[5]
  param @fc.weight : f32[5,5]
  param @fc.bias : f32[5]
  param @fixed : f32[5] frozen
  state @lr : f32[] given
  step(%x : f32[B,5], %y : f32[B,5]) {
    %norm, %norm.mean, %norm.rstd = layer_norm %x, @norm.weight, @norm.bias : f32[B,5], f32[B,1], f32[B,1]
    %fc.mm = matmul %norm, @fc.weight : f32[B,5] {tb}
    %fc.sum = add %fc.mm, @fc.bias : f32[B,5]
    %fc = gelu %fc.sum : f32[B,5]
    %shifted = add %fc, @fixed : f32[B,5]
    %res = add %norm, %shifted : f32[B,5]
    %error = squared_error %res, %y : f32[B,5]
    %loss = total_sum %error : f32[]
    %ones = ones_like %error : i32[B,5]
    %count = total_sum %ones : i32[]
    yield loss %loss, count %count
  }
}
)";
}

std::string tied() {
  return R"(module @tied phase(model) {
  set optimizer.type = "sgd"
  set optimizer.weight_decay = 0.1
  set train.micro_batch = 8
  param @w : f32[4,4]
  param @unused : f32[4]
  state @lr : f32[] given
  step(%x : f32[B,4], %y : f32[B,4]) {
    %a.mm = matmul %x, @w : f32[B,4] {tb}
    %a = tanh %a.mm : f32[B,4]
    %b.mm = matmul %a, @w : f32[B,4]
    %b = softmax %b.mm : f32[B,4]
    %error = absolute_error %b, %y : f32[B,4]
    %loss = total_sum %error : f32[]
    %ones = ones_like %error : i32[B,4]
    %count = total_sum %ones : i32[]
    yield loss %loss, count %count
  }
}
)";
}

std::string sequence() {
  return R"(module @sequence phase(model) {
  set inputs.y.range = 6
  set loss.chunks = 3
  set optimizer.type = "sgd"
  set train.micro_batch = 8
  param @fc.weight : f32[4,4]
  param @head.weight : f32[6,4]
  param @head.bias : f32[6]
  state @lr : f32[] given
  step(%x : f32[B,5,4], %y : i32[B,5]) {
    %fc.mm = matmul %x, @fc.weight : f32[B,5,4] {tb}
    %fc = tanh %fc.mm : f32[B,5,4]
    %head.mm = matmul %fc, @head.weight : f32[B,5,6] {tb}
    %head = add %head.mm, @head.bias : f32[B,5,6]
    %target = reshape %y : i32[B,5,1] {shape = [-1, 5, 1]}
    %ce, %max, %log, %counted = cross_entropy %head, %target : f32[B,5,1], f32[B,5,1], f32[B,5,1], i32[B,5,1] {label_smoothing = 0.1}
    %loss = total_sum %ce : f32[]
    %count = total_sum %counted : i32[]
    yield loss %loss, count %count
  }
  eval(%x : f32[B,5,4], %y : i32[B,5]) {
    %fc.mm = matmul %x, @fc.weight : f32[B,5,4] {tb}
    %fc = tanh %fc.mm : f32[B,5,4]
    %head.mm = matmul %fc, @head.weight : f32[B,5,6] {tb}
    %head = add %head.mm, @head.bias : f32[B,5,6]
    %target = reshape %y : i32[B,5,1] {shape = [-1, 5, 1]}
    %ce, %max, %log, %counted = cross_entropy %head, %target : f32[B,5,1], f32[B,5,1], f32[B,5,1], i32[B,5,1]
    %loss = total_sum %ce : f32[]
    %count = total_sum %counted : i32[]
    %best = row_argmax %head : i32[B,5,1]
    %hit = equal %best, %target : i32[B,5,1]
    %hit.f = cast %hit : f32[B,5,1]
    %accuracy = total_sum %hit.f : f32[]
    yield loss %loss, count %count, metric accuracy %accuracy
  }
}
)";
}

const std::vector<std::string>& models() {
  const auto with = [](std::string text, const std::string& optimizer) {
    const std::string old = "optimizer.type = \"adam\"";
    return text.replace(text.find(old), old.size(), optimizer);
  };
  static const std::vector<std::string> all = {
      mlp(),
      residual(),
      tied(),
      sequence(),
      with(mlp(), "optimizer.type = \"lamb\""),
      with(mlp(), "optimizer.type = \"adam\"\n  set optimizer.second_moment = \"micro\"")};
  return all;
}

Module parse(const std::string& text) {
  Diag diag("model.gir", text);
  std::optional<Module> module = ir::parse(text, diag);
  EXPECT_TRUE(module) << diag.render();
  return module.value_or(Module{});
}

void run_passes(Module& module, const std::vector<std::string>& passes) {
  Diag diag;
  const auto result = passes::run_pipeline(module, {.passes = passes, .nothing = passes.empty()}, diag);
  EXPECT_TRUE(result) << result.internal_error << diag.render();
}

Module compiled(const std::string& text, const std::string& last) {
  Module module = parse(text);
  std::vector<std::string> names;
  for (const passes::Pass& pass : passes::all_passes()) {
    if (last.empty()) break;
    names.emplace_back(pass.name);
    if (pass.name == last) break;
  }
  run_passes(module, names);
  return module;
}

const std::vector<std::string> schedule_passes = {"select",     "epilogues", "levels",    "merge",
                                                  "persistent", "streams",   "workspaces"};

Tensors random_inputs(const Module& module, RegionKind kind, int64_t batch, uint32_t seed, bool ignored) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Tensors inputs;
  const Region& region = module.region(kind);
  for (const ValueId id : region.inputs) {
    Tensor tensor{region[id].type.shape, {}};
    tensor.shape.front() = batch;
    for (int64_t i = 0; i < elements(tensor.shape, batch); ++i) {
      const bool real = is_float(region[id].type.dtype);
      tensor.data.push_back(real                    ? normal(random)
                            : ignored && i % 5 == 1 ? -100.0
                                                    : static_cast<double>(i % 3));
    }
    inputs[region[id].name] = std::move(tensor);
  }
  return inputs;
}

Tensors rows(const Tensors& inputs, int64_t from, int64_t to) {
  Tensors out;
  for (const auto& [name, tensor] : inputs) {
    const auto row = static_cast<int64_t>(tensor.data.size()) / tensor.shape.front();
    Tensor part{tensor.shape, {tensor.data.begin() + from * row, tensor.data.begin() + to * row}};
    part.shape.front() = to - from;
    out[name] = std::move(part);
  }
  return out;
}

State random_state(const Module& module, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  State state;
  for (const Buffer& buffer : module.buffers) {
    Tensor tensor{buffer.type.shape,
                  std::vector<double>(static_cast<size_t>(elements(buffer.type.shape, 1)), 0.0)};
    if (buffer.kind == BufferKind::param) {
      for (double& value : tensor.data) value = normal(random);
    }
    if (buffer.name == "lr") tensor.data = {0.1};
    state.buffers[buffer.name] = std::move(tensor);
  }
  return state;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  if (a.data.size() != b.data.size()) return std::numeric_limits<double>::infinity();
  double scale = 1e-30, difference = 0;
  for (size_t i = 0; i < a.data.size(); ++i)
    scale = std::max({scale, std::abs(a.data[i]), std::abs(b.data[i])});
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double d = std::abs(a.data[i] - b.data[i]);
    if (std::isnan(d)) return d;
    difference = std::max(difference, d);
  }
  return difference / scale;
}

}  // namespace gacc::test
