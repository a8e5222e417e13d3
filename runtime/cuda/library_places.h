// Where a library of NVIDIA's may lie that the loader does not know.
#pragma once
#include <string>
#include <vector>

namespace gacc::cuda {

// Returns what to open for a library's name, the first that works to be taken: the name itself, which the loader looks
// up, then each file of that name in the folders of GACC_CUDA_PATH (colons between them), of CUDA, and of the packages
// that PyTorch brings along. A name with a slash is a file, and stands alone.
std::vector<std::string> places_of(const std::string& name);

}  // namespace gacc::cuda
