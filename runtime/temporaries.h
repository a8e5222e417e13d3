// The temporary files and folders of runs that were killed.
#pragma once
#include <string>

namespace gacc {

// Removes what such runs have left in a folder (runtime/atomic_file.cpp). What a process holds stays.
void sweep_temporaries(const std::string& folder);

}  // namespace gacc
