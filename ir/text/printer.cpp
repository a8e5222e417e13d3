// Printing of the textual IR. The inverse is ir/text/parser.cpp; the grammar is in docs/ir.md.
#include <algorithm>
#include <cmath>

#include "ir/op_info.h"
#include "ir/text/lexer.h"
#include "ir/text/text.h"

namespace gacc::ir {

namespace {

bool plain(std::string_view name) {  // where two slashes stand, a comment begins
  return !name.empty() && std::ranges::all_of(name, name_char) && name.find("//") == std::string_view::npos;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text)
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  return out + "\"";
}

// A name after its sigil: as it is, or quoted when it has characters that the lexer would not take.
std::string id(std::string_view name) { return plain(name) ? std::string(name) : quoted(name); }
// A bare word: also not starting like a number.
std::string word(std::string_view name) {
  return plain(name) && is_letter(name[0]) ? std::string(name) : quoted(name);
}

// Shortest text that reads back as the same double, always recognisable as a real number.
std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string out = fmt::format("{}", value);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

template <class T, class F>
std::string list_text(const std::vector<T>& items, F&& text) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) (out += i == 0 ? "" : ", ") += text(items[i]);
  return out;
}

}  // namespace

std::string attr_text(const Attr& attr) {
  struct Visitor {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return fmt::to_string(value); }
    std::string operator()(double value) const { return real_text(value); }
    std::string operator()(const std::string& value) const { return quoted(value); }
    std::string operator()(const std::vector<int64_t>& value) const {
      return "[" + list_text(value, [](int64_t v) { return fmt::to_string(v); }) + "]";
    }
    std::string operator()(const std::vector<double>& value) const {
      return "[" + list_text(value, real_text) + "]";
    }
    std::string operator()(const Texts& value) const { return "[" + list_text(value, quoted) + "]"; }
  };
  return std::visit(Visitor{}, attr);
}

namespace {

std::string attrs_text(const Attrs& attrs) {
  std::string out = " {";
  for (const auto& [key, value] : attrs) {
    if (out.size() > 2) out += ", ";
    out += word(key);
    if (const bool* flag = std::get_if<bool>(&value); flag == nullptr || !*flag)
      out += " = " + attr_text(value);
  }
  return out + "}";
}

std::string offset_text(const std::optional<int64_t>& offset) {
  return offset ? fmt::to_string(*offset) : "-";
}

std::string location_text(const Location& at, const PrintOptions& options) {
  if (!options.locations || at.line <= 0) return "";
  return fmt::format(" loc({}:{})", at.line, at.column);
}

std::string yields_text(const Module& module, const Region& region) {
  return list_text(region.yields, [&](const Yield& yield) {
    std::string out(yield_role_text(yield.role));
    if (yield.role == YieldRole::metric) out += " " + word(yield.metric);
    if (yield.role == YieldRole::grad) out += " @" + id(module[yield.of].name);
    return out + " " + operand_text(module, region, yield.what);
  });
}

std::string extent_text(const Extent& extent) {
  if (!extent.times_batch) return fmt::to_string(extent.factor);
  return extent.factor == 1 ? "B" : fmt::format("{} B", extent.factor);
}

std::string operands_text(const Module& module, const Region& region, const std::vector<Operand>& operands) {
  return list_text(operands, [&](const Operand& operand) { return operand_text(module, region, operand); });
}

std::string arguments_text(const Module& module, const Region& region, const std::vector<Operand>& operands,
                           const std::vector<Extent>& extents) {
  return fmt::format("({} : {})", operands_text(module, region, operands), list_text(extents, extent_text));
}

std::string branch_text(const Branch& branch) {
  std::string out;
  if (branch.stream != 0) out += fmt::format(" stream({})", branch.stream);
  if (!branch.after.empty())
    out += fmt::format(" after({})",
                       list_text(branch.after, [](int32_t kernel) { return fmt::format("k({})", kernel); }));
  return out;
}

std::string call_text(const Module& module, const Region& region, const CallSite& call) {
  std::string out;
  if (const KernelCall* kernel = as_kernel(call)) {
    out = fmt::format("kernel {} k({}) {} grid({} by {}) block({})", word(kernel->function), call.kernel,
                      arguments_text(module, region, kernel->operands, kernel->extents),
                      extent_text(kernel->items), kernel->per_block, kernel->block);
    if (kernel->shared > 0) out += fmt::format(" shared({})", kernel->shared);
  } else if (const CopyCall* copy = as_copy(call)) {
    out = fmt::format("copy k({}) {}", call.kernel,
                      arguments_text(module, region, {copy->to, copy->from}, {{copy->bytes, false}}));
  } else {
    const ProductCall& product = *as_product(call);
    std::vector<Extent> extents = {product.m, product.n, product.k};
    if (product.pitch) extents.insert(extents.end(), product.pitch->begin(), product.pitch->end());
    const std::string slices = product.slices > 1 ? fmt::format(" slices({})", product.slices) : "";
    out = fmt::format("product k({}) {} tile({}, {}){} block({}) shared({})", call.kernel,
                      arguments_text(module, region, {product.a, product.b, product.c}, extents),
                      product.tile_m, product.tile_n, slices, product.block, product.shared);
    if (product.then)
      out += fmt::format(" then(k({}), {}{})", product.then->kernel, product.then->slot,
                         product.then->keeps ? ", keeps" : "");
    if (product.bias)
      out += fmt::format(" bias(@{}, k({}))", id(module[product.bias->vector].name), product.bias->kernel);
  }
  if (call.level) out += fmt::format(" level({})", *call.level);
  out += branch_text(call.branch);
  const ProductCall* product = as_product(call);
  if (product != nullptr && product->workspace)
    out += fmt::format(" workspace({}, {})", product->workspace->offset, product->workspace->size);
  return out;
}

std::string schedule_text(const Module& module, const Region& region, const Schedule& schedule) {
  std::string out = " schedule {\n";
  if (schedule.persistent) {
    const Persistent& persistent = *schedule.persistent;
    out += fmt::format("    persistent {} block({}) blocks({}){}\n", word(persistent.function),
                       persistent.block, persistent.blocks, persistent.required ? " required" : "");
  }
  for (const Launch& launch : schedule.launches) {
    if (const CallSite* call = std::get_if<CallSite>(&launch)) {
      out += "    " + call_text(module, region, *call) + "\n";
      continue;
    }
    const Merged& merged = std::get<Merged>(launch);
    out += fmt::format("    merged {} block({}) blocks({}){} {{\n", word(merged.function), merged.block,
                       merged.blocks, branch_text(merged.branch));
    for (const CallSite& part : merged.parts) out += "      " + call_text(module, region, part) + "\n";
    out += "    }\n";
  }
  return out + "  }\n";
}

std::string region_block(const Module& module, const Region& region, const PrintOptions& options) {
  std::string out = fmt::format("\n  {}", region_text(region.kind));
  if (!region.inputs.empty()) {
    out += "(" +
           list_text(region.inputs,
                     [&](ValueId input) {
                       const Value& value = region[input];
                       return fmt::format("%{} : {}{}", id(value.name), type_text(value.type),
                                          value.offset ? fmt::format(" at {}", *value.offset) : "");
                     }) +
           ")";
  }
  out += " {\n";
  for (const Op& op : region.ops) out += "    " + print(module, region, op, options) + "\n";
  if (!region.yields.empty()) out += "    yield " + yields_text(module, region) + "\n";
  out += "  }";
  return out + (region.schedule ? schedule_text(module, region, *region.schedule) : "\n");
}

}  // namespace

std::string operand_text(const Module& module, const Region& region, const Operand& operand) {
  if (const ValueId* value = as_value(operand)) return "%" + id(region[*value].name);
  if (const BufferId* buffer = as_buffer(operand)) return "@" + id(module[*buffer].name);
  return real_text(*as_number(operand));
}

std::string print(const Module& module, const Region& region, const Op& op, PrintOptions options) {
  std::string out = list_text(op.results, [&](ValueId value) { return "%" + id(region[value].name); });
  if (!out.empty()) out += " = ";
  out += op.info->name;
  if (!op.operands.empty()) out += " " + operands_text(module, region, op.operands);
  if (op.when) out += fmt::format(" when({})", operand_text(module, region, *op.when));
  if (!op.results.empty()) {
    out += " : " + list_text(op.results, [&](ValueId value) { return type_text(region[value].type); });
    if (std::ranges::any_of(op.results, [&](ValueId value) { return region[value].offset.has_value(); }))
      out += " at " + list_text(op.results, [&](ValueId value) { return offset_text(region[value].offset); });
  }
  if (op.kernel >= 0) out += fmt::format(" k({})", op.kernel);
  if (op.keep_f32) out += " keep_f32";
  if (op.segment >= 0) out += fmt::format(" seg({})", op.segment);
  if (op.remat) out += fmt::format(" remat(%{})", id(region[*op.remat].name));
  if (op.origin != natural_origin(region.kind)) out += fmt::format(" {}", origin_text(op.origin));
  if (!op.attrs.empty()) out += attrs_text(op.attrs);
  return out + location_text(op.at, options);
}

std::string print(const Module& module, PrintOptions options) {
  std::string out = fmt::format("module @{}", id(module.name));
  if (!module.source.empty()) out += fmt::format(" source({})", quoted(module.source));
  out += fmt::format(" phase({})", phase_text(module.phase));
  if (module.arena_bytes) out += fmt::format(" arena({})", *module.arena_bytes);
  if (module.host_bytes > 0) out += fmt::format(" host({})", module.host_bytes);
  if (!module.target.empty()) out += fmt::format(" target({})", word(module.target));
  out += " {\n";
  for (const auto& [key, value] : given(module.settings, module.results))
    out += fmt::format("  set {} = {}\n", word(key), attr_text(value));
  for (const Buffer& buffer : module.buffers) {
    out += fmt::format("  {} @{} : {}", kind_text(buffer.kind), id(buffer.name), type_text(buffer.type));
    const RoleInfo& role = role_info(buffer.role);
    if (buffer.kind != BufferKind::param || buffer.role != plain_role(buffer.kind, buffer.name))
      out += fmt::format(" {}", role.text);
    if (buffer.of) out += fmt::format("(@{})", id(module[*buffer.of].name));
    if (role.combines()) out += fmt::format(" {}", combine_text(role.combine));
    if (!buffer.trainable) out += " frozen";
    if (buffer.group >= 0) out += fmt::format(" group({})", buffer.group);
    if (buffer.from > 0) out += fmt::format(" from({})", buffer.from);
    if (buffer.host) out += " host";
    if (buffer.offset) out += fmt::format(" at {}", *buffer.offset);
    out += location_text(buffer.at, options) + "\n";
  }
  for (const RegionKind kind : all_regions) {
    const Region& region = module.region(kind);
    if (!region.empty()) out += region_block(module, region, options);
  }
  return out + "}\n";
}

}  // namespace gacc::ir
