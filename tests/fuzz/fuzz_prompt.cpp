// libFuzzer target for --prompt: any text is tokens that the model has, or an error. The first byte chooses
// the vocabulary.
#include "runtime/run/predict.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  constexpr int64_t kVocabularies[] = {1, 128, 256, 257, 50257, int64_t{1} << 31};
  gacc::Plan plan;
  gacc::PlanInput& tokens = plan.inputs.emplace_back();
  tokens.name = "tokens";
  tokens.dtype = gacc::DType::i32;
  tokens.shape = {8};
  tokens.predict_offset = 0;
  plan.predict.batch = 1;
  plan.predict.shape = {8, kVocabularies[data[0] % std::size(kVocabularies)]};
  plan.predict.positions = "causal";
  gacc::GenerateOptions options;
  options.prompt.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  const gacc::Result<std::vector<int32_t>> text = gacc::parse_prompt(plan, options.prompt);
  gacc::fuzz::check_status(text.status());
  if (text.status().ok() != gacc::check_generate(plan, options).ok()) __builtin_trap();
  if (!text) return 0;
  if (text->empty()) __builtin_trap();
  for (const int32_t token : *text)
    if (token < 0 || token >= plan.predict.shape.back()) __builtin_trap();
  return 0;
}
