// Runs `predict` once, and `answer` for each part that is read.
#include "runtime/session/prediction.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace gacc {

Status Prediction::run(InputBytes inputs, int64_t samples) {
  GACC_TRY(arena_.write_inputs(inputs, samples, Program::predict));
  return arena_.run(Program::predict, samples);
}

Status Prediction::read(int64_t first, std::span<float> outputs) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(float));
  const PlanPredict& predict = arena_.plan().predict;
  if (predict.rows == 0)
    return arena_.read_into(predict.offset + first * kSize, std::as_writable_bytes(outputs));
  const int64_t each = predict.outputs();
  std::vector<int32_t> rows(static_cast<size_t>(predict.rows));
  while (!outputs.empty()) {
    const int64_t part = first / each, begin = first % each;
    const auto some = std::min(static_cast<size_t>(each - begin), outputs.size());
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(part * predict.rows));
    GACC_TRY(arena_.write(predict.rows_offset, std::as_bytes(std::span(rows))));
    GACC_TRY(arena_.run(Program::answer, 1));
    GACC_TRY(arena_.read_into(predict.offset + begin * kSize, std::as_writable_bytes(outputs.first(some))));
    first += static_cast<int64_t>(some);
    outputs = outputs.subspan(some);
  }
  return {};
}

Status Prediction::decode(int32_t token, int32_t position) {
  const PlanPredict::Decode& decode = *arena_.plan().predict.decode;
  GACC_TRY(arena_.write(decode.token_offset, std::as_bytes(std::span(&token, 1))));
  GACC_TRY(arena_.write(decode.position_offset, std::as_bytes(std::span(&position, 1))));
  return arena_.run(Program::decode, 1);
}

Status Prediction::read_decoded(std::span<float> outputs) {
  return arena_.read_into(arena_.plan().predict.decode->offset, std::as_writable_bytes(outputs));
}

}  // namespace gacc
