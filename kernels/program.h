// A fused module as functions and calls, before any LLVM is involved: the distinct kernel bodies, and for each region
// the calls of them. All targets, the host plug-in and the plan writer work from this description. It is a pure
// function of the module, so a cached object file and a fresh one answer to the same calls.
//
// Bodies know neither names nor extents: kernels that do the same work on other shapes share one function.
// Constants that differ between otherwise equal kernels (a parameter's random stream, its scale) become
// arguments as well.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "ir/kernel.h"
#include "kernels/compiled_shape.h"
#include "kernels/gpu_target.h"

namespace gacc::kernels {

using ir::Extent, ir::extent_of;

// The kind of a function's work items. A range of items may be cut anywhere at a multiple of BodyCall::tile; the
// result does not depend on the cuts.
enum class Unit : uint8_t { elements, rows, parts };

// An operand of a function and how it is indexed (ir::Access). With a period, `suffix` repeats every so many
// rows (without one: every row), and `row` repeats its values, one a row, every so many rows. Rows of an
// `element` may have a pitch.
struct Slot {
  ir::DType dtype = ir::DType::f32;
  ir::Access access = ir::Access::element;
  int32_t period = -1, pitch = -1;  // indices of its period and of its pitch among the extents, or -1
  bool read = false, written = false;
};

// The source of a formula's input.
struct Source {
  enum class From : uint8_t { slot, member, number };
  From from = From::slot;
  int32_t index = 0;   // slot, or member ...
  int32_t result = 0;  // ... and which of its results
  double number = 0;
};

// One op of a body: a formula, or a reduction of its only input.
struct Member {
  ir::Lowering kind = ir::Lowering::pointwise;  // pointwise, row_reduce, column_reduce or total_reduce
  ir::Combine combine = ir::Combine::sum;
  int stage = 0;
  bool per_row = false;
  ir::ScalarProgram program{};     // pointwise
  std::vector<Source> inputs{};    // pointwise: the op's operands in order; reductions: the reduced value
  std::vector<ir::DType> types{};  // of each result
  std::vector<int32_t> stores{};   // slot that receives result i, or -1
  std::vector<int32_t> old{};      // slot with what result i's buffer held: for `when`, and for *.acc; or -1
  bool accumulate = false;         // reductions: added to what the buffer held
  bool ordered = false;            // ... one row after the other, of a total_reduce one element
  std::optional<Source> when{};    // store only where this i32 is not 0
  std::vector<std::pair<int32_t, int32_t>> lifted{};  // constant node -> index among the extents (its bits)
  // Device: nodes that its approximate units compute (kernels/approximate.h), in order.
  std::vector<int32_t> approximate{};
  bool approximates(size_t node) const {
    return std::binary_search(approximate.begin(), approximate.end(), static_cast<int32_t>(node));
  }
};

// Body::cost from which on the host's loops have masks throughout: a second copy of the code without them costs more.
inline constexpr int64_t kMaskedCost = 200;

struct Body {
  ir::KernelForm form = ir::KernelForm::pointwise;
  bool flat = false;  // one row: every operand is full or scalar, `columns` is the number of elements
  int stages = 1;
  int vector = 1;           // device: elements a thread moves at once; they divide `columns`
  bool wide_index = false;  // device: element indices need 64 bits
  // Device: `vector` does not divide `columns`, but rows begin at its multiples. A row's last vector leaves
  // alone what it has of the gap behind the row.
  bool gaps = false;
  int64_t team = 0;  // device, rowwise: neighbouring threads that share a row: 1, 2, 4, .. 32, or the block's
  int64_t block = 0;  // device: threads of a block
  // Device, rowwise: vectors of its row, the first ones, that a thread keeps in registers from stage to stage. Each has
  // code of its own; a loop has the others.
  int64_t held = 0;
  // The registers of a thread for what more than one stage reads of these vectors: halves lie in pairs.
  int64_t held_registers = 0;
  bool held_as_stored = false;  // halves stay halves: there is no room for all of them as f32
  bool holds_all = false;       // there are no other vectors
  // Device, column_reduce: threads of a block that stand side by side, `vector` columns each; the others have
  // other rows of the same columns.
  int64_t side = 0;
  // Device: the least blocks on a multiprocessor (PTX `.minnctapersm`), which bounds the registers of a thread; 0:
  // unset. Unset, ptxas may spill a few registers to fit one more block.
  int64_t resident = 0;
  int64_t shared = 0;  // device: bytes of shared memory of a block, each array rounded up to 16
  std::vector<Slot> slots{};
  std::vector<Member> members{};
  // Indices of the extents that hold the rows of one sample, and the samples; -1 where no formula asks for them.
  int32_t rows_of_sample = -1, samples = -1;
  int32_t extents = 2;  // rows, columns, then periods, chunk, lifted constants
  // total_reduce, column_reduce: index of the rows (flat: elements) of one part among the extents. Behind it,
  // on the host, stand a column_reduce's columns of one item.
  int32_t chunk = -1;
  // Hand-written kernels (kernels/handwritten.h): the op, whether its code is that of products in tiles, and what it
  // is compiled for.
  const ir::OpInfo* op = nullptr;
  bool by_tiles = false;
  CompiledShape shape{};
  std::string name{};  // for people: "add_relu"; unique by a number in ModuleKernels::functions
  int cost = 0;        // rough scalar operations for an element: chooses unrolling and tiles

  // Returns true if its one op, which is pointwise, writes a parameter in blocks: then rows are blocks.
  bool blocks() const {
    return form == ir::KernelForm::pointwise && members.size() == 1 && !members[0].stores.empty() &&
           members[0].stores[0] >= 0 && ir::is_blocks(slots[members[0].stores[0]].dtype);
  }
  // Returns the stage in which a member stores. Later stages compute values again from memory, so a store that
  // overwrites an operand waits for the last stage.
  int stage_of(const Member& member) const;
  // Returns the slots that a stage reads at its points.
  std::set<int32_t> slots_of_stage(int number) const;
};

// One kernel of a region: function(operands, extents, [begin, end)).
struct BodyCall {
  // In ModuleKernels::functions; -1 for kernels that emit no code: gemm, alias, and on the host a library call.
  int32_t function = -1;
  ir::Kernel kernel{};
  std::vector<ir::Operand> operands{};  // values and buffers, no duplicates: reads, then writes not read
                                        // (handwritten: the op's operands as they stand, then its results)
  std::vector<Extent> extents{};        // rows, columns, ... as the function takes them
  Unit unit = Unit::elements;           // host: what [begin, end) counts ...
  Extent items{};    // ... and how many there are. device: work items; blocks = ceil(items / per_block)
  int64_t tile = 1;  // host: a good number of items for one task; cut only at its multiples
  int64_t block = 0, per_block = 1;  // device: threads of a block, items of a block
};

// The kernels of a module.
struct ModuleKernels {
  std::vector<Body> functions;  // distinct, in order of first use
  std::array<std::vector<BodyCall>, std::size(ir::all_regions)>
      regions;  // by ir::RegionKind, one BodyCall per kernel of ir::kernels, in order
  const std::vector<BodyCall>& calls(ir::RegionKind kind) const { return regions[static_cast<size_t>(kind)]; }
  // Returns the call of the kernel with this number, which the region has.
  const BodyCall& call(ir::RegionKind kind, int32_t number) const {
    return *std::ranges::find_if(calls(kind),
                                 [&](const BodyCall& call) { return call.kernel.number == number; });
  }
};

// Bytes of shared memory in which the threads of a block bring their parts of reductions together: a word a
// warp, in two arrays by turns. One warp needs none.
constexpr int64_t reduction_bytes(int64_t threads, int64_t reductions) {
  if (reductions == 0 || threads <= kWarp) return 0;
  return ir::aligned(threads / kWarp * 4, 16) * (reductions > 1 ? 2 : 1);
}

enum class Purpose : uint8_t { host, device };

// Thrown with the reason that a group of ops is no kernel, or a kernel has no code.
struct Unfit : std::runtime_error {
  using runtime_error::runtime_error;
};

// Makes the kernels of a fused (or planned) module; nothing and a sentence in `problem` when a group of ops is no
// kernel. `gpu`: the instructions that kernels may use.
std::optional<ModuleKernels> make_program(const ir::Module& module, Purpose purpose, std::string& problem,
                                          const GpuTarget& gpu = GpuTarget(0));

}  // namespace gacc::kernels
