// One value a channel, in images [B,C,H,W] and in anything [B,C,..] or [B,C]: how [C] meets it, and sums over
// all but the channels.
#pragma once
#include "ir/ops/common.h"

namespace gacc::ir {

// Operand i is f[B,C,..] with two axes or more.
void expect_channels(const OpView& op, size_t i);
// Operands first .. last are [C] of operand 0's channels.
void expect_per_channel(const OpView& op, size_t first, size_t last);

// `values` [C] under the shape [C,1,..] that meets every element of the channel in `shape` [B,C,..].
Operand per_channel(Builder& b, const std::string& name, const Operand& values, const Shape& shape);
// x [B,C,..] as [B,C,S], S elements of a channel (or x itself, when it is [B,C]).
Operand flat_channels(Builder& b, const std::string& name, Operand x);
// The sum of a value [B,C,S] or [B,C] over all but the channels: [C]. NAME is the sum's, NAME.rows that of
// every sample; `rows` receives what the samples are summed over, [B,C].
Operand channel_sum(Builder& b, const std::string& name, Operand flat, Operand* rows = nullptr);

int64_t channel_elements(const Shape& shape);  // S

}  // namespace gacc::ir
