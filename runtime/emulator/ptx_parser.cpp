// Parses PTX into ptx.h's structures: directives, variables with initialisers, functions, statements.
// Registers are made at their first use, so `.reg .b32 %r<1000>` costs nothing. Names of registers, labels
// and .param variables are local to their { }.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <unordered_map>

#include "runtime/emulator/ptx.h"
#include "runtime/emulator/ptx_lexer.h"

namespace gacc::emulator {
namespace {

constexpr int64_t kMaxVariable = int64_t{1} << 28;
constexpr size_t kMaxInitial = size_t{1} << 26;

struct Range {
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

class Parser {
 public:
  Parser(const std::vector<Token>& tokens, PtxFile& file) : tokens_(tokens), file_(file) {}
  Status parse() {
    while (status_.ok() && peek().kind != Token::Kind::end) top_level();
    return status_;
  }

 private:
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ < tokens_.size() - 1 ? at_++ : at_]; }
  bool is(std::string_view text) const { return peek().kind != Token::Kind::string && peek().text == text; }
  bool accept(std::string_view text) {
    if (!is(text) || peek().kind == Token::Kind::end) return false;
    next();
    return true;
  }
  void fail(const Token& token, std::string text) {
    if (!status_.ok()) return;
    for (char& c : text)
      if (c == '\n' || c == '\0') c = '?';
    status_ = Status::error("line {}: {}", token.line, text);
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail(peek(), fmt::format("expected `{}`, found `{}`", text, peek().text));
  }
  std::string word() {
    if (peek().kind != Token::Kind::word)
      fail(peek(), fmt::format("expected a name, found `{}`", peek().text));
    return std::string(next().text);
  }
  int64_t integer() {
    Operand value = number(accept("-"));
    if (value.kind != Operand::Kind::integer) fail(peek(), "expected an integer");
    return static_cast<int64_t>(value.bits);
  }
  bool go() const { return status_.ok() && peek().kind != Token::Kind::end; }

  // Literals: 12, 0x1F, 0b101, 017, 12U, 0f3F800000, 0d3FF0…, 1.5.
  Operand number(bool negative) {
    Operand value;
    const Token& token = next();
    std::string text(token.text);
    if (token.kind != Token::Kind::number) {
      fail(token, fmt::format("expected a number, found `{}`", text));
      return value;
    }
    auto hex = [&](size_t from, size_t digits) {
      uint64_t bits = 0;
      auto [end, error] = std::from_chars(text.data() + from, text.data() + text.size(), bits, 16);
      if (error != std::errc{} || end != text.data() + text.size() ||
          (digits && text.size() - from != digits))
        fail(token, fmt::format("`{}` is not a number", text));
      return bits;
    };
    char kind = text.size() > 2 && text[0] == '0' ? text[1] : '\0';
    if (kind == 'f' || kind == 'F') {
      value.kind = Operand::Kind::f32;
      value.bits = hex(2, 8) ^ (negative ? 0x80000000u : 0);
    } else if (kind == 'd' || kind == 'D') {
      value.kind = Operand::Kind::f64;
      value.bits = hex(2, 16) ^ (negative ? uint64_t{1} << 63 : 0);
    } else if (text.find('.') != text.npos ||
               (kind != 'x' && kind != 'X' && text.find_first_of("eE") != text.npos)) {
      char* end = nullptr;
      double d = std::strtod(text.c_str(), &end);
      if (*end != '\0') fail(token, fmt::format("`{}` is not a number", text));
      if (negative) d = -d;
      value.kind = Operand::Kind::f64;
      std::memcpy(&value.bits, &d, 8);
    } else {
      if (text.back() == 'U') text.pop_back();
      value.kind = Operand::Kind::integer;
      if (kind == 'x' || kind == 'X') {
        value.bits = hex(2, 0);
      } else {
        int radix = kind == 'b' || kind == 'B' ? 2 : text.size() > 1 && text[0] == '0' ? 8 : 10;
        const char* from = text.data() + (radix == 2 ? 2 : 0);
        auto [end, error] = std::from_chars(from, text.data() + text.size(), value.bits, radix);
        if (error != std::errc{} || end != text.data() + text.size())
          fail(token, fmt::format("`{}` is not a number", text));
      }
      if (negative) value.bits = ~value.bits + 1;
    }
    return value;
  }

  Type type_directive() {
    Type type;
    const Token& token = next();
    if (token.text.size() < 2 || token.text[0] != '.' || !parse_type(token.text.substr(1), type))
      fail(token, fmt::format("expected a type, found `{}`", token.text));
    return type;
  }

  void top_level() {
    const Token& token = next();
    std::string_view text = token.text;
    if (text == ".version")
      file_.version = std::string(next().text);
    else if (text == ".target") {
      file_.target = word();
      while (go() && accept(",")) word();
    } else if (text == ".address_size") {
      if (integer() != 64) fail(token, "only .address_size 64 is supported");
    } else if (text == ".file" || text == ".pragma" || text == ".loc") {
      skip_line(token.line);
    } else if (text == ".section") {
      while (go() && !is("{")) next();
      skip_braces();
    } else if (text == ".visible" || text == ".weak" || text == ".common" || text == ".noreturn") {
      // linkage changes nothing here
    } else if (text == ".extern") {
      external_ = true;
      return;
    } else if (text == ".entry" || text == ".func") {
      function(text == ".entry", token);
    } else if (text == ".global" || text == ".const" || text == ".shared") {
      variables(space_of(text), file_.variables, nullptr);
    } else if (text == ".alias" || text == ";") {
      if (text == ".alias") fail(token, "`.alias` is not supported");
    } else {
      fail(token, fmt::format("`{}` is not expected here", text));
    }
    external_ = false;
  }

  static Space space_of(std::string_view text) {
    return text == ".const"    ? Space::constant
           : text == ".shared" ? Space::shared
           : text == ".local"  ? Space::local
           : text == ".param"  ? Space::param
                               : Space::global;
  }
  void skip_line(int line) {
    while (peek().kind != Token::Kind::end && peek().line == line && !is("}")) next();
  }
  void skip_braces() {
    int depth = 0;
    do {
      if (is("{")) ++depth;
      if (is("}")) --depth;
      next();
    } while (go() && depth > 0);
  }

  // After the space: [.align N] [.attribute(..)] [.vN] .type name[[n]..] [= init] {, name…} ;
  void variables(Space space, std::vector<Variable>& into, Scope* scope) {
    int64_t align = 0;
    int lanes = 1;
    while (go()) {
      if (accept(".align"))
        align = integer();
      else if (accept(".v2"))
        lanes = 2;
      else if (accept(".v4"))
        lanes = 4;
      else if (accept(".attribute")) {
        while (go() && !accept(")")) next();
      } else
        break;
    }
    Type type = type_directive();
    do {
      Variable variable = declarator(space, type, align, lanes);
      if (accept("=")) initial(variable);
      if (scope) {
        std::string unique = fmt::format("{}#{}", variable.name, function_->variables.size());
        scope->variables[variable.name] = unique;
        variable.name = unique;
      }
      into.push_back(std::move(variable));
    } while (go() && accept(","));
    expect(";");
  }
  Variable declarator(Space space, const Type& type, int64_t align, int lanes) {
    Variable variable;
    variable.line = peek().line;
    variable.space = space;
    variable.type = type;
    variable.external = external_;
    int64_t element = std::max(1, type.bytes()) * lanes;
    if (align == 0) align = element;
    if (align < 1 || align > 4096 || (align & (align - 1)))
      fail(peek(), "an alignment is a power of two up to 4096");
    variable.align = align;
    variable.name = word();
    variable.bytes = element;
    while (go() && accept("[")) {
      int64_t count = is("]") ? 0 : integer();
      expect("]");
      if (count < 0 || count > kMaxVariable || variable.bytes * count > kMaxVariable) {
        fail(peek(), fmt::format("`{}` is larger than 256 MiB", variable.name));
        return variable;
      }
      variable.bytes *= count;
    }
    return variable;
  }
  void initial(Variable& variable) {
    int size = std::max(1, variable.type.bytes());
    variable.initialised = true;
    int depth = 0;
    do {
      if (accept("{")) {
        ++depth;
        continue;
      }
      if (accept("}")) {
        --depth;
        continue;
      }
      if (accept(",")) continue;
      if (peek().kind == Token::Kind::word) {  // the address of another variable
        bool generic = accept("generic") && accept("(");
        Variable::Address address{static_cast<int64_t>(variable.initial.size()), word(), 0};
        if (accept("+")) address.offset = integer();
        if (generic) expect(")");
        if (size != 8) fail(peek(), "an address needs 8 bytes");
        variable.addresses.push_back(address);
        variable.initial.append(8, '\0');
      } else {
        uint64_t bits = literal_as(number(accept("-")), variable.type);
        for (int i = 0; i < size; ++i) variable.initial.push_back(static_cast<char>(bits >> (8 * i)));
      }
      if (variable.initial.size() > kMaxInitial) fail(peek(), "an initialiser is too long");
    } while (go() && depth > 0);
    if (static_cast<int64_t>(variable.initial.size()) > variable.bytes)
      fail(peek(), fmt::format("`{}` has more initial values than elements", variable.name));
  }
  static uint64_t literal_as(const Operand& value, const Type& type) {
    if (type.name == "f32" && value.kind == Operand::Kind::f64) {
      double d;
      std::memcpy(&d, &value.bits, 8);
      float f = static_cast<float>(d);
      uint32_t bits;
      std::memcpy(&bits, &f, 4);
      return bits;
    }
    return value.bits;
  }

  std::vector<Variable> parameters() {
    std::vector<Variable> list;
    expect("(");
    while (go() && !is(")")) {
      if (!accept(".param")) {
        fail(peek(), fmt::format("expected `.param`, found `{}`", peek().text));
        break;
      }
      int64_t align = 0;
      Type type;
      bool pointer = false;
      while (go()) {  // .param .align 8 .b8 x[16] and .param .u64 .ptr .global .align 16 x
        if (accept(".ptr"))
          pointer = true;
        else if (accept(".align")) {
          int64_t n = integer();
          if (!pointer) align = n;
        } else if (pointer &&
                   (accept(".global") || accept(".shared") || accept(".local") || accept(".const"))) {
        } else if (type.bits == 0 && peek().kind == Token::Kind::directive)
          type = type_directive();
        else
          break;
      }
      bool external = std::exchange(external_, false);
      list.push_back(declarator(Space::param, type, align, 1));
      external_ = external;
      if (!accept(",")) break;
    }
    expect(")");
    return list;
  }

  void function(bool entry, const Token& token) {
    Function function;
    function.entry = entry;
    function.line = token.line;
    if (!entry && is("(")) function.results = parameters();
    function.name = word();
    if (is("(")) function.params = parameters();
    while (go() && peek().kind == Token::Kind::directive) {
      const Token& option = next();
      if (option.text == ".maxntid" || option.text == ".reqntid") {
        int* into = option.text == ".maxntid" ? function.max_threads : function.required_threads;
        for (int i = 0; i < 3; ++i) into[i] = 1;
        for (int i = 0; i < 3; ++i) {
          into[i] = static_cast<int>(std::clamp<int64_t>(integer(), 0, 1024));
          if (!accept(",")) break;
        }
      } else if (option.text == ".minnctapersm" || option.text == ".maxnreg" ||
                 option.text == ".maxnctapersm") {
        integer();
      } else if (option.text == ".pragma") {
        next();
        accept(";");
      } else if (option.text == ".noreturn") {
      } else {
        fail(option, fmt::format("`{}` is not supported", option.text));
      }
    }
    function_ = &function;
    external_ = false;
    if (accept(";"))
      function.declared_only = true;
    else
      body();
    function_ = nullptr;
    if (status_.ok()) file_.functions.push_back(std::move(function));
  }

  void body() {
    expect("{");
    scopes_.clear();
    scopes_.emplace_back();
    while (go() && !scopes_.empty()) {
      if (accept("{")) {
        if (scopes_.size() > 256) return fail(peek(), "blocks are nested too deep");
        scopes_.emplace_back();
      } else if (accept("}")) {
        close_scope();
      } else {
        statement();
      }
    }
    if (!scopes_.empty()) fail(peek(), "a function without its end");
  }
  void close_scope() {
    Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (const Scope::Use& use : scope.branches) {
      Operand& operand = function_->statements[use.statement].operands[use.operand];
      if (auto found = scope.labels.find(operand.name); found != scope.labels.end())
        operand.target = found->second;
      else if (!scopes_.empty())
        scopes_.back().branches.push_back(use);
      else if (status_.ok())
        status_ = Status::error("line {}: label `{}` is not defined",
                                function_->statements[use.statement].line, operand.name);
    }
  }

  void statement() {
    const Token& token = peek();
    if (token.kind == Token::Kind::directive) return body_directive();
    if (token.kind == Token::Kind::word && peek(1).text == ":") {
      std::string label(next().text);
      next();
      if (!scopes_.back().labels.emplace(label, static_cast<int>(function_->statements.size())).second)
        fail(token, fmt::format("label `{}` is defined twice", label));
      return;
    }
    if (accept(";")) return;
    Statement statement;
    statement.line = token.line;
    if (accept("@")) {
      statement.guard_negated = accept("!");
      statement.guard = register_of(word());
      if (status_.ok() && (statement.guard < 0 || function_->registers[statement.guard].type.bits != 1))
        return fail(token, "a guard must be a predicate register");
    }
    statement.opcode = word();
    statement.line = token.line;
    bool label = statement.opcode.starts_with("bra");
    if (statement.opcode.starts_with("call"))
      call(statement);
    else
      while (go() && !is(";")) {
        statement.operands.push_back(operand(label));
        if (label)
          scopes_.back().branches.push_back({function_->statements.size(), statement.operands.size() - 1});
        if (!accept(",") && !accept("|")) break;
      }
    expect(";");
    if (status_.ok()) function_->statements.push_back(std::move(statement));
  }
  void body_directive() {
    const Token& token = next();
    if (token.text == ".reg") {
      int64_t lanes = accept(".v2") || accept(".v4");
      if (lanes) return fail(token, "vector registers are not supported");
      Type type = type_directive();
      do {
        std::string name = word();
        if (accept("<")) {
          int64_t count = integer();
          expect(">");
          scopes_.back().ranges.push_back({name, static_cast<uint64_t>(std::max<int64_t>(count, 0)), type});
        } else {
          scopes_.back().registers[name] = add_register(name, type);
        }
      } while (go() && accept(","));
      expect(";");
    } else if (token.text == ".local" || token.text == ".shared" || token.text == ".param" ||
               token.text == ".global" || token.text == ".const") {
      variables(space_of(token.text), function_->variables, &scopes_.back());
    } else if (token.text == ".loc" || token.text == ".file" || token.text == ".pragma") {
      skip_line(token.line);
    } else {
      fail(token, fmt::format("`{}` is not supported in a function", token.text));
    }
  }
  // call.uni (results), name, (arguments): operands are a vector, a symbol, a vector.
  void call(Statement& statement) {
    auto list = [&] {
      Operand vector;
      vector.kind = Operand::Kind::vector;
      expect("(");
      while (go() && !is(")")) {
        vector.elements.push_back(operand(false));
        if (!accept(",")) break;
      }
      expect(")");
      return vector;
    };
    Operand results, arguments, name;
    results.kind = arguments.kind = Operand::Kind::vector;
    if (is("(")) {
      results = list();
      expect(",");
    }
    name.kind = Operand::Kind::symbol;
    name.name = word();
    if (accept(",")) {
      if (is("(")) arguments = list();
      if (accept(",")) return fail(peek(), "indirect calls are not supported");
    }
    statement.operands = {results, name, arguments};
  }

  int add_register(std::string name, const Type& type) {
    if (function_->registers.size() > 200000) fail(peek(), "a function has more than 200000 registers");
    function_->registers.push_back({std::move(name), type});
    return static_cast<int>(function_->registers.size()) - 1;
  }
  // -1 when no register has this name.
  int register_of(const std::string& name) {
    size_t digits = name.size();
    while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
    std::string_view prefix = std::string_view(name).substr(0, digits),
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
    if (int reg = register_of(name); reg >= 0) {
      value.kind = Operand::Kind::reg;
      value.reg = reg;
      return value;
    }
    value.kind = name[0] == '%' ? Operand::Kind::special : Operand::Kind::symbol;
    value.name = name;
    if (name == "WARP_SZ") {
      value.kind = Operand::Kind::integer;
      value.bits = 32;
    }
    for (size_t s = scopes_.size(); s-- > 0;)
      if (auto found = scopes_[s].variables.find(name); found != scopes_[s].variables.end()) {
        value.name = found->second;
        break;
      }
    return value;
  }
  Operand operand(bool label) {
    Operand value;
    const Token& token = peek();
    if (label) {
      value.kind = Operand::Kind::label;
      value.name = word();
      return value;
    }
    if (accept("{")) {
      value.kind = Operand::Kind::vector;
      while (go() && !is("}")) {
        value.elements.push_back(operand(false));
        if (value.elements.size() > 64) fail(token, "a vector has more than 64 elements");
        if (status_.ok() && value.elements.back().kind == Operand::Kind::vector)
          fail(token, "a vector inside a vector");
        if (!accept(",")) break;
      }
      expect("}");
      return value;
    }
    if (accept("[")) return address();
    if (accept("!")) {
      value = named(word());
      value.negated = true;
      if (value.kind != Operand::Kind::reg) fail(token, "`!` needs a predicate register");
      return value;
    }
    if (token.kind == Token::Kind::word) {
      value = named(word());
      if (value.kind == Operand::Kind::symbol && accept("+")) value.offset = integer();
      return value;
    }
    return number(accept("-"));
  }
  Operand address() {
    Operand value, base;
    if (peek().kind == Token::Kind::word) {
      base = named(word());
      if (base.kind == Operand::Kind::reg)
        value.reg = base.reg;
      else if (base.kind == Operand::Kind::symbol)
        value.name = base.name;
      else
        fail(peek(), fmt::format("`{}` is not an address", base.name));
      if (accept("+"))
        value.offset = integer();
      else if (is("-"))
        value.offset = integer();
    } else {
      value.offset = integer();
    }
    value.kind = Operand::Kind::memory;
    expect("]");
    return value;
  }

  const std::vector<Token>& tokens_;
  PtxFile& file_;
  size_t at_ = 0;
  Status status_;
  bool external_ = false;
  Function* function_ = nullptr;
  std::vector<Scope> scopes_;
};

}  // namespace

Status parse_ptx(std::string_view text, PtxFile& file) {
  std::vector<Token> tokens;
  if (Status status = tokenize(text, tokens); !status) return status;
  return Parser(tokens, file).parse();
}

}  // namespace gacc::emulator
