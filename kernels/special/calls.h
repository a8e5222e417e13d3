// How the kernels of their own are called, one function a family, and what they are compiled for. The table in
// kernels/special.cpp gives them their op names.
#pragma once
#include "kernels/special.h"

namespace gacc::kernels {

// attention: parameters are those of AttentionShape (attention_call.h).
SpecialCall describe_attention(const ir::OpView& op, Purpose purpose);
// The same by tensor cores: of half types (bf16 from capability 80 on), heads of 16, 32, ... 128 channels.
std::optional<SpecialCall> describe_attention_mma(const ir::OpView& op, const GpuTarget& gpu);

// rope: parameters are those of RopeShape (rope_call.h).
SpecialCall describe_rope(const ir::OpView& op, Purpose purpose);

// pool: windows over images; parameters are those of WindowShape, then 1 for points that are whole windows.
SpecialCall describe_pool(const ir::OpView& op, Purpose purpose);
// conv: parameters are those of ConvShape. A library call on the host.
SpecialCall describe_conv(const ir::OpView& op, Purpose purpose);

// layout: elements in another order.
SpecialCall describe_permute(const ir::OpView& op, Purpose purpose);
SpecialCall describe_concat(const ir::OpView& op, Purpose purpose);
SpecialCall describe_slice(const ir::OpView& op, Purpose purpose);

// embedding: rows of a table by number, and the sums of their gradients.
SpecialCall describe_embedding(const ir::OpView& op, Purpose purpose);
SpecialCall describe_embedding_gradient(const ir::OpView& op, Purpose purpose);
// Device, the gradient: how many tokens a warp looks at before it may add up those of its rows, and how many
// of them it may keep for later.
struct EmbeddingList {
  static constexpr int64_t kTokens = 256, kEntries = 384;
};

// The geometry of windows over images, as the parameters of a function: images [planes, from_h, from_w] and
// places [planes, to_h, to_w]; index 0 is along H, 1 along W.
struct WindowShape {
  int64_t from[2], to[2], kernel[2], stride[2], dilation[2], before[2];
  // Small windows side by side from the first element on, all inside the image: no element is in two.
  bool tiles() const;
  std::vector<int64_t> list() const;
  static WindowShape of(const Body& body);  // from body.parameters
};
// Of an op with a window (ir/ops/image_window.h) over images of this shape, with places of that shape.
WindowShape window_shape(const ir::OpView& op, const ir::Shape& images, const ir::Shape& places);

// A convolution's: channels of one group in the images and in the places; `tile` channels (of the weight's
// gradient: taps) belong to one thread; the weight's gradient has `part` samples a part.
struct ConvShape {
  WindowShape window;
  int64_t groups = 1, in = 1, out = 1, tile = 1, part = 1;
  std::vector<int64_t> list() const;
  static ConvShape of(const Body& body);
};

}  // namespace gacc::kernels
