// Decodes a kernel: lays out registers and variables, then each statement by the family of its opcode.
#include <cstring>

#include "emulator/decoder.h"

namespace gacc::emulator {

Status decode(const Function& function, const PtxFile& module, const Symbols& symbols, Program& program) {
  return Decoder(function, module, symbols, program).run();
}

Status Decoder::run() {
  program_.name = function_.name;
  program_.max_threads = function_.max_threads;
  lay_out();
  std::vector<uint32_t> position;
  std::vector<std::pair<size_t, size_t>> branches;  // instruction, statement
  for (const Statement& s : function_.statements) {
    if (!status_) return status_;
    position.push_back(static_cast<uint32_t>(program_.code.size()));
    s_ = &s;
    const size_t first = program_.code.size();
    statement(s);
    for (size_t i = first; i < program_.code.size(); ++i) {
      program_.code[i].guard = s.guard;
      program_.code[i].guard_negated = s.guard_negated;
      if (program_.code[i].run == run_branch)
        branches.emplace_back(i, static_cast<size_t>(s.operands[0].target));
    }
  }
  position.push_back(static_cast<uint32_t>(program_.code.size()));
  Instr end;
  end.run = run_exit;
  end.line = function_.statements.empty() ? function_.line : function_.statements.back().line;
  program_.code.push_back(end);
  for (auto [instruction, statement] : branches) program_.code[instruction].target = position[statement];
  // The slots are final only now.
  for (Instr& in : program_.code) {
    if (in.d >= 0) in.d_at = program_.slots[static_cast<size_t>(in.d)].at;
    for (int i = 0; i < 4; ++i)
      if (in.s[i] >= 0) in.s_at[i] = program_.slots[static_cast<size_t>(in.s[i])].at;
  }
  return status_;
}

void Decoder::lay_out() {
  for (const Register& reg : function_.registers) {
    const uint8_t bytes =
        reg.type.bits == 1 ? kPredicate : static_cast<uint8_t>(std::max(2, reg.type.bytes()));
    add_slot(bytes, reg.name);
    program_.registers += reg.type.bits == 1 ? 0 : std::max(1, reg.type.bits / 32);
  }
  auto align = [](int64_t at, int64_t to) { return (at + to - 1) / to * to; };
  for (const Variable& param : function_.params) {
    program_.param_bytes = align(program_.param_bytes, param.align);
    places_[param.name] = {Space::param, static_cast<uint64_t>(program_.param_bytes)};
    program_.params.push_back(param);
    program_.param_at.push_back(program_.param_bytes);
    program_.param_bytes += param.bytes;
  }
  // Only the shared variables that this kernel names take room.
  auto named = [&](const std::string& name) {
    for (const Statement& s : function_.statements)
      for (const Operand& operand : s.operands) {
        if (operand.name == name) return true;
        for (const Operand& e : operand.elements)
          if (e.name == name) return true;
      }
    return false;
  };
  std::vector<const Variable*> external;
  auto shared = [&](const Variable& v) {
    if (v.space != Space::shared || !named(v.name)) return;
    if (v.external || v.bytes == 0) return external.push_back(&v);
    program_.shared_bytes = align(program_.shared_bytes, v.align);
    places_[v.name] = {Space::shared, static_cast<uint64_t>(program_.shared_bytes)};
    program_.shared_bytes += v.bytes;
  };
  for (const Variable& v : module_.variables) shared(v);
  for (const Variable& v : function_.variables) {
    shared(v);
    if (v.space == Space::local) {
      program_.local_bytes = align(program_.local_bytes, v.align);
      places_[v.name] = {Space::local, static_cast<uint64_t>(program_.local_bytes)};
      program_.local_bytes += v.bytes;
    }
  }
  program_.local_bytes = align(program_.local_bytes, 16);
  if (program_.local_bytes > 1 << 20)
    status_ = Status::error("line {}: more than 1 MiB of local memory", function_.line);
  for (const Variable* v : external) {  // the launch's bytes begin after the static ones
    program_.shared_bytes = align(program_.shared_bytes, std::max<int64_t>(16, v->align));
    places_[v->name] = {Space::shared, static_cast<uint64_t>(program_.shared_bytes)};
  }
  if (program_.shared_bytes > 1 << 20)
    status_ = Status::error("line {}: more than 1 MiB of shared memory", function_.line);
}

void Decoder::fail(std::string text) {
  if (status_) status_ = Status::error("line {}: {}", s_->line, text);
}
bool Decoder::accepted(const Parts& parts) {
  if (known_.contains(s_->opcode)) return true;
  const std::string what = unknown_part(parts);
  if (what.empty()) return known_.insert(s_->opcode), true;
  fail(what == s_->opcode ? fmt::format("unknown opcode or modifier `{}`", what)
                          : fmt::format("unknown opcode or modifier `{}` in `{}`", what, s_->opcode));
  return false;
}
bool Decoder::operands(size_t least, size_t most) {
  if (s_->operands.size() >= least && s_->operands.size() <= most) return true;
  fail(fmt::format("`{}` with {} operands", s_->opcode, s_->operands.size()));
  return false;
}

void Decoder::statement(const Statement& s) {
  if (const LaneOp* op = find_lane_op(s.opcode); op && !s.opcode.starts_with("setp."))
    return lanes(*op, s.opcode.starts_with("cvt."));
  const Parts parts = split_opcode(s.opcode);
  if (parts[0] == "setp") return set_predicate();
  if (accepted(parts) && !scalar(parts) && !memory(parts)) collective(parts);
}

int Decoder::add_slot(uint8_t bytes, std::string name) {
  const Slot slot{program_.file_bytes, bytes};
  const uint32_t size = bytes == kPredicate ? 4 : bytes * kLanes;
  program_.file_bytes += (size + 31) & ~31u;
  program_.slots.push_back(slot);
  program_.names.push_back(std::move(name));
  return static_cast<int>(program_.slots.size()) - 1;
}

int Decoder::constant(uint8_t bytes, uint64_t value) {
  if (bytes < 8) value &= (uint64_t{1} << (8 * bytes)) - 1;
  if (bytes == kPredicate) value = value ? 0xffffffffu : 0;
  auto [place, fresh] = constants_.try_emplace({bytes, value}, 0);
  if (fresh) {
    place->second = add_slot(bytes, "a constant");
    program_.constants.push_back({place->second, value});
  }
  return place->second;
}

int Decoder::special(const std::string& name) {
  if (auto found = specials_.find(name); found != specials_.end()) return found->second;
  for (const SpecialRegister& k : special_registers())
    if (name == k.name) {
      const int reg = add_slot(k.bytes, name);
      program_.specials.push_back({reg, k.which});
      return specials_[name] = reg;
    }
  fail(fmt::format("unknown register `{}`", name));
  return constant(4, 0);
}

// Shared, local and param variables in their own space's addresses, module variables in global memory.
bool Decoder::address_of(const std::string& name, Space& space, uint64_t& address) const {
  if (auto found = places_.find(name); found != places_.end()) {
    space = found->second.space;
    address = found->second.address;
    return true;
  }
  if (auto found = symbols_.find(name); found != symbols_.end()) {
    space = Space::global;
    address = found->second;
    return true;
  }
  return false;
}

int Decoder::source(const Operand& operand, uint8_t bytes, bool narrow) {
  switch (operand.kind) {
    case Kind::reg: {
      const uint8_t have = width(operand.reg);
      if (operand.negated) {
        if (have != kPredicate || bytes != kPredicate) break;
        const int reg = temporary(kPredicate);
        emit_lanes(*find_lane_op("not.pred"), reg, {operand.reg});
        return reg;
      }
      if (have == bytes) return operand.reg;
      if (have == kPredicate || bytes == kPredicate || have < bytes || !narrow) break;
      const int reg = temporary(bytes);
      emit(run_resize, reg, {operand.reg});
      return reg;
    }
    case Kind::integer:
      return constant(bytes, operand.bits);
    case Kind::f32:
      return constant(bytes, operand.bits);
    case Kind::special: {
      const int reg = special(operand.name);
      if (width(reg) == bytes) return reg;
      if (bytes == kPredicate) break;
      const int wide = temporary(bytes);
      emit(run_resize, wide, {reg});
      return wide;
    }
    case Kind::symbol: {
      Space space;
      uint64_t address;
      if (!address_of(operand.name, space, address)) {
        fail(fmt::format("`{}` is not defined", operand.name));
        return constant(4, 0);
      }
      if (bytes == kPredicate || bytes < 4) break;
      return constant(bytes, address + static_cast<uint64_t>(operand.offset));
    }
    default:
      break;
  }
  fail(fmt::format("an operand of `{}` has the wrong kind or width{}", s_->opcode,
                   operand.kind == Kind::reg
                       ? fmt::format(" (`{}`)", program_.names[static_cast<size_t>(operand.reg)])
                       : ""));
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
  Instr in;
  in.run = handler;
  in.line = s_->line;
  in.d = d;
  for (const int reg : sources) in.s[in.sources++] = reg;
  program_.code.push_back(in);
  return program_.code.back();
}
Instr& Decoder::emit(Handler handler, int d, const std::vector<int>& sources, Extra extra) {
  Instr& in = emit(handler, d, sources);
  in.extra = static_cast<int>(program_.extras.size());
  program_.extras.push_back(std::move(extra));
  return in;
}
void Decoder::emit_lanes(const LaneOp& op, int d, const std::vector<int>& sources) {
  static constexpr Handler by_count[] = {nullptr, run_lanes1, run_lanes2, run_lanes3, run_lanes4};
  emit(op.divides ? run_divide : by_count[op.sources], d, sources).lane = op.fn;
}

void Decoder::set_address(const Operand& operand, Extra& x, bool second) {
  if (operand.kind != Kind::memory) return fail(fmt::format("`{}` needs an address", s_->opcode));
  uint64_t base = 0;
  if (!operand.name.empty()) {
    Space space;
    if (!address_of(operand.name, space, base)) return fail(fmt::format("`{}` is not defined", operand.name));
    if (!second && x.space == Space::generic) {
      if (space == Space::shared) base += kSharedWindow;
      if (space == Space::local) base += kLocalWindow;
    }
  } else if (operand.reg >= 0 && width(operand.reg) != 8 && width(operand.reg) != 4) {
    return fail("an address register has 32 or 64 bits");
  }
  (second ? x.base2 : x.base) = operand.reg;
  (second ? x.offset2 : x.offset) = static_cast<int64_t>(base + static_cast<uint64_t>(operand.offset));
}

uint64_t Decoder::immediate(const Operand& operand) {
  if (operand.kind != Kind::integer) fail(fmt::format("`{}` needs a constant here", s_->opcode));
  return operand.bits;
}

}  // namespace gacc::emulator
