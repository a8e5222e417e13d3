// The table that a merged kernel walks (codegen/gpu/merged_kernel.h): where each phase's tasks begin, then a record for
// every task. Words of 64 bits.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "codegen/gpu/merge_part.h"
#include "codegen/gpu/merged_kernel.h"

namespace gacc::codegen {

// Set in a word whose rest is to be multiplied with the samples of the launch.
constexpr uint64_t kTimesBatch = uint64_t{1} << 63;

// A part and who calls it.
struct SharedPart : Part {
  std::vector<const PlanTask*> tasks{};
  // Whether an argument is the same in all calls: then it is no entry of the table.
  bool same(size_t argument) const;
};

// How an argument stands in the table: an offset in the arena, or an extent.
uint64_t table_word(const PlanArgument& argument);

struct MergeTable {
  // Of a record; arguments that differ from call to call follow kArguments.
  enum Field : int64_t { kPart, kSync, kDown, kDownBy, kAcross, kAcrossBy, kArguments };

  llvm::GlobalVariable* words = nullptr;  // in constant memory if it fits there
  int64_t stride = 0;                     // words of a record
  bool sync = false;                      // some task ends with a barrier of the block: its record's kSync
  bool batch = false;  // some task has more blocks of work for more samples; else kDown is their number
};

// `part_of`: the part of each task, in the order of the phases.
MergeTable make_table(llvm::Module& module, const PlanMerged& merged, const std::vector<SharedPart>& parts,
                      const std::vector<size_t>& part_of);

}  // namespace gacc::codegen
