// libFuzzer target for safetensors: any bytes give sorted tensors that fit their shapes, or an error; and
// so do what its metadata say of data.
#include "runtime/data/data_facts.h"
#include "tests/data/load_safetensors.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<gacc::NamedTensor> tensors;
  gacc::Metadata metadata;
  gacc::Status status =
      gacc::parse_safetensors({reinterpret_cast<const char*>(data), size}, "f", tensors, &metadata);
  gacc::fuzz::check_status(status);
  gacc::Plan plan;
  plan.inputs.resize(1);
  plan.inputs[0].name.assign(1, 'x');  // g++ 12 warns of an assigned literal
  plan.inputs[0].dtype = gacc::DType::f32;
  plan.inputs[0].shape = {2};
  gacc::DataFacts facts;
  const gacc::Status known = gacc::read_facts(metadata, "f", plan, facts);
  gacc::fuzz::check_status(known);
  if (known && !facts.empty()) {
    const gacc::InputFacts& x = facts.at("x");
    if (x.columns.size() % 2 || x.mean.size() != x.std.size() || x.mean.size() % 2) __builtin_trap();
  }
  if (!status) return 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t elements = 1;
    for (int64_t extent : tensors[i].shape)
      if (extent == 0) elements = 0;
    if (elements != 0)
      for (int64_t extent : tensors[i].shape) elements *= extent;
    if (elements != static_cast<int64_t>(tensors[i].data.size())) __builtin_trap();
    if (i > 0 && !(tensors[i - 1].name < tensors[i].name)) __builtin_trap();
  }
  return 0;
}
