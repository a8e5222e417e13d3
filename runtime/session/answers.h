// The forms of predictions: the outputs of `predict`, or the probabilities or classes that they are logits of.
#pragma once
#include <cstdint>
#include <span>

#include "runtime/plan.h"

namespace gacc {

// Returns how many outputs make one answer: those of the last axis where it is the number of the largest, else 1.
int64_t outputs_of_an_answer(const PlanPredict& predict);

// Makes answers of outputs, which are whole rows of the last axis; computes in double. `answers` may be the outputs'
// own place. Of equal logits the first is the class.
void make_answers(const PlanPredict& predict, std::span<const float> outputs, std::span<float> answers);

}  // namespace gacc
