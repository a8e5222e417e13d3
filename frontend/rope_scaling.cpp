// The types of `rope.scaling`, with the names and meaning that transformers gives them in `rope_parameters`. With
// f_i = theta^(-2 i / R) the angle of pair i of R rotated channels from one position to the next, L the positions
// that the model was first trained on (original_max_position_embeddings), and F = factor, each has its scale s_i,
// of the angle, and a magnitude m, which is 1 where nothing else is said:
//
//   linear    s = 1 / F                                             (Chen et al., "Positional interpolation", 2023)
//   llama3    with turns n_i = L f_i / (2 pi) over the first window (Llama 3.1 model card, 2024)
//             s = 1 where n_i > high, 1 / F where n_i < low, else (1 - w) / F + w, w = (n_i - low) / (high - low)
//   yarn      s = w_i + (1 - w_i) / F                               (Peng et al., "YaRN", 2023)
//             w_i = 1 - clamp((i - a) / (b - a), 0, 1); a and b are the pairs, rounded down and up where `truncate`,
//             that turn beta_fast and beta_slow times over L:
//             pair(n) = R ln(L / (2 pi n)) / (2 ln theta), kept in [0, R - 1]
//             m = g(mscale) / g(mscale_all_dim) where both are given, else g(1); g(x) = 0.1 x ln F + 1, 1 for F <= 1
//   longrope  s_i = 1 / long_factor_i in texts of more than L positions, else 1 / short_factor_i
//             m = sqrt(1 + ln F / ln L), 1 for F <= 1               (Ding et al., "LongRoPE", 2024)
#include "frontend/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ir/text/size_text.h"

namespace gacc::frontend {

namespace {

const Key factor_key{"factor", Form::real, required, "how many times more positions than it was trained on",
                     at_least(1)};
const Key original_key{"original_max_position_embeddings", Form::integer, required,
                       "the positions that it was trained on first", between(2, kLargest)};
const Key attention_factor_key{"attention_factor", Form::real, no_default,
                               "multiplies what is turned; default: by the formula", above(0)};

struct Asked {
  const Values& keys;
  double theta;
  int64_t rotated, length;

  double frequency(int64_t pair) const {
    return std::pow(theta, static_cast<double>(-2 * pair) / static_cast<double>(rotated));
  }
  double factor() const { return keys.real("factor"); }
  double original() const { return static_cast<double>(keys.integer("original_max_position_embeddings")); }
};

std::vector<double> linear(const Asked& a) {
  return std::vector<double>(static_cast<size_t>(a.rotated / 2), 1 / a.factor());
}

std::vector<double> llama3(const Asked& a) {
  const double low = a.keys.real("low_freq_factor"), high = a.keys.real("high_freq_factor");
  std::vector<double> scales;
  for (int64_t i = 0; i < a.rotated / 2; ++i) {
    const double turns = a.original() * a.frequency(i) / (2 * std::numbers::pi);
    const double weight = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    scales.push_back((1 - weight) / a.factor() + weight);
  }
  return scales;
}

std::vector<double> yarn(const Asked& a) {
  const auto pair_of = [&](double turns) {
    return static_cast<double>(a.rotated) * std::log(a.original() / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(a.theta));
  };
  double first = pair_of(a.keys.real("beta_fast")), last = pair_of(a.keys.real("beta_slow"));
  if (a.keys.flag("truncate")) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, static_cast<double>(a.rotated - 1));
  if (first == last) last += 0.001;  // as transformers, so that the ramp has a slope
  std::vector<double> scales;
  for (int64_t i = 0; i < a.rotated / 2; ++i) {
    const double weight = 1 - std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    scales.push_back((1 - weight) / a.factor() + weight);
  }
  return scales;
}

bool is_long(const Asked& a) { return static_cast<double>(a.length) > a.original(); }
std::vector<double> reciprocals(std::vector<double> factors) {
  for (double& factor : factors) factor = 1 / factor;
  return factors;
}
std::vector<double> longrope(const Asked& a) {
  return reciprocals(a.keys.reals(is_long(a) ? "long_factor" : "short_factor"));
}

double yarn_magnitude(const Asked& a) {
  const auto grown = [&](double scale) {
    return a.factor() <= 1 ? 1 : 0.1 * scale * std::log(a.factor()) + 1;
  };
  const double first = a.keys.real("mscale"), second = a.keys.real("mscale_all_dim");
  return first != 0 && second != 0 ? grown(first) / grown(second) : grown(1);
}

double longrope_magnitude(const Asked& a) {
  return a.factor() <= 1 ? 1 : std::sqrt(1 + std::log(a.factor()) / std::log(a.original()));
}

struct ScalingType {
  TypeSchema schema;
  std::vector<double> (*scales)(const Asked& asked);
  double (*magnitude)(const Asked& asked) = nullptr;
};

const ScalingType kTypes[] = {
    {{.name = "linear",
      .says = "All angles are divided by `factor`.",
      .keys = {factor_key},
      .example = "factor = 2.0"},
     linear},
    {{.name = "llama3",
      .says = "Angles of pairs that turn seldom are divided by `factor`, as Llama 3.1 does.",
      .keys = {factor_key,
               original_key,
               {"low_freq_factor", Form::real, 1.0, "below so many turns an angle is divided", above(0)},
               {"high_freq_factor", Form::real, 4.0, "above so many turns it stays; between them it fades",
                above(0)}},
      .example = "factor = 8.0\noriginal_max_position_embeddings = 8192"},
     llama3},
    {{.name = "yarn",
      .says = "Angles of pairs that turn seldom are divided by `factor`, and queries and keys grow (YaRN).",
      .keys = {factor_key,
               original_key,
               attention_factor_key,
               {"beta_fast", Form::real, 32.0, "pairs that turn more often stay", above(0)},
               {"beta_slow", Form::real, 1.0, "pairs that turn less often are divided", above(0)},
               {"mscale", Form::real, no_default, "of the growth, with mscale_all_dim", at_least(0)},
               {"mscale_all_dim", Form::real, no_default, "the growth is divided by that of this one",
                at_least(0)},
               {"truncate", Form::flag, true, "the two limits are whole pairs"}},
      .example = "factor = 4.0\noriginal_max_position_embeddings = 4096"},
     yarn,
     yarn_magnitude},
    {{.name = "longrope",
      .says = "Each angle is divided by a number of its own: one list for texts of at most "
              "original_max_position_embeddings positions, one for longer ones. A window is one text; "
              "a document in it, and a text that is generated, have their own length.",
      .keys = {factor_key,
               original_key,
               attention_factor_key,
               {"short_factor", Form::reals, required, "one number, at least 1, for each pair", at_least(1)},
               {"long_factor", Form::reals, required, "likewise, of longer texts", at_least(1)}},
      .example = "factor = 32.0\noriginal_max_position_embeddings = 4096\nshort_factor = [1.0, 1.0]\n"
                 "long_factor = [1.0, 4.0]"},
     longrope,
     longrope_magnitude},
};

std::vector<const TypeSchema*> schemas() {
  std::vector<const TypeSchema*> all;
  for (const ScalingType& type : kTypes) all.push_back(&type.schema);
  return all;
}

const ScalingType* type_of(const Values& scaling) {
  const auto found =
      std::ranges::find(kTypes, scaling.type, [](const ScalingType& type) { return &type.schema; });
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace

const Table tables::rope_scaling{
    .name = "`rope.scaling`",
    .path = "layers.rope.scaling",
    .says = "Of `rope`: how positions beyond those of the first training are turned, by transformers' names.",
    .types = schemas()};

RopeScaling rope_scaling(const Values& scaling, double theta, int64_t rotated, int64_t length) {
  const Asked asked{scaling, theta, rotated, length};
  const ScalingType& type = *type_of(scaling);
  RopeScaling made{type.scales(asked)};
  if (scaling.lists("attention_factor") && scaling.has("attention_factor"))
    made.magnitude = scaling.real("attention_factor");
  else if (type.magnitude != nullptr)
    made.magnitude = type.magnitude(asked);
  if (scaling.lists("short_factor") && is_long(asked)) {
    made.short_scales = reciprocals(scaling.reals("short_factor"));
    made.original = scaling.integer("original_max_position_embeddings");
  }
  return made;
}

ConfigValue scaling_numbers(const Values& scaling, double theta, int64_t rotated) {
  std::vector<ConfigValue> numbers;
  for (const int64_t length : {int64_t{1}, static_cast<int64_t>(kLargest)}) {
    const RopeScaling made = rope_scaling(scaling, theta, rotated, length);
    std::vector<ConfigValue> scales;
    for (const double scale : made.scales) scales.push_back({scale});
    numbers.push_back({std::move(scales)});
    numbers.push_back({made.magnitude});
  }
  return {std::move(numbers)};
}

bool check_rope_scaling(const Values& scaling, int64_t rotated, Diag& diag) {
  const size_t reports = diag.reports().size();
  for (const char* key : {"short_factor", "long_factor"}) {
    if (!scaling.lists(key) || !scaling.has(key)) continue;
    const size_t count = scaling.reals(key).size(), pairs = static_cast<size_t>(rotated / 2);
    if (count != pairs)
      diag.error(Kind::out_of_range, scaling.at(key),
                 "`{}` has {}; {} of a head's channels are turned, in {}", scaling.name(key),
                 ir::counted(static_cast<int64_t>(count), "number"), rotated,
                 ir::counted(static_cast<int64_t>(pairs), "pair"));
  }
  if (scaling.lists("low_freq_factor") && scaling.real("low_freq_factor") >= scaling.real("high_freq_factor"))
    diag.error(Kind::out_of_range, scaling.at("high_freq_factor"), "`{}` must be above `low_freq_factor`, {}",
               scaling.name("high_freq_factor"), scaling.real("low_freq_factor"));
  if (scaling.lists("beta_fast") && scaling.real("beta_slow") >= scaling.real("beta_fast"))
    diag.error(Kind::out_of_range, scaling.at("beta_fast"), "`{}` must be above `beta_slow`, {}",
               scaling.name("beta_fast"), scaling.real("beta_slow"));
  return diag.reports().size() == reports;
}

}  // namespace gacc::frontend
