#include "runtime/session/judgement.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace gacc {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Returns the index of the first largest; their number where one is not a number.
int64_t largest(std::span<const float> logits) {
  if (std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); })) return std::ssize(logits);
  return std::ranges::max_element(logits) - logits.begin();
}

double target_at(std::span<const std::byte> targets, size_t at, DType dtype) {
  float real = 0;
  int32_t integer = 0;
  std::memcpy(&real, &targets[4 * at], 4);
  std::memcpy(&integer, &targets[4 * at], 4);
  return dtype == DType::f32 ? real : integer;
}

}  // namespace

Judgement::Judgement(const PlanAnswers& answers, bool curve)
    : answers_(&answers), curve_(curve), classes_(static_cast<size_t>(answers.classes + 1)) {
  if (answers.classes <= kMostConfused)
    confusion_.resize(static_cast<size_t>(answers.classes * (answers.classes + 1)));
}

bool Judgement::makes(std::string_view metric) {
  return metric == "f1" || metric == "auc" || metric == "balanced_accuracy";
}

void Judgement::count(int64_t target, int64_t answer) {
  ++classes_[static_cast<size_t>(target)].targets;
  ++classes_[static_cast<size_t>(answer)].answers;
  if (target == answer) ++classes_[static_cast<size_t>(target)].hits;
  if (!confusion_.empty()) ++confusion_[static_cast<size_t>(target * (answers_->classes + 1) + answer)];
}

void Judgement::add(std::span<const float> answers, std::span<const std::byte> targets, DType dtype) {
  using Form = PlanAnswers::Form;
  const int64_t classes = answers_->classes;
  const size_t each = answers_->form == Form::logits ? static_cast<size_t>(classes) : 1;
  for (size_t row = 0; row * each < answers.size(); ++row) {
    const std::span<const float> given = answers.subspan(row * each, each);
    const double wanted = target_at(targets, row, dtype);
    if (answers_->form == Form::binary) {
      const int64_t positive = wanted > 0.5;
      count(positive, std::isnan(given[0]) ? classes : given[0] > 0);
      if (curve_) scores_.push_back({given[0], positive});
      continue;
    }
    const auto target = static_cast<int64_t>(wanted);
    if (target < 0 || target >= classes) continue;
    if (answers_->form == Form::numbers) {
      if (given[0] >= 0) count(target, static_cast<int64_t>(given[0]));  // -1: nothing counts here
      continue;
    }
    count(target, largest(given));
    if (curve_) scores_.push_back({static_cast<double>(given[1]) - given[0], target});
  }
}

double Judgement::value(std::string_view metric) const {
  return metric == "f1" ? f1() : metric == "auc" ? area() : balanced_accuracy();
}

// 2 hits / (targets + answers) of a class: the harmonic mean of precision and recall.
double Judgement::f1() const {
  const auto of = [](const Class& one) {
    const int64_t all = one.targets + one.answers;
    return all == 0 ? 0 : 2 * static_cast<double>(one.hits) / static_cast<double>(all);
  };
  if (answers_->classes == 2) return of(classes_[1]);
  double sum = 0, there = 0;
  for (int64_t i = 0; i < answers_->classes; ++i) {
    const Class& one = classes_[static_cast<size_t>(i)];
    if (one.targets + one.answers == 0) continue;
    sum += of(one);
    ++there;
  }
  return sum / there;
}

double Judgement::balanced_accuracy() const {
  double sum = 0, there = 0;
  for (const Class& one : classes_) {
    if (one.targets == 0) continue;
    sum += static_cast<double>(one.hits) / static_cast<double>(one.targets);
    ++there;
  }
  return sum / there;
}

// The part of the pairs of a positive and a negative in which the positive has the larger score; a tie is half a pair.
double Judgement::area() const {
  std::vector<Score> sorted = scores_;
  if (std::ranges::any_of(sorted, [](const Score& score) { return std::isnan(score.value); })) return kNone;
  std::ranges::sort(sorted, {}, &Score::value);
  int64_t positives = 0, negatives = 0, halves = 0;
  for (size_t at = 0; at < sorted.size();) {
    int64_t here = 0, others = 0;
    for (const double value = sorted[at].value; at < sorted.size() && sorted[at].value == value; ++at)
      ++(sorted[at].positive != 0 ? here : others);
    halves += here * (2 * negatives + others);
    positives += here;
    negatives += others;
  }
  return static_cast<double>(halves) / 2 / static_cast<double>(positives) / static_cast<double>(negatives);
}

std::vector<int64_t> Judgement::words() const {
  std::vector<int64_t> words;
  for (const Class& one : classes_) words.insert(words.end(), {one.targets, one.answers, one.hits});
  words.insert(words.end(), confusion_.begin(), confusion_.end());
  for (const Score& score : scores_)
    words.insert(words.end(), {std::bit_cast<int64_t>(score.value), score.positive});
  return words;
}

void Judgement::add_words(std::span<const int64_t> words) {
  size_t at = 0;
  for (Class& one : classes_)
    for (int64_t* const count : {&one.targets, &one.answers, &one.hits}) *count += words[at++];
  for (int64_t& count : confusion_) count += words[at++];
  for (; at + 1 < words.size(); at += 2) scores_.push_back({std::bit_cast<double>(words[at]), words[at + 1]});
}

}  // namespace gacc
