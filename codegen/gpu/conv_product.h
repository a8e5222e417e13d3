// Convolutions as implicit matrix products (kernels/special/calls.h, ConvProduct).
#pragma once
#include "codegen/emit/target.h"

namespace gacc::codegen {

// Between begin and end of a function that is a convolution's product.
void emit_conv_product(Target& target);

}  // namespace gacc::codegen
