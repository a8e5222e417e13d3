// The reference evaluator: runs a region op by op in double, straight from the op table. Slow and obvious;
// every kernel is judged by it.
#pragma once
#include <map>

#include "ir/op_info.h"

namespace gacc::ir {

// A tensor of doubles in row-major order; integers are held exactly.
struct Tensor {
  Shape shape{};  // concrete: B replaced
  std::vector<double> data{};
};

// The argument of OpInfo::reference: the operands' tensors and the results to fill.
class EvalView {
 public:
  EvalView(const OpView& op, std::vector<const Tensor*> operands, std::vector<Tensor>& results)
      : op(op), operands_(std::move(operands)), results_(results) {}
  const OpView& op;
  const Tensor& operand(size_t i) const { return *operands_[i]; }
  Tensor& result(size_t i = 0) { return results_[i]; }  // written buffers first, then results; sized already

 private:
  std::vector<const Tensor*> operands_;
  std::vector<Tensor>& results_;
};

struct State {
  std::map<std::string, Tensor> buffers;  // by name; missing ones are zero
};

// Runs one region with `batch` samples. Writes buffers in `state` and returns every value by name.
// `inputs` holds the region's inputs by value name. All types are computed in double;
// what is stored as half is rounded to it.
std::map<std::string, Tensor> evaluate(const Module& module, RegionKind region, int64_t batch,
                                       const std::map<std::string, Tensor>& inputs, State& state);

}  // namespace gacc::ir
