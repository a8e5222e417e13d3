// What `gaccc --plan` shows.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compiler/plan/show.h"
#include "ir/product.h"
#include "ir/region_facts.h"
#include "tests/host/model.h"

namespace gacc {
namespace {

TEST(Plan, HasItsKeys) {
  const std::optional<ir::Module> module = planned(small_model());
  ASSERT_TRUE(module);
  const Plan plan = plan_of(*module);
  const nlohmann::json json = plan_json(plan, *module);
  for (const char* key :
       {"model", "target", "parameters", "micro_batch", "accumulate", "effective_batch", "precision",
        "recompute", "flops_per_launch", "kernels_per_launch", "bytes", "passes", "equivalence"})
    EXPECT_TRUE(json.contains(key)) << key;
  for (const char* key :
       {"policy", "recomputed_ops", "extra_flops", "overhead", "overhead_lower_bound", "gap"})
    EXPECT_TRUE(json["recompute"].contains(key)) << key;
  for (const char* key : {"weights", "half_weights", "gradients", "optimizer", "activations", "workspace",
                          "inputs", "peak", "lower_bound"})
    EXPECT_TRUE(json["bytes"].contains(key)) << key;
  EXPECT_EQ(json["model"], "small");
  EXPECT_EQ(json["parameters"], 20 * 24 + 24 + 24 + 24 + 24 * 7 + 7);
  EXPECT_EQ(json["effective_batch"], 18);
  EXPECT_EQ(json["equivalence"], nlohmann::json({{"exact", true}}));
  EXPECT_EQ(json["bytes"]["peak"], *module->arena_bytes);
  EXPECT_GE(json["flops_per_launch"],
            2 * 6 * 3 * (20 * 24 + 24 * 7) - 2 * 6 * 20 * 24);  // products: forward, backward
  EXPECT_GE(json["kernels_per_launch"], 5);
  EXPECT_NE(plan_text(plan, *module).find("18 (6 x 3)"), std::string::npos);
}

TEST(Plan, CarriesInputsBuffersAndMetrics) {
  const std::optional<ir::Module> module = planned(small_model());
  ASSERT_TRUE(module);
  const Plan plan = plan_of(*module);
  ASSERT_EQ(plan.inputs.size(), 2u);
  EXPECT_EQ(plan.inputs[0].name, "x");
  EXPECT_EQ(plan.inputs[0].shape, std::vector<int64_t>{20});
  EXPECT_EQ(plan.inputs[1].range, 7);
  EXPECT_EQ(plan.metrics, std::vector<std::string>{"accuracy"});
  EXPECT_EQ(plan.seed, 3);
  EXPECT_EQ(plan.optimizer, "adam");
  ASSERT_NE(plan.find("fc1.weight"), nullptr);
  EXPECT_EQ(plan.find("fc1.weight")->bytes, 4 * 20 * 24);
  EXPECT_NE(plan.find(state::lr), nullptr);
}

TEST(Plan, ProductsTakeTheirExtentsFromTheBatch) {
  const std::optional<ir::Module> module = planned(small_model());
  ASSERT_TRUE(module);
  int forward = 0, gradients = 0;
  for (const ir::Kernel& kernel : ir::facts(*module, module->step)->kernels) {
    if (kernel.form != ir::KernelForm::gemm) continue;
    const ir::Op& op = module->step.ops[kernel.members.front().op];
    const ir::ProductCall product = ir::product_of(*module, module->step, op);
    EXPECT_FALSE(product.n.times_batch);
    EXPECT_NE(product.m.times_batch, product.k.times_batch);
    if (op.info->accumulates) ++gradients;
    if (product.m.times_batch && ir::OpView{*module, module->step, op}.flag("tb")) ++forward;
    EXPECT_EQ(op.info->accumulates, product.k.times_batch);
  }
  EXPECT_EQ(forward, 2);
  EXPECT_EQ(gradients, 2);
}

}  // namespace
}  // namespace gacc
