// The digest of a run's weights, for --log-hash.
#pragma once
#include <span>
#include <string>

#include "runtime/safetensors.h"

namespace gacc {

// Returns the SHA-256, in 64 hexadecimal digits, of what --save writes: for each tensor, in the order of their names'
// bytes, the name and then the elements, row-major, each as the four bytes of an f32, lowest first. The tensors are
// sorted by name.
std::string weights_hash(std::span<const NamedTensor> tensors);

}  // namespace gacc
