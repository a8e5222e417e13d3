// See special.h: the emitters by op name.
#include <algorithm>

#include "codegen/emit/special/emitters.h"
#include "codegen/emit/target.h"

namespace gacc::codegen {

namespace {

struct Emitter {
  std::string_view op;
  void (*emit)(Target& target);
};

constexpr Emitter kEmitters[] = {
    {"attention", emit_attention},
    {"attention.dropout", emit_attention},
    {"attention.grad", emit_attention_gradient},
    {"attention.dropout.grad", emit_attention_gradient},
    {"rope", emit_rope},
    {"max_pool2d", emit_max_pool},
    {"max_pool2d.grad", emit_max_pool_gradient},
    {"permute", emit_permute},
    {"concat", emit_concat},
    {"slice", emit_slice},
    {"embedding", emit_embedding},
    {"embedding.grad", emit_embedding_gradient},
    {"embedding.grad.acc", emit_embedding_gradient},
    {"avg_pool2d", emit_mean_pool},
    {"avg_pool2d.grad", emit_mean_pool_gradient},
    {"conv2d", emit_conv},
    {"conv2d.grad", emit_conv_images},
    {"conv2d.weight_grad", emit_conv_weight},
};

}  // namespace

bool emit_special(Target& target) {
  if (target.emit_own()) return true;
  const auto* found = std::find_if(std::begin(kEmitters), std::end(kEmitters),
                                   [&](const Emitter& e) { return e.op == target.body.special; });
  if (found == std::end(kEmitters)) return false;
  found->emit(target);
  return true;
}

}  // namespace gacc::codegen
