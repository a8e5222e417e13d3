// Reads a kernel's body: declarations, labels and instructions with their operands.
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
  std::unordered_map<std::string, Operand> names;  // registers, and variables by their unique names
  std::vector<Range> ranges;
  std::unordered_map<std::string, int> labels;
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
      statement.guard = named(in_.word()).reg;
      if (in_.status().ok() && (statement.guard < 0 || function_.registers[statement.guard].type.bits != 1))
        return in_.fail(token, "a guard must be a predicate register");
    }
    statement.opcode = in_.word();
    statement.line = token.line;
    const bool branch = statement.opcode.starts_with("bra");
    while (in_.go() && !in_.is(";")) {
      if (branch) scopes_.back().branches.push_back({function_.statements.size(), statement.operands.size()});
      statement.operands.push_back(branch ? Operand{.kind = Operand::Kind::label, .name = in_.word()}
                                          : operand());
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
          add_register(scopes_.back(), name, type);
        }
      } while (in_.go() && in_.accept(","));
      in_.expect(";");
    } else if (token.text == ".local" || token.text == ".shared" || token.text == ".global" ||
               token.text == ".const") {
      for (Variable& variable : read_variables(in_, token.text, false)) {
        const std::string unique = fmt::format("{}#{}", variable.name, function_.variables.size());
        scopes_.back().names[variable.name] = {.kind = Operand::Kind::symbol, .name = unique};
        variable.name = unique;
        function_.variables.push_back(std::move(variable));
      }
    } else if (token.text == ".loc" || token.text == ".file" || token.text == ".pragma") {
      in_.skip_line(token.line);
    } else {
      in_.fail(token, fmt::format("`{}` is not supported in a function", token.text));
    }
  }
  const Operand& add_register(Scope& scope, const std::string& name, const Type& type) {
    if (function_.registers.size() > 200000)
      in_.fail(in_.peek(), "a function has more than 200000 registers");
    const auto number = static_cast<int>(function_.registers.size());
    function_.registers.push_back({name, type});
    return scope.names[name] = {.kind = Operand::Kind::reg, .reg = number};
  }

  Operand named(const std::string& name) {
    if (name == "_") return {};
    const size_t digits = name.find_last_not_of("0123456789") + 1;
    const std::string_view prefix = std::string_view(name).substr(0, digits);
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (auto found = scope->names.find(name); found != scope->names.end()) return found->second;
      uint64_t number = 0;  // in a range
      if (std::from_chars(name.data() + digits, name.data() + name.size(), number).ec != std::errc{})
        continue;
      for (const Range& range : scope->ranges)
        if (range.prefix == prefix && number < range.count) return add_register(*scope, name, range.type);
    }
    return {.kind = name[0] == '%' ? Operand::Kind::special : Operand::Kind::symbol, .name = name};
  }
  Operand operand() {
    Operand value;
    const Token& token = in_.peek();
    if (in_.accept("{")) {
      value.kind = Operand::Kind::vector;
      while (in_.go() && !in_.is("}")) {
        value.elements.push_back(operand());
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
    Operand value;
    if (in_.peek().kind == Token::Kind::word) {
      value = named(in_.word());
      if (value.kind != Operand::Kind::reg && value.kind != Operand::Kind::symbol)
        in_.fail(in_.peek(), fmt::format("`{}` is not an address", value.name));
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
