// Parses PTX into ptx.h's structures: the directives of a file, declarations, and the heads of functions.
#include <algorithm>

#include "emulator/ptx_reader.h"

namespace gacc::emulator {
namespace {

constexpr int64_t kMaxVariable = int64_t{1} << 28;
constexpr size_t kMaxInitial = size_t{1} << 26;

Variable declarator(PtxReader& in, Space space, bool external, const Type& type, int64_t align) {
  const int64_t element = std::max(1, type.bytes());
  Variable variable{.space = space,
                    .type = type,
                    .align = align == 0 ? element : align,
                    .bytes = element,
                    .external = external,
                    .line = in.peek().line};
  if (variable.align < 1 || variable.align > 4096 || (variable.align & (variable.align - 1)))
    in.fail(in.peek(), "an alignment is a power of two up to 4096");
  variable.name = in.word();
  while (in.go() && in.accept("[")) {
    const int64_t count = in.is("]") ? 0 : in.integer();
    in.expect("]");
    if (count < 0 || count > kMaxVariable || variable.bytes * count > kMaxVariable) {
      in.fail(in.peek(), fmt::format("`{}` is larger than 256 MiB", variable.name));
      return variable;
    }
    variable.bytes *= count;
  }
  return variable;
}

void initial(PtxReader& in, Variable& variable) {
  const int size = std::max(1, variable.type.bytes());
  int depth = 0;
  do {
    if (in.accept("{")) {
      ++depth;
    } else if (in.accept("}")) {
      --depth;
    } else if (!in.accept(",")) {
      const uint64_t bits = in.number(in.accept("-")).bits;
      for (int i = 0; i < size; ++i) variable.initial.push_back(static_cast<char>(bits >> (8 * i)));
      if (variable.initial.size() > kMaxInitial) in.fail(in.peek(), "an initialiser is too long");
    }
  } while (in.go() && depth > 0);
  if (static_cast<int64_t>(variable.initial.size()) > variable.bytes)
    in.fail(in.peek(), fmt::format("`{}` has more initial values than elements", variable.name));
}

// ( .param .type name, … )
std::vector<Variable> read_parameters(PtxReader& in) {
  std::vector<Variable> list;
  in.expect("(");
  while (in.go() && !in.is(")")) {
    if (!in.accept(".param")) {
      in.fail(in.peek(), fmt::format("expected `.param`, found `{}`", in.peek().text));
      break;
    }
    int64_t align = 0, pointed = 0;
    Type type;
    bool pointer = false;
    while (in.go())  // .param .align 8 .b8 x[16] and .param .u64 .ptr .global .align 16 x
      if (in.accept(".ptr"))
        pointer = true;
      else if (in.accept(".align"))
        (pointer ? pointed : align) = in.integer();
      else if (pointer &&
               (in.accept(".global") || in.accept(".shared") || in.accept(".local") || in.accept(".const"))) {
      } else if (type.bits == 0 && in.peek().kind == Token::Kind::directive)
        type = in.type_directive();
      else
        break;
    list.push_back(declarator(in, Space::param, false, type, align));
    if (!in.accept(",")) break;
  }
  in.expect(")");
  return list;
}

void function(PtxReader& in, int line, PtxFile& file) {
  Function function;
  function.line = line;
  function.name = in.word();
  if (in.is("(")) function.params = read_parameters(in);
  while (in.go() && in.peek().kind == Token::Kind::directive) {
    const Token& option = in.next();
    if (option.text == ".maxntid") {
      function.max_threads = 1;
      do {
        const auto threads = static_cast<int>(std::clamp<int64_t>(in.integer(), 0, 1024));
        function.max_threads = std::min(1 << 20, function.max_threads * threads);
      } while (in.go() && in.accept(","));
    } else if (option.text == ".minnctapersm") {
      in.integer();
    } else {
      in.fail(option, fmt::format("`{}` is not supported", option.text));
    }
  }
  read_body(in, function);
  if (in.status().ok()) file.functions.push_back(std::move(function));
}

void top_level(PtxReader& in, PtxFile& file) {
  const bool external = in.accept(".extern");
  const Token& token = in.next();
  const std::string_view text = token.text;
  if (text == ".version") {
    in.next();
  } else if (text == ".target") {
    do in.word();
    while (in.go() && in.accept(","));
  } else if (text == ".address_size") {
    if (in.integer() != 64) in.fail(token, "only .address_size 64 is supported");
  } else if (text == ".file" || text == ".pragma" || text == ".loc") {
    in.skip_line(token.line);
  } else if (text == ".entry") {
    function(in, token.line, file);
  } else if (text == ".global" || text == ".const" || text == ".shared") {
    for (Variable& variable : read_variables(in, text, external))
      file.variables.push_back(std::move(variable));
  } else if (text != ".visible") {  // linkage changes nothing here
    in.fail(token, fmt::format("`{}` is not expected here", text));
  }
}

}  // namespace

std::vector<Variable> read_variables(PtxReader& in, std::string_view directive, bool external) {
  const Space space = directive == ".const"    ? Space::constant
                      : directive == ".shared" ? Space::shared
                      : directive == ".local"  ? Space::local
                                               : Space::global;
  std::vector<Variable> variables;
  const int64_t align = in.accept(".align") ? in.integer() : 0;
  const Type type = in.type_directive();
  do {
    Variable variable = declarator(in, space, external, type, align);
    if (in.accept("=")) initial(in, variable);
    variables.push_back(std::move(variable));
  } while (in.go() && in.accept(","));
  in.expect(";");
  return variables;
}

Result<PtxFile> parse_ptx(std::string_view text) {
  const std::vector<Token> tokens = GACC_TRY(tokenize(text));
  PtxReader in(tokens);
  PtxFile file;
  while (in.go()) top_level(in, file);
  GACC_TRY(in.status());
  return file;
}

}  // namespace gacc::emulator
