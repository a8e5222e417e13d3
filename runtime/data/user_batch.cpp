#include "runtime/data/user_batch.h"

#include <algorithm>

#include "runtime/data/array.h"
#include "runtime/text.h"

namespace gacc {

Status UserBatch::fill(std::span<const UserArray> arrays, int64_t samples, const DataFacts& facts,
                       Program program, int64_t first) {
  GACC_TRY(plan_.check_samples(samples, program));
  std::vector<std::string> names;
  for (const PlanInput& input : plan_.inputs) names.push_back(input.name);
  for (const UserArray& array : arrays) {
    if (std::ranges::find(names, array.name) == names.end())
      return Status::error("the model has no input {}{} (it has {})", in_quotes(array.name),
                           hint(array.name, names), listed(names));
    if (std::ranges::count(arrays, array.name, &UserArray::name) > 1)
      return Status::error("the input {} is given twice", in_quotes(array.name));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!plan_.inputs[i].offset(program)) continue;
    const auto array = std::ranges::find(arrays, names[i], &UserArray::name);
    if (array == arrays.end())
      return Status::error("there is no array for the input {}", in_quotes(names[i]));
    GACC_TRY(take(i, *array, samples, facts, first));
  }
  const auto pair = program == Program::step ? next_token_inputs(plan_) : std::nullopt;
  return pair ? check_next_tokens_of(plan_, inputs_[(*pair)[0]], inputs_[(*pair)[1]]) : Status();
}

Status UserBatch::take(size_t input, const UserArray& array, int64_t samples, const DataFacts& facts,
                       int64_t first) {
  const PlanInput& plan = plan_.inputs[input];
  const int64_t each = element_bytes(array.dtype), elements = checked_product(plan.shape);
  if (each == 0)
    return Status::error("the input {}: there is no type {} (there are u8, u16, i8, i16, i32, i64, f32, f64)",
                         in_quotes(plan.name), in_quotes(array.dtype));
  const int64_t bytes = samples * elements * each;
  if (static_cast<int64_t>(array.bytes.size()) != bytes)
    return Status::error("the input {}: {} of {} of {} {} {}, {} were given", in_quotes(plan.name),
                         counted(samples, "sample"), counted(elements, "element"), array.dtype,
                         samples == 1 ? "is" : "are", counted(bytes, "byte"), array.bytes.size());
  const auto place = [&](int64_t element) {
    return fmt::format("the input {}: element {} of sample {}", in_quotes(plan.name), element % elements,
                       first + element / elements);
  };
  GACC_TRY(check_values(plan, array.dtype, array.bytes, place));
  if (plan.balanced && !facts.contains(plan.name))
    return Status::error(
        "the input {}: loss.class_weights = \"balanced\" are those of training data, and nothing says them: "
        "load "
        "parameters that gacc-exec has saved after training, or compile with a number for each class",
        in_quotes(plan.name));
  if (array.dtype == dtype_text(plan.dtype) && plan.mean.empty() && plan.std.empty() &&
      !plan.normalize_data) {
    inputs_[input] = array.bytes;
    return {};
  }
  // As one column of a data set, whose samples are taken in order.
  Column column{plan.name, std::string(array.dtype), plan.shape, {array.bytes.begin(), array.bytes.end()}};
  if (plan.normalize_data) {
    const auto known = facts.find(plan.name);
    if (known == facts.end() || known->second.mean.empty())
      return Status::error(
          "the input {} is normalised by its training data, and nothing says how: load parameters that "
          "gacc-exec has saved after training",
          in_quotes(plan.name));
    column.mean = known->second.mean;
    column.std = known->second.std;
  }
  converted_[input].resize(static_cast<size_t>(samples * elements * 4));  // f32 and i32 are 4 bytes
  inputs_[input] = converted_[input];
  const Dataset data{.samples = samples, .columns = {std::move(column)}};
  return data.gather(0, plan, epoch_order(samples, 0, 0, /*shuffle=*/false), converted_[input]);
}

}  // namespace gacc
