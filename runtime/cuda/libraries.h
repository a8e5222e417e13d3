// Libraries that are opened at run time: where those of NVIDIA may lie that the loader does not know, and their
// functions, by their exported names.
#pragma once
#include <dlfcn.h>

#include <string>
#include <vector>

namespace gacc::cuda {

// Returns what to open for a library's name, the first that works to be taken: the name itself, which the loader looks
// up, then each file of that name in the folders of GACC_CUDA_PATH (colons between them), of CUDA, and of the packages
// that PyTorch brings along. A name with a slash is a file, and stands alone.
std::vector<std::string> places_of(const std::string& name);

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
