// Values that GPU kernels compute with approximate units (powers of two, reciprocals): functions of half
// precision, whose error the rounding to a half type hides. It depends on an op's types and on what its
// operands were made from, never on the kernel that the op is in: an op that is computed again, elsewhere,
// has the same bits.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/module.h"
#include "ir/op_info.h"

namespace gacc::kernels {

// By ValueId::index: whether a value is of half type, or made by formulas alone from one that is.
std::vector<bool> half_values(const ir::Module& module, const ir::Region& region);

// Returns the numbers of the nodes to approximate in an op's formula with results of `types`: exponentials,
// tangents and error functions of half precision, divisions by what is made from these (a logistic function's), and
// divisions that only products and choices stand between and results of half type. `half`: half_values of the region.
std::vector<int32_t> approximate_nodes(const ir::OpView& op, const ir::ScalarProgram& formula,
                                       const std::vector<ir::DType>& types, const std::vector<bool>& half);

}  // namespace gacc::kernels
