// Judges all answers of an evaluation beside their targets: a confusion matrix, and the metrics that no sum over
// samples gives. They are made of counts, and of the order of scores, so they are exact and the same for all
// micro-batches, lanes and ranks.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/plan.h"

namespace gacc {

class Judgement {
 public:
  // `answers` must outlive it; `curve`: the scores are kept, for auc.
  Judgement(const PlanAnswers& answers, bool curve);

  // Adds the answers of a launch, row-major. `targets` are class numbers, i32, one a row; of the form `binary` f32 or
  // i32, one an answer, which mean yes above 0.5. Targets that are no class count nothing.
  void add(std::span<const float> answers, std::span<const std::byte> targets, DType dtype);

  // Returns true for f1, balanced_accuracy and auc. "f1" is that of class 1 where there are two classes, else the mean
  // of those of the classes that targets or answers have; "balanced_accuracy" is the mean of the recalls of the classes
  // that targets have; "auc" is the area under the curve of recall over false alarms.
  static bool makes(std::string_view metric);
  // NaN where there is no such number, as auc of targets of one class, or of scores that are not numbers.
  double value(std::string_view metric) const;
  // Counts how often the target was t and the answer a, at t * (classes + 1) + a; answer `classes` is none, as of NaN.
  // Empty where there are more than kMostConfused classes.
  const std::vector<int64_t>& confusion() const { return confusion_; }
  static constexpr int64_t kMostConfused = 20;

  // For other ranks, and from one.
  std::vector<int64_t> words() const;
  void add_words(std::span<const int64_t> words);

 private:
  struct Score {
    double value = 0;
    int64_t positive = 0;
  };
  struct Class {
    int64_t targets = 0, answers = 0, hits = 0;
  };

  void count(int64_t target, int64_t answer);
  double f1() const;
  double balanced_accuracy() const;
  double area() const;

  const PlanAnswers* answers_;
  bool curve_;
  std::vector<Class> classes_;  // the last one is none
  std::vector<int64_t> confusion_{};
  std::vector<Score> scores_{};
};

}  // namespace gacc
