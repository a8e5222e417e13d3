// Evaluates while it parses: `live` says whether what is parsed counts. Of `a ? b : c` the
// names of both branches are read, since `a` chooses; of `a ?? b` those of `b` are read where `a` is nothing.
#include "frontend/expression.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace gacc::frontend {

namespace {

struct Activation {
  std::string_view theirs, ours;
};
constexpr Activation activations[] = {
    {"relu", "relu"},
    {"gelu", "gelu"},
    {"gelu_new", "gelu_tanh"},
    {"gelu_fast", "gelu_tanh"},
    {"gelu_pytorch_tanh", "gelu_tanh"},
    {"silu", "silu"},
    {"swish", "silu"},
    {"sigmoid", "sigmoid"},
    {"tanh", "tanh"},
};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Evaluator {
 public:
  Evaluator(std::string_view text, const Lookup& lookup, const std::map<std::string, Evaluated>& named)
      : text_(text), lookup_(lookup), named_(named) {}

  Evaluated run() {
    out_.value = choice();
    skip();
    if (at_ < text_.size()) fail("`{}` is not expected", text_.substr(at_));
    if (!out_.value.absent.empty()) lacks_key(out_.value.absent);
    if (out_.broken) out_.problem.clear();
    return std::move(out_);
  }

 private:
  using Value = ConfigValue;

  template <class... A>
  Value fail(fmt::format_string<A...> format, A&&... args) {
    if (out_.problem.empty() && live_) out_.problem = fmt::format(format, std::forward<A>(args)...);
    at_ = out_.problem.empty() ? at_ : text_.size();
    return {};
  }
  // Fails for values, which the text does not name.
  template <class... A>
  Value wrong(fmt::format_string<A...> format, A&&... args) {
    out_.of_values |= live_ && out_.problem.empty();
    return fail(format, std::forward<A>(args)...);
  }
  // Fails for a name that is not there.
  template <class... A>
  Value lacks(fmt::format_string<A...> format, A&&... args) {
    out_.missing |= live_ && out_.problem.empty();
    return fail(format, std::forward<A>(args)...);
  }
  Value lacks_key(const std::string& name) { return lacks("there is no `{}`", name); }

  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
  }
  // Takes the operator when it is next. One that a longer one begins with is not it.
  bool take(std::string_view op, std::string_view unless = "") {
    skip();
    const std::string_view rest = text_.substr(at_);
    if (!rest.starts_with(op) || (!unless.empty() && rest.starts_with(unless))) return false;
    at_ += op.size();
    return true;
  }

  // Runs a part whose value does not count; with `reads` its names are read all the same.
  template <class F>
  Value dead(bool reads, F part) {
    const bool live = std::exchange(live_, false), reading = std::exchange(reading_, reading_ && reads);
    part();
    live_ = live;
    reading_ = reading;
    return {};
  }

  bool truth(const Value& value) {
    if (const bool* flag = value.get<bool>()) return *flag;
    if (!value.absent.empty())
      lacks_key(value.absent);
    else
      wrong("{} is neither true nor false", shown_text(value));
    return false;
  }

  Value choice() {
    const Value condition = fallback();
    if (!take("?", "??")) return condition;
    const bool yes = live_ && truth(condition);
    Value first, second;
    if (yes)
      first = choice();
    else
      dead(true, [&] { choice(); });
    if (!take(":")) return fail("`:` is missing");
    if (live_ && !yes)
      second = choice();
    else
      dead(true, [&] { choice(); });
    return yes ? first : second;
  }

  Value fallback() {
    Value value = either();
    while (take("??")) {
      if (live_ && value.is_null())
        value = either();
      else
        dead(false, [&] { either(); });
    }
    return value;
  }

  Value either() {
    Value value = both();
    while (take("||")) {
      const bool decided = live_ && truth(value);
      if (live_ && !decided)
        value = {truth(both())};
      else
        dead(true, [&] { both(); });
    }
    return value;
  }

  Value both() {
    Value value = comparison();
    while (take("&&")) {
      const bool decided = live_ && !truth(value);
      if (live_ && !decided)
        value = {truth(comparison())};
      else
        dead(true, [&] { comparison(); });
    }
    return value;
  }

  Value comparison() {
    const Value value = sum();
    for (const std::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (!take(op)) continue;
      const Value other = sum();
      if (op == "==") return {value == other};
      if (op == "!=") return {!(value == other)};
      const auto a = numeric(value), b = numeric(other);
      return {op == "<=" ? a <= b : op == ">=" ? a >= b : op == "<" ? a < b : a > b};
    }
    return value;
  }

  double numeric(const Value& value) {
    const std::optional<double> number = value.number();
    if (!value.absent.empty())
      lacks_key(value.absent);
    else if (!number)
      wrong("{} is no number", shown_text(value));
    return number.value_or(1);
  }

  // Whole numbers stay whole; a quotient of them does where nothing remains.
  Value arithmetic(char op, const Value& a, const Value& b) {
    if (!live_) return {};
    const double x = numeric(a), y = numeric(b);
    const int64_t *i = a.get<int64_t>(), *j = b.get<int64_t>();
    int64_t whole = 0;
    if (i != nullptr && j != nullptr) {
      if ((op == '/' || op == '%') && (*j == 0 || (*j == -1 && op == '%')))
        return wrong("division by {}", *j);
      if (op == '%') return {*i % *j};
      const bool fits = op == '+'   ? !__builtin_add_overflow(*i, *j, &whole)
                        : op == '-' ? !__builtin_sub_overflow(*i, *j, &whole)
                        : op == '*' ? !__builtin_mul_overflow(*i, *j, &whole)
                                    : *j != -1 && *i % *j == 0;
      if (fits) return {op == '/' ? *i / *j : whole};
    }
    return {op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : op == '/' ? x / y : std::fmod(x, y)};
  }

  Value sum() {
    Value value = product();
    for (;;) {
      const char op = take("+") ? '+' : take("-") ? '-' : '\0';
      if (op == '\0') return value;
      value = arithmetic(op, value, product());
    }
  }

  Value product() {
    Value value = unary();
    for (;;) {
      const char op = take("*") ? '*' : take("/") ? '/' : take("%") ? '%' : '\0';
      if (op == '\0') return value;
      value = arithmetic(op, value, unary());
    }
  }

  Value unary() {
    if (++depth_ > kMostNested) return fail("it is nested too deeply");
    Value value;
    if (take("!", "!=")) {
      const Value operand = unary();
      if (live_) value = {!truth(operand)};
    } else if (take("-")) {
      value = arithmetic('-', {int64_t{0}}, unary());
    } else {
      value = primary();
    }
    --depth_;
    return value;
  }

  Value primary() {
    skip();
    if (take("(")) {
      const Value value = choice();
      return take(")") ? value : fail("`)` is missing");
    }
    const std::string_view rest = text_.substr(at_);
    if (rest.empty()) return fail("it ends too early");
    if (rest.front() == '"' || rest.front() == '\'') return quoted(rest);
    if (is_digit(rest.front())) return literal(rest);
    if (!is_letter(rest.front())) return fail("`{}` is not expected", rest);
    size_t length = 1;
    while (length < rest.size() && (is_letter(rest[length]) || is_digit(rest[length]) || rest[length] == '.'))
      ++length;
    at_ += length;
    return named(std::string(rest.substr(0, length)));
  }

  Value quoted(std::string_view rest) {
    const size_t end = rest.find(rest.front(), 1);
    if (end == rest.npos) return fail("a quote is missing");
    at_ += end + 1;
    return {std::string(rest.substr(1, end - 1))};
  }

  Value literal(std::string_view rest) {
    double real = 0;
    int64_t whole = 0;
    const char *begin = rest.data(), *end = begin + rest.size();
    const char* after_real = std::from_chars(begin, end, real).ptr;
    const auto [after, error] = std::from_chars(begin, end, whole);
    at_ += static_cast<size_t>(after_real - begin);
    return after == after_real && error == std::errc() ? Value{whole} : Value{real};
  }

  // Returns the name in the file: of a key of a name that stands for objects, the key of the first that is there, or of
  // the last.
  std::string in_file(const std::string& name) {
    const size_t dot = std::min(name.find('.'), name.size());
    const auto known = named_.find(name.substr(0, dot));
    if (known == named_.end() || known->second.objects.empty()) return name;
    const std::vector<std::string>& objects = known->second.objects;
    const auto is_there = [&](const std::string& object) {
      return !lookup_(object).value_or(Value()).is_null();
    };
    if (reading_)
      for (const std::string& object : objects) out_.read.insert(object + name.substr(dot));
    const auto first = std::ranges::find_if(objects, is_there);
    return (first == objects.end() ? objects.back() : *first) + name.substr(dot);
  }

  Value named(const std::string& text) {
    if (text == "true" || text == "false") return {text == "true"};
    if (text == "null" || text == "none") return {};
    if (text == "unknown") return unknown();
    if (take("(")) return call(text);
    const std::string name = in_file(text);
    const auto known = named_.find(name);
    const bool is_named = known != named_.end();
    if (reading_ && is_named)
      out_.read.insert(known->second.read.begin(), known->second.read.end());
    else if (reading_)
      out_.read.insert(name);
    if (!live_) return {};
    if (is_named && (known->second.broken || !known->second.problem.empty())) {
      out_.broken = true;
      return {};
    }
    const std::optional<Value> found = is_named ? known->second.value : lookup_(name);
    Value value = found.value_or(Value());
    value.absent = value.is_null() ? name : "";
    value.missing = !found;
    return value;
  }

  // `words`: what it may be.
  Value unknown(const std::vector<Value>& words = {}) {
    return fail("{} cannot be expressed{}", said_of(out_.read, lookup_),
                words.empty() ? "" : "; known are " + value_text({words}));
  }

  Value call(const std::string& function) {
    std::vector<Value> arguments;
    do {
      arguments.push_back(choice());
    } while (take(","));
    if (!take(")")) return fail("`)` is missing");
    if (!live_) return {};
    if (function == "missing" && arguments.size() == 1) return {arguments[0].missing};
    for (const Value& argument : arguments)
      if (!argument.absent.empty()) return lacks_key(argument.absent);
    if (function == "sqrt" && arguments.size() == 1) return {std::sqrt(numeric(arguments[0]))};
    if (function == "every" && arguments.size() == 2) {
      const auto* list = arguments[0].get<std::vector<Value>>();
      if (list == nullptr) return wrong("{} is no list", shown_text(arguments[0]));
      bool all = true;
      for (const Value& item : *list) all = all && item == arguments[1];
      return {all};
    }
    if (function == "at" && arguments.size() == 2) {
      const auto* list = arguments[0].get<std::vector<Value>>();
      const int64_t* number = arguments[1].get<int64_t>();
      if (list == nullptr) return wrong("{} is no list", shown_text(arguments[0]));
      if (number == nullptr || *number < 0 || *number >= std::ssize(*list))
        return wrong("{} has no element {}", shown_text(arguments[0]), shown_text(arguments[1]));
      return (*list)[static_cast<size_t>(*number)];
    }
    if (function == "activation" && arguments.size() == 1) {
      std::vector<Value> known;
      for (const auto& [theirs, ours] : activations)
        if (known.push_back({std::string(theirs)}); known.back() == arguments[0]) return {std::string(ours)};
      return unknown(known);
    }
    if (function == "one_of" && arguments.size() > 1) {
      const std::vector<Value> known(arguments.begin() + 1, arguments.end());
      return std::ranges::count(known, arguments[0]) > 0 ? arguments[0] : unknown(known);
    }
    return lacks("there is no function `{}` of {} arguments", function, arguments.size());
  }

  static constexpr int kMostNested = 100;
  std::string_view text_;
  const Lookup& lookup_;
  const std::map<std::string, Evaluated>& named_;
  size_t at_ = 0;
  bool live_ = true, reading_ = true;
  int depth_ = 0;
  Evaluated out_;
};

}  // namespace

std::string said_of(const std::set<std::string>& names, const Lookup& lookup) {
  std::vector<std::string> said;
  for (const std::string& name : names)
    if (const ConfigValue value = lookup(name).value_or(ConfigValue()); !value.is_null())
      said.push_back(fmt::format("`{}` = {}", name, shown_text(value)));
  return said.empty() ? "this" : fmt::format("{}", fmt::join(said, ", "));
}

Evaluated evaluate(std::string_view expression, const Lookup& lookup,
                   const std::map<std::string, Evaluated>& named) {
  return Evaluator(expression, lookup, named).run();
}

}  // namespace gacc::frontend
