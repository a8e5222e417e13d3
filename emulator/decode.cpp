// Decodes a kernel: lays out registers and variables, then each statement by the family of its opcode.
#include <cstring>

#include "emulator/decoder.h"

namespace gacc::emulator {

Result<Kernel> decode(const Function& function, const PtxFile& module, const Symbols& symbols) {
  return Decoder(function, module, symbols).run();
}

Result<Kernel> Decoder::run() {
  kernel_.info.name = function_.name;
  kernel_.info.max_threads = function_.max_threads;
  lay_out();
  std::vector<uint32_t> position;  // of each statement's first instruction
  for (const Statement& s : function_.statements) {
    if (!status_) return status_;
    position.push_back(static_cast<uint32_t>(kernel_.code.size()));
    s_ = &s;
    statement();
  }
  if (!status_) return status_;
  position.push_back(static_cast<uint32_t>(kernel_.code.size()));
  Instr& end = kernel_.code.emplace_back();
  end.run = run_exit;
  end.line = function_.statements.empty() ? function_.line : function_.statements.back().line;
  for (Instr& in : kernel_.code)
    if (in.run == run_branch) in.target = position[in.target];
  return std::move(kernel_);
}

void Decoder::lay_out() {
  KernelInfo& info = kernel_.info;
  for (const auto& [name, address] : symbols_) places_[name] = {Space::global, address};
  for (const Register& reg : function_.registers) {
    const uint8_t bytes =
        reg.type.bits == 1 ? kPredicate : static_cast<uint8_t>(std::max(2, reg.type.bytes()));
    add_slot(bytes, reg.name);
    info.registers += reg.type.bits == 1 ? 0 : std::max(1, reg.type.bits / 32);
  }
  // Puts a variable behind the others of its space; gives its place.
  const auto put = [&](const Variable& v, Space space, int64_t align, int64_t& end) {
    const int64_t at = (end + align - 1) / align * align;
    places_[v.name] = {space, static_cast<uint64_t>(at)};
    end = v.external ? at : at + v.bytes;
    return at;
  };
  for (const Variable& param : function_.params) {
    const int64_t at = put(param, Space::param, param.align, info.param_bytes);
    info.params.push_back({param.name, param.type.name, at, param.bytes});
  }
  // Only the shared variables that this kernel names take room.
  std::set<std::string_view> named;
  for (const Statement& s : function_.statements)
    for (const Operand& operand : s.operands) {
      named.insert(operand.name);
      for (const Operand& element : operand.elements) named.insert(element.name);
    }
  std::vector<const Variable*> external;
  for (const std::vector<Variable>* variables : {&module_.variables, &function_.variables})
    for (const Variable& v : *variables) {
      if (v.space == Space::local) put(v, Space::local, v.align, info.local_bytes);
      if (v.space != Space::shared || !named.contains(v.name)) continue;
      if (v.external || v.bytes == 0)
        external.push_back(&v);
      else
        put(v, Space::shared, v.align, info.shared_bytes);
    }
  info.local_bytes = (info.local_bytes + 15) / 16 * 16;
  if (info.local_bytes > 1 << 20)
    status_ = Status::error("line {}: more than 1 MiB of local memory", function_.line);
  for (const Variable* v : external)  // the launch's bytes begin after the static ones
    put(*v, Space::shared, std::max<int64_t>(16, v->align), info.shared_bytes);
  if (info.shared_bytes > 1 << 20)
    status_ = Status::error("line {}: more than 1 MiB of shared memory", function_.line);
}

void Decoder::fail(std::string text) {
  if (status_) status_ = Status::error("line {}: {}", s_->line, text);
}
bool Decoder::accepted(const Parts& parts) {
  if (!known_.insert(s_->opcode).second) return true;
  const std::string what = unknown_part(parts);
  if (what.empty()) return true;
  fail(what == s_->opcode ? fmt::format("unknown opcode or modifier `{}`", what)
                          : fmt::format("unknown opcode or modifier `{}` in `{}`", what, s_->opcode));
  return false;
}
bool Decoder::operands(size_t least, size_t most) {
  if (s_->operands.size() >= least && s_->operands.size() <= most) return true;
  fail(fmt::format("`{}` with {} operands", s_->opcode, s_->operands.size()));
  return false;
}

void Decoder::statement() {
  using Family = void (Decoder::*)(const Parts&);
  static const std::map<std::string_view, Family> families = {
      {"setp", &Decoder::set_predicate},   {"mov", &Decoder::move},      {"cvta", &Decoder::cvta},
      {"bra", &Decoder::control},          {"ret", &Decoder::control},   {"exit", &Decoder::control},
      {"trap", &Decoder::control},         {"ld", &Decoder::access},     {"st", &Decoder::access},
      {"atom", &Decoder::atomic},          {"red", &Decoder::atomic},    {"membar", &Decoder::fence},
      {"fence", &Decoder::fence},          {"cp", &Decoder::copy_async}, {"shfl", &Decoder::shuffle},
      {"vote", &Decoder::ballot},          {"bar", &Decoder::barrier},   {"barrier", &Decoder::barrier},
      {"ldmatrix", &Decoder::matrix_load}, {"mma", &Decoder::mma}};
  const std::string& opcode = s_->opcode;
  if (const LaneOp* op = find_lane_op(opcode); op && !opcode.starts_with("setp."))
    return lanes(*op, opcode.starts_with("cvt."));
  const Parts parts = split_opcode(opcode);
  if (parts[0] == "setp" || accepted(parts)) (this->*families.at(parts[0]))(parts);
}

int Decoder::add_slot(uint8_t bytes, std::string name) {
  const Slot slot{kernel_.file_bytes, bytes};
  const uint32_t size = bytes == kPredicate ? 4 : bytes * kLanes;
  kernel_.file_bytes += (size + 31) & ~31u;
  kernel_.slots.push_back(slot);
  kernel_.names.push_back(std::move(name));
  return static_cast<int>(kernel_.slots.size()) - 1;
}

int Decoder::constant(uint8_t bytes, uint64_t value) {
  if (bytes < 8) value &= (uint64_t{1} << (8 * bytes)) - 1;
  if (bytes == kPredicate) value = value ? 0xffffffffu : 0;
  auto [place, fresh] = constants_.try_emplace({bytes, value}, 0);
  if (fresh) {
    place->second = add_slot(bytes, "a constant");
    kernel_.constants.push_back({place->second, value});
  }
  return place->second;
}

int Decoder::special(const std::string& name) {
  if (auto found = specials_.find(name); found != specials_.end()) return found->second;
  for (const SpecialRegister& k : special_registers())
    if (name == k.name) {
      const int reg = add_slot(4, name);
      kernel_.specials.push_back({reg, k.value});
      return specials_[name] = reg;
    }
  fail(fmt::format("unknown register `{}`", name));
  return constant(4, 0);
}

const Decoder::Place* Decoder::place_of(const std::string& name) {
  const auto found = places_.find(name);
  if (found != places_.end()) return &found->second;
  fail(fmt::format("`{}` is not defined", name));
  return nullptr;
}

int Decoder::source(const Operand& operand, uint8_t bytes, bool narrow) {
  switch (operand.kind) {
    case Kind::reg:
    case Kind::special: {
      const bool own = operand.kind == Kind::reg;
      const int reg = own ? operand.reg : special(operand.name);
      const uint8_t have = width(reg);
      if (operand.negated) {
        if (have != kPredicate || bytes != kPredicate) break;
        const int negated = temporary(kPredicate);
        emit_lanes(*find_lane_op("not.pred"), negated, {reg});
        return negated;
      }
      if (have == bytes) return reg;
      if (have == kPredicate || bytes == kPredicate || (own && (have < bytes || !narrow))) break;
      const int resized = temporary(bytes);
      emit(run_resize, resized, {reg});
      return resized;
    }
    case Kind::integer:
    case Kind::f32:
      return constant(bytes, operand.bits);
    case Kind::symbol: {
      const Place* place = place_of(operand.name);
      if (place == nullptr) return constant(4, 0);
      if (bytes == kPredicate || bytes < 4) break;
      return constant(bytes, place->address + static_cast<uint64_t>(operand.offset));
    }
    default:
      break;
  }
  fail(fmt::format("an operand of `{}` has the wrong kind or width{}", s_->opcode,
                   operand.kind == Kind::reg ? fmt::format(" (`{}`)", kernel_.names[operand.reg]) : ""));
  return constant(bytes, 0);
}

int Decoder::destination(const Operand& operand, uint8_t bytes, bool widen) {
  if (operand.kind == Kind::discard) return temporary(bytes);
  if (operand.kind == Kind::reg && !operand.negated) {
    const uint8_t have = width(operand.reg);
    if (have == bytes) return operand.reg;
    if (widen && have != kPredicate && bytes != kPredicate && have > bytes) return temporary(bytes);
  }
  fail(fmt::format("the result of `{}` does not fit its register", s_->opcode));
  return temporary(bytes);
}
void Decoder::finish(const Operand& operand, int reg, bool sign) {
  if (operand.kind != Kind::reg || operand.reg == reg || !status_) return;
  emit(run_resize, operand.reg, {reg}).value = sign;
}

Instr& Decoder::emit(Handler handler, int d, const std::vector<int>& sources) {
  const auto at = [&](int reg) { return reg < 0 ? 0 : kernel_.slots[reg].at; };
  Instr& in = kernel_.code.emplace_back();
  in.run = handler;
  in.line = s_->line;
  in.guard = s_->guard;
  in.guard_negated = s_->guard_negated;
  in.d = d;
  in.d_at = at(d);
  for (size_t i = 0; i < sources.size(); ++i) {
    in.s[i] = sources[i];
    in.s_at[i] = at(sources[i]);
  }
  return in;
}
Instr& Decoder::emit(Handler handler, int d, const std::vector<int>& sources, Extra extra) {
  Instr& in = emit(handler, d, sources);
  in.extra = static_cast<int>(kernel_.extras.size());
  kernel_.extras.push_back(std::move(extra));
  return in;
}
void Decoder::emit_lanes(const LaneOp& op, int d, const std::vector<int>& sources) {
  static constexpr Handler by_count[] = {nullptr, run_lanes<1>, run_lanes<2>, run_lanes<3>, run_lanes<4>};
  emit(op.divides ? run_divide : by_count[op.sources], d, sources).lane = op.fn;
}

Address Decoder::address(const Operand& operand, Space space) {
  Address address{operand.reg, operand.offset};
  if (operand.kind != Kind::memory) {
    fail(fmt::format("`{}` needs an address", s_->opcode));
  } else if (!operand.name.empty()) {
    const Place* place = place_of(operand.name);
    if (place == nullptr) return address;
    address.offset += static_cast<int64_t>(place->address);
    if (space == Space::generic && place->space == Space::shared) address.offset += kSharedWindow;
    if (space == Space::generic && place->space == Space::local) address.offset += kLocalWindow;
  } else if (operand.reg >= 0 && width(operand.reg) != 8 && width(operand.reg) != 4) {
    fail("an address register has 32 or 64 bits");
  }
  return address;
}

uint64_t Decoder::immediate(const Operand& operand) {
  if (operand.kind != Kind::integer) fail(fmt::format("`{}` needs a constant here", s_->opcode));
  return operand.bits;
}

}  // namespace gacc::emulator
