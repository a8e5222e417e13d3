// The work of hand-written kernels on a GPU: one function a family, beside their calls (kernels/handwritten/).
// Instructions are counted from their loops (codegen/emit/handwritten/).
#include <algorithm>
#include <cmath>

#include "ir/cost.h"
#include "ir/ops/heads.h"
#include "ir/ops/image_window.h"
#include "kernels/gemm.h"
#include "kernels/handwritten/attention_call.h"
#include "kernels/handwritten/calls.h"
#include "kernels/launch_work.h"

namespace gacc::kernels {

namespace {

struct Asked {
  const ir::OpView& op;
  const Body& body;
  Work& work;

  double elements(const ir::Shape& shape) const { return ir::elements(shape, op.module.micro_batch()); }
  int64_t width() const {
    return ir::dtype_bytes(op.op.results.empty() ? op.operand(0).dtype : op.result().dtype);
  }
};

// A thread has some neighbouring elements at a time, which it reads and writes.
void moves(const Asked& a, int64_t vector, double instructions) {
  const double elements = a.elements(a.op.result().shape);
  const int64_t bytes = a.width() * vector;
  a.work.stores.add(bytes, elements * a.width());
  a.work.loads.add(bytes, std::max(0.0, a.work.moved - a.work.stores.sum()));
  a.work.flight = bytes;
  a.work.instructions = instructions * elements / vector;
}

void move_work(const Asked& a) { moves(a, a.body.vector, 20); }

// A thread has some numbers of one block, whose scale and bytes it takes apart.
void dequantize_work(const Asked& a) { moves(a, a.body.vector, 30 + 3 * a.body.vector); }

// An element's window: what it reads of it lies near what its neighbours read.
void pool_work(const Asked& a) {
  const WindowShape window = a.body.shape.as<PoolShape>().window;
  const int64_t taps = window.kernel[0] * window.kernel[1];
  moves(a, a.body.vector, 20 + 8 * taps);
  a.work.nearby = 4 * taps * a.elements(a.op.result().shape);
  a.work.rounds = 2;
}

// Instructions for an element that a product gets by itself, or with its neighbours: its place, the test that it
// exists, and the way into shared memory (counted in the PTX of the loop).
constexpr double kGathered = 12, kCopied = 1;

void conv_product_work(const Asked& a, const ConvShape& shape) {
  const ConvKind kind = conv_kind(*a.op.op.info);
  const ConvProduct product = ConvProduct::of(shape, kind);
  const GemmTile& tile = implicit_tile(shape.product);
  const int64_t samples = ir::elements({a.op.operand(0).shape[0]}, a.op.module.micro_batch());
  const bool weight = kind == ConvKind::weight;
  ProductWork p;
  p.implicit = true;
  p.m = product.rows;
  p.n = weight ? product.others : samples * product.pixels;
  p.k = weight ? shape.part * product.pixels : product.others;
  p.count = shape.groups * (weight ? a.op.integer("parts") : 1);
  p.type_bytes = ir::dtype_bytes(a.op.operand(0).dtype);
  p.tensor_cores = tile.mma();
  p.tile_m = tile.m, p.tile_n = tile.n;
  p.resident = a.body.resident;
  p.bytes = a.work.moved;
  const int64_t run = tile.mma() ? ConvProduct::kCopied : 4;
  const auto each = [&](int64_t length) { return length % run == 0 ? kCopied : kGathered; };
  const double tiles = divided_up(p.m, tile.m) * divided_up(p.n, tile.n) * p.count;
  const double depth = divided_up(p.k, tile.k) * tile.k;
  p.instructions = tiles * depth * (tile.m * each(product.a_run) + tile.n * each(product.b_run));
  a.work.product = p;
}

// Multiply-adds of f32: a thread has `tile` sums of which each iteration loads one term, and the other factor.
void conv_work(const Asked& a) {
  const ConvShape shape = a.body.shape.as<ConvShape>();
  if (shape.product >= 0) return conv_product_work(a, shape);
  const double flops = ir::cost(a.op).flops, products = flops / 2;
  const double tile = shape.tile;
  a.work.flops = flops;
  a.work.nearby = 4 * products * (tile + 1) / tile;
  a.work.instructions = products * (1 + (tile + 16) / tile);
  a.work.loads.add(a.width(), a.work.moved);
  const double threads = a.work.blocks * a.work.threads;
  const double iterations = std::ceil(products / threads / tile);
  a.work.rounds = iterations / 2;
  a.work.serial_loads = iterations * (tile + 1);
  // The terms of neighbouring iterations lie in the first-level cache.
  a.work.cached = 0.9 * a.work.transferred();
  a.work.registers = 64;
}

// A thread has one sum; its terms lie near those of its neighbours.
void batch_product_work(const Asked& a) {
  const double flops = ir::cost(a.op).flops, products = flops / 2;
  const double depth = products / a.elements(a.op.result().shape);
  a.work.flops = flops;
  a.work.nearby = 8 * products;
  a.work.instructions = 5 * products;
  a.work.loads.add(a.width(), a.work.moved);
  a.work.rounds = depth / 2;
  a.work.serial_loads = 2 * depth;
  a.work.cached = 0.9 * a.work.transferred();
}

void attention_work(const Asked& a) {
  const AttentionShape shape = a.body.shape.as<AttentionShape>();
  const bool gradient = shape.parts > 1;
  const AttentionWork work{.heads = shape.heads * a.op.module.micro_batch(),
                           .length = shape.length,
                           .channels = shape.channels,
                           .causal = shape.causal != 0,
                           .gradient = gradient,
                           .fetched = shape.tile > 0 ? shape.fetched(gradient) : 0,
                           .warp_rows = shape.tile > 0 ? shape.warp_rows : 0,
                           .window = shape.window,
                           .document = ir::estimated_document(a.op)};
  a.work.loads.add(16, a.work.moved);
  if (shape.tile > 0) {
    a.work.attention = work;
    return;
  }
  // By multiply-adds; rows pass by in the first-level cache, a load for every four.
  const double channels = shape.channels;
  const double met =
      ir::twice_seen_pairs(shape.length, work.causal, shape.window, work.document) / 2.0;  // of a head
  const double pairs = work.heads * met;
  const double products = pairs * channels * (gradient ? 7 : 2);
  a.work.flops = 2 * products;
  a.work.nearby = 4 * products / 2;
  a.work.instructions = products * 1.5 + pairs * (gradient ? 60 : 40);
  const double iterations = met / shape.length / shape.step();
  a.work.rounds = iterations;
  a.work.serial_loads =
      iterations * shape.step() * 2 * Team::share(shape.channels, std::max<int64_t>(shape.team, 1)) / 4;
  a.work.cached = a.work.transferred();
}

// A thread walks the positions of its sample with some channels of a lane's state; the team's other threads wait for
// its sums at every position.
void delta_rule_work(const Asked& a) {
  const DeltaRuleShape shape = a.body.shape.as<DeltaRuleShape>();
  if (a.op.op.info == &ir::op_delta_rule_grad_decay) return moves(a, 1, 12);
  const double products = ir::cost(a.op).flops / 2.0;
  const int64_t team = std::max<int64_t>(shape.team, 1), share = Team::share(shape.channels(), team);
  const double threads = a.work.blocks * a.work.threads;
  a.work.flops = 2 * products;
  a.work.nearby = 4 * products;
  a.work.loads.add(16, a.work.moved);
  a.work.instructions = 1.5 * products + 60 * threads * shape.length;
  a.work.rounds = shape.length;
  a.work.serial_loads = 3.0 * shape.length * ceil_divide(share, 4);
  a.work.chain = 20 + 3 * share;
  a.work.registers = 64;
}

// A thread looks at all positions of its sample, which its warp shares.
void documents_work(const Asked& a) {
  const double positions = a.elements(a.op.operand(0).shape), met = a.op.operand(0).shape[1];
  a.work.instructions = 14 * positions * met;
  a.work.loads.add(4, a.work.moved);
  a.work.rounds = a.work.serial_loads = met / 4;
}

// A thread has neighbouring pairs of channels of a position in all heads, some heads at a time.
void rope_work(const Asked& a) {
  const RopeShape shape = a.body.shape.as<RopeShape>();
  const double elements = a.elements(a.op.result().shape);
  const int64_t together = std::min(shape.turned, RopeShape::kTogether);
  moves(a, shape.vector, 0);
  a.work.flight *= 2 * together;
  a.work.rounds = ceil_divide(shape.turned, together);
  a.work.instructions = 6 * elements + 60 * elements / (shape.row() / shape.pairs());
}

// A block for a range of rows and some columns reads the number of every token, and the gradients of its own.
void embedding_gradient_work(const Asked& a) {
  const bool fresh = !a.op.op.results.empty();
  const size_t at = fresh ? 0 : 1;
  const double tokens = a.elements(a.op.operand(at).shape);
  const ir::Type dy = a.op.operand(at + 1);
  const auto shape = a.body.shape.as<EmbeddingGradientShape>();
  const int64_t lanes = shape.lanes;
  const double gradients = tokens * shape.columns;
  const int64_t blocks = a.work.blocks;
  a.work.loads.add(4, 4 * tokens * blocks);
  a.work.cached = std::max(0.0, 4 * tokens * (blocks - 1));
  a.work.loads.add(lanes * ir::dtype_bytes(dy.dtype), gradients * ir::dtype_bytes(dy.dtype));
  a.work.stores.add(4 * lanes, std::max(0.0, a.work.moved - gradients * ir::dtype_bytes(dy.dtype)));
  a.work.instructions = 6 * tokens * blocks + 4 * gradients;
  a.work.flight = 32;
  a.work.rounds = tokens / EmbeddingList::kTokens;
  a.work.serial_loads = tokens / kWarp;
  a.work.chain = 40;
}

void embedding_work(const Asked& a) {
  if (a.op.op.info->gradient_of != nullptr) return embedding_gradient_work(a);
  moves(a, a.body.vector, 25);
}

// An op and its gradients.
struct Family {
  const ir::OpInfo* forward;
  void (*work)(const Asked& asked);
};
constexpr Family kFamilies[] = {{&ir::op_attention, attention_work},
                                {&ir::op_attention_dropout, attention_work},
                                {&ir::op_delta_rule, delta_rule_work},
                                {&ir::op_documents, documents_work},
                                {&ir::op_documents_lengths, documents_work},
                                {&ir::op_rope, rope_work},
                                {&ir::op_max_pool2d, pool_work},
                                {&ir::op_avg_pool2d, pool_work},
                                {&ir::op_conv2d, conv_work},
                                {&ir::op_permute, move_work},
                                {&ir::op_concat, move_work},
                                {&ir::op_slice, move_work},
                                {&ir::op_dequantize, dequantize_work},
                                {&ir::op_embedding, embedding_work},
                                {&ir::op_batch_matmul, batch_product_work}};

}  // namespace

void handwritten_work(const ir::OpView& op, const Body& body, Work& work) {
  // Only what is taken of the operands is moved: the op table knows.
  work.moved = ir::cost(op).bytes;
  const ir::OpInfo* of = op.op.info->gradient_of;
  const auto* family = std::ranges::find(kFamilies, of != nullptr ? of : op.op.info, &Family::forward);
  if (family != std::end(kFamilies)) family->work({op, body, work});
}

}  // namespace gacc::kernels
