// What the operating system counts as this process's memory.
#pragma once
#include <cstdint>
#include <string>

namespace gacc {

// The most bytes that were ever resident at once (VmHWM); 0 where the system does not say.
int64_t process_peak_bytes();
// "memory: 131.2 MiB at most: the arena's 98.4 MiB as planned, and 32.8 MiB for the program, its code and the
// data". Empty when `process` is 0.
std::string process_memory_text(int64_t arena, int64_t process);

}  // namespace gacc
