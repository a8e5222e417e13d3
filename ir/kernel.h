// Kernels: how a fused region is cut into launches, what each reads and writes, and over which domain it
// runs. `fuse` asks it what may stand together, codegen emits from it, plan-memory and the plan checker use
// its reads and writes: one description, so they cannot disagree.
//
// A kernel runs over a 2-D domain [rows, columns]: `columns` is the last extent of the domain's shape and
// `rows` the product of the others (B included, so rows may be known only at launch). Every operand read from
// memory is indexed from (row, column) by its Access. Forms:
//
//   pointwise      every op is pointwise over the domain; columns are independent, one pass.
//   rowwise        pointwise ops and row_reduces over the domain, and pointwise ops on their [.., 1] results.
//                  A task owns whole rows and runs them in stages: stage s may use row_reduces of stages < s.
//   column_reduce  pointwise ops, then column_reduces of domain-shaped values. A task owns columns of all
//                  rows, or of a part where `fuse` has split the reduction (column_sum {parts}). Results
//                  ([C]) are not used inside the kernel.
//   total_reduce   pointwise ops, then total_reduces of domain-shaped values; results ([]) are not used
//                  inside. One task, unless `fuse` has split the reduction (total_sum {parts}).
//   gemm           one matmul or matmul.acc.
//   alias          one reshape: no launch.
//   handwritten    one op whose loop nest is written by hand; it reads its operands, writes its results and buffers as
//                  it likes, and stores all its results, also those that nobody uses.
//   copy           one copy between the arena and the host's memory; under a condition it is made or left out.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "ir/op_info.h"

namespace gacc::ir {

// Returns the operand that a reduction reduces. Its .acc form has the buffer before it.
const Operand& reduced(const Op& op);
// Returns the shape that an op works over: of what it reduces, of its result, or of the buffer that it writes.
Shape op_domain(const Module& module, const Region& region, const Op& op);

enum class KernelForm : uint8_t {
  pointwise,
  rowwise,
  column_reduce,
  total_reduce,
  gemm,
  alias,
  handwritten,
  copy
};

// The way from (row, column) of the domain [rows, columns] to an operand's element:
//   element row * columns + column              the domain's own shape
//   suffix  (row % period) * columns + column   trailing axes of the domain; period = product of its leading
//                                               axes ([C] has period 1)
//   row     row                                 the domain's leading axes, last extent 1
//   scalar  0                                   one element
//   channel (element / inner) % period          a middle axis: [C,1,..,1] in [B,..,C,s1,..,sk];
//                                               inner = s1 .. sk, period = C. With inner = columns a row
//                                               has one value; other inners only where a pointwise kernel
//                                               can be walked in rows of `inner` elements instead.
// A domain with columns == 1 counts its [.., 1] operands as elements.
//
// Order inside an element (or a vector of elements): codegen loads every memory operand of one stage before
// it stores any result of that stage. may_reuse relies on it: a result may take the bytes of an operand that
// another result reads.
enum class Access : uint8_t { element, suffix, row, scalar, channel };
std::optional<Access> access(const Shape& operand, const Shape& domain);
int64_t channel_inner(const Shape& operand, const Shape& domain);  // of an Access::channel

struct KernelMember {
  size_t op;             // index in region.ops
  int stage = 0;         // rowwise: the pass over the row in which the op is first computed
  bool per_row = false;  // its result is one value a row ([.., 1] in a wider domain)
};

struct Kernel {
  int32_t number = -1;  // Op::kernel of its members
  KernelForm form = KernelForm::pointwise;
  Shape domain{};
  std::vector<KernelMember> members{};
  int stages = 1;
  int64_t inner = 0;  // not 0: walked in rows of so many elements, for operands with Access::channel
  std::vector<Operand> reads{};   // values and buffers loaded from memory, by first use, no duplicates
  std::vector<Operand> writes{};  // values stored (used outside, or yielded) and buffers written, in op order

  // Calls f(operand) for what it reads, then for what it writes.
  template <class F>
  void each_operand(F&& f) const {
    std::ranges::for_each(reads, f);
    std::ranges::for_each(writes, f);
  }
};

// The kernels of a region in program order: consecutive ops with one kernel number form one. For a region
// that is not fused yet every op (composites excepted) is a kernel of its own. `problem` receives a sentence
// and the result is empty when a group breaks the rules above.
std::vector<Kernel> kernels(const Module& module, const Region& region, std::string* problem = nullptr);

// The index in such a list of the kernel with a number.
class KernelNumbers {
 public:
  explicit KernelNumbers(const std::vector<Kernel>& kernels) {
    for (size_t k = 0; k < kernels.size(); ++k) places_[kernels[k].number] = k;
  }
  size_t operator[](int32_t number) const { return places_.at(number); }  // that the list has
  std::optional<size_t> find(int32_t number) const {
    const auto found = places_.find(number);
    return found == places_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::map<int32_t, size_t> places_;
};

// Returns true if these ops (indices in program order) may form one kernel; codegen accepts exactly what this
// accepts.
bool may_fuse(const Module& module, const Region& region, const std::vector<size_t>& ops);
// Makes the kernel that these ops would be by themselves, which stores `results`; nothing where they form none.
std::optional<Kernel> kernel_of(const Module& module, const Region& region, const std::vector<size_t>& ops,
                                const std::vector<ValueId>& results);

// The storage that operands occupy: follows reshapes to the value that owns the bytes. Inputs own theirs. A
// reshape of a buffer shares the buffer's bytes. Made for the values and reshapes that a region has at the
// time; the order of its ops may change afterwards.
class StorageRoots {
 public:
  explicit StorageRoots(const Region& region);
  const Operand& operator()(const Operand& operand) const {
    const ValueId* value = as_value(operand);
    return value != nullptr ? by_value_[index(*value)] : operand;
  }
  // The buffer whose bytes the operand is, if it is one's.
  std::optional<BufferId> buffer(const Operand& operand) const {
    const BufferId* buffer = as_buffer((*this)(operand));
    return buffer != nullptr ? std::optional(*buffer) : std::nullopt;
  }

 private:
  std::vector<Operand> by_value_;
};

// Returns true if `kernel` may write `result` over the bytes of `operand`, which dies there: same bytes per element,
// both accessed `element`, and every read of operand's element (r, c) happens no later than the write of
// result's (r, c).
bool may_reuse(const Region& region, const Kernel& kernel, ValueId operand, ValueId result);

int64_t rows(const Shape& domain, int64_t batch);  // product of all extents but the last; 1 for scalars
int64_t columns(const Shape& domain);  // the last extent; 1 for scalars (a shape [B] has one column a row)
Shape row_shape(const Shape& shape);   // [.., C] -> [.., 1]

}  // namespace gacc::ir
