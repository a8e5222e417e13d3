#include "runtime/session/answers.h"

#include <algorithm>
#include <cmath>

namespace gacc {
namespace {

// exp(x - max) / sum of exp(x - max)
void softmax(std::span<const float> logits, std::span<float> to) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  for (size_t i = 0; i < logits.size(); ++i) to[i] = static_cast<float>(std::exp(logits[i] - most) / sum);
}

// Finds the largest; a logit that is no number is never it, unless all are none.
float argmax(std::span<const float> logits) {
  if (std::ranges::all_of(logits, [](float logit) { return std::isnan(logit); })) return logits.front();
  const auto less = [](float a, float b) { return std::isnan(a) ? !std::isnan(b) : a < b; };
  return static_cast<float>(std::ranges::max_element(logits, less) - logits.begin());
}

}  // namespace

int64_t outputs_of_an_answer(const PlanPredict& predict) {
  return predict.answer == AnswerForm::argmax ? predict.shape.back() : 1;
}

void make_answers(const PlanPredict& predict, std::span<const float> outputs, std::span<float> answers) {
  switch (predict.answer) {
    case AnswerForm::logits:
      if (answers.data() != outputs.data()) std::ranges::copy(outputs, answers.begin());
      break;
    case AnswerForm::sigmoid:
      std::ranges::transform(outputs, answers.begin(),
                             [](float x) { return static_cast<float>(1 / (1 + std::exp(-double{x}))); });
      break;
    case AnswerForm::above_half:
      std::ranges::transform(outputs, answers.begin(),
                             [](float x) { return std::isnan(x) ? x : static_cast<float>(x > 0); });
      break;
    case AnswerForm::softmax:
    case AnswerForm::argmax:
      const auto row = static_cast<size_t>(predict.shape.back());
      for (size_t first = 0; first < outputs.size(); first += row) {
        const std::span<const float> logits = outputs.subspan(first, row);
        if (predict.answer == AnswerForm::softmax)
          softmax(logits, answers.subspan(first, row));
        else
          answers[first / row] = argmax(logits);
      }
  }
}

}  // namespace gacc
