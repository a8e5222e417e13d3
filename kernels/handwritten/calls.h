// The families of hand-written kernels: one function each that describes a call, and the Shape that the family's
// functions are compiled for. The list in kernels/handwritten.cpp says which op is of which family.
#pragma once
#include "kernels/handwritten.h"

namespace gacc::kernels {

// attention: AttentionShape (attention_call.h).
Specialisation describe_attention(const ir::OpView& op, Purpose purpose);
// The same by tensor cores: half types (bf16 from capability 80 on), heads of 16, 32, ... 128 channels.
std::optional<Specialisation> describe_attention_mma(const ir::OpView& op, const GpuTarget& gpu);

// delta_rule: DeltaRuleShape.
Specialisation describe_delta_rule(const ir::OpView& op, Purpose purpose);
Specialisation describe_delta_decay(const ir::OpView& op, Purpose purpose);
struct DeltaRuleShape {
  int64_t length, heads, key_heads;  // T, H, G
  int64_t keys, values;              // channels of a head, K and V
  int64_t chunk;                     // positions from one kept state to the next
  int64_t by_keys;                   // 1: a lane has a row of the state [K,V], 0: a column
  int64_t team = 0;                  // GPU: threads that share a lane (attention_call.h); 0 on the host
  int64_t lanes() const { return by_keys != 0 ? keys : values; }
  int64_t channels() const { return by_keys != 0 ? values : keys; }  // of a lane's row or column
  int64_t group() const { return heads / key_heads; }
  int64_t chunks() const { return ceil_divide(length, chunk); }
};

// documents: positions in them, and how far they reach; DocumentsShape.
Specialisation describe_documents(const ir::OpView& op, Purpose purpose);
Specialisation describe_document_spans(const ir::OpView& op, Purpose purpose);
struct DocumentsShape {
  int64_t length;  // T
};

// caches: CacheShape.
Specialisation describe_cache_put(const ir::OpView& op, Purpose purpose);
Specialisation describe_cache_scores(const ir::OpView& op, Purpose purpose);
Specialisation describe_cache_read(const ir::OpView& op, Purpose purpose);
struct CacheShape {
  int64_t heads, kv_heads, channels, positions;  // H, K, D, P
  int64_t keys = 0;                              // of what is put: 1 for keys, 0 for values
  int64_t window = 0;                            // a position sees so many, itself the last; 0: all before it
  double scale = 1, softcap = 0;                 // of scores, as attention's
  int64_t row() const { return (heads + 2 * kv_heads) * channels; }  // of qkv
  int64_t group() const { return heads / kv_heads; }
};

// rope: RopeShape.
Specialisation describe_rope(const ir::OpView& op, Purpose purpose);
struct RopeShape {
  int64_t length, turned, copied, channels;  // T; heads of queries and keys; of values; D
  int64_t interleaved, inverse, positioned;  // 0 or 1; positioned: operand 1 has the positions
  int64_t vector;                            // GPU: neighbouring pairs of a thread; 1 on the host
  double magnitude;                          // multiplies what is turned
  // The turn of each pair of channels from one position to the next, in units of 2^-64 turns: a position times
  // this, in 64 bits, is the exact part of a turn.
  std::vector<uint64_t> turns;
  static constexpr int64_t kTogether = 4;  // heads that are read before the first is stored
  int64_t pairs() const { return static_cast<int64_t>(turns.size()); }
  int64_t row() const { return (turned + copied) * channels; }  // of a position
  auto members() {
    return std::tie(length, turned, copied, channels, interleaved, inverse, positioned, vector, magnitude,
                    turns);
  }
};

// pool: PoolShape.
Specialisation describe_pool(const ir::OpView& op, Purpose purpose);
// The geometry of windows over images: images [planes, from_h, from_w] and places [planes, to_h, to_w]; index 0 is
// along H, 1 along W.
struct WindowShape {
  int64_t from[2], to[2], kernel[2], stride[2], dilation[2], before[2];
  // Returns true for small windows side by side from the first element on, all inside the image: no element is in two.
  bool tiles() const;
};
struct PoolShape {
  WindowShape window;
  int64_t walk;                            // 0 but for some of the host's max_pool2d
  static constexpr int64_t kByWindow = 1;  // a point is a window, and not an element
  static constexpr int64_t kByPlane = 2;   // a row is a plane
};
// Returns the geometry of an op with a window (ir/ops/image_window.h).
WindowShape window_shape(const ir::OpView& op, const ir::Shape& images, const ir::Shape& places);

// conv: ConvShape. A library call on the host; on a GPU a matrix product where one fits the convolution, else a thread
// for some channels of a pixel.
Specialisation describe_conv(const ir::OpView& op, Purpose purpose);
std::optional<Specialisation> describe_conv_product(const ir::OpView& op, const GpuTarget& gpu);
// The product of a convolution that an op computes.
enum class ConvKind : uint8_t { forward, images, weight };
ConvKind conv_kind(const ir::OpInfo& op);
// Channels are those of one group in the images and in the places; `tile` channels (of the weight's gradient: taps)
// belong to one thread; the weight's gradient has `part` samples a part.
struct ConvShape {
  WindowShape window;
  int64_t groups = 1, in = 1, out = 1, tile = 1, part = 1;
  // As a matrix product: its tile among implicit_tiles(), 1 for the block's operands by asynchronous copies, items of a
  // block.
  int64_t product = -1, modern = 0, per_block = 1;
  int64_t taps() const { return window.kernel[0] * window.kernel[1]; }
  int64_t places() const { return window.to[0] * window.to[1]; }
  int64_t pixels() const { return window.from[0] * window.from[1]; }
};
ConvShape conv_shape(const ir::OpView& op);  // without tile and product

// One group's (of the weight's gradient: one part's) convolution as a product C[m, n] = A[m, k] B[k, n].
// Pixels are those of all samples: of forward and images the columns, of the weight's gradient the depth.
//
//   forward   C[out, place]      A = weight [out, (in, taps)]         B = images at [(in, taps), place]
//   images    C[in, pixel]       A = weight [in, (out, taps)]         B = places at [(out, taps), pixel]
//   weight    C[out, (in, taps)] A = places [out, (sample, place)]    B = images at [(sample, place), (in, taps)]
struct ConvProduct {
  int64_t rows, others;  // m; and of the other extents the one that has no pixels
  int64_t pixels;        // of a sample
  // Neighbouring elements of A, and of B, that are side by side in memory, and begin at their multiples: all
  // of their runs have a length that this divides.
  int64_t a_run, b_run;
  bool a_inner_last, b_inner_last;  // along which dimension they do
  // Elements that tensor cores' tiles get at once.
  static constexpr int64_t kCopied = 8;
  bool copied() const { return a_run % kCopied == 0 && b_run % kCopied == 0; }
  static ConvProduct of(const ConvShape& shape, ConvKind kind);
};

// products of many small matrices: BatchProductShape.
Specialisation describe_batch_product(const ir::OpView& op, Purpose purpose);
struct BatchProductShape {
  int64_t m, n, k, ta, tb;  // ta, tb: 0 or 1
};

// layout: elements in another order.
Specialisation describe_permute(const ir::OpView& op, Purpose purpose);
struct PermuteShape {
  struct Axis {
    int64_t extent, step;  // step: in elements of the operand
  };
  int64_t first_step;       // of the first axis, whose extent is an argument
  std::vector<Axis> inner;  // the others; the last has the kernel's columns
  auto members() { return std::tie(first_step, inner); }
};
Specialisation describe_concat(const ir::OpView& op, Purpose purpose);
struct ConcatShape {
  int64_t pieces;                // that a row is cut into, a work item each
  std::vector<int64_t> lengths;  // of each operand's rows
  auto members() { return std::tie(pieces, lengths); }
};
Specialisation describe_slice(const ir::OpView& op, Purpose purpose);
struct SliceShape {
  int64_t length, begin;  // of the operand's rows; of the result in each
};

// dequantize: a parameter's blocks as numbers.
Specialisation describe_dequantize(const ir::OpView& op, Purpose purpose);

// embedding: rows of a table by number, and the sums of their gradients.
Specialisation describe_embedding(const ir::OpView& op, Purpose purpose);
Specialisation describe_embedding_gradient(const ir::OpView& op, Purpose purpose);
struct EmbeddingGradientShape {
  int64_t columns;  // of the table
  int64_t
      cleared;  // rows that the kernel sets to 0 first: all of the table, or none where it adds to a buffer
  int64_t padding;         // the row to which nothing is added, or -1
  int64_t by_columns = 0;  // 1: a work item owns columns of the whole table (host), else rows (device)
  int64_t lanes = 0;       // device: columns of a lane
  int64_t ranges = 0;      // device: a power of two; a warp has the rows that leave one remainder by it
  int64_t rows = 0;        // device: of the table
};
// The list in which a warp of the device collects the tokens of its rows.
struct EmbeddingList {
  static constexpr int64_t kTokens = 256;              // that it looks at between two additions, at most
  static constexpr int64_t kEntries = 384;             // that the list has room for
  static constexpr int64_t kBytes = kEntries * 2 * 4;  // a token's place and its row, a word each
};

}  // namespace gacc::kernels
