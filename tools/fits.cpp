// See fits.h. Each way to train is compiled once for a micro-batch and a window; budgets share that, and the searches.
#include "tools/fits.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "compiler/plan/show.h"
#include "ir/text/size_text.h"
#include "kernels/machine.h"
#include "passes/plan_memory.h"
#include "tools/command_line.h"

namespace gacc {

namespace {

constexpr int64_t kUsualRank = 16;
// Windows that are tried: 1 to 15, then 16 steps from each power of two to the next.
constexpr int64_t kSteps = 16, kLongestWindow = int64_t{1} << 20;

std::vector<int64_t> windows() {
  std::vector<int64_t> out;
  for (int64_t i = 1; i < kSteps; ++i) out.push_back(i);
  for (int64_t unit = 1; unit * kSteps < kLongestWindow; unit *= 2)
    for (int64_t i = kSteps; i < 2 * kSteps; ++i) out.push_back(i * unit);
  return out;
}

// The first number from `begin` on that does not hold, at most `end`; all before it do.
template <class Holds>
int64_t first_failure(int64_t begin, int64_t end, Holds holds) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (holds(middle))
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

std::string bytes_word(int64_t bytes) { return fmt::format("\"{}B\"", bytes); }

// A model with windows of one length, for any budget.
class Model {
 public:
  using Trouble = std::optional<CompileTrouble>;

  Model(const FitsRequest& request, const PublishedOptions& how, std::string_view frozen)
      : request_(request), how_(how), frozen_(frozen) {}

  // Reads it with more overrides.
  Trouble read(const std::vector<Override>& more) {
    ModelSource source;
    std::vector<Override> overrides;
    if (Trouble trouble = request_.read(how_, source, overrides)) return trouble;
    overrides.push_back({"memory.budget", bytes_word(request_.cards.back())});
    if (!frozen_.empty()) overrides.push_back({"precision.frozen", fmt::format("\"{}\"", frozen_)});
    overrides.insert(overrides.end(), more.begin(), more.end());
    compiler_ = std::make_unique<StepCompiler>(source, overrides);
    compiler_->strict = request_.strict;
    options_.target = request_.target;
    if (Trouble trouble = compiler_->read()) return trouble;
    compile_ = [this](const std::vector<Override>& with) {
      return compiler_->before("chunk-loss", with, options_, refused_);
    };
    chooser_ = std::make_unique<BatchChooser>(compiler_->module(), compile_, options_);
    return {};
  }

  const ir::Module& module() const { return compiler_->module(); }
  const std::string& precision_because() const { return compiler_->source().precision_because; }
  const std::string& refused() const { return refused_; }
  std::optional<ir::Module> fused() { return compiler_->before("recompute", {}, options_, refused_); }
  BatchChoice choose(int64_t budget) { return chooser_->choose_within(budget); }
  bool fits(int64_t budget, bool hastily_first) { return chooser_->fits(budget, hastily_first); }
  std::optional<int64_t> least(int64_t budget) { return chooser_->least(budget); }

 private:
  const FitsRequest& request_;
  PublishedOptions how_;
  std::string_view frozen_;
  passes::Options options_;
  std::unique_ptr<StepCompiler> compiler_;
  CompileUnchunked compile_;
  std::unique_ptr<BatchChooser> chooser_;
  std::string refused_;
};

// One way to train, on all cards.
class Search {
 public:
  using Trouble = std::optional<CompileTrouble>;

  Search(const FitsRequest& request, std::optional<int64_t> lora, std::string_view frozen)
      : request_(request), lora_(lora), frozen_(frozen) {}

  Trouble run(Fits& fits, FitsWay& way) {
    Model model(request_, how(request_.context), frozen_);
    if (Trouble trouble = model.read({})) return trouble;
    const auto& train = model.module().settings.train;
    if (*train.ranks == 0)
      return CompileTrouble{false, "--fits is for a known number of ranks: add --ranks R\n"};
    const bool open = *train.choose_micro_batch || *train.choose_accumulate;
    batch_ = open ? *train.effective_batch : model.module().micro_batch() * model.module().accumulate();
    if (Trouble trouble = model.read({{"train.micro_batch", "\"auto\""},
                                      {"train.accumulate", "\"auto\""},
                                      {"train.effective_batch", fmt::to_string(batch_)}}))
      return trouble;
    if (Trouble trouble = describe(fits, way)) return trouble;
    for (size_t i = 0; i < way.cards.size(); ++i) {
      FitsCard& card = way.cards[i];
      if (!card.asked) continue;
      const BatchChoice choice = model.choose(request_.cards[i]);
      if (!choice.done && choice.problem.empty()) return CompileTrouble{false, model.refused()};
      card.fits = choice.done, card.found = choice.found, card.least = choice.least;
    }
    if (request_.published) find_contexts(fits, way);
    return {};
  }

 private:
  PublishedOptions how(std::optional<int64_t> context) const { return {.context = context, .lora = lora_}; }

  std::vector<Override> one_sample() const {
    return {{"train.micro_batch", "1"},
            {"train.accumulate", fmt::to_string(batch_)},
            {"train.effective_batch", fmt::to_string(batch_)}};
  }

  // Describes the model, and the least it needs with one sample in memory: the loss is then cut as for no memory at
  // all.
  Trouble describe(Fits& fits, FitsWay& way) {
    Model model(request_, how(request_.context), frozen_);
    std::vector<Override> least = one_sample();
    least.push_back({"memory.budget", bytes_word(1)});
    if (Trouble trouble = model.read(least)) return trouble;
    const std::optional<ir::Module> fused = model.fused();
    if (!fused) return CompileTrouble{false, model.refused()};
    fits.model = fused->name;
    fits.precision = ir::dtype_text(*fused->settings.precision.compute);
    fits.precision_because = model.precision_because();
    fits.effective_batch = batch_;
    fits.host = *fused->settings.memory.host;
    fits.exact = fused->results.because->empty();
    way.adapters = !fused->settings.adapters.empty();
    const std::string& base = *fused->settings.precision.frozen;
    way.base = base == "compute" ? fits.precision : base;
    const passes::MemoryReport memory = passes::memory_report(*fused);
    way.weights = memory.weights + memory.half_weights;
    way.state = memory.gradients + memory.optimizer;
    const passes::StepGraph step = passes::step_graph(*fused, request_.target);
    large_ = step.graph.operations.size() > passes::kLargeStep;
    way.values = passes::least_arena(step) - way.weights - way.state;
    way.largest = largest_value(*fused, step);
    for (const ir::Buffer& buffer : fused->buffers) {
      if (buffer.kind != ir::BufferKind::param) continue;
      way.parameters += ir::elements(buffer.type.shape, 1);
      way.trained += buffer.trainable ? ir::elements(buffer.type.shape, 1) : 0;
    }
    const std::vector<ir::ValueId>& inputs = fused->step.inputs;
    if (request_.published && !inputs.empty()) {
      const ir::Shape& shape = fused->step[inputs.front()].type.shape;
      if (shape.size() == 2) fits.context = shape[1];
    }
    return {};
  }

  // The largest value at the kernel that needs most.
  static std::string largest_value(const ir::Module& module, const passes::StepGraph& step) {
    const std::vector<int64_t> least = step.graph.least_bytes();
    const auto most = std::ranges::max_element(least);
    if (most == least.end() || *most < step.other_bytes)
      return fmt::format("of program {}", ir::region_text(step.other));
    const auto& operation = step.graph.operation(static_cast<int>(most - least.begin()));
    int largest = -1;
    for (const auto* list : {&operation.inputs, &operation.outputs})
      for (const int x : *list)
        if (largest < 0 || step.graph.tensor(x).bytes > step.graph.tensor(largest).bytes) largest = x;
    if (largest < 0) return "of program step";
    const ir::Value& value = module.step[step.value_of[static_cast<size_t>(largest)]];
    const ir::Shape& shape = value.type.shape;
    const auto& yields = module.predict.yields;
    const ir::ValueId* logits = yields.empty() ? nullptr : ir::as_value(yields.front().what);
    const bool wide = logits != nullptr && shape.size() > 1 &&
                      shape.size() == module.predict[*logits].type.shape.size() &&
                      shape.back() == module.predict[*logits].type.shape.back();
    return wide ? "the logits" : value.name;
  }

  // The longest window of each card by bisection; a larger card has none shorter.
  void find_contexts(Fits& fits, FitsWay& way) {
    const int64_t positions =
        first_failure(1, kLongestWindow + 1, [&](int64_t tokens) { return readable(tokens); }) - 1;
    if (positions == 0) return;
    fits.positions = positions;
    std::vector<int64_t> all = windows();
    std::erase_if(all, [&](int64_t tokens) { return tokens >= positions; });
    all.push_back(positions);
    const auto end = static_cast<int64_t>(all.size());
    int64_t found = 0;  // so many windows are known to fit: on this card, or on a smaller one
    for (size_t i = 0; i < way.cards.size(); ++i) {
      if (!way.cards[i].asked) continue;
      const int64_t card = request_.cards[i];
      const bool hopeless = way.weights + way.state > card;
      int64_t begin = found;
      if (way.cards[i].fits && fits.context)  // with one sample most likely, too
        begin = std::max<int64_t>(begin, std::ranges::upper_bound(all, *fits.context) - all.begin());
      int64_t after = first_failure(begin, hopeless ? begin : end, [&](int64_t at) {
        Model* model = window(all[static_cast<size_t>(at)]);
        return model != nullptr && model->least(card).value_or(card + 1) <= card;
      });
      // The bound is of all plans; what counts is one that gaccc finds.
      const auto longest = [&] { return after == 0 ? 0 : all[static_cast<size_t>(after) - 1]; };
      const auto is_found = [&] {
        Model* model = window(longest());
        return model != nullptr && model->fits(card, large_);
      };
      while (after > found && !is_found()) --after;
      way.cards[i].context = longest();
      found = after;
    }
  }

  bool readable(int64_t context) const {
    ModelSource source;
    std::vector<Override> overrides;
    return !request_.read(how(context), source, overrides);
  }

  // The model with windows of that length and micro-batch 1; null when it cannot be compiled.
  Model* window(int64_t context) {
    const auto [at, fresh] = windows_.try_emplace(context);
    if (fresh) {
      at->second = std::make_unique<Model>(request_, how(context), frozen_);
      if (at->second->read(one_sample())) at->second = nullptr;
    }
    return at->second.get();
  }

  const FitsRequest& request_;
  std::optional<int64_t> lora_;
  std::string_view frozen_;  // precision.frozen; "" for what the model says
  int64_t batch_ = 1;
  bool large_ = false;  // what no hasty search finds is no window: the others take long
  std::map<int64_t, std::unique_ptr<Model>> windows_;
};

}  // namespace

std::optional<std::vector<int64_t>> parse_cards(const std::string& text) {
  std::vector<int64_t> cards;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    std::string word = text.substr(at, comma - at);
    if (word.find_first_not_of("0123456789.") == std::string::npos) word += "GiB";
    const std::optional<int64_t> bytes = ir::parse_bytes(word);
    if (!bytes || *bytes <= 0) return std::nullopt;
    cards.push_back(*bytes);
    at = comma + 1;
  }
  std::ranges::sort(cards);
  cards.erase(std::unique(cards.begin(), cards.end()), cards.end());
  return cards;
}

std::optional<CompileTrouble> find_fits(const FitsRequest& request, Fits& fits) {
  fits.target = request.target;
  fits.cards = request.cards;
  const std::vector<FitsCard> all(request.cards.size());
  FitsWay full{.key = "full", .name = "full", .cards = all};
  if (auto trouble = Search(request, std::nullopt, "").run(fits, full)) return trouble;
  const bool adapted = full.adapters;
  std::optional<int64_t> rank;
  if (!adapted) {
    fits.ways.push_back(std::move(full));
    rank = request.lora.value_or(kUsualRank);
  }
  // Adapters, beside matrices in the type of `compute`, and in blocks on cards that are too small for those.
  std::vector<FitsCard> cards = all;
  for (const std::string_view frozen : {"", "q8_0", "q4_0"}) {
    if (std::ranges::none_of(cards, &FitsCard::asked)) break;
    FitsWay lora{.key = "lora",
                 .name = rank ? fmt::format("LoRA of rank {}", *rank) : "the model's own adapters",
                 .cards = cards};
    if (!frozen.empty()) {
      lora.key += fmt::format("_{}", frozen);
      lora.name = fmt::format("{} on {}", rank ? "LoRA" : "adapters", frozen);
    }
    const FitsWay none = lora;
    if (auto trouble = Search(request, rank, frozen).run(fits, lora)) {
      if (trouble->bug || request.lora || adapted) return trouble;
      lora = none;
      lora.refused = trouble->text;
      fits.ways.push_back(std::move(lora));
      break;  // blocks change nothing about it
    }
    for (size_t i = 0; i < cards.size(); ++i) cards[i].asked = cards[i].asked && !lora.cards[i].fits;
    const bool in_blocks = lora.base != fits.precision;
    fits.ways.push_back(std::move(lora));
    if (frozen.empty() && in_blocks) break;  // as the model says it
  }
  return {};
}

namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

double link_seconds(const FitsCard& card) {
  return static_cast<double>(card.found.link_bytes) / kernels::kHostLink;
}

// Returns the cells of a card: batch, peak, where it may have any what lies on the host and the seconds of its copies,
// recompute, context.
std::vector<std::string> cells_of(const FitsCard& card, const Fits& fits) {
  std::vector<std::string> cells;
  if (card.fits) {
    cells = {fmt::format("{} x {}", card.found.micro_batch, card.found.accumulate),
             ir::short_size_text(card.found.arena)};
    if (fits.host > 0 && card.found.host == 0) cells.insert(cells.end(), {"none", "none"});
    if (fits.host > 0 && card.found.host > 0)
      cells.insert(cells.end(),
                   {ir::short_size_text(card.found.host), fmt::format("{:.2f} s", link_seconds(card))});
    cells.push_back(card.found.overhead > 0 ? fmt::format("+{:.1f} %", 100 * card.found.overhead) : "none");
  } else {
    cells = {"-", fmt::format("> {}", ir::short_size_text(card.least))};
    cells.resize(fits.host > 0 ? 5 : 3, "-");
  }
  cells.emplace_back();
  if (card.context && fits.positions)
    cells.back() =
        *card.context == 0 ? "-" : count_text(*card.context) + (card.context == fits.positions ? "+" : "");
  return cells;
}

using Cells = std::vector<std::vector<std::string>>;

// Returns the cells of each way: its name, the heads, and a row for each card. Adapters share their columns: a card has
// the first way that fits.
std::vector<Cells> ways_of(const Fits& fits) {
  std::vector<const FitsWay*> adapters;
  for (const FitsWay& way : fits.ways)
    if (way.adapters && way.refused.empty()) adapters.push_back(&way);
  const auto best_adapters = [&](size_t card) -> const FitsWay& {
    const auto fitting =
        std::ranges::find_if(adapters, [&](const FitsWay* way) { return way->cards[card].fits; });
    return fitting == adapters.end() ? *adapters.back() : **fitting;
  };
  std::vector<Cells> ways;
  for (const FitsWay& way : fits.ways) {
    if (!way.refused.empty() || (way.adapters && &way != adapters.front())) continue;
    std::vector<std::string> head = {"batch", "peak"};
    if (fits.host > 0) head.insert(head.end(), {"host", "link"});
    head.insert(head.end(), {"recompute", fits.positions ? "context" : ""});
    if (way.adapters) head.emplace_back("base");
    Cells& rows = ways.emplace_back(Cells{{way.name}, head});
    rows.front().resize(head.size());
    for (size_t i = 0; i < way.cards.size(); ++i) {
      const FitsWay& best = way.adapters ? best_adapters(i) : way;
      const auto cells = cells_of(best.cards[i], fits);
      rows.emplace_back(cells.begin(), cells.end());
      if (way.adapters) rows.back().push_back(best.base);
    }
  }
  return ways;
}

// Returns a table of the cards and of these ways.
std::string table_text(const Fits& fits, std::span<const Cells> ways) {
  Cells rows = {{""}, {"card"}};
  for (const int64_t card : fits.cards) rows.push_back({ir::short_size_text(card)});
  for (const Cells& way : ways)
    for (size_t r = 0; r < rows.size(); ++r) rows[r].insert(rows[r].end(), way[r].begin(), way[r].end());
  const size_t cells = fits.host > 0 ? 6 : 4;  // of a way
  std::vector<size_t> width(rows[1].size(), 0);
  for (size_t r = 1; r < rows.size(); ++r)
    for (size_t c = 0; c < rows[r].size(); ++c) width[c] = std::max(width[c], rows[r][c].size());
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c)
      line += fmt::format("{:<{}}  ", row[c], width[c] + (c % cells == 0 ? 2 : 0));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// Returns the columns of the longest line.
size_t width_of(std::string_view text) {
  size_t most = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    most = std::max(most, end - begin);
    begin = end + 1;
  }
  return most;
}

std::string least_text(const FitsWay& way) {
  const int64_t least = way.weights + way.state + way.values;
  const std::pair<int64_t, std::string> parts[] = {{way.weights, "the weights"},
                                                   {way.state, "gradients and the optimizer's state"},
                                                   {way.values, way.largest}};
  const auto most = std::ranges::max_element(parts, {}, &std::pair<int64_t, std::string>::first);
  return fmt::format("  {}: {} at least, most of it {}: weights {}, gradients and state {}, values {} ({})\n",
                     way.name, ir::short_size_text(least), most->second, ir::short_size_text(way.weights),
                     ir::short_size_text(way.state), ir::short_size_text(way.values), way.largest);
}

}  // namespace

std::string fits_text(const Fits& fits, size_t columns) {
  const std::string because =
      fits.precision_because.empty() ? "" : fmt::format(" ({})", fits.precision_because);
  std::string text = fmt::format("{} in {}{} for {}, {} samples an update", fits.model, fits.precision,
                                 because, fits.target, count_text(fits.effective_batch));
  if (fits.context) text += fmt::format(" of {} tokens", count_text(*fits.context));
  text += "\n";
  for (const FitsWay& way : fits.ways)
    text += way.refused.empty() ? fmt::format("  {}: {} of {} parameters are trained\n", way.name,
                                              count_text(way.trained), count_text(way.parameters))
                                : fmt::format("  {}: cannot be trained so: {}", way.name, way.refused);
  const std::vector<Cells> ways = ways_of(fits);
  const std::string table = table_text(fits, ways);
  if (width_of(table) <= columns)
    text += table;
  else
    for (const Cells& way : ways) text += table_text(fits, std::span(&way, 1));
  text +=
      "batch: micro-batch x accumulation, the fastest that fits; \"> SIZE\": no plan of less exists "
      "(proven)\n";
  if (fits.host > 0)
    text += fmt::format(
        "host: what lies in the host's memory, of at most {}; link: the copies of an update, at {:g} GB/s "
        "each way\n",
        ir::short_size_text(fits.host), kernels::kHostLink / 1e9);
  text += "recompute: time that it adds to a micro-batch, by the cost model\n";
  text += fits.positions
              ? fmt::format("context: the longest at micro-batch 1; +: all {} positions of the model\n",
                            count_text(*fits.positions))
              : "context: as the model file says; other lengths are tried of a published model's folder\n";
  if (std::ranges::any_of(fits.ways, &FitsWay::adapters))
    text += "base: type of the frozen matrices (precision.frozen); in blocks where nothing larger fits\n";
  if (!fits.exact) text += "another micro-batch is another training: --plan says why, under equivalence\n";
  text += "what micro-batch 1 needs:\n";
  for (const FitsWay& way : fits.ways)
    if (way.refused.empty()) text += least_text(way);
  return columns == kNoLimit ? text : wrapped(text, columns, 4);
}

nlohmann::ordered_json fits_json(const Fits& fits) {
  using Json = nlohmann::ordered_json;
  const auto or_null = [](const std::optional<int64_t>& number) { return number ? Json(*number) : Json(); };
  Json json = {{"model", fits.model},
               {"target", fits.target},
               {"precision", fits.precision},
               {"precision_because", fits.precision_because},
               {"effective_batch", fits.effective_batch},
               {"context", or_null(fits.context)},
               {"positions", or_null(fits.positions)},
               {"ways", Json::object()},
               {"cards", Json::array()}};
  for (const FitsWay& way : fits.ways) {
    Json& it = json["ways"][way.key] = {{"name", way.name}};
    if (!way.refused.empty()) {
      it["refused"] = way.refused;
      continue;
    }
    it.update({{"parameters", way.parameters},
               {"trained", way.trained},
               {"least", way.weights + way.state + way.values},
               {"weights", way.weights},
               {"state", way.state},
               {"values", way.values},
               {"largest_value", way.largest}});
  }
  for (size_t i = 0; i < fits.cards.size(); ++i) {
    Json row = {{"bytes", fits.cards[i]}};
    for (const FitsWay& way : fits.ways) {
      if (!way.refused.empty()) continue;
      const FitsCard& card = way.cards[i];
      Json& it = row[way.key];
      if (!card.asked) continue;
      it = {{"fits", card.fits}, {"least", card.least}};
      if (card.fits)
        it.update({{"micro_batch", card.found.micro_batch},
                   {"accumulate", card.found.accumulate},
                   {"peak", card.found.arena},
                   {"host", card.found.host},
                   {"host_seconds", link_seconds(card)},
                   {"overhead", card.found.overhead},
                   {"overhead_lower_bound", card.found.overhead_bound}});
      it["context"] = or_null(card.context);
    }
    json["cards"].push_back(std::move(row));
  }
  return json;
}

}  // namespace gacc
