// What must hold of every result, whatever the input was.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/data/array.h"
#include "runtime/status.h"

namespace gacc::fuzz {

// An error is one line of text, and there is some.
inline void check_status(const Status& status) {
  if (status.ok() != status.text().empty()) __builtin_trap();
  for (char c : status.text())
    if (c == '\n' || c == '\0') __builtin_trap();
}

// The elements fill the shape.
inline void check_array(const Array& array) {
  int64_t elements = checked_product(array.shape), each = element_bytes(array.dtype);
  if (array.shape.empty() || elements < 0 || each == 0) __builtin_trap();
  if (elements * each != static_cast<int64_t>(array.bytes.size())) __builtin_trap();
}

}  // namespace gacc::fuzz
