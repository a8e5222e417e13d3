// Where products work: the largest range that is free, compared with trying every one; and the plan checker,
// which finds nothing wrong with it and everything wrong with any other.
#include "codegen/product_workspace.h"

#include <algorithm>

#include "ir/liveness.h"
#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;
using passes::check_plan;

constexpr int64_t kStep = kWorkspaceAlignment;

// Every aligned range, longer ones first.
std::optional<PlanWorkspace> by_trying(const std::vector<TakenBytes>& taken, int64_t arena) {
  for (int64_t bytes = arena / kStep * kStep; bytes > 0; bytes -= kStep) {
    for (int64_t offset = 0; offset + bytes <= arena; offset += kStep) {
      const bool free = std::none_of(taken.begin(), taken.end(), [&](const TakenBytes& t) {
        return t.begin < offset + bytes && offset < t.end;
      });
      if (free) return PlanWorkspace{offset, bytes};
    }
  }
  return std::nullopt;
}

TEST(LargestFree, IsWhatTryingFinds) {
  int none = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const int64_t arena = static_cast<int64_t>(random() % 16) * kStep + (random() % 2 ? 0 : random() % kStep);
    std::vector<TakenBytes> taken;
    for (size_t count = random() % 6; count > 0 && arena > 0; --count) {
      const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(arena));
      const auto most = static_cast<uint64_t>(std::min(arena - begin, 4 * kStep));
      taken.push_back({begin, begin + 1 + static_cast<int64_t>(random() % most)});
    }
    const std::optional<PlanWorkspace> found = largest_free(taken, arena), expected = by_trying(taken, arena);
    ASSERT_EQ(found.has_value(), expected.has_value()) << seed;
    none += !found;
    if (!found) continue;
    EXPECT_EQ(found->offset, expected->offset) << seed;
    EXPECT_EQ(found->bytes, expected->bytes) << seed;
  }
  EXPECT_GT(none, 100);
}

TEST(LargestFree, HasALimit) {
  const int64_t arena = 5 * kMostWorkspace;
  const auto found = largest_free({{0, kStep}, {kMostWorkspace, kMostWorkspace + 1}}, arena);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->offset, kMostWorkspace + kStep);
  EXPECT_EQ(found->bytes, kMostWorkspace);
}

// A planned model whose values are large enough to leave holes.
Module large(std::string text) {
  const std::string small = "micro_batch = 8";
  if (const size_t at = text.find(small); at != std::string::npos)
    text.replace(at, small.size(), "micro_batch = 300");
  return compiled(text, "all");
}

TEST(ProductWorkspaces, TheCheckerAcceptsThemAndNothingLarger) {
  size_t products = 0, grown = 0;
  for (const std::string& text : models()) {
    const Module module = large(text);
    const std::vector<passes::Scratch> good = product_scratch(module);
    products += good.size();
    EXPECT_EQ(check_plan(module, good), "");
    for (size_t i = 0; i < good.size(); ++i) {
      if (good[i].bytes == kMostWorkspace) continue;
      std::vector<passes::Scratch> bad = good;
      bad[i].bytes += kStep;
      EXPECT_NE(check_plan(module, bad), "") << "longer";
      bad[i] = good[i];
      bad[i].offset -= kStep;
      bad[i].bytes += kStep;
      EXPECT_NE(check_plan(module, bad), "") << "from earlier on";
      ++grown;
    }
  }
  EXPECT_GT(products, 20U);
  EXPECT_GT(grown, 20U);
}

// One on any value that the product uses, or that is there before and after, is found.
TEST(ProductWorkspaces, TheCheckerFindsEveryOverlap) {
  int planted = 0;
  for (const std::string& text : models()) {
    const Module module = large(text);
    for (const passes::Scratch& at : product_scratch(module)) {
      const Region& region = module.region(at.region);
      for (const LiveRange& range : live_ranges(module, region, kernels(module, region))) {
        const auto now = static_cast<int>(at.kernel);
        if (range.first > now || range.last < now) continue;
        const passes::Scratch bad[] = {{at.region, at.kernel, *region[range.value].offset, kStep}};
        EXPECT_NE(check_plan(module, bad), "") << region[range.value].name;
        ++planted;
      }
    }
  }
  EXPECT_GT(planted, 50);
}

TEST(ProductWorkspaces, TheCheckerNamesTheFault) {
  const Module module = large(mlp());
  const std::vector<passes::Scratch> all = product_scratch(module);
  ASSERT_FALSE(all.empty());
  const auto found = [&](int64_t offset, int64_t bytes) {
    const passes::Scratch bad[] = {{all[0].region, all[0].kernel, offset, bytes}};
    return check_plan(module, bad);
  };
  EXPECT_NE(found(all[0].offset + 4, 4).find("not at a multiple of 256"), std::string::npos);
  EXPECT_NE(found(*module.arena_bytes / kStep * kStep, 2 * kStep).find("leaves the arena"),
            std::string::npos);
  EXPECT_NE(found(-kStep, kStep).find("leaves the arena"), std::string::npos);
  const Buffer& last = module.buffers.back();  // nothing of the product's
  EXPECT_NE(found(*last.offset, kStep).find("meets buffer @" + last.name), std::string::npos);
  EXPECT_NE(found(*module.step[*module.step.find("x")].offset, kStep).find("meets %x"), std::string::npos);
}

}  // namespace
}  // namespace gacc::test
