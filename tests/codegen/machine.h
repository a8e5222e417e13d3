// Runs a region's kernels the way a device does, with every operand in an allocation of its own between guard
// words, and compares with the reference evaluator. How a call is run is the caller's: host code (host.h), or PTX in
// the emulator (emulated.h).
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/reference.h"
#include "ir/region_facts.h"
#include "kernels/program.h"

namespace gacc::codegen {

using namespace kernels;
using kernels::ModuleKernels;

class Machine {
 public:
  // Runs one call: addresses in the order of call.operands.
  using Launch =
      std::function<void(const BodyCall& call, char* const* operands, const std::vector<int64_t>& extents)>;

  Machine(const ir::Module& module, const ModuleKernels& program, ir::RegionKind kind, int64_t batch);
  void set(const std::map<std::string, ir::Tensor>& inputs, const ir::State& state);
  // With reuse_memory, results take the bytes of operands that die where ir::may_reuse allows it.
  void reuse_memory() { reuse_ = true; }
  void run(const Launch& launch);
  // Every value in memory and every buffer against the reference's; says where it differs.
  // tolerance: |difference| <= tolerance * (1 + |expected|).
  void expect_equal(const std::map<std::string, ir::Tensor>& values, const ir::State& state,
                    double tolerance) const;
  // The words of all memory, to compare runs bit for bit; or of one value or buffer by its text, "%y".
  std::vector<uint32_t> words() const;
  std::vector<uint32_t> words(const std::string& name) const;

 private:
  struct Memory {
    ir::Type type;
    std::string name;
    size_t elements = 0;
    std::vector<uint32_t> words;  // kGuard, elements (of half types: two a word), kGuard
    bool written = false;
  };
  Memory& memory(const ir::Operand& operand);
  static double get(const Memory& memory, size_t i);
  static void put(Memory& memory, size_t i, double value);
  void gemm(const BodyCall& call);
  std::map<ir::Operand, ir::Operand> reused(size_t call);  // result -> operand
  static void fill(Memory& memory, const ir::Tensor& tensor);
  void expect_tensor(const Memory& memory, const ir::Tensor& tensor, double tolerance) const;

  const ir::Module& module_;
  const ir::Region& region_;
  const ir::StorageRoots roots_;
  const std::vector<BodyCall>& calls_;
  int64_t batch_;
  bool reuse_ = false;
  std::map<ir::Operand, Memory> memory_;  // by storage root
};

// Gives consecutive ops the same kernel as long as they may share one; with `random`, sometimes stops early.
void group_ops(const ir::Module& module, ir::Region& region, std::function<bool()> stop = nullptr);

}  // namespace gacc::codegen
