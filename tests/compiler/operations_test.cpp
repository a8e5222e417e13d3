// What tells a checkpoint's model from another one: the digest of what a step computes.
#include "compiler/plan/plan_of.h"

#include "tests/compiler/compiled.h"

namespace gacc {
namespace {

// With attention, an op of several results.
const std::string kModel = test::classifier(
    "12, 8",
    test::layer("attention", "name = \"attn\"\nheads = 2\ncausal = true") +
        test::layer("layer_norm", "name = \"norm\"") +
        test::linear(40, "name = \"fc\"\nactivation = \"gelu\"") + test::layer("flatten") + test::linear(7),
    "type = \"adam\"", "micro_batch = 4\naccumulate = 4\nlanes = 4");

uint32_t digest(const std::vector<Override>& sets, const std::string& target = "sm_80") {
  return operations_digest(test::compiled(kModel, sets, target));
}

TEST(OperationsDigest, IsThatOfTheModelUnderAnyPlan) {
  const uint32_t model = digest({});
  for (const char* target : {"sm_75", "sm_90a"}) EXPECT_EQ(digest({}, target), model) << target;
  for (const Override& set : {Override{"train.ranks", "2"},
                              {"recompute.policy", "all"},
                              {"recompute.policy", "sqrt"},
                              {"launch.mode", "graph"},
                              {"launch.mode", "persistent"},
                              {"model.name", "other"}})
    EXPECT_EQ(digest({set}), model) << set.key << " " << set.value;
  EXPECT_EQ(digest({{"train.ranks", "2"}, {"memory.shard", "optimizer"}}), model);
}

TEST(OperationsDigest, IsThatOfHalfPrecisionUnderAnyPlan) {
  const Override half{"precision.compute", "f16"};
  const uint32_t model = digest({half});
  EXPECT_NE(model, digest({}));
  EXPECT_EQ(digest({half, {"recompute.policy", "all"}}), model);
  EXPECT_EQ(digest({half, {"train.ranks", "2"}, {"memory.shard", "optimizer"}}, "sm_90"), model);
}

TEST(OperationsDigest, IsAnotherOneForAnotherModel) {
  const uint32_t model = digest({});
  for (const Override& set : {Override{"layers.fc.activation", "relu"},
                              {"layers.attn.causal", "false"},
                              {"layers.norm.eps", "1e-3"},
                              {"layers.fc.features", "48"}})
    EXPECT_NE(digest({set}), model) << set.key;
}

}  // namespace
}  // namespace gacc
