// Parameters: one buffer each, in order of definition, with an op of the init region that starts it.
#pragma once
#include <map>

#include "frontend/schema.h"
#include "ir/builder.h"

namespace gacc::frontend {

// The connections of a weight as PyTorch counts them, for its default and for the kaiming and xavier starts.
struct Fan {
  int64_t in = 1, out = 1;
};

// Thrown after an error of a layer or a loss was reported; caught where the next one begins.
struct Refused {
  Refused() = default;
  Refused(const Report&) {}
};

class Parameters {
 public:
  // Adds the state buffers of the seed, which every random op reads.
  Parameters(ir::Module& module, Diag& diag);

  // The default initial values of PyTorch's module: `spread` is uniform in +-1/sqrt(fan in), `normal` has
  // the deviation 1.
  enum class Standard : uint8_t { spread, zeros, ones, normal };

  // The parameter `name`, created at its first mention and found again by the eval region. Refused when the
  // initialiser does not fit it or the model grows too large.
  ir::BufferId get(const std::string& name, ir::Shape shape, const KeyValue& init, Standard standard, Fan fan,
                   bool trainable, const Location& at);
  // Returns the operands of ops that draw numbers for samples: the seed, and the ordinal of the micro-batch's first
  // sample, each low word, high word. The ordinal's buffers are made at the first call; `step` advances them.
  std::vector<ir::Operand> sample_words();
  // Returns the length of the text that `predict` reads; at first that of a window.
  ir::BufferId text_length(int64_t window);
  // The random stream of a parameter or layer: FNV-1a of its name, as an i32. Names decide, not order, so
  // that a layer keeps its start and its masks when another one is added.
  static int64_t stream(std::string_view name);

  // A running statistic [size] that starts at `value`: state that --save and --load carry, made at its first
  // mention.
  ir::BufferId statistic(const std::string& name, int64_t size, double value, const Location& at);

  // Rows of parameters that are several matrices of others, one after the other: heads' queries, keys, values.
  std::map<std::string, std::vector<int64_t>, std::less<>> parts{};
  // Weights that layers share: what it would be called of a layer without one of its own, and whose it is.
  std::vector<std::pair<std::string, std::string>> ties{};

 private:
  void start(ir::BufferId buffer, const KeyValue& init, Standard standard, Fan fan, const Location& at);

  ir::Module& module_;
  Diag& diag_;
  ir::BufferId seed_low_, seed_high_;
  std::map<std::string, ir::BufferId, std::less<>> by_name_;
  int64_t elements_ = 0;
};

}  // namespace gacc::frontend
