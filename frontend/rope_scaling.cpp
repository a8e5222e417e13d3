// See rope_scaling.h. With f_i = theta^(-2 i / R) / (2 pi) the turns of pair i a position, and its wavelength 1 / f_i:
//
//   linear   1 / factor                             (Chen et al., "Extending Context Window ... Interpolation", 2023)
//   llama3   1 where original f_i > high_freq_factor, 1 / factor where it is below low_freq_factor, and
//            (1 - s) / factor + s between, s = (original f_i - low) / (high - low)    (Llama 3.1; transformers'
//            modeling_rope_utils), original = original_max_position_embeddings
#include "frontend/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace gacc::frontend {

namespace {

const Key factor{"factor", Form::real, required, "how much longer the sequences are", at_least(1)};

double linear(const Values& keys, double) { return 1 / keys.real("factor"); }

double llama3(const Values& keys, double turns) {
  const double waves = static_cast<double>(keys.integer("original_max_position_embeddings")) * turns;
  const double low = keys.real("low_freq_factor"), high = keys.real("high_freq_factor");
  const double share = high > low    ? std::clamp((waves - low) / (high - low), 0.0, 1.0)
                       : waves > low ? 1.0
                                     : 0.0;
  return (1 - share) / keys.real("factor") + share;
}

struct Scaling {
  TypeSchema schema;
  double (*of)(const Values& keys, double turns);
};
const std::vector<const Scaling*>& all() {
  static const Scaling scalings[] = {
      {{.name = "linear", .says = "1 / factor.", .keys = {factor}, .example = "factor = 4.0"}, linear},
      {{.name = "llama3",
        .says = "1 / factor of slow turns, 1 of fast ones, and between in proportion.",
        .keys = {factor,
                 {"low_freq_factor", Form::real, 1.0,
                  "turns within the original positions up to which a pair is slow", above(0)},
                 {"high_freq_factor", Form::real, 4.0, "and from which on it is fast", above(0)},
                 {"original_max_position_embeddings", Form::integer, required,
                  "the positions that it was trained on", extent}},
        .example = "factor = 8.0\noriginal_max_position_embeddings = 8192"},
       llama3}};
  static const std::vector<const Scaling*> pointers = {&scalings[0], &scalings[1]};
  return pointers;
}

}  // namespace

std::vector<const TypeSchema*> rope_scalings() { return schemas_of(all()); }

std::vector<double> rope_factors(const Values& scaling, double theta, int64_t rotated) {
  std::vector<double> factors;
  for (int64_t i = 0; i < rotated / 2; ++i) {
    const double turns = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotated)) /
                         (2 * std::numbers::pi);
    factors.push_back(member_of(all(), *scaling.type).of(scaling, turns));
  }
  return factors;
}

}  // namespace gacc::frontend
