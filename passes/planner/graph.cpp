// Reading is strict: a graph that is taken has every tensor made before it is read, and sums that cannot
// overflow.
#include "passes/planner/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace gacc::passes::planner {

namespace {

constexpr int64_t kMostTensors = 1 << 24;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  size_t at = 0;
  while ((at = line.find_first_not_of(" \t\r", at)) != std::string_view::npos) {
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

// Takes the words of one line in turn; the first mistake is kept.
class Reader {
 public:
  explicit Reader(std::vector<std::string_view> words) : words_(std::move(words)) {}
  std::string_view word(std::string_view what) {
    if (at_ < words_.size()) return words_[at_++];
    if (problem_.empty()) problem_ = fmt::format("the line ends where {} should stand", what);
    return {};
  }
  template <class Number>
  Number number(std::string_view what) {
    const std::string_view text = word(what);
    Number value = 0;
    if (problem_.empty() && !to_number(text, value)) problem_ = fmt::format("{} is `{}`", what, text);
    return value;
  }
  // A count of things of which each takes a word at least.
  int64_t count(std::string_view what) {
    const int64_t value = number<int64_t>(what);
    if (problem_.empty() && (value < 0 || value > static_cast<int64_t>(words_.size())))
      problem_ = fmt::format("{} is {}, more than the line holds", what, value);
    return problem_.empty() ? value : 0;
  }
  void finish() {
    if (problem_.empty() && at_ < words_.size())
      problem_ = fmt::format("`{}` stands after the end of the line", words_[at_]);
  }
  const std::string& problem() const { return problem_; }

 private:
  std::vector<std::string_view> words_;
  size_t at_ = 0;
  std::string problem_;
};

void add_once(std::vector<int>& list, int x) {
  if (std::ranges::find(list, x) == list.end()) list.push_back(x);
}

class Parser {
 public:
  explicit Parser(Graph& graph) : graph_(graph) {}

  std::string operation(Reader& reader) {
    Operation op;
    op.cost = reader.number<double>("the cost");
    const int64_t backward = reader.number<int64_t>("is_backward");
    op.name = reader.word("the name");
    const int index = static_cast<int>(graph_.operations.size());
    const int64_t inputs = reader.count("the number of inputs");
    for (int64_t i = 0; i < inputs && reader.problem().empty(); ++i)
      add_once(op.inputs, tensor(reader.number<int64_t>("an input")));
    const int64_t outputs = reader.count("the number of outputs");
    for (int64_t i = 0; i < outputs && reader.problem().empty(); ++i) {
      const int64_t id = reader.number<int64_t>("an output");
      const int64_t bytes = reader.number<int64_t>("the bytes of an output");
      const int64_t alias = reader.number<int64_t>("the alias of an output");
      if (!reader.problem().empty()) break;
      if (std::string problem = output(op, index, id, bytes, alias); !problem.empty()) return problem;
    }
    reader.finish();
    if (!reader.problem().empty()) return reader.problem();
    if (!std::isfinite(op.cost) || op.cost < 0 || op.cost > 1e250)
      return fmt::format("the cost is {}; it must be finite, below 1e250 and not negative", op.cost);
    if (backward != 0 && backward != 1) return fmt::format("is_backward is {}, not 0 or 1", backward);
    op.backward = backward == 1;
    for (const int x : op.inputs) add_once(graph_.tensors[x].uses, index);
    graph_.operations.push_back(std::move(op));
    return {};
  }

  std::string get(Reader& reader) {
    const int64_t id = reader.number<int64_t>("the tensor");
    const int64_t one = reader.number<int64_t>("the 1 of GET");
    reader.finish();
    if (!reader.problem().empty()) return reader.problem();
    if (one != 1) return fmt::format("GET ends in {}, not 1", one);
    const auto found = number_.find(id);
    if (found == number_.end()) return fmt::format("GET names tensor {}, which no operation has", id);
    graph_.tensors[found->second].wanted = true;
    return {};
  }

 private:
  int tensor(int64_t id) {
    const auto [place, fresh] = number_.emplace(id, static_cast<int>(graph_.tensors.size()));
    if (fresh) {
      Tensor x;
      x.id = id;
      x.storage = place->second;
      graph_.tensors.push_back(std::move(x));
    }
    return place->second;
  }

  std::string output(Operation& op, int index, int64_t id, int64_t bytes, int64_t alias) {
    if (bytes < 0) return fmt::format("tensor {} has {} bytes", id, bytes);
    if (bytes > kMostBytes || (total_ += bytes) > kMostBytes)
      return "the tensors add up to more than 2^60 bytes";
    const bool known = number_.count(id) != 0;
    const int x = tensor(id);
    if (known && graph_.tensor(x).producer >= 0)
      return fmt::format("tensor {} is made a second time; operation {} made it", id,
                         graph_.tensor(x).producer);
    if (known) return fmt::format("tensor {} is made after it was read, or by what reads it", id);
    int storage = x;
    if (alias != -1) {
      const auto owner = number_.find(alias);
      if (owner == number_.end() || owner->second == x)
        return fmt::format("tensor {} is an alias of {}, which is not known here", id, alias);
      storage = graph_.tensor(owner->second).storage;
    }
    Tensor& made = graph_.tensors[x];
    made.producer = index;
    made.storage = storage;
    made.bytes = alias == -1 ? bytes : 0;
    op.outputs.push_back(x);
    return {};
  }

  Graph& graph_;
  std::map<int64_t, int> number_;
  int64_t total_ = 0;
};

}  // namespace

double Graph::base_cost() const {
  double sum = 0;
  for (const Operation& op : operations) sum += op.cost;
  return sum;
}

int64_t Graph::own_bytes(int o) const {
  std::vector<int> storages;
  for (const int x : operation(o).inputs) add_once(storages, tensor(x).storage);
  for (const int x : operation(o).outputs) add_once(storages, tensor(x).storage);
  int64_t sum = 0;
  for (const int s : storages) sum += tensor(s).bytes;
  std::vector<int> shared;
  for (const auto& [input, output] : operation(o).in_place) add_once(shared, output);
  for (const int x : shared) sum -= tensor(x).bytes;
  return sum;
}

std::vector<int64_t> Graph::least_bytes() const {
  std::vector<int64_t> out(operations.size()), change(operations.size() + 1, 0);
  for (size_t x = 0; x < tensors.size(); ++x) {
    const Tensor& tensor = tensors[x];
    if (!once(static_cast<int>(x)) || tensor.uses.empty()) continue;
    // Across the operations strictly between its maker and its last reader; those that read it count it
    // themselves.
    change[static_cast<size_t>(tensor.producer) + 1] += tensor.bytes;
    change[tensor.uses.back()] -= tensor.bytes;
  }
  int64_t across = 0;
  for (size_t o = 0; o < operations.size(); ++o) {
    across += change[o];
    int64_t own = 0;  // of those across, what the operation counts as its input
    for (const int x : operations[o].inputs)
      if (once(x) && tensor(x).uses.back() > static_cast<int>(o)) own += tensor(x).bytes;
    out[o] = own_bytes(static_cast<int>(o)) + across - own;
  }
  return out;
}

bool parse_graph(std::string_view text, Graph& graph, std::string& problem) {
  graph = {};
  Parser parser(graph);
  int line_number = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    Reader reader(words_of(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++line_number;
    Reader blank = reader;
    const std::string_view kind = blank.word("");
    if (kind.empty()) continue;
    reader.word("");
    std::string wrong = kind == "OP"    ? parser.operation(reader)
                        : kind == "GET" ? parser.get(reader)
                                        : fmt::format("a line starts with OP or GET, not `{}`", kind);
    if (wrong.empty() && static_cast<int64_t>(graph.tensors.size()) > kMostTensors)
      wrong = "more than 2^24 tensors";
    if (!wrong.empty()) {
      problem = fmt::format("{}: {}", line_number, wrong);
      return false;
    }
  }
  if (graph.operations.empty()) {
    problem = "1: the file has no operation";
    return false;
  }
  Operation end;
  end.name = "end";
  for (size_t x = 0; x < graph.tensors.size(); ++x) {
    if (!graph.tensors[x].wanted) continue;
    end.inputs.push_back(static_cast<int>(x));
    graph.tensors[x].uses.push_back(static_cast<int>(graph.operations.size()));
  }
  graph.operations.push_back(std::move(end));
  return true;
}

std::string print_schedule(const Graph& graph, const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps) {
    text += fmt::format("{} drop", step.operation);
    for (const int x : step.drops) text += fmt::format(" {}", graph.tensor(x).id);
    text += '\n';
  }
  return text;
}

// By one sweep over the forward pass that counts what is read across each point.
Chain find_chain(const Graph& graph) {
  int marked = 0;  // the first operation that is said to be of the backward pass
  while (marked < graph.end() && !graph.operation(marked).backward) ++marked;
  Chain chain{.backward_begin = std::max(0, marked - 1)};
  // Between points o and o + 1 lies what was made up to o and is used after it.
  const auto backward_begin = static_cast<size_t>(chain.backward_begin);
  std::vector<int> crossing(backward_begin + 1, 0), separator(backward_begin + 1, -1);
  for (size_t x = 0; x < graph.tensors.size(); ++x) {
    const Tensor& tensor = graph.tensors[x];
    if (tensor.producer < 0 || tensor.producer >= chain.backward_begin || graph.once(static_cast<int>(x)))
      continue;
    int last = tensor.producer;
    for (const int use : tensor.uses)
      if (use <= chain.backward_begin) last = std::max(last, use);
    for (int o = tensor.producer; o < last; ++o) {
      ++crossing[o];
      separator[o] = static_cast<int>(x);
    }
  }
  for (int o = 0; o < chain.backward_begin; ++o) {
    const int x = separator[o];
    if (crossing[o] != 1 || (!chain.tensors.empty() && chain.tensors.back() == x)) continue;
    chain.tensors.push_back(x);
    chain.points.push_back(o);
  }
  return chain;
}

}  // namespace gacc::passes::planner
