// Pass `frozen-blocks`: frozen matrices in the blocks that precision.frozen names. What is computed is the function of
// the quantised numbers, and its gradient: all that read such a matrix read the same.
//
//   1. A frozen parameter [out, in] that products read is in blocks, if its rows are whole blocks. One that tokens
//      choose rows of is in q8_0, and so is a head that is tied to it.
//   2. An `embedding` reads blocks itself. Any other op reads a value that `dequantize` makes in front of it, of the
//      type that the parameter had; a cast of it to f32 becomes such an op. So numbers out of blocks live around one
//      product. Those that follow each other (the head in the parts of chunk-loss) share them.
//   3. What starts it in `init` writes blocks.
#include <algorithm>
#include <utility>

#include "ir/builder.h"
#include "passes/pass.h"

namespace gacc::passes {

namespace {

using namespace ir;

// The ways in which the ops of a module use a parameter.
struct Uses {
  bool product = false, rows = false;  // read by products; rows chosen by numbers
  bool other = false;                  // written by what writes no blocks
};

std::vector<Uses> uses_of(const Module& module) {
  std::vector<Uses> all(module.buffers.size());
  for (const RegionKind kind : all_regions) {
    if (kind == RegionKind::decode) continue;  // it reads rows of what predict reads as a whole
    for (const Op& op : module.region(kind).ops) {
      for (size_t i = 0; i < op.operands.size(); ++i) {
        const BufferId* id = as_buffer(op.operands[i]);
        if (id == nullptr) continue;
        Uses& uses = all[index(*id)];
        const bool written = op.info->is_written(i);
        uses.other = uses.other || (written && !op.info->takes_blocks(i));
        uses.rows = uses.rows || (!written && op.info->takes_blocks(i));
        uses.product = uses.product || op.info->lowering == Lowering::gemm;
      }
    }
  }
  return all;
}

bool is_frozen_matrix(const Buffer& buffer) {
  return buffer.role == BufferRole::weight && !buffer.trainable && buffer.type.shape.size() == 2;
}

bool asks_in_vain(const Module& module, const std::vector<Type>& stored) {
  if (!parse_dtype(*module.settings.precision.frozen)) return false;
  return std::ranges::none_of(stored, [](const Type& type) { return is_blocks(type.dtype); });
}

}  // namespace

std::vector<Type> stored_types(const Module& module) {
  std::vector<Type> types;
  for (const Buffer& buffer : module.buffers) types.push_back(buffer.type);
  const std::optional<DType> asked = parse_dtype(*module.settings.precision.frozen);
  if (!asked) return types;
  const std::vector<Uses> all = uses_of(module);
  for (const BufferId id : module.buffer_ids()) {
    const Uses& uses = all[index(id)];
    Type& type = types[index(id)];
    if (!is_frozen_matrix(module[id]) || uses.other || !(uses.product || uses.rows) ||
        module.find_belonging(id, BufferRole::half))
      continue;
    const DType blocks = uses.rows ? DType::q8_0 : *asked;
    if (type.shape[1] % dtype_info(blocks).block == 0) type.dtype = blocks;
  }
  return types;
}

bool frozen_blocks(Module& module, const Options&, Diag& diag) {
  const std::vector<Type> stored = stored_types(module);
  if (asks_in_vain(module, stored))
    diag.warn(Kind::conflict, {}, "`precision.frozen = \"{}\"` has no effect: {}",
              *module.settings.precision.frozen,
              std::ranges::any_of(module.buffers, is_frozen_matrix)
                  ? "no frozen matrix of a product has rows of whole blocks, which are 32 numbers"
                  : "no matrix is frozen; adapters (`[lora]`, --lora) or `trainable = false` freeze");
  std::vector<DType> read;  // the type that ops read
  for (size_t i = 0; i < stored.size(); ++i)
    read.push_back(std::exchange(module.buffers[i].type, stored[i]).dtype);
  for (const RegionKind kind : all_regions) {
    Region& region = module.region(kind);
    std::optional<std::pair<BufferId, ValueId>> last;  // a matrix, and its numbers
    for (Op& op : std::exchange(region.ops, {})) {
      for (size_t i = 0; i < op.operands.size(); ++i) {
        const BufferId* id = as_buffer(op.operands[i]);
        if (id == nullptr || !is_blocks(module[*id].type.dtype) || op.info->is_written(i)) continue;
        const std::string to(dtype_text(read[index(*id)]));
        if (op.info == &op_cast && region[op.results.front()].type.dtype == DType::f32) {
          op.info = &op_dequantize;  // for an op that is kept out of half precision
          op.attrs.clear();
          continue;
        }
        if (op.info->takes_blocks(i)) {
          if (to != "f32") op.attrs["to"] = to;
          continue;
        }
        if (!last || last->first != *id)
          last = {*id, Builder(module, region, diag)
                           .like(op)
                           .make("dequantize", module[*id].name + ".numbers", {*id}, {{"to", to}})};
        op.operands[i] = last->second;
      }
      region.ops.push_back(std::move(op));
    }
  }
  return !diag.failed();
}

}  // namespace gacc::passes
