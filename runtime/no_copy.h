// The base of a class whose objects own something, and are neither copied nor moved.
#pragma once

namespace gacc {

struct NoCopy {
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;
};

}  // namespace gacc
