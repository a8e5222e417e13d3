// [[optimizer.groups]]: what is said of some parameters only, by their names.
#include <fnmatch.h>

#include "frontend/model_file.h"

namespace gacc::frontend {

bool matches_glob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

namespace {

// `lr_factor`, or `lr`, which is a factor of what optimizer.lr says.
double factor_of(const Values& group, double rate, Diag& diag) {
  const bool both = group.given("lr") && group.given("lr_factor");
  if (both)
    diag.error(Kind::conflict, group.at("lr"), "a group has `lr` or `lr_factor`, not both");
  else if (group.has("lr") && rate == 0)
    diag.error(Kind::conflict, group.at("lr"),
               "`{}` is a multiple of `optimizer.lr`, which is 0; use `lr_factor`", group.name("lr"));
  return group.has("lr") && rate != 0 ? group.real("lr") / rate : group.real("lr_factor");
}

}  // namespace

void read_groups(const Values& optimizer, ModelFile& model, Diag& diag) {
  for (const Values& group : optimizer["groups"].tables) {
    if (group["match"].good && group.nodes("match").empty())
      diag.error(Kind::out_of_range, group.at("match"), "`{}` is empty", group.name("match"));
    ir::GroupSettings& settings = model.settings.groups.emplace_back();
    settings.match = group.get<ir::Texts>("match");
    if (group.has("weight_decay")) settings.weight_decay = group.real("weight_decay");
    const double factor = factor_of(group, optimizer.real("lr"), diag);
    if (factor != 1) settings.lr_factor = factor;
  }
}

void assign_groups(const ModelFile& model, ir::Module& module, Diag& diag) {
  if (diag.failed()) return;  // parameters may be missing
  Words names;
  for (const ir::Buffer& buffer : module.buffers)
    if (buffer.kind == ir::BufferKind::param) names.push_back(buffer.name);
  const std::vector<Values>& groups = (*model.file.find("optimizer"))["groups"].tables;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const Node& pattern : groups[g].nodes("match")) {
      bool found = false;
      for (ir::Buffer& buffer : module.buffers) {
        if (buffer.kind != ir::BufferKind::param || !matches_glob(pattern.text, buffer.name)) continue;
        found = true;
        if (buffer.group < 0) buffer.group = static_cast<int32_t>(g);
      }
      if (!found)
        diag.error(Kind::unknown_name, pattern.at, "no parameter is named `{}`{}", pattern.text,
                   did_you_mean(pattern.text, names));
    }
  }
}

}  // namespace gacc::frontend
