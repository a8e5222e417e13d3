// The loop nests of hand-written kernels, by families (kernels/handwritten/calls.h has their Shapes). The list in
// kernels.cpp says which op has which.
#pragma once
#include "codegen/emit/target.h"
#include "kernels/handwritten/calls.h"

namespace gacc::codegen {

// attention: AttentionShape.
void emit_attention(Target& t);
void emit_attention_gradient(Target& t);

// delta_rule: DeltaRuleShape.
void emit_delta_rule(Target& t);
void emit_delta_written(Target& t);
void emit_delta_queries(Target& t);
void emit_delta_keys(Target& t);
void emit_delta_decay(Target& t);

// documents: DocumentsShape.
void emit_documents(Target& t);
void emit_document_spans(Target& t);
void emit_document_lengths(Target& t);

// caches: CacheShape.
void emit_cache_put(Target& t);
void emit_cache_scores(Target& t);
void emit_cache_read(Target& t);

// rope: RopeShape.
void emit_rope(Target& t);

// pool: PoolShape.
void emit_max_pool(Target& t);
void emit_max_pool_gradient(Target& t);
void emit_mean_pool(Target& t);
void emit_mean_pool_gradient(Target& t);
// conv: ConvShape. A library call on the host.
void emit_conv(Target& t);
void emit_conv_images(Target& t);
void emit_conv_weight(Target& t);

// products of many matrices: BatchProductShape.
void emit_batch_product(Target& t);

// layout: elements in another order, and rows of a table by number.
void emit_permute(Target& t);
void emit_concat(Target& t);
void emit_slice(Target& t);
void emit_dequantize(Target& t);
void emit_embedding(Target& t);

// embedding: the sums of their gradients.
void emit_embedding_gradient(Target& t);

}  // namespace gacc::codegen
