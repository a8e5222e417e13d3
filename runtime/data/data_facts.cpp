#include "runtime/data/data_facts.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "runtime/data/array.h"
#include "runtime/json_text.h"
#include "runtime/text.h"

namespace gacc {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kClassWeights = "loss.class_weights";

std::string key_of(std::string_view input, std::string_view what) {
  return fmt::format("gacc.inputs.{}.{}", input, what);
}

// Every fact in one list, for both directions.
template <class Facts, class Visit>
void each_fact(Facts& facts, Visit visit) {
  visit("dtype", facts.dtype);
  visit("columns", facts.columns);
  visit("fill", facts.fill);
  visit("mean", facts.mean);
  visit("std", facts.std);
  visit("values", facts.values);
  visit("weights", facts.weights);
}

// Returns the first fact that cannot be this input's; "" when all can.
std::string_view problem(const InputFacts& facts, const PlanInput& input) {
  const auto elements = static_cast<size_t>(checked_product(input.shape));
  const size_t axis = input.shape.empty() ? 1 : static_cast<size_t>(input.shape[0]);
  if (!facts.columns.empty() && facts.columns.size() != elements) return "columns";
  if (!facts.fill.empty() && facts.fill.size() != facts.columns.size()) return "fill";
  if (!facts.mean.empty() && facts.mean.size() != axis) return "mean";
  const auto bad = [](double value) { return !std::isfinite(static_cast<float>(value)); };
  if (std::ranges::any_of(facts.fill, bad)) return "fill";
  if (std::ranges::any_of(facts.weights, [&](double value) { return bad(value) || value < 0; }))
    return "weights";
  if (!facts.weights.empty() && std::ssize(facts.weights) != input.range.value_or(0)) return "weights";
  if (std::ranges::any_of(facts.mean, bad)) return "mean";
  if (facts.std.size() != facts.mean.size()) return "std";
  if (std::ranges::any_of(facts.std, [&](double value) { return bad(value) || value <= 0; })) return "std";
  return "";
}

}  // namespace

Metadata to_metadata(const DataFacts& facts) {
  Metadata metadata;
  for (const auto& [input, known] : facts)
    each_fact(known, [&, &name = input](std::string_view what, const auto& value) {
      if (value.empty()) return;
      if constexpr (std::is_same_v<decltype(value), const std::string&>)
        metadata[key_of(name, what)] = value;
      else
        metadata[key_of(name, what)] = json_text(Json(value));
    });
  return metadata;
}

Status read_facts(const Metadata& metadata, std::string_view source, const Plan& plan, DataFacts& facts) {
  facts.clear();
  for (const PlanInput& input : plan.inputs) {
    InputFacts known;
    std::string_view wrong;
    each_fact(known, [&]<class T>(std::string_view what, T& value) {
      const auto found = metadata.find(key_of(input.name, what));
      if (found == metadata.end()) return;
      if constexpr (std::is_same_v<T, std::string>) {
        value = found->second;
      } else {
        const Json list = Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
        constexpr bool kNames = std::is_same_v<T, std::vector<std::string>>;
        const auto fits = [](const Json& item) { return kNames ? item.is_string() : item.is_number(); };
        if (list.is_array() && std::ranges::all_of(list, fits))
          value = list.template get<T>();
        else if (wrong.empty())
          wrong = what;
      }
    });
    if (wrong.empty()) wrong = problem(known, input);
    if (!wrong.empty())
      return Status::error("{}: its metadata {} does not fit the input {} {}", source,
                           in_quotes(key_of(input.name, wrong)), in_quotes(input.name),
                           shape_text(input.shape));
    if (!known.mean.empty() && !input.normalize_data)
      return Status::error(
          "{}: the input {} was normalised by its data, and the artifact takes it otherwise: compile the "
          "model with `inputs.{}.normalize = \"data\"`",
          source, in_quotes(input.name), input.name);
    if (!known.values.empty() && known.values != input.values)
      return Status::error("{}: the words of the input {} were {}, and are {} in the artifact", source,
                           in_quotes(input.name), listed(known.values),
                           input.values.empty() ? "not stated" : listed(input.values));
    if (known != InputFacts()) facts[input.name] = std::move(known);
  }
  return {};
}

std::vector<float> class_weights(const DataFacts& facts, const Plan& plan) {
  for (const PlanInput& input : plan.inputs) {
    const auto known = facts.find(input.name);
    if (!input.balanced || known == facts.end() || known->second.weights.empty()) continue;
    const std::vector<double>& weights = known->second.weights;
    int exponent = 0;
    std::frexp(*std::ranges::max_element(weights), &exponent);
    std::vector<float> scaled;
    for (const double weight : weights)
      scaled.push_back(static_cast<float>(std::ldexp(weight, 1 - exponent)));
    const PlanBuffer& state = *std::ranges::find(plan.buffers, kClassWeights, &PlanBuffer::name);
    scaled.resize(static_cast<size_t>(state.shape.front()));  // classes beyond the range
    return scaled;
  }
  return {};
}

std::vector<double> balanced_weights(std::string_view dtype, std::span<const std::byte> targets,
                                     int64_t classes) {
  std::vector<double> weights(static_cast<size_t>(classes));
  visit_elements(dtype, targets, [&](const auto& all) {
    for (const auto target : all)
      if (target >= 0 && static_cast<double>(target) < static_cast<double>(classes))
        ++weights[static_cast<size_t>(target)];
  });
  const double all = std::reduce(weights.begin(), weights.end());
  const auto there =
      static_cast<double>(std::ranges::count_if(weights, [](double count) { return count > 0; }));
  for (double& weight : weights) weight = weight > 0 ? all / (there * weight) : 0;
  return weights;
}

void learn_statistics(std::string_view dtype, std::span<const std::byte> values,
                      std::span<const int64_t> shape, InputFacts& facts) {
  const size_t axis = shape.empty() ? 1 : static_cast<size_t>(shape[0]);
  const size_t each = static_cast<size_t>(checked_product(shape)), block = each / axis;
  visit_elements(dtype, values, [&]<class T>(std::span<const T> all) {
    const double scale = std::is_same_v<T, uint8_t> ? 255 : 1;
    const double count = static_cast<double>(all.size() / axis);
    // Sums of differences: from the first value, so that a constant has a deviation of exactly 0, then from
    // the mean.
    const auto sums = [&](const std::vector<double>& from, auto term) {
      std::vector<double> sum(axis);
      for (size_t at = 0; at < all.size();)
        for (size_t channel = 0; channel < axis; ++channel) {
          double part = 0;
          for (const size_t end = at + block; at < end; ++at)
            part += term(static_cast<double>(all[at]) / scale - from[channel]);
          sum[channel] += part;
        }
      return sum;
    };
    facts.mean.resize(axis);
    for (size_t channel = 0; channel < axis; ++channel)
      facts.mean[channel] = static_cast<double>(all[channel * block]) / scale;
    const auto shifts = sums(facts.mean, [](double difference) { return difference; });
    for (size_t channel = 0; channel < axis; ++channel) facts.mean[channel] += shifts[channel] / count;
    facts.std = sums(facts.mean, [](double difference) { return difference * difference; });
    for (double& each : facts.std) {
      each = each > 0 ? std::sqrt(each / count) : 1;
      if (static_cast<float>(each) == 0) each = 1;  // what no f32 can divide by is no deviation
    }
  });
}

}  // namespace gacc
