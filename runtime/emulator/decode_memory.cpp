// ld, st, atom, red, fences, cp.async: which space, which order, which type.
#include <charconv>

#include "runtime/emulator/decoder.h"

namespace gacc::emulator {
namespace {

bool parse_space(std::string_view part, Space& space) {
  if (part == "global")
    space = Space::global;
  else if (part == "shared" || part == "shared::cta")
    space = Space::shared;
  else if (part == "local")
    space = Space::local;
  else if (part == "const")
    space = Space::constant;
  else if (part == "param" || part == "param::entry" || part == "param::func")
    space = Space::param;
  else
    return false;
  return true;
}
bool is_scope(std::string_view part) {
  return part == "cta" || part == "gpu" || part == "sys" || part == "cluster";
}
bool is_cache_hint(std::string_view part) {
  for (const char* known :
       {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::evict_normal", "L1::evict_unchanged",
        "L1::evict_first", "L1::evict_last", "L1::no_allocate", "L2::64B", "L2::128B", "L2::256B",
        "L2::evict_first", "L2::evict_last", "L2::evict_normal"})
    if (part == known) return true;
  return false;
}

}  // namespace

bool Decoder::memory(const Parts& parts) {
  std::string_view root = parts[0];
  if (root == "ld" || root == "ldu") return access(parts, true), true;
  if (root == "st") return access(parts, false), true;
  if (root == "atom" || root == "red") {
    if (parts.size() > 1 && parts[1] == "async") return false;
    return atomic(parts, root == "atom"), true;
  }
  if (root == "membar" || root == "fence") {
    for (size_t i = 1; i < parts.size(); ++i) {
      bool kind = root == "fence" ? parts[i] == "sc" || parts[i] == "acq_rel" || is_scope(parts[i])
                                  : parts[i] == "cta" || parts[i] == "gl" || parts[i] == "sys";
      if (!kind) return unknown(parts[i]), true;
    }
    return emit(run_fence, -1, {}), true;
  }
  if (root == "cp" && parts.size() > 1 && parts[1] == "async") return copy_async(parts), true;
  return false;
}

void Decoder::access(const Parts& parts, bool load) {
  Extra x;
  Type type;
  size_t count = 1;
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (part == "volatile" || part == "relaxed" || part == "mmio")
      x.order = Order::relaxed;
    else if (part == "acquire" && load)
      x.order = Order::acquire;
    else if (part == "release" && !load)
      x.order = Order::release;
    else if (part == "weak" || is_scope(part) || is_cache_hint(part)) {
    } else if (part == "nc" && load)
      x.non_coherent = true;
    else if (part == "v2")
      count = 2;
    else if (part == "v4")
      count = 4;
    else if (parse_space(part, x.space)) {
    } else if (i + 1 == parts.size() && parse_type(part, type) && type.bits != 1) {
    } else
      return unknown(part);
  }
  if (type.bits == 0) return unknown(s_->opcode);
  if (!operands(2, 2)) return;
  x.bytes = static_cast<uint8_t>(type.bytes());
  x.count = static_cast<uint8_t>(count);
  x.sign = type.is_signed();
  if (x.bytes * count > 16) return fail(fmt::format("`{}` moves more than 16 bytes", s_->opcode));
  const Operand& value = s_->operands[load ? 0 : 1];
  const Operand& address = s_->operands[load ? 1 : 0];
  std::vector<Operand> elements = value.kind == Kind::vector ? value.elements : std::vector<Operand>{value};
  if (elements.size() != count)
    return fail(fmt::format("`{}` with {} registers", s_->opcode, elements.size()));
  for (const Operand& element : elements) {
    bool discards = element.kind == Kind::discard && load;
    if (element.kind == Kind::reg && width(element.reg) != kPredicate && width(element.reg) >= x.bytes &&
        !element.negated)
      x.registers.push_back(element.reg);
    else if (discards)
      x.registers.push_back(-1);
    else if (!load && element.kind != Kind::reg && element.kind != Kind::discard)
      x.registers.push_back(source(element, static_cast<uint8_t>(std::max<int>(2, x.bytes))));
    else
      return fail(fmt::format("an operand of `{}` has the wrong kind or width", s_->opcode));
  }
  set_address(address, x);
  if (!status_) return;
  if (x.space == Space::param) {
    if (!load) return fail("a kernel's parameters cannot be written");
    if (x.base < 0) {
      if (x.offset < 0 || x.offset + x.bytes * x.count > program_.param_bytes)
        return fail("a load past the parameters");
      emit(run_load_param, -1, {}, x);
      return;
    }
    x.space = Space::generic;  // a computed address, made by mov or cvta.param
  }
  emit(load ? run_load : run_store, -1, {}, x);
}

void Decoder::atomic(const Parts& parts, bool returns) {
  static const std::map<std::string_view, AtomicOp> ops = {
      {"add", AtomicOp::add},   {"min", AtomicOp::min},     {"max", AtomicOp::max},
      {"exch", AtomicOp::exch}, {"cas", AtomicOp::cas},     {"and", AtomicOp::bit_and},
      {"or", AtomicOp::bit_or}, {"xor", AtomicOp::bit_xor}, {"inc", AtomicOp::inc},
      {"dec", AtomicOp::dec}};
  Extra x;
  Type type;
  bool have_op = false, noftz = false;
  x.order = Order::relaxed;
  for (size_t i = 1; i < parts.size(); ++i) {
    std::string_view part = parts[i];
    if (auto found = ops.find(part); found != ops.end() && !have_op)
      x.atomic = found->second, have_op = true;
    else if (part == "relaxed" || is_scope(part)) {
    } else if (part == "acquire")
      x.order = Order::acquire;
    else if (part == "release")
      x.order = Order::release;
    else if (part == "acq_rel")
      x.order = Order::acq_rel;
    else if (part == "noftz")
      noftz = true;
    else if (part == "global" || part == "shared" || part == "shared::cta")
      parse_space(part, x.space);
    else if (i + 1 == parts.size() && parse_type(part, type)) {
    } else
      return unknown(part);
  }
  bool is16 = type.name.find("f16") != std::string::npos;
  bool fits = (type.bits == 32 || type.bits == 64 || is16) &&
              (!type.is_float() || x.atomic == AtomicOp::add) && noftz == is16;
  if (!have_op || !fits) return unknown(s_->opcode);
  x.type_bits = static_cast<uint8_t>(type.bits);
  x.type_class = is16 ? (type.name[0] == 'b' ? 'w' : 'h') : type.name[0];
  auto bytes = static_cast<uint8_t>(type.bytes());
  size_t values = x.atomic == AtomicOp::cas ? 2 : 1, first = returns ? 1 : 0;
  if (!operands(first + 1 + values, first + 1 + values)) return;
  set_address(s_->operands[first], x);
  int d = returns ? destination(s_->operands[0], bytes) : -1;
  int b = source(s_->operands[first + 1], bytes);
  int c = values == 2 ? source(s_->operands[first + 2], bytes) : -1;
  emit(run_atomic, d, {b, c}, x);
}

void Decoder::copy_async(const Parts& parts) {
  if (parts.size() == 3 && parts[2] == "commit_group") return void(emit(run_copy_commit, -1, {}));
  if (parts.size() == 3 && parts[2] == "wait_all")
    return void(emit(run_copy_wait, -1, {}).value = ~uint64_t{0});
  if (parts.size() == 3 && parts[2] == "wait_group") {
    if (!operands(1, 1)) return;
    uint64_t keep = immediate(s_->operands[0]);
    emit(run_copy_wait, -1, {}).value = std::min<uint64_t>(keep, 1u << 20);
    return;
  }
  Extra x;
  for (size_t i = 2; i < parts.size(); ++i)
    if (parts[i] != "ca" && parts[i] != "cg" && parts[i] != "shared" && parts[i] != "shared::cta" &&
        parts[i] != "global" && !(is_cache_hint(parts[i]) && parts[i].starts_with("L2")))
      return unknown(parts[i]);
  if (parts.size() < 5 || !operands(3, 4)) return unknown(s_->opcode);
  uint64_t bytes = immediate(s_->operands[2]);
  if (bytes != 4 && bytes != 8 && bytes != 16) return fail("cp.async copies 4, 8 or 16 bytes");
  x.space = Space::shared;
  x.bytes = static_cast<uint8_t>(bytes);
  set_address(s_->operands[0], x);
  set_address(s_->operands[1], x, true);
  if (s_->operands.size() == 4) x.size = source(s_->operands[3], 4);
  emit(run_copy_async, -1, {}, x);
}

}  // namespace gacc::emulator
