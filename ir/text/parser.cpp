// The parser of the textual IR: recursive descent, one token ahead. It stops at the first thing it cannot
// read; whatever it returns is well-formed (names, arity and kinds of operands), and the verifier does the
// rest.
#include <limits>
#include <set>
#include <unordered_map>

#include "ir/op_info.h"
#include "ir/row_pitch.h"
#include "ir/text/lexer.h"
#include "ir/text/text.h"

namespace gacc::ir {

namespace {

struct Failed {};  // unwinds to parse(); the diagnostic has been made; never leaves this file

class Parser {
 public:
  Parser(std::string_view text, Diag& diag) : lexer_(text), diag_(diag) { take(); }

  Module module() {
    keyword("module");
    module_.name = name(Tok::buffer, "the module's @name");
    if (accept_word("source")) expect("("), module_.source = text(), expect(")");
    keyword("phase"), expect("(");
    const Token phase = expect(Tok::word, "a phase");
    if (const auto known = parse_phase(phase.text))
      module_.phase = *known;
    else
      fail(phase.at, Kind::unknown_value, "there is no phase `{}`", phase.text);
    expect(")");
    if (accept_word("arena")) expect("("), module_.arena_bytes = integer(), expect(")");
    if (accept_word("host")) expect("("), module_.host_bytes = integer(), expect(")");
    if (accept_word("target")) expect("("), module_.target = key(), expect(")");
    expect("{");
    while (!is("}")) item();
    expect("}");
    for (const auto& [buffer, of] : owners_) module_.buffers[buffer].of = buffer_named(of);
    if (token_.kind != Tok::end)
      fail(token_.at, Kind::syntax, "nothing may follow the module's closing brace");
    return std::move(module_);
  }

 private:
  template <class... A>
  [[noreturn]] void fail(const Location& at, Kind kind, fmt::format_string<A...> format, A&&... args) {
    diag_.error(kind, at, format, std::forward<A>(args)...);
    throw Failed{};
  }

  // --- tokens
  void take() {
    token_ = lexer_.next();
    if (token_.kind == Tok::bad) fail(token_.at, Kind::syntax, "{}", token_.text);
  }
  Token expect(Tok kind, std::string_view what) {
    if (token_.kind != kind) {
      if (token_.kind == Tok::end) fail(token_.at, Kind::syntax, "the text ends where {} is expected", what);
      fail(token_.at, Kind::syntax, "expected {}, found `{}`", what, token_.text);
    }
    Token token = token_;
    take();
    return token;
  }
  bool is(std::string_view punctuation) const {
    return token_.kind == Tok::punctuation && token_.text == punctuation;
  }
  bool accept(std::string_view punctuation) { return is(punctuation) ? (take(), true) : false; }
  bool accept_word(std::string_view word) {
    return token_.kind == Tok::word && token_.text == word ? (take(), true) : false;
  }
  void expect(std::string_view punctuation) {
    if (!accept(punctuation))
      fail(token_.at, Kind::syntax, "expected `{}`, found `{}`", punctuation, token_.text);
  }
  void keyword(std::string_view word) {
    if (!accept_word(word)) fail(token_.at, Kind::syntax, "expected `{}`, found `{}`", word, token_.text);
  }
  std::string name(Tok kind, std::string_view what) { return expect(kind, what).text; }
  std::string text() { return name(Tok::text, "a quoted text"); }
  int64_t integer() { return expect(Tok::integer, "an integer").integer; }
  std::string key() { return token_.kind == Tok::text ? text() : name(Tok::word, "a key"); }

  // --- pieces
  Type type() {
    const Token word = expect(Tok::word, "a type such as f32[B,10]");
    const auto dtype = parse_dtype(word.text);
    if (!dtype) fail(word.at, Kind::unknown_value, "there is no element type `{}`", word.text);
    Type out{*dtype, {}};
    expect("[");
    while (!is("]")) {
      const Location at = token_.at;
      out.shape.push_back(accept_word("B") ? kBatch : integer());
      if (out.shape.back() == kBatch ? out.shape.size() > 1 : out.shape.back() < 1)
        fail(at, Kind::shape_mismatch, "an extent is a positive integer, or B as the first one");
      if (!accept(",")) break;
    }
    if (const Location at = token_.at; accept_word("in")) {
      out.pitch = integer();
      const int64_t wanted = out.shape.size() < 2 ? 0 : wanted_pitch(out.shape.back());
      if (out.pitch != wanted)
        fail(at, Kind::shape_mismatch, "such rows {}",
             wanted == 0 ? "have no pitch" : fmt::format("lie in {}", wanted));
    }
    expect("]");
    return out;
  }

  std::optional<int64_t> offset() {
    if (accept("-")) return std::nullopt;
    return integer();
  }

  Attr attr() {
    switch (token_.kind) {
      case Tok::integer:
        return integer();
      case Tok::real:
        return expect(Tok::real, "a number").real;
      case Tok::text:
        return text();
      default:
        break;
    }
    if (accept_word("true")) return true;
    if (accept_word("false")) return false;
    expect("[");
    std::vector<double> reals;
    std::vector<int64_t> integers;
    Texts texts;
    while (!is("]")) {
      if (token_.kind == Tok::integer && reals.empty() && texts.empty())
        integers.push_back(integer());
      else if (token_.kind == Tok::real && integers.empty() && texts.empty())
        reals.push_back(expect(Tok::real, "a number").real);
      else if (token_.kind == Tok::text && integers.empty() && reals.empty())
        texts.push_back(text());
      else
        fail(token_.at, Kind::syntax, "a list holds integers only, reals only or texts only");
      if (!accept(",")) break;
    }
    expect("]");
    if (!texts.empty()) return texts;
    if (!reals.empty()) return reals;
    return integers;
  }

  Attrs attrs() {
    Attrs out;
    while (!is("}")) {
      const Location at = token_.at;
      const std::string word = key();
      if (!out.emplace(word, accept("=") ? attr() : Attr(true)).second)
        fail(at, Kind::duplicate_name, "`{}` is given twice", word);
      if (!accept(",")) break;
    }
    expect("}");
    return out;
  }

  ValueId value_named(const Token& name) {
    if (const auto found = values_.find(name.text); found != values_.end()) return found->second;
    fail(name.at, Kind::unknown_name, "there is no value `%{}` before this", name.text);
  }
  BufferId buffer_named(const Token& name) {
    if (const auto found = buffers_.find(name.text); found != buffers_.end()) return found->second;
    fail(name.at, Kind::unknown_name, "there is no buffer `@{}`", name.text);
  }

  Operand operand() {
    const Token token = token_;
    take();
    if (token.kind == Tok::value) return value_named(token);
    if (token.kind == Tok::buffer) return buffer_named(token);
    if (token.kind == Tok::integer || token.kind == Tok::real) return token.real;
    fail(token.at, Kind::syntax, "expected an operand (%value, @buffer or a number), found `{}`", token.text);
  }

  // loc(line:column)
  void location(Location& at) {
    if (!accept_word("loc")) return;
    expect("(");
    at = {.line = small_integer(), .column = 0};
    expect(":");
    at.column = small_integer();
    expect(")");
  }
  int32_t small_integer() {
    const Location at = token_.at;
    const int64_t value = integer();
    if (value < 0 || value > std::numeric_limits<int32_t>::max())
      fail(at, Kind::syntax, "{} does not fit here", value);
    return static_cast<int32_t>(value);
  }

  // --- items of a module
  void item() {
    const Token word = expect(Tok::word, "set, a buffer, or a region");
    if (word.text == "set") return setting();
    std::string known = "set";
    for (const BufferKind kind : all_buffer_kinds) {
      if (word.text == kind_text(kind)) return buffer(kind);
      known += fmt::format(", {}", kind_text(kind));
    }
    for (const RegionKind kind : all_regions) {
      if (word.text == region_text(kind)) return region(module_.region(kind), word.at);
      known += fmt::format("{}{}", kind == std::end(all_regions)[-1] ? " or " : ", ", region_text(kind));
    }
    fail(word.at, Kind::syntax, "expected {}, found `{}`", known, word.text);
  }

  void setting() {
    const Location at = token_.at;
    const std::string word = key();
    expect("=");
    if (!settings_.insert(word).second) fail(at, Kind::duplicate_name, "setting `{}` is given twice", word);
    if (const std::string problem = set(module_.settings, module_.results, word, attr()); !problem.empty())
      fail(at, Kind::unknown_key, "{}", problem);
  }

  void buffer(BufferKind kind) {
    Buffer out{.kind = kind, .at = token_.at};
    out.name = name(Tok::buffer, "a buffer's @name");
    if (!buffers_.emplace(out.name, BufferId{static_cast<int32_t>(module_.buffers.size())}).second)
      fail(out.at, Kind::duplicate_name, "buffer `@{}` is defined twice", out.name);
    expect(":");
    out.type = type();
    out.role = plain_role(kind, out.name);
    role(out);
    if (accept_word("frozen")) out.trainable = false;
    if (accept_word("group")) expect("("), out.group = small_integer(), expect(")");
    if (accept_word("from")) expect("("), out.from = integer(), expect(")");
    out.host = accept_word("host");
    if (accept_word("at")) out.offset = integer();
    location(out.at);
    module_.add_buffer(std::move(out));
  }

  // gradient(@w) sum
  void role(Buffer& buffer) {
    const auto said = token_.kind == Tok::word ? parse_role(token_.text) : std::nullopt;
    if (said) {
      buffer.role = *said;
      const Token word = expect(Tok::word, "a role");
      if (accept("(")) {
        owners_.emplace_back(module_.buffers.size(),
                             expect(Tok::buffer, "the @name of the buffer that it belongs to"));
        expect(")");
      }
    }
    for (const RankCombine combine : {RankCombine::sum, RankCombine::ordered}) {
      const Location at = token_.at;
      if (accept_word(combine_text(combine)) && role_info(buffer.role).combine != combine)
        fail(at, Kind::invalid_ir, "R11: ranks combine a buffer of the role `{}` by `{}`, not by `{}`",
             role_info(buffer.role).text, combine_text(role_info(buffer.role).combine),
             combine_text(combine));
    }
  }

  void define(Region& region, const Token& token, std::vector<ValueId>& ids) {
    const ValueId id{static_cast<int32_t>(region.values.size())};
    if (!values_.emplace(token.text, id).second)
      fail(token.at, Kind::duplicate_name, "value `%{}` is defined twice", token.text);
    region.values.push_back({token.text, {}});
    ids.push_back(id);
  }

  void region(Region& out, const Location& at) {
    if (!out.empty()) fail(at, Kind::duplicate_name, "region `{}` is defined twice", region_text(out.kind));
    out.at = at;
    values_.clear();
    if (accept("(")) {
      while (!is(")")) {
        define(out, expect(Tok::value, "an input's %name"), out.inputs);
        expect(":");
        out[out.inputs.back()].type = type();
        if (accept_word("at")) out[out.inputs.back()].offset = integer();
        if (!accept(",")) break;
      }
      expect(")");
    }
    expect("{");
    while (!is("}")) {
      if (accept_word("yield")) {
        do yield(out);
        while (accept(","));
        break;
      }
      op(out);
    }
    expect("}");
    if (accept_word("schedule")) schedule(out);
  }

  // --- the schedule of a region
  // word(1)
  int64_t number_of(std::string_view word) {
    keyword(word), expect("(");
    const int64_t number = integer();
    expect(")");
    return number;
  }
  int32_t kernel_number() {
    keyword("k"), expect("(");
    const int32_t number = small_integer();
    expect(")");
    return number;
  }

  Extent extent() {
    if (accept_word("B")) return {1, true};
    const int64_t factor = integer();
    return {factor, accept_word("B")};
  }

  Operand stored() {
    const Location at = token_.at;
    const Operand out = operand();
    if (as_number(out) != nullptr) fail(at, Kind::syntax, "a launch takes values and buffers, no numbers");
    return out;
  }

  void arguments(std::vector<Operand>& operands, std::vector<Extent>& extents) {
    expect("(");
    do operands.push_back(stored());
    while (accept(","));
    expect(":");
    do extents.push_back(extent());
    while (accept(","));
    expect(")");
  }

  KernelCall kernel_call(int32_t& number) {
    KernelCall out;
    out.function = key();
    number = kernel_number();
    arguments(out.operands, out.extents);
    keyword("grid"), expect("("), out.items = extent(), keyword("by"), out.per_block = integer(), expect(")");
    out.block = number_of("block");
    if (token_.kind == Tok::word && token_.text == "shared") out.shared = number_of("shared");
    return out;
  }

  ProductCall product_call(int32_t& number) {
    ProductCall out;
    number = kernel_number();
    const Location at = token_.at;
    std::vector<Operand> operands;
    std::vector<Extent> extents;
    arguments(operands, extents);
    if (operands.size() != 3 || (extents.size() != 3 && extents.size() != 6))
      fail(at, Kind::syntax, "a product takes three operands, three extents and, or not, three pitches");
    if (extents.size() == 6) out.pitch = {extents[3], extents[4], extents[5]};
    out.a = operands[0], out.b = operands[1], out.c = operands[2];
    out.m = extents[0], out.n = extents[1], out.k = extents[2];
    keyword("tile"), expect("("), out.tile_m = integer(), expect(","), out.tile_n = integer(), expect(")");
    if (token_.kind == Tok::word && token_.text == "slices") out.slices = number_of("slices");
    out.block = number_of("block");
    out.shared = number_of("shared");
    if (accept_word("then")) {
      Then& then = out.then.emplace();
      expect("("), then.kernel = kernel_number(), expect(","), then.slot = small_integer();
      if (accept(",")) keyword("keeps"), then.keeps = true;
      expect(")");
    }
    if (accept_word("bias")) {
      Bias& bias = out.bias.emplace();
      expect("(");
      bias.vector = buffer_named(expect(Tok::buffer, "the @name of a bias"));
      expect(","), bias.kernel = kernel_number(), expect(")");
    }
    return out;
  }

  CopyCall copy_call(int32_t& number) {
    number = kernel_number();
    const Location at = token_.at;
    std::vector<Operand> operands;
    std::vector<Extent> extents;
    arguments(operands, extents);
    if (operands.size() != 2 || extents.size() != 1 || extents[0].times_batch)
      fail(at, Kind::syntax, "a copy takes two operands and a number of bytes");
    return {operands[0], operands[1], extents[0].factor};
  }

  Branch branch() {
    Branch out;
    if (accept_word("stream")) expect("("), out.stream = small_integer(), expect(")");
    if (accept_word("after")) {
      expect("(");
      do out.after.push_back(kernel_number());
      while (accept(","));
      expect(")");
    }
    return out;
  }

  CallSite call() {
    CallSite out;
    out.at = token_.at;
    if (accept_word("product")) {
      out.what = product_call(out.kernel);
    } else if (accept_word("copy")) {
      out.what = copy_call(out.kernel);
    } else {
      keyword("kernel");
      out.what = kernel_call(out.kernel);
    }
    if (accept_word("level")) expect("("), out.level = small_integer(), expect(")");
    out.branch = branch();
    auto* product = std::get_if<ProductCall>(&out.what);
    if (product != nullptr && accept_word("workspace")) {
      Bytes& bytes = product->workspace.emplace();
      expect("("), bytes.offset = integer(), expect(","), bytes.size = integer(), expect(")");
    }
    return out;
  }

  void schedule(Region& region) {
    Schedule& out = region.schedule.emplace();
    expect("{");
    if (const Location at = token_.at; accept_word("persistent")) {
      Persistent& persistent = out.persistent.emplace();
      persistent.at = at;
      persistent.function = key();
      persistent.block = number_of("block"), persistent.blocks = number_of("blocks");
      persistent.required = accept_word("required");
    }
    while (!is("}")) {
      Merged merged;
      merged.at = token_.at;
      if (!accept_word("merged")) {
        out.launches.emplace_back(call());
        continue;
      }
      merged.function = key();
      merged.block = number_of("block"), merged.blocks = number_of("blocks");
      merged.branch = branch();
      expect("{");
      do merged.parts.push_back(call());
      while (!is("}"));
      expect("}");
      out.launches.emplace_back(std::move(merged));
    }
    expect("}");
  }

  void yield(Region& region) {
    Yield out;
    const Token at = token_;
    const std::string role = key();
    const std::optional<YieldRole> known = parse_yield_role(role);
    if (!known) fail(at.at, Kind::unknown_name, "there is no yield role `{}`", role);
    out.role = *known;
    if (out.role == YieldRole::metric) out.metric = key();
    if (out.role == YieldRole::grad) out.of = buffer_named(expect(Tok::buffer, "the parameter's @name"));
    out.what = operand();
    region.yields.push_back(std::move(out));
  }

  void op(Region& region) {
    Op out{.origin = natural_origin(region.kind)};
    std::vector<Token> results;
    while (token_.kind == Tok::value) {
      results.push_back(expect(Tok::value, "a result"));
      if (!accept(",")) break;
    }
    if (!results.empty()) expect("=");
    const Token word = expect(Tok::word, "an op");
    out.info = find_op(word.text);
    out.at = word.at;
    if (out.info == nullptr) {
      std::vector<std::string_view> known;
      for (const OpInfo* info : all_ops()) known.push_back(info->name);
      fail(word.at, Kind::unknown_name, "there is no op `{}`{}", word.text, did_you_mean(word.text, known));
    }
    while (token_.kind == Tok::value || token_.kind == Tok::buffer || token_.kind == Tok::integer ||
           token_.kind == Tok::real) {
      out.operands.push_back(operand());
      if (!accept(",")) break;
    }
    if (!out.info->takes_operands(out.operands.size()))
      fail(word.at, Kind::invalid_ir, "R3: `{}` takes {} operands, {} are given", word.text,
           out.info->operand_count_text(), out.operands.size());
    if (results.size() != static_cast<size_t>(out.info->results))
      fail(word.at, Kind::invalid_ir, "R3: `{}` has {} results, {} are named", word.text, out.info->results,
           results.size());
    if (accept_word("when")) expect("("), out.when = operand(), expect(")");
    for (const Token& result : results) define(region, result, out.results);
    for (size_t i = 0; i < out.results.size(); ++i) {
      expect(i == 0 ? ":" : ",");
      region[out.results[i]].type = type();
    }
    if (!out.results.empty() && accept_word("at")) {
      for (size_t i = 0; i < out.results.size(); ++i) {
        if (i > 0) expect(",");
        region[out.results[i]].offset = offset();
      }
    }
    if (accept_word("k")) expect("("), out.kernel = small_integer(), expect(")");
    out.keep_f32 = accept_word("keep_f32");
    if (accept_word("seg")) expect("("), out.segment = small_integer(), expect(")");
    if (accept_word("remat")) {
      expect("(");
      out.remat = value_named(expect(Tok::value, "the %name of what is made again"));
      expect(")");
    }
    for (const Origin origin : {Origin::forward, Origin::gradient, Origin::init, Origin::update})
      if (accept_word(origin_text(origin))) out.origin = origin;
    if (accept("{")) out.attrs = attrs();
    location(out.at);
    region.ops.push_back(std::move(out));
  }

  Lexer lexer_;
  Diag& diag_;
  Token token_;
  Module module_;
  std::set<std::string> settings_;  // keys that were read
  // Buffers, and values of the region that is read, by name.
  std::unordered_map<std::string, BufferId> buffers_;
  std::unordered_map<std::string, ValueId> values_;
  std::vector<std::pair<size_t, Token>> owners_;  // by buffer: what it belongs to
};

}  // namespace

std::optional<Module> parse(std::string_view text, Diag& diag) {
  try {
    return Parser(text, diag).module();
  } catch (const Failed&) {
    return std::nullopt;
  }
}

}  // namespace gacc::ir
