// Reads the map off a planned module: places are in the module, times come from ir/liveness. A result that
// was written over an operand that dies in its kernel has the operand's place, and is counted from the next
// kernel on, as the plan's categories are.
#include "tools/report/memory_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "ir/cost.h"
#include "ir/kernel.h"
#include "ir/liveness.h"

namespace gacc::report {

namespace {

using namespace ir;

Category category_of(const Buffer& buffer) {
  if (buffer.kind == BufferKind::param) return Category::weights;
  if (buffer.kind == BufferKind::accum) return Category::gradients;
  const bool half = buffer.type.dtype == DType::f16 || buffer.type.dtype == DType::bf16;
  return half ? Category::half_weights : Category::optimizer;
}

// Leaves out the pitch, which is no matter of the reader's.
std::string plain_text(const Type& type) {
  return fmt::format("{}{}", dtype_text(type.dtype), shape_text(type.shape));
}

// By value: the op that makes it, or null.
std::vector<const Op*> makers(const Region& region) {
  std::vector<const Op*> made_by(region.values.size());
  for (const Op& op : region.ops)
    for (const ValueId result : op.results) made_by[static_cast<size_t>(result.index)] = &op;
  return made_by;
}

Category category_of(const Op* maker) {
  if (maker == nullptr) return Category::inputs;
  if (maker->remat) return Category::recomputed;
  return maker->origin == Origin::forward ? Category::activations : Category::workspace;
}

// "add, relu -> fc1"; long lists are cut.
std::string label_of(const Module& module, const Region& region, const Kernel& kernel) {
  constexpr size_t kShown = 3;
  std::string ops, results;
  for (size_t i = 0; i < kernel.members.size() && i < kShown; ++i)
    ops += fmt::format("{}{}", i > 0 ? ", " : "", region.ops[kernel.members[i].op].info->name);
  if (kernel.members.size() > kShown) ops += fmt::format(", … ({} ops)", kernel.members.size());
  const std::vector<Operand>& written = kernel.writes;
  for (size_t i = 0; i < written.size() && i < kShown; ++i)
    results += fmt::format("{}{}", i > 0 ? ", " : "", operand_text(module, region, written[i]).substr(1));
  if (written.size() > kShown) results += ", …";
  return fmt::format("{} → {}", ops, results);
}

// Returns a name with dotted parts cut shorter and shorter: "a.b.c", "a.b" and "a".
std::vector<std::string> prefixes(const std::string& name) {
  std::vector<std::string> result = {name};
  while (result.back().find('.') != std::string::npos)
    result.push_back(result.back().substr(0, result.back().rfind('.')));
  return result;
}

// The layers of the model file that ops belong to, from the names that the compiler derived from the layer's
// (docs/ir.md): %fc1.mm, %d.fc1 and @fc1.weight.grad all belong to fc1.
class LayerNames {
 public:
  LayerNames(const Module& module, const Region& region) : module_(module), region_(region) {
    for (const Buffer& buffer : module.buffers) {
      const size_t dot = buffer.name.rfind('.');
      if (buffer.kind == BufferKind::param && dot != std::string::npos)
        layers_.insert(buffer.name.substr(0, dot));
    }
    for (const Op& op : region.ops) {
      for (const ValueId result : op.results) {
        const std::string& name = region[result].name;
        if (op.origin == Origin::forward) {
          made_.insert({op.at.line, op.at.column, name});
          forward_.insert(name);
        }
        if (name.starts_with("loss.")) loss_.insert({op.at.line, op.at.column});
      }
    }
    if (forward_.empty()) return;
    // The projection of an attention: its forward ops bear the attention's name, so its backward ops are
    // there.
    std::erase_if(layers_, [&](const std::string& layer) {
      const auto part = forward_.lower_bound(layer + ".");
      return !forward_.contains(layer) && (part == forward_.end() || !part->starts_with(layer + "."));
    });
  }

  std::string of(const Op& op) const {
    std::string name;
    if (!op.results.empty()) {
      name = region_[op.results.front()].name;
    } else if (!op.operands.empty()) {
      if (const BufferId* buffer = as_buffer(op.operands.front())) name = module_[*buffer].name;
    }
    if (name.starts_with("d.")) name = name.substr(2);
    const std::vector<std::string> parts = prefixes(name);
    for (const std::string& layer : parts)  // a parameter belongs to the innermost layer
      if (layers_.contains(layer)) return layer;
    if (name.starts_with("loss.") || loss_.contains({op.at.line, op.at.column})) return "loss";
    for (auto value = parts.rbegin(); value != parts.rend(); ++value)
      if (made_.contains({op.at.line, op.at.column, *value})) return *value;
    for (const std::string& value : parts)
      if (forward_.contains(value)) return value;
    return name;
  }

 private:
  const Module& module_;
  const Region& region_;
  std::set<std::string> layers_;                              // those with parameters
  std::set<std::tuple<int32_t, int32_t, std::string>> made_;  // place in the model file and value
  std::set<std::string> forward_;                             // values of the forward pass
  std::set<std::pair<int32_t, int32_t>> loss_;                // places
};

RegionMap region_map(const Module& module, RegionKind kind, const ByCategory& always) {
  const Region& region = module.region(kind);
  const std::vector<Kernel> all = kernels(module, region);
  const std::vector<const Op*> made_by = makers(region);
  const LayerNames layers(module, region);
  RegionMap map{kind, {}, {}, {}};
  std::set<std::string> seen;
  for (const Op& op : region.ops) {
    if (op.info->lowering == Lowering::alias) continue;
    if (const std::string layer = layers.of(op); seen.insert(layer).second) map.layers.push_back(layer);
  }
  std::vector<int> times;  // of kernels: their numbers among the launched ones
  int launched = 0;
  for (const Kernel& kernel : all) times.push_back(kernel.form == KernelForm::alias ? -1 : launched++);
  for (const LiveRange& range : live_ranges(module, region, all, times)) {
    const Value& value = region[range.value];
    const Op* maker = made_by[static_cast<size_t>(range.value.index)];
    map.values.push_back({value.name, plain_text(value.type), maker ? layers.of(*maker) : "",
                          category_of(maker), value.offset.value_or(0), range.bytes, range.first,
                          range.last});
  }
  for (const SlotRange& slot : slot_ranges(module, all, times)) {
    const Buffer& buffer = module[slot.buffer];
    map.values.push_back({buffer.name, plain_text(buffer.type), "", Category::optimizer,
                          buffer.offset.value_or(0), slot.bytes, slot.first, slot.last});
  }
  bool backward = false;
  for (const Kernel& kernel : all) {
    if (kernel.form == KernelForm::alias) continue;
    KernelRow row;
    row.label = label_of(module, region, kernel);
    for (const KernelMember& member : kernel.members)
      row.flops += cost(OpView{module, region, region.ops[member.op]}).flops;
    const Op& first = region.ops[kernel.members.front().op];
    row.layer = layers.of(first);
    backward = backward || first.origin == Origin::gradient;
    if (kind == RegionKind::step)
      row.role = first.remat ? Role::recomputed : backward ? Role::backward : Role::forward;
    row.live = always;
    std::set<int64_t> taken;  // places
    for (size_t i = 0; i < map.values.size(); ++i) {
      const Holding& value = map.values[i];
      const int now = static_cast<int>(map.kernels.size());
      if (now < value.first || value.last < now || !taken.insert(value.offset).second) continue;
      row.live[static_cast<size_t>(value.category)] += value.bytes;
      row.live_bytes += aligned(value.bytes);
      row.held.push_back(i);
    }
    map.kernels.push_back(std::move(row));
  }
  return map;
}

}  // namespace

MemoryMap memory_map(const Module& module) {
  MemoryMap map;
  map.arena = module.arena_bytes.value_or(0);
  for (size_t i = 0; i < module.buffers.size(); ++i) {
    const Buffer& buffer = module.buffers[i];
    const BufferId id{static_cast<int32_t>(i)};
    if (storage_of(module, id) != id) continue;  // in another's place
    if (buffer.host || buffer.role == BufferRole::slot) continue;
    const int64_t bytes = type_bytes(buffer.type, module.micro_batch());
    map.buffers.push_back({buffer.name, plain_text(buffer.type), "", category_of(buffer),
                           buffer.offset.value_or(0), bytes, 0, 0});
    map.always[static_cast<size_t>(map.buffers.back().category)] += bytes;
    map.buffers_end = std::max(map.buffers_end, aligned(buffer.offset.value_or(0) + bytes));
  }
  std::ranges::stable_sort(map.buffers, {}, &Holding::offset);
  int64_t most = -1;
  for (const RegionKind kind :
       {RegionKind::step, RegionKind::update, RegionKind::eval, RegionKind::init, RegionKind::close,
        RegionKind::norms, RegionKind::ratios, RegionKind::clear}) {
    if (kind > RegionKind::close && module.region(kind).ops.empty()) continue;
    map.regions.push_back(region_map(module, kind, map.always));
    const RegionMap& region = map.regions.back();
    for (size_t k = 0; k < region.kernels.size(); ++k) {
      if (region.kernels[k].live_bytes <= most) continue;
      most = region.kernels[k].live_bytes;
      map.peak_region = map.regions.size() - 1;
      map.peak_kernel = k;
    }
  }
  return map;
}

std::string_view category_text(Category category) {
  constexpr std::string_view kTexts[kCategories] = {"weights", "half weights", "gradients",  "optimizer",
                                                    "inputs",  "activations",  "made again", "workspace"};
  return kTexts[static_cast<size_t>(category)];
}

std::string_view region_name(RegionKind kind) {
  constexpr std::string_view kNames[] = {// in the order of ir/regions.def
                                         "initialisation",
                                         "step",
                                         "update",
                                         "evaluation",
                                         "prediction",
                                         "closing a lane",
                                         "a part of a prediction",
                                         "parts of norms",
                                         "parts of ratios",
                                         "clearing sums",
                                         "going on with a text",
                                         "measuring predictions"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace gacc::report
