// The launches of every example, of GPT-2 and of a character GPT of 6 x 384 keep the rules that need no
// clock, but for the exceptions below. An exception that no longer occurs fails the test: the list only
// shrinks.
#include "tests/kernels/rules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>

namespace gacc {
namespace {

// Every kernel with `kernel` in the stem of its name may break the rules of the row. To be removed with the
// work that mends it.
struct Exception {
  std::string_view rules, kernel, reason;
};
constexpr Exception kExceptions[] = {
    {"C1 C3 C4 C5", "column_sum", "few rows or columns: a sum of fewer than 1,024 rows stays whole"},
    {"C4 C5", "row_sum",
     "a warp reads its row 4 elements at a time: 8 bytes of halves; a row of a head has 64"},
    {"C1", "row_sum_mul_row_sum_mul", "a warp for each row, and only 4 rows a sample"},
    {"C1", "attention",
     "48 blocks of positions at the example's micro-batch; f32 attention is made of multiply-adds"},
    {"C6", "attention", "f32 has no tensor cores here: it is made of multiply-adds"},
    {"C1", "rope", "a thread turns pairs in all heads: one sample of 512 positions has 64 blocks"},
    {"C4", "add_add_cast_square", "a row of one sample and its norm, read 4 halves at a time"},
    {"C4", "add_add_sub_mul", "rows, 4 halves at a time: the last layer norm's gradient"},
    {"C4", "mul_add_add_add", "the same, of a root mean square"},
    {"C4", "add_mul_mul_mul", "the same"},
    {"C1", "add_add_mul_silu_grad", "the sum of a bias of fewer than 1,024 rows"},
    {"C1 C2 C3", "concat", "64 blocks of parts of the logits of one sample"},
    {"C5", "embedding_grad", "a warp for some rows of a large table, and one sample of 512 tokens"},
    {"C5", "max_pool2d_grad", "a thread has one element"},
};
// Row and rule, as one word: "C4 of row_sum".
std::string known_as(const Break& one) {
  for (const Exception& each : kExceptions) {
    const bool rule =
        fmt::format(" {} ", each.rules).find(fmt::format(" {} ", one.rule)) != std::string::npos;
    if (rule && one.kernel.find(each.kernel) != std::string::npos)
      return fmt::format("{} of {}", one.rule, each.kernel);
  }
  return "";
}

struct Model {
  std::string path;
  std::vector<Override> settings;
  int64_t micro_batch;  // 0: the file's
};

std::vector<Model> models() {
  std::vector<Model> all;
  for (const auto& entry : std::filesystem::directory_iterator(GACC_SOURCE "/examples")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".toml")) all.push_back({"examples/" + name, {}, 0});
  }
  const Override half = {"precision.compute", "f16"};
  all.push_back({"examples/gpt2_124m.toml", {half}, 16});
  all.push_back({"examples/shakespeare_gpt.toml", {half}, 0});
  const std::vector<Override> character = {{"layers.h.repeat", "6"},
                                           {"layers.tok.features", "384"},
                                           {"layers.h.layers.mix.layers.attn.heads", "6"},
                                           {"layers.h.layers.mlp.layers.up.features", "1536"},
                                           {"layers.h.layers.mlp.layers.down.features", "384"},
                                           {"inputs.bytes.shape", "[256]"},
                                           {"inputs.next.shape", "[256]"}};
  all.push_back({"examples/shakespeare_gpt.toml", character, 64});
  all.push_back(all.back());
  all.back().settings.push_back(half);
  std::sort(all.begin(), all.end(), [](const Model& a, const Model& b) {
    return std::pair(a.path, a.settings.size()) < std::pair(b.path, b.settings.size());
  });
  return all;
}

ScheduledModel at(const Model& model, int64_t micro_batch, const char* target = "sm_90a") {
  std::vector<Override> settings = model.settings;
  if (micro_batch > 0) settings.push_back({"train.micro_batch", std::to_string(micro_batch)});
  return schedule_model(model.path, settings, target);
}

TEST(LaunchCosts, NoneIsBelowItsFloor) {
  for (const Model& each : models()) {
    for (const char* target : {"sm_89", "sm_90a"}) {
      const ScheduledModel model = at(each, each.micro_batch, target);
      for (const ir::Region* region : {&model.module.step, &model.module.update}) {
        const kernels::RegionCost cost =
            kernels::region_cost(model.module, *region, model.program, kernels::machine(target));
        for (const kernels::LaunchCost& launch : cost.launches)
          EXPECT_GE(launch.seconds, launch.floor * (1 - 1e-9))
              << each.path << " " << target << " " << launch.name;
      }
    }
  }
}

TEST(LaunchRules, AllModelsKeepThemButForTheExceptions) {
  std::set<std::string> used;
  for (const Model& each : models()) {
    const ScheduledModel model = at(each, each.micro_batch),
                         doubled = at(each, 2 * model.module.micro_batch());
    for (const Break& one : broken_rules(model, doubled, kernels::machine("sm_90a"))) {
      const std::string known = known_as(one);
      EXPECT_NE(known, "") << each.path << " with " << each.settings.size() << " settings: " << one.rule
                           << " " << one.why;
      used.insert(known);
    }
  }
  for (const Exception& each : kExceptions) {
    std::istringstream rules{std::string(each.rules)};
    for (std::string rule; rules >> rule;) {
      const std::string known = fmt::format("{} of {}", rule, each.kernel);
      EXPECT_TRUE(used.contains(known)) << known << " is not broken any more: take it out of the list";
    }
  }
}

}  // namespace
}  // namespace gacc
