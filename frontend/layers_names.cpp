// What a name in a model file means where it stands: a layer of this block or of one around it, or an input.
#include <algorithm>

#include "frontend/layers.h"

namespace gacc::frontend {

const Flow* LayerLowering::input(std::string_view name) const {
  const auto found = inputs_.find(name);
  return found != inputs_.end() ? &found->second : nullptr;
}

Flow LayerLowering::resolve(const Named& name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (const auto found = at->layers.find(name.name); found != at->layers.end()) return found->second.output;
  }
  if (const Flow* found = input(name.name)) return *found;
  unknown(name, scope, true);
  return wrong();
}

std::optional<Flow> LayerLowering::find_output(const Named& name) const {
  if (const auto found = top_.layers.find(name.name); found != top_.layers.end()) return found->second.output;
  if (const Flow* found = input(name.name)) return *found;
  unknown(name, top_, true);
  return std::nullopt;
}

std::optional<ir::BufferId> LayerLowering::tied_weight(const LayerSpec& spec, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    const auto found = at->layers.find(spec.tied->name);
    if (found == at->layers.end()) continue;
    if (found->second.weight) return found->second.weight;
    // The owner may be wrong itself, which is reported.
    const auto owner = std::find_if(at->specs->begin(), at->specs->end(),
                                    [&](const LayerSpec& other) { return other.name == spec.tied->name; });
    if (owner != at->specs->end() && owner->kind != LayerKind::linear && owner->kind != LayerKind::other) {
      diag_.error(Kind::conflict, spec.tied->at, "layer `{}` of type \"{}\" has no weight to share",
                  owner->name, owner->type);
    }
    return std::nullopt;
  }
  unknown(*spec.tied, scope, false);
  return std::nullopt;
}

void LayerLowering::unknown(const Named& name, const Scope& scope, bool with_inputs) const {
  std::vector<std::string_view> known;
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (at->specs != nullptr) {
      const auto later = std::find_if(at->specs->begin(), at->specs->end(),
                                      [&](const LayerSpec& other) { return other.name == name.name; });
      if (later != at->specs->end()) {
        diag_
            .error(Kind::unknown_name, name.at, "layer `{}` comes later; only earlier ones can be named",
                   name.name)
            .note(later->name_at, "it is defined here");
        return;
      }
    }
    for (const auto& [layer, _] : at->layers) known.push_back(layer);
  }
  if (with_inputs) {
    for (const auto& [input, _] : inputs_) known.push_back(input);
  }
  diag_.error(Kind::unknown_name, name.at, "there is no layer {}`{}` here{}", with_inputs ? "or input " : "",
              name.name, did_you_mean(name.name, known));
}

}  // namespace gacc::frontend
