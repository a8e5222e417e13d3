// The loss and the metrics of a region: sums over the counted elements, and their count.
#pragma once
#include "frontend/layers.h"

namespace gacc::frontend {

// Appends loss and count (and, with `metrics`, the metrics) after the forward pass whose last output is
// `output`, and yields them. Adds what the runtime must know of the target to the module's settings.
void lower_loss(ir::Builder& b, const LayerLowering& layers, const ModelFile& model, Flow output,
                bool metrics);

}  // namespace gacc::frontend
