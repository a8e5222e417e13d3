// Functions of a library that is opened at run time, by their exported names.
#pragma once
#include <dlfcn.h>

namespace gacc::cuda {

class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}
  // Sets the member; null where the library has no such function.
  template <class F>
  void find(F*& member, const char* name) {
    member = reinterpret_cast<F*>(dlsym(library_, name));
    if (member == nullptr && missing_ == nullptr) missing_ = name;
  }
  // The first name that was not found; null where all were.
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

}  // namespace gacc::cuda
