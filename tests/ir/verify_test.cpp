// The verifier on modules that no text can describe: ids that lead nowhere, names and definitions twice,
// attributes of another type. What text can describe has goldens (tests/golden/verify).
#include "ir/verify/verify.h"

#include <gtest/gtest.h>

#include <functional>

#include "ir/op_info.h"
#include "ir/text/text.h"

namespace gacc::ir {
namespace {

constexpr std::string_view kText = R"(module @m phase(model) {
  set train.micro_batch = 4
  param @w : f32[8]
  step(%x : f32[B,8], %y : f32[B,8]) {
    %a = add %x, @w : f32[B,8]
    %b = leaky_relu %a : f32[B,8] {slope = 0.5}
    %d = sub %b, %y : f32[B,8]
    %loss = total_sum %d : f32[]
    %ones = ones_like %d : i32[B,8]
    %n = total_sum %ones : i32[]
    yield loss %loss, count %n
  }
}
)";

Module sound() {
  Diag diag("t", std::string(kText));
  auto module = parse(kText, diag);
  EXPECT_TRUE(module) << diag.render();
  return module ? *module : Module{};
}

// What the verifier says of the module after `damage`: the first report's text.
std::string said_after(const std::function<void(Module&)>& damage) {
  Module module = sound();
  damage(module);
  Diag diag;
  if (verify(module, diag) || diag.reports().empty()) return "nothing";
  return diag.reports().front().text;
}

TEST(Verify, TheModuleItStartsFromIsSound) {
  Diag diag;
  EXPECT_TRUE(verify(sound(), diag)) << diag.render();
}

TEST(Verify, IdsLeadSomewhere) {
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[0].results[0].index = -1; }), "R2: a result has no value");
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[3].results[0].index = 99; }), "R2: a result has no value");
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[1].operands[0] = ValueId{99}; }),
            "R2: an operand has no value");
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[1].operands[0] = ValueId{}; }),
            "R2: an operand has no value");
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[0].operands[1] = BufferId{1}; }),
            "R2: an operand has no buffer");
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[0].operands[1] = BufferId{}; }),
            "R2: an operand has no buffer");
  EXPECT_EQ(said_after([](Module& m) { m.step.yields[0].what = ValueId{99}; }),
            "R2: an operand has no value");
}

TEST(Verify, AValueIsDefinedOnceUnderOneName) {
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[1].results = m.step.ops[0].results; }),
            "R2: value `%a` is defined twice");
  EXPECT_EQ(said_after([](Module& m) { m.step[m.step.ops[1].results[0]].name = "a"; }),
            "R1: two values are called `%a`");
}

TEST(Verify, AnOpIsWhatTheTableSays) {
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[1].operands.push_back(m.step.ops[1].operands[0]); }),
            "R3: `leaky_relu` takes 1 operands and has 1 results");
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[1].attrs["slop"] = 0.5; }),
            "R3: `leaky_relu` has no attribute `slop`");
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[1].attrs["slope"] = true; }),
            "R3: attribute `slope` of `leaky_relu` has another type");
  EXPECT_EQ(said_after([](Module& m) { m.step.ops[0].when = 1.0; }),
            "R5: `add` writes no buffer, so it takes no when()");
}

TEST(Verify, AYieldHasARole) {
  EXPECT_EQ(said_after([](Module& m) { m.step.yields[1].role = YieldRole::rows; }),
            "R10: step has no yield of the role `rows`");
  EXPECT_EQ(said_after([](Module& m) { m.step.yields.pop_back(); }),
            "R10: step yields one loss and one count");
  EXPECT_EQ(said_after([](Module& m) { m.step.yields[1].what = m.step.yields[0].what; }).substr(0, 21),
            "R10: the count %loss ");
}

}  // namespace
}  // namespace gacc::ir
