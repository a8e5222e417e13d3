// Declarations of PTX: variables with their initialisers, and a function's parameters.
#include "emulator/ptx_reader.h"

namespace gacc::emulator {
namespace {

constexpr int64_t kMaxVariable = int64_t{1} << 28;
constexpr size_t kMaxInitial = size_t{1} << 26;

Variable declarator(PtxReader& in, Space space, bool external, const Type& type, int64_t align) {
  Variable variable;
  variable.line = in.peek().line;
  variable.space = space;
  variable.type = type;
  variable.external = external;
  const int64_t element = std::max(1, type.bytes());
  if (align == 0) align = element;
  if (align < 1 || align > 4096 || (align & (align - 1)))
    in.fail(in.peek(), "an alignment is a power of two up to 4096");
  variable.align = align;
  variable.name = in.word();
  variable.bytes = element;
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
  variable.initialised = true;
  int depth = 0;
  do {
    if (in.accept("{")) {
      ++depth;
      continue;
    }
    if (in.accept("}")) {
      --depth;
      continue;
    }
    if (in.accept(",")) continue;
    const uint64_t bits = in.number(in.accept("-")).bits;
    for (int i = 0; i < size; ++i) variable.initial.push_back(static_cast<char>(bits >> (8 * i)));
    if (variable.initial.size() > kMaxInitial) in.fail(in.peek(), "an initialiser is too long");
  } while (in.go() && depth > 0);
  if (static_cast<int64_t>(variable.initial.size()) > variable.bytes)
    in.fail(in.peek(), fmt::format("`{}` has more initial values than elements", variable.name));
}

}  // namespace

Space space_of(std::string_view directive) {
  return directive == ".const"    ? Space::constant
         : directive == ".shared" ? Space::shared
         : directive == ".local"  ? Space::local
         : directive == ".param"  ? Space::param
                                  : Space::global;
}

std::vector<Variable> read_variables(PtxReader& in, Space space, bool external) {
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

std::vector<Variable> read_parameters(PtxReader& in) {
  std::vector<Variable> list;
  in.expect("(");
  while (in.go() && !in.is(")")) {
    if (!in.accept(".param")) {
      in.fail(in.peek(), fmt::format("expected `.param`, found `{}`", in.peek().text));
      break;
    }
    int64_t align = 0;
    Type type;
    bool pointer = false;
    while (in.go()) {  // .param .align 8 .b8 x[16] and .param .u64 .ptr .global .align 16 x
      if (in.accept(".ptr"))
        pointer = true;
      else if (in.accept(".align")) {
        const int64_t n = in.integer();
        if (!pointer) align = n;
      } else if (pointer && (in.accept(".global") || in.accept(".shared") || in.accept(".local") ||
                             in.accept(".const"))) {
      } else if (type.bits == 0 && in.peek().kind == Token::Kind::directive)
        type = in.type_directive();
      else
        break;
    }
    list.push_back(declarator(in, Space::param, false, type, align));
    if (!in.accept(",")) break;
  }
  in.expect(")");
  return list;
}

}  // namespace gacc::emulator
