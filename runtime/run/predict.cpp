#include "runtime/run/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/atomic_file.h"
#include "runtime/byte_order.h"
#include "runtime/data/loader.h"
#include "runtime/data/philox.h"
#include "runtime/long_work.h"
#include "runtime/session/answers.h"
#include "runtime/text.h"

namespace gacc {

namespace {

constexpr int64_t kMostBytes = 256;  // tokens of a vocabulary that is bytes

// Version 1.0, whose elements begin at a multiple of 64 bytes.
std::string npy_header(int64_t samples, const std::vector<int64_t>& shape) {
  std::string extents = fmt::format("{},", samples);
  for (const int64_t extent : shape) extents += fmt::format(" {},", extent);
  if (!shape.empty()) extents.pop_back();
  std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", extents);
  constexpr size_t kBefore = 10, kMultiple = 64;
  text.append((kMultiple - (kBefore + text.size() + 1) % kMultiple) % kMultiple, ' ');
  text += '\n';
  return std::string("\x93NUMPY\x01\0", 8).append(bytes_of(static_cast<uint16_t>(text.size()))) + text;
}

// The input that the loss compares with, where it is one of numbers that were normalised by their data.
const PlanInput* normalised_target(const Plan& plan) {
  const auto target = std::ranges::find_if(
      plan.inputs, [](const PlanInput& input) { return input.target && input.normalize_data; });
  return target == plan.inputs.end() ? nullptr : &*target;
}

// "label_2_0": the column of that element of an output.
std::string column_name(const std::string& name, const std::vector<int64_t>& shape, int64_t element) {
  std::string text;
  for (size_t axis = shape.size(); axis-- > 0; element /= shape[axis])
    text = fmt::format("_{}{}", element % shape[axis], text);
  return name + text;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

// The elements from number `first` on, as rows of a csv file.
std::string csv_text(const OutputForm& form, int64_t first, std::span<const float> values) {
  std::string text;
  auto column = static_cast<size_t>(first) % form.columns.size();
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = values[i];
    if (column == 0 && !form.rows.empty())
      text += fmt::format("{},", form.rows[(static_cast<size_t>(first) + i) / form.columns.size()]);
    const bool moved = !form.mean.empty();
    const auto shown = moved ? static_cast<float>(form.mean[column] + form.std[column] * value) : value;
    const auto known = static_cast<float>(form.classes.size());
    text += value >= 0 && value < known ? csv_field(form.classes[static_cast<size_t>(value)])
                                        : fmt::format("{}", shown);
    const bool ends = ++column == form.columns.size();
    text += ends ? '\n' : ',';
    if (ends) column = 0;
  }
  return text;
}

int64_t vocabulary(const Plan& plan) { return plan.predict.shape.back(); }

// Returns the text that `line_of` has made the line of.
Result<std::string> unescaped(std::string_view line, std::string_view place) {
  std::string text;
  for (size_t at = 0; at < line.size(); ++at) {
    if (line[at] != '\\') {
      text += line[at];
      continue;
    }
    const char next = ++at < line.size() ? line[at] : '\0';
    if (next != 'n' && next != '\\')
      return Status::error("{}: a \\ stands before n (a new line) or another \\", place);
    text += next == 'n' ? '\n' : '\\';
  }
  return text;
}

}  // namespace

bool writes_numbers(const Plan& plan) { return vocabulary(plan) > kMostBytes; }

Result<std::vector<int32_t>> parse_prompt(const Plan& plan, std::string_view prompt, std::string_view place) {
  std::vector<int32_t> tokens;
  const int64_t most = vocabulary(plan);
  if (!writes_numbers(plan)) {
    if (prompt.empty() && '\n' >= most)
      return Status::error("{}: an empty one is a newline, byte 10, and the model knows 0 to {}", place,
                           most - 1);
    if (prompt.empty()) prompt = "\n";
    for (const char c : prompt) {
      tokens.push_back(static_cast<unsigned char>(c));
      if (tokens.back() >= most)
        return Status::error("{}: its byte {} is {}, and the model knows 0 to {}", place, tokens.size(),
                             tokens.back(), most - 1);
    }
    return tokens;
  }
  for (size_t begin = 0, after = 0; begin < prompt.size(); begin = after + 1) {
    after = std::min(prompt.find(' ', begin), prompt.size());
    const std::string_view word = prompt.substr(begin, after - begin);
    if (word.empty()) continue;
    const char* const end = word.data() + word.size();
    int32_t token = 0;
    const auto [rest, error] = std::from_chars(word.data(), end, token);
    if (error != std::errc{} || rest != end || token < 0 || token >= most)
      return Status::error(
          "{}: {} is no token: the model has the numbers 0 to {}; python3 -m gacc.generate takes and gives "
          "words",
          place, in_quotes(word), most - 1);
    tokens.push_back(token);
  }
  if (tokens.empty())
    return Status::error(
        "the model has {} tokens, which are no bytes: {} gives numbers to begin with, with spaces "
        "between them; python3 -m gacc.generate takes and gives words",
        most, place);
  return tokens;
}

Status check_predict(const Plan& plan) {
  if (plan.predict.batch > 0) return {};
  if (plan.predict.needs == 0) return Status::error("the artifact has no program for predictions");
  return Status::error(
      "the output of one sample does not fit into the artifact's memory: it needs {} bytes, and the step has "
      "{}; compile the model with a larger micro-batch or budget, or with less recompute",
      plan.predict.needs, plan.arena_bytes);
}

Status check_text(const Plan& plan) {
  GACC_TRY(check_predict(plan));
  const auto refuse = [](const std::string& why) {
    return Status::error(
        "--generate is for models of tokens, whose positions meet in causal attention alone: {}", why);
  };
  const PlanInput* tokens = nullptr;
  for (const PlanInput& input : plan.inputs) {
    if (!input.predict_offset || input.documents) continue;
    if (tokens != nullptr)
      return refuse(fmt::format("this one takes {} and {}", in_quotes(tokens->name), in_quotes(input.name)));
    tokens = &input;
  }
  if (tokens == nullptr || tokens->dtype != DType::i32 || tokens->shape.size() != 1)
    return refuse(tokens == nullptr ? "this one's output depends on no input"
                                    : fmt::format("the input {} is {}{}, not i32[T]", in_quotes(tokens->name),
                                                  dtype_text(tokens->dtype), shape_text(tokens->shape)));
  const std::vector<int64_t>& shape = plan.predict.shape;
  if (shape.size() != 2 || shape[0] != tokens->shape[0])
    return refuse(fmt::format("the output is {}, not [{}, vocabulary]", shape_text(shape), tokens->shape[0]));
  if (plan.predict.positions != "causal")
    return refuse(plan.predict.positions.empty() ? "the artifact does not say so" : plan.predict.positions);
  if (tokens->range && *tokens->range < vocabulary(plan))
    return refuse(fmt::format("it gives one of {} tokens, and the input {} takes one of {}", vocabulary(plan),
                              in_quotes(tokens->name), *tokens->range));
  return {};
}

Status check_generate(const Plan& plan, const GenerateOptions& options) {
  GACC_TRY(check_text(plan));
  if (!options.stop.empty()) GACC_TRY(parse_prompt(plan, options.stop, "--stop"));
  return parse_prompt(plan, options.prompt).status();
}

std::string line_of(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n' || c == '\\') line += '\\';
    line += c == '\n' ? 'n' : c;
  }
  return line;
}

Result<std::vector<std::string>> read_prompts(const Plan& plan, const std::string& path) {
  std::string text = GACC_TRY(read_file(path));
  if (text.ends_with('\n')) text.pop_back();
  std::vector<std::string> prompts;
  for (size_t begin = 0, end = 0; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    std::string& prompt = prompts.emplace_back(text.substr(begin, end - begin));
    if (prompt.ends_with('\r')) prompt.pop_back();
    const std::string place = fmt::format("{}:{}", path, prompts.size());
    prompt = GACC_TRY(unescaped(prompt, place));
    if (prompt.empty()) return Status::error("{}: is empty; a line is a prompt", place);
    GACC_TRY(parse_prompt(plan, prompt, place));
  }
  return prompts;
}

Result<OutputForm> output_form(const Plan& plan, const std::string& layer, const std::string& path,
                               const DataFacts& facts) {
  OutputForm form;
  const std::vector<int64_t>& shape = plan.predict.answer_shape;
  const int64_t elements = elements_of(shape);
  const PlanInput* normalised = layer.empty() ? normalised_target(plan) : nullptr;
  if (normalised != nullptr && elements_of(normalised->shape) != elements) normalised = nullptr;
  if (!lower_case(path).ends_with(".csv")) {
    if (normalised != nullptr)
      form.remark = fmt::format("in units of the normalised target {}; a file that ends in .csv has its own",
                                in_quotes(normalised->name));
    return form;
  }
  const auto target = std::ranges::find_if(plan.inputs, &PlanInput::target);
  const std::string name = !layer.empty() ? layer : target != plan.inputs.end() ? target->name : "output";
  for (int64_t i = 0; i < elements; ++i)
    form.columns.push_back(elements == 1 ? name : column_name(name, shape, i));
  if (layer.empty() && target != plan.inputs.end()) {  // outputs of classes that have names
    const std::vector<std::string>& values = target->values;
    if (plan.predict.answer == AnswerForm::argmax || plan.predict.answer == AnswerForm::above_half)
      form.classes = values;
    else if (shape == std::vector{std::ssize(values)})
      for (size_t i = 0; i < values.size(); ++i) form.columns[i] = fmt::format("{}_{}", name, values[i]);
  }
  if (normalised == nullptr) return form;
  const auto known = facts.find(normalised->name);
  if (known == facts.end() || known->second.mean.empty())
    return Status::error(
        "{}: the target {} is normalised by its training data, and the parameters do not say how: a file "
        "that ends in .npy has the outputs as they are",
        path, in_quotes(normalised->name));
  const InputFacts& units = known->second;
  const int64_t each = elements / static_cast<int64_t>(units.mean.size());
  for (int64_t i = 0; i < elements; ++i) {
    form.mean.push_back(units.mean[static_cast<size_t>(i / each)]);
    form.std.push_back(units.std[static_cast<size_t>(i / each)]);
  }
  form.remark = fmt::format("in the units of {}", in_quotes(normalised->name));
  return form;
}

Status each_output(Session& session, const Plan& plan, const Dataset& data, int64_t samples,
                   const TakeOutputs& take, Evaluation* evaluation) {
  const int64_t each = elements_of(plan.predict.shape);
  std::vector<float> outputs(static_cast<size_t>(plan.predict.outputs()));
  std::vector<int64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), int64_t{0});
  int64_t before = 0;  // outputs of the batches before
  Loader loader(data, plan, session.device());
  LongWork work("predicting", samples);
  loader.start(std::move(order), plan.predict.batch);
  while (const Batch* batch = loader.next()) {
    GACC_TRY(session.prediction().run(batch->inputs, batch->samples));
    const int64_t all = batch->samples * each;
    for (int64_t first = 0; first < all; first += plan.predict.outputs()) {
      const auto count = static_cast<size_t>(std::min(plan.predict.outputs(), all - first));
      const std::span<float> some = std::span(outputs).first(count);
      GACC_TRY(session.prediction().read(first, some));
      if (!GACC_TRY(take(before + first, some))) return {};
    }
    before += all;
    work.done(batch->samples);
    if (evaluation != nullptr) GACC_TRY(evaluation->add(batch->inputs, batch->samples, Program::measure));
  }
  return loader.status();
}

Status predict(Session& session, const Plan& plan, const Dataset& data, const std::string& path,
               const OutputForm& form, const std::function<bool()>& asked_to_end, bool& interrupted,
               std::string& warning, EvalReport* measured) {
  AtomicFile file;
  GACC_TRY(file.open(path));
  const bool table = !form.columns.empty();
  std::string header = form.rows.empty() ? "" : "row";
  for (const std::string& column : form.columns) header += (header.empty() ? "" : ",") + csv_field(column);
  GACC_TRY(file.write(table ? header + "\n" : npy_header(data.samples, plan.predict.answer_shape)));
  const int64_t each = elements_of(plan.predict.shape), merged = outputs_of_an_answer(plan.predict);
  int64_t wrong = 0, first_wrong = 0;  // outputs that are not finite
  const auto take = [&](int64_t first, std::span<float> some) -> Result<bool> {
    for (size_t i = 0; i < some.size(); ++i)
      if (!std::isfinite(some[i]) && wrong++ == 0) first_wrong = (first + static_cast<int64_t>(i)) / each;
    const std::span<float> answers = some.first(some.size() / static_cast<size_t>(merged));
    make_answers(plan.predict, some, answers);
    GACC_TRY(file.write(table ? csv_text(form, first / merged, answers) : bytes_of(answers)));
    interrupted = asked_to_end();
    return !interrupted;
  };
  Evaluation* const evaluation = measured != nullptr ? &session.evaluation() : nullptr;
  if (evaluation != nullptr) GACC_TRY(evaluation->begin());
  GACC_TRY(each_output(session, plan, data, data.samples, take, evaluation));
  if (interrupted) return {};
  if (measured != nullptr) *measured = GACC_TRY(evaluation->end());
  if (wrong > 0)
    warning =
        fmt::format("warning: {} of {} outputs are not finite (nan or infinite), the first of sample {}",
                    wrong, data.samples * each, first_wrong);
  return file.commit();
}

TextReader::TextReader(Session& session, const Plan& plan)
    : session_(session),
      plan_(plan),
      room_(plan.predict.decode ? static_cast<size_t>(plan.predict.decode->positions) : 0) {}

Result<bool> TextReader::told(size_t tokens, const std::function<Result<bool>()>& read_them) {
  if (plan_.predict.short_text == 0) return read_them();
  const auto window = static_cast<size_t>(plan_.predict.shape[0]);
  const size_t read = std::min(tokens, window);
  const bool is_short = static_cast<int64_t>(read) <= plan_.predict.short_text;
  if (is_short != std::exchange(kept_short_, is_short)) forget();
  const auto tell = [&](size_t count) {
    return session_.write_state("text.length", static_cast<float>(count));
  };
  GACC_TRY(tell(read));
  Result<bool> done = read_them();
  GACC_TRY(tell(window));
  return done;
}

Result<bool> TextReader::keep(std::span<const int32_t> text, const std::function<bool()>& interrupted) {
  return told(text.size(), [&] { return keep_told(text, interrupted); });
}

Result<bool> TextReader::read(std::span<const int32_t> text, std::vector<float>& logits,
                              const std::function<bool()>& interrupted) {
  return told(text.size(), [&] { return read_told(text, logits, interrupted); });
}

Result<bool> TextReader::keep_told(std::span<const int32_t> text, const std::function<bool()>& interrupted) {
  if (text.size() > room_) return true;
  const auto alike = static_cast<size_t>(std::ranges::mismatch(kept_, text).in1 - kept_.begin());
  if (alike < text.size()) kept_.resize(alike);
  while (kept_.size() < text.size()) {
    if (interrupted && interrupted()) return false;
    GACC_TRY(session_.prediction().decode(text[kept_.size()], static_cast<int32_t>(kept_.size())));
    kept_.push_back(text[kept_.size()]);
  }
  return true;
}

Result<bool> TextReader::read_told(std::span<const int32_t> text, std::vector<float>& logits,
                                   const std::function<bool()>& interrupted) {
  logits.resize(static_cast<size_t>(vocabulary(plan_)));
  if (text.size() <= room_) {
    const size_t before = text.size() - 1;
    if (!GACC_TRY(keep_told(text.first(before), interrupted))) return false;
    if (interrupted && interrupted()) return false;
    // The last one is computed in any case: its logits are asked for.
    GACC_TRY(session_.prediction().decode(text.back(), static_cast<int32_t>(before)));
    if (kept_.size() > before && kept_[before] != text.back()) kept_.resize(before);
    if (kept_.size() == before) kept_.push_back(text.back());
    GACC_TRY(session_.prediction().read_decoded(logits));
    return true;
  }
  forget();  // `predict` takes their place
  const auto length = static_cast<size_t>(plan_.predict.shape[0]);
  const size_t used = std::min(text.size(), length);
  std::vector<int32_t> window(text.end() - static_cast<std::ptrdiff_t>(used), text.end());
  window.resize(length);  // later positions do not change it
  std::vector<int32_t> one_document(used);
  one_document.resize(length, -1);  // later positions are not of the text
  std::vector<std::span<const std::byte>> inputs(plan_.inputs.size());
  std::ranges::transform(plan_.inputs, inputs.begin(), [&](const PlanInput& input) {
    return std::as_bytes(std::span(input.documents ? one_document : window));
  });
  GACC_TRY(session_.prediction().run(inputs, 1));
  GACC_TRY(session_.prediction().read(static_cast<int64_t>((used - 1) * logits.size()), logits));
  return true;
}

Result<int32_t> draw(std::span<const float> logits, const DrawOptions& options, uint64_t position) {
  if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }))
    return Status::error("token {} of the text: the model's logits are not finite", position + 1);
  if (options.temperature == 0)
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  // 1. The sum of the weights, which are probabilities but for one factor, of all tokens that may be drawn.
  const auto logit_of = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  const double top = *std::ranges::max_element(logits);
  const auto weight_of = [&](int32_t token) {
    return std::exp((double{logit_of(token)} - top) / options.temperature);
  };
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t kept = std::min(order.size(), static_cast<size_t>(options.top_k.value_or(std::ssize(order))));
  // Sums over the tokens that are sorted so far: the most likely first, of equal ones the lower number.
  std::vector<double> sums;
  const auto sort_more = [&] {
    const auto begin = order.begin() + std::ssize(sums);
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(kept, 8 * sums.size() + 64));
    std::ranges::partial_sort(begin, end, order.end(), {},
                              [&](int32_t token) { return std::pair(-logit_of(token), token); });
    for (auto token = begin; token != end; ++token)
      sums.push_back((sums.empty() ? 0 : sums.back()) + weight_of(*token));
  };
  double sum = 0;
  if (kept == order.size()) {
    for (const int32_t token : order) sum += weight_of(token);
  } else {
    while (sums.size() < kept) sort_more();
    sum = sums.back();
  }
  // 2. The first sorted token whose sum passes: as a rule few have to be sorted.
  const auto first_of = [&](const auto& passes) {
    for (size_t at = 0;; ++at) {
      if (at == sums.size()) sort_more();
      if (passes(sums[at]) || at + 1 == kept) return at;
    }
  };
  size_t last = kept - 1;
  if (options.top_p < 1) {
    last = first_of([&](double so_far) { return so_far >= options.top_p * sum; });
    sum = sums[last];
  }
  const PhiloxCounter words = philox({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                                      0, static_cast<uint32_t>(RandomStream::generate)},
                                     options.seed);
  const uint64_t bits = uint64_t{words[1]} << 32 | words[0];
  const double number = static_cast<double>(bits >> 11) * 0x1p-53 * sum;
  return order[std::min(last, first_of([&](double so_far) { return so_far > number; }))];
}

Result<int64_t> generate(Session& session, const Plan& plan, const GenerateOptions& options,
                         bool& interrupted) {
  std::vector<int32_t> text = GACC_TRY(parse_prompt(plan, options.prompt)), stop, held;
  if (!options.stop.empty()) stop = GACC_TRY(parse_prompt(plan, options.stop, "--stop"));
  const bool bytes = !writes_numbers(plan);
  std::vector<float> logits;
  TextReader reader(session, plan);
  bool first = true;
  const auto print = [&](size_t count) {  // the first of those that are held back
    for (size_t i = 0; i < count; ++i, first = false)
      options.print(bytes ? std::string(1, static_cast<char>(held[i]))
                          : fmt::format("{}{}", first ? "" : " ", held[i]));
    held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(count));
  };
  int64_t made = 0;
  bool stopped = false;
  while (made < options.tokens && !stopped && !interrupted) {
    interrupted = !GACC_TRY(reader.read(text, logits, options.interrupted));
    if (interrupted) break;
    text.push_back(GACC_TRY(draw(logits, options, text.size())));
    held.push_back(text.back());
    ++made;
    // Text that may be the beginning of `stop` is held back.
    size_t kept = std::min(held.size(), stop.size());
    while (!std::equal(held.end() - static_cast<std::ptrdiff_t>(kept), held.end(), stop.begin())) --kept;
    print(held.size() - kept);
    stopped = !stop.empty() && kept == stop.size();
    interrupted = options.interrupted();
  }
  if (!stopped) print(held.size());
  return made;
}

}  // namespace gacc
