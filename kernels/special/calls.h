// The families of hand-written kernels: one function each that describes a call, and the Shapes that functions are
// compiled for. The list in kernels/special.cpp says which op is of which family.
#pragma once
#include "kernels/special.h"

namespace gacc::kernels {

// attention: parameters are those of AttentionShape (attention_call.h).
Instance describe_attention(const ir::OpView& op, Purpose purpose);
// The same by tensor cores: of half types (bf16 from capability 80 on), heads of 16, 32, ... 128 channels.
std::optional<Instance> describe_attention_mma(const ir::OpView& op, const GpuTarget& gpu);

// rope: parameters are those of RopeShape.
Instance describe_rope(const ir::OpView& op, Purpose purpose);
struct RopeShape {
  int64_t length, turned, copied, channels;  // T; heads of queries and keys; of values; D
  bool interleaved, inverse;
  int64_t vector;    // GPU: neighbouring pairs of a thread; 1 on the host
  double magnitude;  // multiplies what is turned
  // The turn of each pair of channels from one position to the next, in units of 2^-64 turns: a position times
  // this, in 64 bits, is the exact part of a turn.
  std::vector<uint64_t> turns;
  static constexpr int64_t kTogether = 4;  // heads that are read before the first is stored
  int64_t pairs() const { return static_cast<int64_t>(turns.size()); }
  int64_t row() const { return (turned + copied) * channels; }  // of a position
  std::vector<int64_t> list() const;
  static RopeShape of(const Body& body);  // from body.parameters
};

// pool: windows over images; parameters are those of WindowShape, then 1 for points that are whole windows.
Instance describe_pool(const ir::OpView& op, Purpose purpose);
// conv: parameters are those of ConvShape. A library call on the host; on a GPU a matrix product where it
// takes the convolution, else a thread for some channels of a pixel.
Instance describe_conv(const ir::OpView& op, Purpose purpose);
std::optional<Instance> describe_conv_product(const ir::OpView& op, const GpuTarget& gpu);

// layout: elements in another order.
Instance describe_permute(const ir::OpView& op, Purpose purpose);
Instance describe_concat(const ir::OpView& op, Purpose purpose);
Instance describe_slice(const ir::OpView& op, Purpose purpose);

// embedding: rows of a table by number, and the sums of their gradients.
Instance describe_embedding(const ir::OpView& op, Purpose purpose);
Instance describe_embedding_gradient(const ir::OpView& op, Purpose purpose);
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
  static WindowShape of(const Body& body) { return shape_of<WindowShape>(body); }
};
// Returns the geometry of an op with a window (ir/ops/image_window.h) over images of this shape, with places of that
// shape.
WindowShape window_shape(const ir::OpView& op, const ir::Shape& images, const ir::Shape& places);

// The product of a convolution that an op computes, by the op's name.
enum class ConvKind : uint8_t { forward, images, weight };
ConvKind conv_kind(std::string_view op);

// A convolution's: channels of one group in the images and in the places; `tile` channels (of the weight's
// gradient: taps) belong to one thread; the weight's gradient has `part` samples a part.
struct ConvShape {
  WindowShape window;
  int64_t groups = 1, in = 1, out = 1, tile = 1, part = 1;
  // As a matrix product: its tile among implicit_tiles(), how a block gets its operands, items of a block.
  int64_t product = -1, modern = 0, per_block = 1;
  int64_t taps() const { return window.kernel[0] * window.kernel[1]; }
  int64_t places() const { return window.to[0] * window.to[1]; }
  int64_t pixels() const { return window.from[0] * window.from[1]; }
  static ConvShape of(const Body& body) { return shape_of<ConvShape>(body); }
};
ConvShape conv_shape(const ir::OpView& op);  // of no tile, and no product

// One group's (of the weight's gradient: one part's) convolution as a product C[m, n] = A[m, k] B[k, n].
// Pixels are those of all samples: of forward and images the columns, of the weight's gradient the depth.
//
//   forward   C[out, place]      A = weight [out, (in, taps)]         B = images at [(in, taps), place]
//   images    C[in, pixel]       A = weight [in, (out, taps)]         B = places at [(out, taps), pixel]
//   weight    C[out, (in, taps)] A = places [out, (sample, place)]    B = images at [(sample, place), (in, taps)]
struct ConvProduct {
  int64_t rows, others;  // m; and of the other extents the one that has no pixels
  int64_t pixels;        // of a sample
  // Neighbouring elements of A, and of B, that stand side by side in memory, and begin at their multiples: all
  // of their runs have a length that this divides.
  int64_t a_run, b_run;
  bool a_inner_last, b_inner_last;  // along which dimension they do
  // Elements that tensor cores' tiles get at once.
  static constexpr int64_t kCopied = 8;
  bool copied() const { return a_run % kCopied == 0 && b_run % kCopied == 0; }
  static ConvProduct of(const ConvShape& shape, ConvKind kind);
};

}  // namespace gacc::kernels
