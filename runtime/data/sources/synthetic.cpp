// What needs no file: drawn digits, and tokens by a rule.
#include <algorithm>

#include "runtime/data/digits.h"
#include "runtime/data/source.h"
#include "runtime/data/tokens.h"

namespace gacc {
namespace {

constexpr int64_t kSamples = 10000;  // without a limit

Status make_images(DataReader& r, int64_t samples, bool test) {
  constexpr int64_t kMost = int64_t{1} << 24;  // 12 GiB of pixels
  if (samples > kMost)
    return Status::error("synthetic:digits makes at most {} samples, not {}", kMost, samples);
  Array images, labels;
  make_digits(samples, static_cast<uint64_t>(r.plan.seed), test, images, labels);
  return r.give_images("synthetic:digits", std::move(images), "synthetic:digits", std::move(labels));
}

Status make_tokens(DataReader& r, int64_t samples, bool test) {
  constexpr int64_t kMost = int64_t{1} << 32;  // tokens
  size_t first = 0, second = 0;
  GACC_TRY(r.token_inputs(first, second));
  const std::vector<PlanInput>& inputs = r.plan.inputs;
  const int64_t length = inputs[first].shape[0];
  if (length >= kMost || samples > kMost / (length + 1))
    return Status::error("synthetic:tokens makes at most {} tokens, not {} times {}", kMost, samples, length);
  const int64_t range = std::min(inputs[first].range.value_or(256), inputs[second].range.value_or(256));
  const std::vector<std::byte> both =
      make_token_windows(samples, length, range, static_cast<uint64_t>(r.plan.seed), test);
  for (const size_t i : {first, second}) {
    Array array{"u8", {samples, length}, {}};
    const int64_t shift = i == second ? 1 : 0;
    for (int64_t sample = 0; sample < samples; ++sample) {
      const auto* from = both.data() + sample * (length + 1) + shift;
      array.bytes.insert(array.bytes.end(), from, from + length);
    }
    r.give(i, "synthetic:tokens", std::move(array),
           [](int64_t element) { return fmt::format("synthetic:tokens: token {}", element); });
  }
  return {};
}

}  // namespace

const DataSource sources::synthetic{
    .name = "synthetic",
    .path = "digits|tokens",
    .says =
        "`digits`: drawn digits, 28 × 28, in ten classes; `tokens`: sequences in which the two tokens before "
        "it fix the next one seven times out of eight",
    .keys = {{"split", "train|test", "train", "which of two sets that share nothing but the rule"}},
    .files = [](const Spec&) { return std::vector<std::string>(); },
    .read =
        [](DataReader& r) {
          const auto make = r.spec.path == "digits" ? make_images : make_tokens;
          return make(r, r.spec.limit.value_or(kSamples), r.spec.option("split") == "test");
        },
};

}  // namespace gacc
