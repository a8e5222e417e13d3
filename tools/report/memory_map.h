// The contents of the arena over time: the planned module as the report draws it. Time is counted in
// launched kernels of a region (reshapes are none); the regions never run at the same time and share the
// transient area.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/module.h"

namespace gacc::report {

// As in the plan, but that activations which recompute makes again are told apart.
enum class Category : uint8_t {
  weights,
  half_weights,
  gradients,
  optimizer,
  inputs,
  activations,
  recomputed,
  workspace
};
inline constexpr size_t kCategories = 8;
using ByCategory = std::array<int64_t, kCategories>;  // bytes

// One buffer or value in its place.
struct Holding {
  std::string name{};   // without sigil
  std::string type{};   // "f32[B,784]"
  std::string layer{};  // values: of the op that makes it
  Category category = Category::workspace;
  int64_t offset = 0, bytes = 0;  // in the arena, at the full micro-batch
  int first = 0, last = 0;        // kernels of its region; buffers live always
};

// The purpose of a kernel of the step.
enum class Role : uint8_t { forward, backward, recomputed, other };

struct KernelRow {
  std::string label{};  // "add, relu -> fc1"
  std::string layer{};  // of its first op, as the model file names it
  Role role = Role::other;
  int64_t flops = 0;           // at the full micro-batch
  ByCategory live{};           // while it runs: buffers and values, without alignment
  int64_t live_bytes = 0;      // of the values alone, with alignment
  std::vector<size_t> held{};  // indices into RegionMap::values: what is counted in `live`
};

struct RegionMap {
  ir::RegionKind kind = ir::RegionKind::step;
  std::vector<KernelRow> kernels{};
  std::vector<Holding> values{};
  std::vector<std::string> layers{};  // in the order of their first op
};

struct MemoryMap {
  std::vector<Holding> buffers{};           // by offset
  ByCategory always{};                      // their bytes
  int64_t buffers_end = 0;                  // where the transient area begins
  int64_t arena = 0;                        // the peak of the plan
  std::vector<RegionMap> regions{};         // step, update, eval, init, close
  size_t peak_region = 0, peak_kernel = 0;  // the fullest kernel of all
  const KernelRow& peak() const { return regions[peak_region].kernels[peak_kernel]; }
  bool empty() const { return regions.empty() || regions[peak_region].kernels.empty(); }
};

// The module must be planned.
MemoryMap memory_map(const ir::Module& module);

std::string_view category_text(Category category);  // "half weights"
// Returns true for what lives for the whole training: those categories come first.
inline bool stays(Category category) { return category < Category::inputs; }
std::string_view region_name(ir::RegionKind kind);  // "step", "evaluation"

}  // namespace gacc::report
