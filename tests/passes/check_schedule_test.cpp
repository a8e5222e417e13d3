// The plan checker on schedules: nothing is wrong with those that the passes make, and planted faults are
// found, by it and by the verifier.
#include <algorithm>
#include <utility>

#include "ir/liveness.h"
#include "ir/region_facts.h"
#include "ir/schedule/launch_order.h"
#include "ir/verify/verify.h"
#include "passes/schedule/launches.h"
#include "tests/passes/models.h"

namespace gacc::test {
namespace {

using namespace ir;
using passes::check_plan;

// A scheduled model whose values are large enough to leave holes.
Module large(std::string text) {
  const std::string small = "micro_batch = 8";
  if (const size_t at = text.find(small); at != std::string::npos)
    text.replace(at, small.size(), "micro_batch = 300");
  return compiled(text, "all");
}

bool verifies(const Module& module) {
  Diag diag;
  return verify(module, diag);
}

// Calls f(region, product) for products with a workspace.
template <class F>
void each_workspace(Module& module, F&& f) {
  for (const RegionKind kind : all_regions) {
    Region& region = module.region(kind);
    if (!region.schedule) continue;
    for (CallSite* call : calls(*region.schedule)) {
      auto* product = std::get_if<ProductCall>(&call->what);
      if (product != nullptr && product->workspace) f(region, *call, *product->workspace);
    }
  }
}

TEST(Workspaces, AreAcceptedAndNothingLargerIs) {
  int products = 0, grown = 0;
  for (const std::string& text : models()) {
    Module module = large(text);
    EXPECT_EQ(check_plan(module), "");
    each_workspace(module, [&](const Region&, const CallSite&, Bytes& workspace) {
      ++products;
      if (workspace.size == kMostWorkspace) return;
      const Bytes good = workspace;
      workspace.size += kWorkspaceAlignment;
      EXPECT_NE(check_plan(module), "") << "longer";
      EXPECT_FALSE(verifies(module)) << "longer";
      workspace.offset -= kWorkspaceAlignment;
      EXPECT_NE(check_plan(module), "") << "from earlier on";
      EXPECT_FALSE(verifies(module)) << "from earlier on";
      workspace = good;
      ++grown;
    });
  }
  EXPECT_GT(products, 20);
  EXPECT_GT(grown, 20);
}

// One on any value that the product uses, or that is there before and after, is found.
TEST(Workspaces, EveryOverlapIsFound) {
  int planted = 0;
  for (const std::string& text : models()) {
    Module module = large(text);
    each_workspace(module, [&](const Region& region, const CallSite& call, Bytes& workspace) {
      const std::vector<Kernel> all = facts(module, region)->kernels;
      const auto now = std::find_if(all.begin(), all.end(),
                                    [&](const Kernel& kernel) { return kernel.number == call.kernel; }) -
                       all.begin();
      const Bytes good = workspace;
      for (const LiveRange& range : live_ranges(module, region, all)) {
        if (range.first > now || range.last < now) continue;
        workspace = {*region[range.value].offset, kWorkspaceAlignment};
        EXPECT_NE(check_plan(module), "") << region[range.value].name;
        EXPECT_FALSE(verifies(module)) << region[range.value].name;
        ++planted;
      }
      workspace = good;
    });
  }
  EXPECT_GT(planted, 50);
}

TEST(Workspaces, TheCheckerNamesTheFault) {
  Module module = large(mlp());
  Bytes* first = nullptr;
  each_workspace(module, [&](const Region& region, const CallSite&, Bytes& workspace) {
    if (first == nullptr && region.kind == RegionKind::step) first = &workspace;
  });
  ASSERT_NE(first, nullptr);
  const auto found = [&](int64_t offset, int64_t bytes) {
    *first = {offset, bytes};
    return check_plan(module);
  };
  EXPECT_NE(found(first->offset + 4, 4).find("not at a multiple of 256"), std::string::npos);
  constexpr int64_t kStep = kWorkspaceAlignment;
  EXPECT_NE(found(*module.arena_bytes / kStep * kStep, 2 * kStep).find("leaves the arena"),
            std::string::npos);
  EXPECT_NE(found(-kStep, kStep).find("leaves the arena"), std::string::npos);
  const Buffer& last = module.buffers.back();  // nothing of the product's
  EXPECT_NE(found(*last.offset, kStep).find("meets buffer @" + last.name), std::string::npos);
  EXPECT_NE(found(*module.step[*module.step.find("x")].offset, kStep).find("meets %x"), std::string::npos);
}

// What trying every pair finds.
TEST(Levels, AreTheEarliest) {
  for (const std::string& text : models()) {
    const Module module = large(text);
    for (const RegionKind kind : all_regions) {
      const Region& region = module.region(kind);
      const std::vector<Kernel> all = facts(module, region)->kernels;
      const Dependence dependence(module, region, all);
      std::vector<int32_t> levels;
      for (size_t i = 0; i < all.size(); ++i) {
        levels.push_back(all[i].form == KernelForm::alias ? -1 : 0);
        for (size_t e = 0; e < i; ++e)
          if (dependence.between(e, i)) levels[i] = std::max(levels[i], levels[e] + 1);
      }
      EXPECT_EQ(dependence.earliest_levels(), levels) << region_text(kind);
      EXPECT_FALSE(dependence.out_of_order(levels));
      const std::vector<size_t> ends = dependence.wave_ends();
      for (size_t w = 0, first = 0; w < ends.size(); first = ends[w++])
        for (size_t a = first; a < ends[w]; ++a)
          for (size_t b = a + 1; b < ends[w]; ++b) EXPECT_FALSE(dependence.between(a, b));
    }
  }
}

// A launch one level earlier than the passes say is found by the verifier, and, where the bits would change,
// by the replay of levels, which knows nothing of dependences.
TEST(Levels, OneTooEarlyIsFound) {
  int planted = 0, replayed = 0;
  for (const std::string& text : models()) {
    Module module = large(text);
    for (const RegionKind kind : all_regions) {
      Region& region = module.region(kind);
      if (!region.schedule) continue;
      region.schedule->persistent.reset();
      for (Launch& launch : region.schedule->launches) {
        CallSite* call = std::get_if<CallSite>(&launch);
        if (call == nullptr || call->level.value_or(0) == 0) continue;
        --*call->level;
        EXPECT_FALSE(verifies(module)) << region_text(kind) << " " << call->kernel;
        replayed += !check_plan(module).empty();
        ++*call->level;
        ++planted;
      }
    }
  }
  EXPECT_GT(planted, 100);
  EXPECT_GT(replayed, planted / 2);
}

// One whose step is a graph.
Module graph(std::string text) {
  const std::string size = "micro_batch = 8";
  return large(text.replace(text.find(size), size.size(), size + "\n  set launch.mode = \"graph\""));
}

// One with all the state on the host that may lie there.
Module hosted(std::string text) {
  const std::string size = "micro_batch = 8";
  text.replace(text.find(size), size.size(),
               size + "\n  set memory.budget = 1\n  set memory.host = 10000000");
  return large(text);
}

// Every wait is needed: without it the verifier says so, by rule; and where the bits would change, the replay
// of the streams, which knows nothing of dependences. One that waits for another launch is no better.
struct Waits {
  int aside = 0, planted = 0, replayed = 0;
  void check(Module& module, Region& region) {
    EXPECT_EQ(check_plan(module), "");
    EXPECT_EQ(passes::check_schedule(module), "");
    for (Launch& launch : region.schedule->launches) {
      Branch& branch = ir::branch(launch);
      aside += branch.stream > 0;
      for (size_t i = 0; i < branch.after.size(); ++i) {
        const std::vector<int32_t> right = branch.after;
        branch.after.erase(branch.after.begin() + static_cast<ptrdiff_t>(i));
        Diag diag;
        EXPECT_FALSE(verify(module, diag));
        EXPECT_NE(diag.render().find("R27"), std::string::npos) << diag.render();
        EXPECT_NE(passes::check_schedule(module).find("waits for that of kernel"), std::string::npos);
        replayed += !check_plan(module).empty();
        for (const int32_t wrong : {calls(launch).front()->kernel, 9999}) {
          branch.after = right;
          branch.after[i] = wrong;
          EXPECT_FALSE(verifies(module)) << wrong;
        }
        branch.after = right;
        ++planted;
      }
    }
  }
};

TEST(Streams, AreAcceptedAndEveryWaitIsNeeded) {
  Waits waits;
  for (const std::string& text : models()) {
    Module module = graph(text);
    waits.check(module, module.step);
  }
  EXPECT_GT(waits.aside, 10);
  EXPECT_GT(waits.planted, 10);
  EXPECT_GT(waits.replayed, waits.planted / 2);
}

TEST(Streams, OfStateOnTheHostNeedEveryWait) {
  Waits waits;
  for (const std::string& text : models()) {
    Module module = hosted(text);
    if (module.host_bytes > 0) waits.check(module, module.update);
  }
  EXPECT_GT(waits.aside, 20);
  EXPECT_GT(waits.planted, 20);
  EXPECT_GT(waits.replayed, waits.planted / 2);
}

TEST(Streams, ALaunchOnTheOtherOneIsFound) {
  int planted = 0;
  for (const std::string& text : models()) {
    Module module = graph(text);
    for (Launch& launch : module.step.schedule->launches) {
      Branch& branch = ir::branch(launch);
      branch.stream = 1 - branch.stream;
      planted += !verifies(module);
      branch.stream = 1 - branch.stream;
    }
    ir::branch(module.step.schedule->launches.back()).stream = 2;
    EXPECT_FALSE(verifies(module));
  }
  EXPECT_GT(planted, 10);
}

// Bytes that are free in the order of the lines, but not of what may run at the same time.
TEST(Streams, AWorkspaceOnBytesOfALaunchBesideIsFound) {
  int planted = 0;
  for (const std::string& text : models()) {
    Module module = graph(text);
    const Region& step = module.step;
    const LaunchOrder order(*step.schedule);
    const std::vector<Touched> touched = launch_touched(module, step, facts(module, step)->kernels);
    each_workspace(module, [&](const Region& region, const CallSite& call, Bytes& workspace) {
      if (region.kind != RegionKind::step) return;
      const size_t launch = order.launch_of(call.kernel).value();
      const Bytes good = workspace;
      for (size_t other = 0; other < touched.size(); ++other) {
        if (!order.concurrent(launch, other)) continue;
        for (const Bytes& bytes : touched[other].writes) {
          workspace = {bytes.offset, kWorkspaceAlignment};
          EXPECT_FALSE(verifies(module));
          ++planted;
        }
      }
      workspace = good;
    });
  }
  EXPECT_GT(planted, 10);
}

}  // namespace
}  // namespace gacc::test
