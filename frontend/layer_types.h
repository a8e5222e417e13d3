// The types of layers and of losses: layers.def and losses.def name them, layers/ and losses/ have a file
// for each family. A type says its keys, what must hold among them, and the ops of its forward pass.
#pragma once
#include "frontend/schema.h"

namespace gacc::frontend {

class LayerContext;
struct LossContext;
struct Layer;

struct LayerType {
  TypeSchema schema;
  bool weight = false;   // has parameters that `init` starts
  bool bias = false;     // and that `bias_init` starts, unless its key `bias` is false
  bool several = false;  // takes two inputs or more, by `inputs`
  bool tokens = false;   // takes i32
  bool block = false;    // holds layers
  // Reports what is wrong among the keys, beyond their ranges.
  void (*check)(const Values& keys, Diag& diag) = nullptr;
  Layer (*lower)(LayerContext& layer) = nullptr;
};

namespace layers {
#define X(name) extern const LayerType name;
#include "frontend/layers.def"
}  // namespace layers

const std::vector<const LayerType*>& all_layers();  // in the order of layers.def

struct LossType {
  TypeSchema schema;
  Words metrics{};  // those that can be measured beside it
  void (*check)(const Values& keys, Diag& diag) = nullptr;
  void (*lower)(LossContext& loss) = nullptr;
};

namespace losses {
#define X(name) extern const LossType name;
#include "frontend/losses.def"
}  // namespace losses

const std::vector<const LossType*>& all_losses();  // in the order of losses.def
Words metric_names();                              // of all losses

// Keys that several layers have.
inline const Key bias_key{"bias", Form::flag, true, "false: no bias"};
inline const Key norm_eps_key{"eps", Form::real, 1e-5, "is added to the variance", above(0)};
inline const Key norm_offset_key{"offset", Form::integer, 0,
                                 "0 or 1: the factor is offset + weight, and weight starts as 1 - offset",
                                 between(0, 1)};
inline const Key activation_key{"activation", Form::activation, no_default, "is applied to the result"};
inline const Key slope_key{"slope", Form::real, 0.01, "of leaky_relu"};
inline const Key features_key{"features", Form::integer, required, "elements of an output vector", extent};
inline const Key lora_key =
    Key{"lora", Form::table, no_default, "low-rank change of its products, which is trained"}.of(
        tables::lora);
constexpr Range window_extent = between(1, 32767);  // kernels compute places within an image in 32 bits
inline const Key kernel_key{"kernel", Form::pair, required, "its size, one number or [height, width]",
                            window_extent};

// Returns true if a table of adapters, the key `lora` or [lora], is for that product of attention.
bool adapts(const Values& lora, std::string_view product);
void check_adapting(const Values& lora, Diag& diag);

}  // namespace gacc::frontend
