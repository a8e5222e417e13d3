// The program of a region in phase `scheduled`, launch by launch, as a GPU gets it (docs/ir.md, "The
// schedule"). Choices (tile, then, bias, workspace, level, merged, persistent) and what follows from them
// (operands, extents, grid, block, shared) both stand here. What follows is checked against the kernels,
// never believed. The code of a kernel is no part of it: `function` names what kernels/ makes of the kernel.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ir/diag.h"
#include "ir/operand.h"
#include "ir/types.h"

namespace gacc::ir {

// A number known at launch: `factor`, times the samples of the micro-batch when `times_batch`.
struct Extent {
  int64_t factor = 1;
  bool times_batch = false;
  int64_t at(int64_t batch) const { return times_batch ? factor * batch : factor; }
  bool operator==(const Extent&) const = default;
};
Extent extent_of(const Shape& shape);  // the product of its extents

// A range of the arena.
struct Bytes {
  int64_t offset = 0, size = 0;
  bool operator==(const Bytes&) const = default;
};

// A kernel of any form but gemm: ceil(items / per_block) blocks of `block` threads. Calls of one function
// share its code; constants that differ between them are extents of 32 bits.
struct KernelCall {
  std::string function{};           // "add_relu_5"
  std::vector<Operand> operands{};  // as the function takes them
  std::vector<Extent> extents{};
  Extent items{};
  int64_t per_block = 1, block = 0;
  int64_t shared = 0;  // bytes of shared memory of a block, each array rounded up to 16
  bool operator==(const KernelCall&) const = default;
};

// A pointwise kernel that the built-in product does while C is in registers: C is its operand `slot`.
// `keeps`: C is read elsewhere and stored, too.
struct Then {
  int32_t kernel = -1, slot = 0;
  bool keeps = false;
  bool operator==(const Then&) const = default;
};
// A vector that a library may add instead: then the kernel is not launched.
struct Bias {
  BufferId vector{};
  int32_t kernel = -1;
  bool operator==(const Bias&) const = default;
};

// C[m,n] (+)= op(A)[m,k] op(B)[k,n]; transposes, adding and element types are the op's.
struct ProductCall {
  Operand a{}, b{}, c{};
  Extent m{}, n{}, k{};
  // Elements from one row of A, B and C in memory to the next, where one of them has a pitch.
  std::optional<std::array<Extent, 3>> pitch{};
  int64_t tile_m = 0, tile_n = 0, slices = 1, block = 0, shared = 0;  // the built-in product's
  std::optional<Then> then{};
  std::optional<Bias> bias{};
  std::optional<Bytes> workspace{};  // where a library may work
  bool operator==(const ProductCall&) const = default;
};

// A copy between the arena and the host's memory, of whole buffers. Where the op has a condition that is 0, it is
// left out.
struct CopyCall {
  Operand to{}, from{};
  int64_t bytes = 0;
  bool operator==(const CopyCall&) const = default;
};

// The streams of a region: of a step that is a graph the first two. Copies in are on the second one of an update,
// copies out on the third.
inline constexpr size_t kStreams = 3;

// The place of a launch on several streams.
struct Branch {
  int32_t stream = 0;  // below kStreams; each has its launches in the order of the lines
  // The launches of other streams that must have ended, by their last kernels, the latest line first. What follows
  // from the streams: of each the latest one that touches bytes which this one writes, or writes bytes which this
  // one touches, unless it has ended before anyway.
  std::vector<int32_t> after{};
  bool operator==(const Branch&) const = default;
};

struct CallSite {
  int32_t kernel = -1;             // the number of the region's kernel
  std::optional<int32_t> level{};  // calls of one level do not wait for each other; none: its product does it
  std::variant<KernelCall, ProductCall, CopyCall> what{};
  Location at{};
  Branch branch{};  // of a part of a merged launch: nothing
};

// Calls of one level as one launch.
struct Merged {
  std::string function{};
  int64_t block = 0, blocks = 0;
  std::vector<CallSite> parts{};
  Location at{};
  Branch branch{};
};

using Launch = std::variant<CallSite, Merged>;

// All of the region as one cooperative kernel, level by level, where the GPU can: instead of the launches.
struct Persistent {
  std::string function{};
  int64_t block = 0, blocks = 0;
  bool required = false;  // the model file asks for it: else the region does not run
  Location at{};
};

struct Schedule {
  std::optional<Persistent> persistent{};
  std::vector<Launch> launches{};  // in the order in which one stream has them, and two are given them
};

inline const KernelCall* as_kernel(const CallSite& call) { return std::get_if<KernelCall>(&call.what); }
inline const ProductCall* as_product(const CallSite& call) { return std::get_if<ProductCall>(&call.what); }
inline const CopyCall* as_copy(const CallSite& call) { return std::get_if<CopyCall>(&call.what); }

using Calls = std::vector<const CallSite*>;
using Levels = std::vector<Calls>;  // the calls of a kernel that walks levels, by level

// Every call, those of merged launches too, in the order of the launches.
Calls calls(const Schedule& schedule);
std::vector<CallSite*> calls(Schedule& schedule);
Calls parts(const Merged& merged);
// The calls of one launch.
Calls calls(const Launch& launch);
const Branch& branch(const Launch& launch);
Branch& branch(Launch& launch);
// The calls of a region by level, each level in order: what a persistent kernel does one after the other.
Levels by_level(const Schedule& schedule);

int64_t threads(const CallSite& call);                // of a block; of a copy all three are 0
int64_t shared_bytes(const CallSite& call);           // of a block
int64_t blocks(const CallSite& call, int64_t batch);  // of the grid

// Bytes of workspaces.
inline constexpr int64_t kWorkspaceAlignment = 256;
inline constexpr int64_t kMostWorkspace = int64_t{32} << 20;  // no library is asked to take more

// Calls that share a kernel. Its blocks have kMergedBlock threads, or as many as the widest call's. A block is
// cut into places, each as many threads as the call's block has, with a barrier and shared memory of its own;
// the places of all blocks take the call's blocks in turns.
inline constexpr int64_t kMergedBlock = 256;
inline constexpr int64_t kBlockShared = 48 * 1024;  // bytes that a block has without asking
inline constexpr int64_t kPlaceBarriers = 15;       // a block has 16 barriers, and the first is its own
int64_t merged_block(const Levels& levels);
int64_t places(const CallSite& call, int64_t merged_block);  // 0: the call cannot share a kernel
// Returns true if the numbers that a merged kernel counts its blocks with fit 32 bits.
bool countable(const CallSite& call, int64_t batch);
// The most blocks that have work in any level at once. Any grid computes the same.
int64_t merged_blocks(const Levels& levels, int64_t merged_block, int64_t batch);

}  // namespace gacc::ir
