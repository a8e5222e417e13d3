// Resolves names of a model file: a layer of this block or of one around it, or an input.
#include <algorithm>

#include "frontend/layers.h"

namespace gacc::frontend {

const Flow* LayerLowering::input(std::string_view name) const {
  const auto found = inputs_.find(name);
  return found != inputs_.end() ? &found->second : nullptr;
}

std::optional<int64_t> LayerLowering::rows_of(std::string_view input) const {
  const auto found = table_rows_.find(input);
  return found != table_rows_.end() ? std::optional(found->second) : std::nullopt;
}

const Layer* LayerLowering::find(const Named& name, const Scope& scope) {
  for (const Scope* at = &scope; at != nullptr; at = at->parent)
    if (const auto found = at->layers.find(name.name); found != at->layers.end()) return &found->second;
  return nullptr;
}

Flow LayerLowering::resolve(const Named& name, const Scope& scope) const {
  if (const Layer* layer = find(name, scope)) return layer->output;
  if (const Flow* found = input(name.name)) return *found;
  unknown(name, scope, true);
  return {};
}

ir::BufferId LayerLowering::tied_weight(const Named& name, const Scope& scope) const {
  const Layer* owner = find(name, scope);
  if (owner == nullptr) unknown(name, scope, false);
  if (owner != nullptr && owner->weight) return *owner->weight;
  if (owner != nullptr && owner->output.value)  // an owner that is wrong itself was reported
    diag_.error(Kind::conflict, name.at, "layer `{}` has no weight to share", name.name);
  throw Refused();
}

void LayerLowering::unknown(const Named& name, const Scope& scope, bool with_inputs) const {
  Words known;
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (at->specs != nullptr) {
      const auto later = std::ranges::find(*at->specs, name.name, &LayerSpec::name);
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
  if (with_inputs)
    for (const auto& [input, _] : inputs_) known.push_back(input);
  const std::string block = name.name.substr(0, name.name.find('.'));
  const bool inside = block != name.name && std::ranges::count(known, block) > 0;
  if (inside)
    diag_.error(Kind::unknown_name, name.at,
                "`{}` lies in the block `{}`, and its layers cannot be named from outside; put both layers "
                "into one block or into none",
                name.name, block);
  else
    diag_.error(Kind::unknown_name, name.at, "there is no layer {}`{}` here{}",
                with_inputs ? "or input " : "", name.name, did_you_mean(name.name, known));
}

}  // namespace gacc::frontend
