#include "codegen/gpu/merge_table.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/GlobalVariable.h>
#include <llvm/IR/Module.h>

#include <algorithm>

namespace gacc::codegen {

namespace {

constexpr unsigned kGlobal = 1, kConstant = 4;  // address spaces
constexpr uint64_t kTableBytes = 48 * 1024;     // of the 64 KiB of constant memory of a module

uint64_t table_word(const PlanTask::Count& count) {
  return static_cast<uint64_t>(count.factor) | (count.batch ? kTimesBatch : 0);
}

// Whether a place of `after` has shared memory that threads of another place may still use for `before`:
// after its own turn a place has waited for its threads (finish_turn).
bool shares_across(const Part& before, const Part& after) {
  const bool same_places = before.threads == after.threads &&
                           (before.shared_bytes == after.shared_bytes || before.places + after.places == 2);
  return before.shared_bytes > 0 && after.shared_bytes > 0 && !same_places;
}

// Of the module's constant memory in use.
uint64_t constant_bytes(const llvm::Module& module) {
  uint64_t bytes = 0;
  for (const llvm::GlobalVariable& variable : module.globals()) {
    if (variable.getAddressSpace() == kConstant)
      bytes += module.getDataLayout().getTypeAllocSize(variable.getValueType());
  }
  return bytes;
}

}  // namespace

uint64_t table_word(const PlanArgument& argument) {
  if (argument.kind == PlanArgument::Kind::address) return static_cast<uint64_t>(argument.offset);
  return static_cast<uint64_t>(argument.extent) | (argument.times_batch ? kTimesBatch : 0);
}

bool SharedPart::same(size_t argument) const {
  return std::all_of(tasks.begin(), tasks.end(), [&](const PlanTask* task) {
    return table_word(task->arguments[argument]) == table_word(tasks.front()->arguments[argument]);
  });
}

MergeTable make_table(llvm::Module& module, const PlanMerged& merged, const std::vector<SharedPart>& parts,
                      const std::vector<size_t>& part_of) {
  MergeTable table;
  size_t most = 0;
  for (const SharedPart& part : parts) {
    size_t own = 0;
    for (size_t i = 0; i < part.tasks.front()->arguments.size(); ++i) own += !part.same(i);
    most = std::max(most, own);
  }
  table.stride = MergeTable::kArguments + static_cast<int64_t>(most);
  std::vector<uint64_t> words;
  uint64_t first = 0;
  for (const std::vector<PlanTask>& phase : merged.phases) {
    words.push_back(first);
    first += phase.size();
    for (const PlanTask& task : phase) table.batch = table.batch || task.batch();
  }
  words.push_back(first);
  size_t t = 0;
  for (const std::vector<PlanTask>& phase : merged.phases) {
    const size_t begin = t, end = t + phase.size();
    size_t user = t;  // the phase's last task so far that uses shared memory, if one does
    for (; t < end; ++t) {
      const PlanTask& task = phase[t - begin];
      const size_t number = part_of[t];
      const SharedPart& part = parts[number];
      if (part.shared_bytes > 0) user = t;
      const bool sync = t + 1 < end && shares_across(parts[part_of[user]], parts[part_of[t + 1]]);
      table.sync = table.sync || sync;
      std::vector<uint64_t> record = {number, static_cast<uint64_t>(sync)};
      if (table.batch) {
        record.insert(record.end(), {table_word(task.down), static_cast<uint64_t>(task.down.by),
                                     table_word(task.across), static_cast<uint64_t>(task.across.by)});
      } else {
        record.insert(record.end(), {static_cast<uint64_t>(task.blocks(1)), 0, 0, 0});
      }
      for (size_t a = 0; a < task.arguments.size(); ++a) {
        if (!part.same(a)) record.push_back(table_word(task.arguments[a]));
      }
      record.resize(static_cast<size_t>(table.stride), 0);
      words.insert(words.end(), record.begin(), record.end());
    }
  }
  // Constant memory for what fits: its reads are the same for all threads of a warp.
  const bool small = words.size() * 8 + constant_bytes(module) <= kTableBytes;
  llvm::Constant* values = llvm::ConstantDataArray::get(module.getContext(), words);
  table.words = new llvm::GlobalVariable(module, values->getType(), true, llvm::GlobalValue::InternalLinkage,
                                         values, merged.name + "_table", nullptr,
                                         llvm::GlobalValue::NotThreadLocal, small ? kConstant : kGlobal);
  table.words->setAlignment(llvm::Align(16));
  return table;
}

}  // namespace gacc::codegen
