// ld, st, atom, red, fences, cp.async: which space, which order, which type.
#include "emulator/decoder.h"

namespace gacc::emulator {
namespace {

template <class T>
bool parse_word(const std::map<std::string_view, T>& words, std::string_view part, T& out) {
  const auto found = words.find(part);
  if (found != words.end()) out = found->second;
  return found != words.end();
}

bool parse_space(std::string_view part, Space& space) {
  static const std::map<std::string_view, Space> words = {
      {"global", Space::global},     {"shared", Space::shared},  {"shared::cta", Space::shared},
      {"local", Space::local},       {"const", Space::constant}, {"param", Space::param},
      {"param::entry", Space::param}};
  return parse_word(words, part, space);
}

bool parse_order(std::string_view part, Order& order) {
  static const std::map<std::string_view, Order> words = {{"volatile", Order::relaxed},
                                                          {"relaxed", Order::relaxed},
                                                          {"acquire", Order::acquire},
                                                          {"release", Order::release},
                                                          {"acq_rel", Order::acq_rel}};
  return parse_word(words, part, order);
}
}  // namespace

void Decoder::access(const Parts& parts) {
  const bool load = parts[0] == "ld";
  Extra x;
  Type type;
  size_t count = 1;
  for (const std::string_view part : parts)
    if (part == "v2")
      count = 2;
    else if (part == "v4")
      count = 4;
    else if (!parse_order(part, x.order) && !parse_space(part, x.space))
      parse_type(part, type);  // the others are hints
  if (!operands(2, 2)) return;
  x.bytes = static_cast<uint8_t>(type.bytes());
  x.count = static_cast<uint8_t>(count);
  x.sign = type.is_signed();
  const Operand& value = s_->operands[load ? 0 : 1];
  const std::vector<Operand> elements = elements_of(value);
  if (elements.size() != count)
    return fail(fmt::format("`{}` with {} registers", s_->opcode, elements.size()));
  for (const Operand& element : elements) {
    const bool discards = element.kind == Kind::discard && load;
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
  x.at = address(s_->operands[load ? 1 : 0], x.space);
  if (!status_) return;
  if (x.space == Space::param &&
      (x.at.base >= 0 || x.at.offset < 0 || x.at.offset + x.bytes * x.count > kernel_.info.param_bytes))
    return fail("a load past the parameters, or at a computed place");
  emit(load ? run_load : run_store, -1, {}, x);
}

void Decoder::atomic(const Parts& parts) {
  const bool returns = parts[0] == "atom";
  static const std::map<std::string_view, AtomicOp> ops = {
      {"add", AtomicOp::add},   {"min", AtomicOp::min},     {"max", AtomicOp::max},
      {"exch", AtomicOp::exch}, {"cas", AtomicOp::cas},     {"and", AtomicOp::bit_and},
      {"or", AtomicOp::bit_or}, {"xor", AtomicOp::bit_xor}, {"inc", AtomicOp::inc}};
  Extra x;
  Type type;
  x.order = Order::relaxed;
  for (const std::string_view part : parts)
    if (!parse_word(ops, part, x.atomic) && !parse_order(part, x.order) && !parse_space(part, x.space))
      parse_type(part, type);
  x.bytes = static_cast<uint8_t>(type.bytes());
  x.sign = type.is_signed();
  x.real = type.name[0] == 'f';
  const size_t values = x.atomic == AtomicOp::cas ? 2 : 1, first = returns ? 1 : 0;
  if (!operands(first + 1 + values, first + 1 + values)) return;
  x.at = address(s_->operands[first], x.space);
  const int d = returns ? destination(s_->operands[0], x.bytes) : -1;
  const int b = source(s_->operands[first + 1], x.bytes);
  const int c = values == 2 ? source(s_->operands[first + 2], x.bytes) : -1;
  emit(run_atomic, d, {b, c}, x);
}

void Decoder::copy_async(const Parts& parts) {
  if (parts[2] == "commit_group") return void(emit(run_copy_commit, -1, {}));
  if (parts[2] == "wait_all") return void(emit(run_copy_wait, -1, {}).value = ~uint64_t{0});
  if (parts[2] == "wait_group") {
    if (!operands(1, 1)) return;
    const uint64_t keep = immediate(s_->operands[0]);
    emit(run_copy_wait, -1, {}).value = std::min<uint64_t>(keep, 1u << 20);
    return;
  }
  Extra x;
  if (!operands(3, 4)) return;
  const uint64_t bytes = immediate(s_->operands[2]);
  if (parts[2] == "cg" && bytes != 16) return fail("cp.async.cg copies 16 bytes");
  if (bytes != 4 && bytes != 8 && bytes != 16) return fail("cp.async copies 4, 8 or 16 bytes");
  x.bytes = static_cast<uint8_t>(bytes);
  x.at = address(s_->operands[0], Space::shared);
  x.from = address(s_->operands[1], Space::global);
  if (s_->operands.size() == 4) x.size = source(s_->operands[3], 4);
  emit(run_copy_async, -1, {}, x);
}

}  // namespace gacc::emulator
