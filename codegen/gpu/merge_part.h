// A kernel's entry as a function of a merged kernel (codegen/gpu/merged_kernel.h): a copy that is told which thread,
// which block of work and which place it is, instead of asking the hardware.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llvm {
class Function;
class GlobalVariable;
class IRBuilderBase;
class Module;
class Value;
}  // namespace llvm

namespace gacc::codegen {

struct Part {
  llvm::Function* function = nullptr;  // the entry's parameters, then thread, block of work, place: i32
  int64_t threads = 0;                 // of a place
  int64_t places = 1;                  // of a merged kernel's block; each may have a barrier of its own
  int64_t shared_bytes = 0;            // of a place, each array rounded up to 16
  bool copies = false;                 // it uses cp.async
  std::vector<llvm::GlobalVariable*> shared{};  // that the entry has
};

// Copies `entry` into part.function; threads, places and shared_bytes are set. Unfit is one that uses anything
// but thread and block indices, `bar.sync 0` and so many bytes of shared memory. What it has in shared memory is
// still the entry's own.
void make_part(llvm::Module& module, const std::string& entry, Part& part);

// Before a place uses its shared memory for something else: its threads wait for each other, and for what
// still travels there.
void finish_turn(llvm::IRBuilderBase& at, const Part& part, llvm::Value* place);

// Gives all parts one array of shared memory, `name`, which they use one after the other.
void place_shared(llvm::Module& module, const std::string& name, const std::vector<Part*>& parts);

}  // namespace gacc::codegen
