// Examples of every op, taken from its golden.
#include "tests/numeric/examples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "ir/text/text.h"

namespace gacc::ir {

namespace {

Module read_golden(const std::string& name) {
  const std::string path = std::string(GACC_OP_GOLDENS) + "/" + name + ".gir";
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(file.good()) << "no golden " << path;
  const std::string input = text.str().substr(0, text.str().find("// ----- expected"));
  Diag diag(path, input);
  std::optional<Module> module = parse(input, diag);
  EXPECT_TRUE(module) << diag.render();
  return module ? *module : Module{};
}

Example single(const Module& from, const Region& region, const Op& op) {
  Example example{.text = print(from, region, op), .module = {}};
  Module& module = example.module;
  module.phase = Phase::accumulated;
  module.settings.train.micro_batch = int64_t{4};
  Op copy = op;
  copy.results.clear();
  copy.when.reset();
  for (size_t i = 0; i < op.operands.size(); ++i) {
    if (as_number(op.operands[i]) != nullptr) continue;
    const Type type = operand_type(from, region, op.operands[i]);
    if (op.info->is_written(i)) {
      copy.operands[i] = module.add_buffer({.name = fmt::format("w{}", i), .type = type});
    } else {
      const ValueId input = module.eval.add_value(fmt::format("a{}", i), type);
      module.eval.inputs.push_back(input);
      copy.operands[i] = input;
    }
  }
  for (size_t i = 0; i < op.results.size(); ++i) {
    copy.results.push_back(module.eval.add_value(fmt::format("y{}", i), region[op.results[i]].type));
  }
  module.eval.ops.push_back(std::move(copy));
  return example;
}

}  // namespace

std::vector<Example> examples(const OpInfo& info) {
  const OpInfo* of = info.gradient_of;
  const OpInfo& shown = of != nullptr && of->derivative != nullptr ? *of
                        : info.half_of != nullptr                  ? *info.half_of
                                                                   : info;
  const Module golden = read_golden(std::string(shown.name));
  std::vector<Example> found;
  for (const RegionKind kind : all_regions) {
    const Region& region = golden.region(kind);
    for (const Op& op : region.ops) {
      if (op.info == &info) found.push_back(single(golden, region, op));
    }
  }
  return found;
}

bool has_half(const Example& example) {
  const auto half = [](const auto& typed) {
    return is_narrow(typed.type.dtype) && !is_blocks(typed.type.dtype);
  };
  const Module& module = example.module;
  return std::any_of(module.buffers.begin(), module.buffers.end(), half) ||
         std::any_of(module.eval.values.begin(), module.eval.values.end(), half);
}

std::string test_name(std::string_view op) {
  std::string name(op);
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
}

Module parse_module(const std::string& body) {
  const std::string text = "module @m phase(accumulated) {\n" + body + "\n}\n";
  Diag diag("test", text);
  std::optional<Module> module = parse(text, diag);
  EXPECT_TRUE(module) << diag.render();
  return module ? *module : Module{};
}

Tensor random_tensor(const Type& type, int64_t batch, bool positive, std::mt19937& random) {
  Tensor result{type.shape, {}};
  if (has_batch(type.shape)) result.shape.front() = batch;
  std::uniform_real_distribution<double> magnitude(0.3, 1.7);
  for (int64_t i = 0; i < elements(type.shape, batch); ++i) {
    const double sign = positive || random() % 2 == 0 ? 1 : -1;
    result.data.push_back(is_float(type.dtype) ? rounded(is_blocks(type.dtype) ? DType::f32 : type.dtype,
                                                         sign * magnitude(random))
                                               : static_cast<double>(random() % 4));
  }
  if (is_blocks(type.dtype)) round_blocks(type.dtype, result.data);
  return result;
}

std::map<std::string, Tensor> random_inputs(const Module& module, int64_t batch, bool positive,
                                            std::mt19937& random) {
  std::map<std::string, Tensor> inputs;
  for (const ValueId id : module.eval.inputs) {
    inputs[module.eval[id].name] = random_tensor(module.eval[id].type, batch, positive, random);
  }
  return inputs;
}

State random_state(const Module& module, std::mt19937& random) {
  State state;
  for (const Buffer& buffer : module.buffers)
    state.buffers[buffer.name] = random_tensor(buffer.type, 1, true, random);
  return state;
}

}  // namespace gacc::ir
