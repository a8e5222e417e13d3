// What a plan answers of itself.
#include <gtest/gtest.h>

#include "tests/runtime/fake_device.h"

namespace gacc {
namespace {

TEST(Plan, inputs_have_the_bytes_that_lie_in_the_arena) {
  Plan plan = test::tiny_plan(4, 3, "carry");
  plan.inputs[0].shape = {2};
  EXPECT_EQ(plan.inputs[0].bytes(3), 24);
  plan.inputs[0].stored = DType::bf16;
  EXPECT_EQ(plan.inputs[0].bytes(3), 12);
  EXPECT_EQ(plan.inputs[1].bytes(3), 12);
}

TEST(Plan, parts_of_a_prediction_have_their_rows) {
  const PlanPredict whole{.batch = 2, .shape = {6, 4}}, parts{.batch = 1, .shape = {6, 4}, .rows = 2};
  EXPECT_EQ(whole.parts(), 1);
  EXPECT_EQ(whole.outputs(), 48);
  EXPECT_EQ(parts.parts(), 3);
  EXPECT_EQ(parts.outputs(), 8);
}

TEST(Plan, buffers_are_found_by_name_and_by_role) {
  const Plan plan = test::tiny_plan(4, 3, "flush");
  EXPECT_EQ(plan.find("w.grad")->kind(), BufferKind::accum);
  EXPECT_EQ(plan.find("nothing"), nullptr);
  EXPECT_EQ(plan.find(BufferRole::gradient, "w"), plan.find("w.grad"));
  EXPECT_EQ(plan.find(BufferRole::gradient, "frozen"), nullptr);
}

TEST(Plan, programs_are_needed_where_there_is_something_to_do) {
  Plan plan = test::tiny_plan(4, 3, "flush");
  EXPECT_TRUE(plan.needs(Program::step));
  EXPECT_FALSE(plan.needs(Program::close) || plan.needs(Program::norms) || plan.needs(Program::answer));
  test::add_state(plan, "loss.sum.node0", DType::f32).role = BufferRole::node;
  EXPECT_TRUE(plan.needs(Program::close));
}

}  // namespace
}  // namespace gacc
