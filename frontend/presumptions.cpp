// Facts that the model presumes of loaded weights and that their shapes do not show: a folder's config.json is compared
// with them (frontend/loaded_config.h). Also finds the weights that two layers share.
#include <fmt/format.h>

#include <algorithm>

#include "frontend/config_json.h"
#include "frontend/model_file.h"
#include "frontend/parameters.h"
#include "frontend/rope_scaling.h"
#include "ir/ops/heads.h"

namespace gacc::frontend {

namespace {

// Each fact once, as "NAME=VALUE". One of several values stands several times.
class Facts {
 public:
  template <class T>
  void add(std::string_view name, const T& value) {
    std::string fact = fmt::format("{}={}", name, value);
    if (std::ranges::count(all, fact) == 0) all.push_back(std::move(fact));
  }
  ir::Texts all{};
};

void add_attention(const ir::OpView& view, Facts& facts) {
  const ir::Heads heads = ir::heads_of(view);
  facts.add("heads", heads.heads);
  facts.add("kv_heads", heads.kv_heads);
  facts.add("head_dim", heads.channels);
  facts.add("causal", view.flag("causal"));
  facts.add("positions", view.operand(0).shape[1]);
  if (const int64_t window = view.integer("window"); window > 0) facts.add("window", window);
}

void add_rope(const ir::OpView& view, Facts& facts) {
  facts.add("theta", view.real("theta"));
  facts.add("partial",
            static_cast<double>(view.integer("rotated")) / static_cast<double>(ir::heads_of(view).channels));
  facts.add("interleaved", view.flag("interleaved"));
}

// The keys of each `rope.scaling`, which are those of config.json, and what they come to for so many turned channels.
void add_scaling(const std::vector<LayerSpec>& layers, int64_t rotated, Facts& facts) {
  for (const LayerSpec& layer : layers) {
    for (const std::vector<LayerSpec>& body : layer.bodies) add_scaling(body, rotated, facts);
    const Values* rope = layer.keys.find("rope");
    const Values* scaling = rope == nullptr ? nullptr : rope->find("scaling");
    if (scaling == nullptr || scaling->type == nullptr) continue;
    facts.add("scaling.rope_type", scaling->type->name);
    facts.add("scaling", value_text(scaling_numbers(*scaling, rope->real("theta"), rotated)));
    for (const KeyValue& each : scaling->values)
      if (each.value) facts.add(fmt::format("scaling.{}", each.key->name), value_text(to_value(*each.value)));
  }
}

}  // namespace

void note_presumptions(const ModelFile& model, const Parameters& parameters, ir::Module& module, Diag& diag) {
  if (diag.failed()) return;
  ir::Texts tied, owners;
  for (const auto& [name, owner] : parameters.ties) {
    tied.push_back(name);
    owners.push_back(owner);
  }
  if (!tied.empty()) {
    module.results.load_tied = tied;
    module.results.load_owners = owners;
  }
  const auto attends = [](const ir::Op& op) {
    return op.info == &ir::op_attention || op.info == &ir::op_attention_dropout;
  };
  Facts facts;
  int64_t rotated = 0;
  const bool known = std::ranges::any_of(module.step.ops, attends);  // published models without it are not
  for (size_t i = 0; known && i < module.step.ops.size(); ++i) {
    const ir::Op& op = module.step.ops[i];
    const ir::OpView view{module, module.step, op};
    const std::string_view name = op.info->name;
    if (attends(op)) add_attention(view, facts);
    if (name == "rope") add_rope(view, facts);
    if (name == "rope") rotated = view.integer("rotated");
    if (name == "layer_norm" || name == "rms_norm") facts.add("eps", view.real("eps"));
    if (op.info->activation) facts.add("activation", name);
  }
  add_scaling(model.layers, rotated, facts);
  const Values* load = model.file.find("load");
  if (load != nullptr && load->given("config") && (*load)["config"].good)
    for (const Entry& entry : (*load)["config"].node->entries) {
      if (entry.value.is_table() || entry.value.is_list() || entry.value.form == Node::Form::date)
        diag.error(Kind::wrong_type, entry.value.at,
                   "`load.config.{}` must be a string, a number, true or false", entry.key);
      else
        facts.add("config." + entry.key, value_text(to_value(entry.value)));
    }
  if (!facts.all.empty()) module.results.load_presumes = facts.all;
}

}  // namespace gacc::frontend
