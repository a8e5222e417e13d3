// See ptx_reader.h.
#include <charconv>
#include <unordered_map>

#include "emulator/ptx_reader.h"

namespace gacc::emulator {
namespace {

struct Range {  // .reg .b32 %r<1000>: prefix and count
  std::string prefix;
  uint64_t count;
  Type type;
};
struct Scope {
  std::unordered_map<std::string, int> registers;
  std::vector<Range> ranges;
  std::unordered_map<std::string, int> labels;
  std::unordered_map<std::string, std::string> variables;  // name here -> unique name in the function
  struct Use {
    size_t statement, operand;
  };
  std::vector<Use> branches;  // label operands not yet resolved
};

class BodyReader {
 public:
  BodyReader(PtxReader& in, Function& function) : in_(in), function_(function) {}
  void read() {
    in_.expect("{");
    scopes_.emplace_back();
    while (in_.go() && !scopes_.empty()) {
      if (in_.accept("{")) {
        if (scopes_.size() > 256) return in_.fail(in_.peek(), "blocks are nested too deep");
        scopes_.emplace_back();
      } else if (in_.accept("}")) {
        close_scope();
      } else {
        statement();
      }
    }
    if (!scopes_.empty()) in_.fail(in_.peek(), "a function without its end");
  }

 private:
  void close_scope() {
    Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (const Scope::Use& use : scope.branches) {
      Operand& operand = function_.statements[use.statement].operands[use.operand];
      if (auto found = scope.labels.find(operand.name); found != scope.labels.end())
        operand.target = found->second;
      else if (!scopes_.empty())
        scopes_.back().branches.push_back(use);
      else
        in_.fail(function_.statements[use.statement].line,
                 fmt::format("label `{}` is not defined", operand.name));
    }
  }

  void statement() {
    const Token& token = in_.peek();
    if (token.kind == Token::Kind::directive) return body_directive();
    if (token.kind == Token::Kind::word && in_.peek(1).text == ":") {
      std::string label(in_.next().text);
      in_.next();
      if (!scopes_.back().labels.emplace(label, static_cast<int>(function_.statements.size())).second)
        in_.fail(token, fmt::format("label `{}` is defined twice", label));
      return;
    }
    if (in_.accept(";")) return;
    Statement statement;
    statement.line = token.line;
    if (in_.accept("@")) {
      statement.guard_negated = in_.accept("!");
      statement.guard = register_of(in_.word());
      if (in_.status().ok() && (statement.guard < 0 || function_.registers[statement.guard].type.bits != 1))
        return in_.fail(token, "a guard must be a predicate register");
    }
    statement.opcode = in_.word();
    statement.line = token.line;
    const bool label = statement.opcode.starts_with("bra");
    while (in_.go() && !in_.is(";")) {
      statement.operands.push_back(operand(label));
      if (label)
        scopes_.back().branches.push_back({function_.statements.size(), statement.operands.size() - 1});
      if (!in_.accept(",") && !in_.accept("|")) break;
    }
    in_.expect(";");
    if (in_.status().ok()) function_.statements.push_back(std::move(statement));
  }
  void body_directive() {
    const Token& token = in_.next();
    if (token.text == ".reg") {
      if (in_.accept(".v2") || in_.accept(".v4"))
        return in_.fail(token, "vector registers are not supported");
      const Type type = in_.type_directive();
      do {
        const std::string name = in_.word();
        if (in_.accept("<")) {
          const int64_t count = in_.integer();
          in_.expect(">");
          scopes_.back().ranges.push_back({name, static_cast<uint64_t>(std::max<int64_t>(count, 0)), type});
        } else {
          scopes_.back().registers[name] = add_register(name, type);
        }
      } while (in_.go() && in_.accept(","));
      in_.expect(";");
    } else if (token.text == ".local" || token.text == ".shared" || token.text == ".global" ||
               token.text == ".const") {
      for (Variable& variable : read_variables(in_, token.text, false)) add_variable(std::move(variable));
    } else if (token.text == ".loc" || token.text == ".file" || token.text == ".pragma") {
      in_.skip_line(token.line);
    } else {
      in_.fail(token, fmt::format("`{}` is not supported in a function", token.text));
    }
  }
  void add_variable(Variable variable) {
    std::string unique = fmt::format("{}#{}", variable.name, function_.variables.size());
    scopes_.back().variables[variable.name] = unique;
    variable.name = std::move(unique);
    function_.variables.push_back(std::move(variable));
  }
  int add_register(std::string name, const Type& type) {
    if (function_.registers.size() > 200000)
      in_.fail(in_.peek(), "a function has more than 200000 registers");
    function_.registers.push_back({std::move(name), type});
    return static_cast<int>(function_.registers.size()) - 1;
  }
  // -1 when no register has this name.
  int register_of(const std::string& name) {
    size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    const std::string_view prefix = std::string_view(name).substr(0, digits),
                           index = std::string_view(name).substr(digits);
    for (size_t s = scopes_.size(); s-- > 0;) {
      Scope& scope = scopes_[s];
      if (auto found = scope.registers.find(name); found != scope.registers.end()) return found->second;
      if (index.empty()) continue;
      uint64_t number = 0;
      if (std::from_chars(index.data(), index.data() + index.size(), number).ec != std::errc{}) continue;
      for (const Range& range : scope.ranges)
        if (range.prefix == prefix && number < range.count)
          return scope.registers[name] = add_register(name, range.type);
    }
    return -1;
  }

  Operand named(const std::string& name) {
    Operand value;
    if (name == "_") return value;
    if (const int reg = register_of(name); reg >= 0) {
      value.kind = Operand::Kind::reg;
      value.reg = reg;
      return value;
    }
    value.kind = name[0] == '%' ? Operand::Kind::special : Operand::Kind::symbol;
    value.name = name;
    for (size_t s = scopes_.size(); s-- > 0;)
      if (auto found = scopes_[s].variables.find(name); found != scopes_[s].variables.end()) {
        value.name = found->second;
        break;
      }
    return value;
  }
  Operand operand(bool label) {
    Operand value;
    const Token& token = in_.peek();
    if (label) {
      value.kind = Operand::Kind::label;
      value.name = in_.word();
      return value;
    }
    if (in_.accept("{")) {
      value.kind = Operand::Kind::vector;
      while (in_.go() && !in_.is("}")) {
        value.elements.push_back(operand(false));
        if (value.elements.size() > 64) in_.fail(token, "a vector has more than 64 elements");
        if (in_.status().ok() && value.elements.back().kind == Operand::Kind::vector)
          in_.fail(token, "a vector inside a vector");
        if (!in_.accept(",")) break;
      }
      in_.expect("}");
      return value;
    }
    if (in_.accept("[")) return address();
    if (in_.accept("!")) {
      value = named(in_.word());
      value.negated = true;
      if (value.kind != Operand::Kind::reg) in_.fail(token, "`!` needs a predicate register");
      return value;
    }
    if (token.kind == Token::Kind::word) {
      value = named(in_.word());
      if (value.kind == Operand::Kind::symbol && in_.accept("+")) value.offset = in_.integer();
      return value;
    }
    return in_.number(in_.accept("-"));
  }
  Operand address() {
    Operand value, base;
    if (in_.peek().kind == Token::Kind::word) {
      base = named(in_.word());
      if (base.kind == Operand::Kind::reg)
        value.reg = base.reg;
      else if (base.kind == Operand::Kind::symbol)
        value.name = base.name;
      else
        in_.fail(in_.peek(), fmt::format("`{}` is not an address", base.name));
      if (in_.accept("+") || in_.is("-")) value.offset = in_.integer();
    } else {
      value.offset = in_.integer();
    }
    value.kind = Operand::Kind::memory;
    in_.expect("]");
    return value;
  }

  PtxReader& in_;
  Function& function_;
  std::vector<Scope> scopes_;
};

}  // namespace

void read_body(PtxReader& in, Function& function) { BodyReader(in, function).read(); }

}  // namespace gacc::emulator
