// GPT-2 124M in f16, 16 windows of 1024 tokens, on an H100: the model's estimate of each kind of launch
// against another program's, which was told by hand what each launch does (from its machine code), and has
// the same formulas. So this test sees wrong bytes, chains and instruction counts. Of `add_gelu_tanh` and
// `cast_cast_mul_row_sum` the figures are this model's own of 2026-11-30: they see a change, no more.
#include <gtest/gtest.h>

#include <map>

#include "kernels/launch_work.h"
#include "tests/kernels/scheduled_model.h"

namespace gacc {
namespace {

using kernels::LaunchCost;

constexpr double kAgrees = 0.2;  // rows are of that program, which joined bounds by their cubes

struct Row {
  const char* name;  // a stem, or a product
  double microseconds;
};
// One launch, with its gap.
constexpr Row kRows[] = {{"product 16384x2304x768", 102.72},
                         {"product 16384x768x768", 37.16},
                         {"product 16384x3072x768", 135.71},
                         {"product 16384x768x3072", 118.82},
                         {"product 16384x768x2304", 91.53},
                         {"product 2304x768x16384", 108.25},
                         {"product 768x768x16384", 44.20},
                         {"product 3072x768x16384", 146.08},
                         {"product 768x3072x16384", 146.08},
                         {"product 2048x50257x768", 273.29},
                         {"product 2048x768x50257", 254.12},
                         {"product 50257x768x2048", 284.60},
                         {"attention", 138.70},
                         {"attention_grad", 375.31},
                         {"add_gelu_tanh", 98.88},
                         {"add_add_row_sum_mul", 41.09},
                         {"sub_mul_mul_row_sum", 36.14},
                         {"add", 52.71},
                         {"cast_cast_mul_row_sum", 22.22}};

TEST(Gpt2Cost, AgreesLaunchByLaunch) {
  const ScheduledModel model = schedule_model(
      "examples/gpt2_124m.toml", {{"precision.compute", "f16"}, {"train.micro_batch", "16"}}, "sm_90a");
  const kernels::RegionCost cost =
      kernels::region_cost(model.module, model.module.step, model.program, kernels::machine("sm_90a"));
  std::map<std::string, std::pair<double, int>> found;  // the sum and the count
  for (const LaunchCost& launch : cost.launches) {
    auto& [sum, count] = found[launch.name.starts_with("product") ? launch.name : stem(launch.name)];
    sum += 1e6 * launch.seconds;
    ++count;
  }
  for (const Row& row : kRows) {
    const auto [sum, count] = found[row.name];
    ASSERT_GT(count, 0) << row.name << " is not launched any more: take its row out";
    EXPECT_NEAR(sum / count, row.microseconds, kAgrees * row.microseconds) << row.name;
  }
}

}  // namespace
}  // namespace gacc
