// The arena of a device by the names of the plan: single numbers of its state, and blocks of bytes.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/device.h"
#include "runtime/plan.h"
#include "runtime/session/recheck.h"

namespace gacc {

// The bytes of a micro-batch, one block an input, in the plan's order, f32 or i32. What lies in the arena as half
// (PlanInput::stored) may be so already, which its size tells; else it is rounded here.
using InputBytes = std::span<const std::span<const std::byte>>;

class Arena {
 public:
  // Both must outlive it.
  Arena(Device& device, const Plan& plan) : device_(device), plan_(plan), recheck_(device, plan) {}
  // Learns the names of the plan's buffers; before all others.
  void open();

  Device& device() { return device_; }
  const Plan& plan() const { return plan_; }
  // Runs a program; with inputs, right after they were written.
  Status run(Program program, int64_t samples = 0) {
    if (!recheck_.count(program)) return device_.run(program, samples);
    return recheck_.run(
        program, samples,
        takes_samples(program) ? std::span<const ArenaWrite>(inputs_) : std::span<const ArenaWrite>());
  }
  // Runs `init` but for what is written next.
  Status run_init(std::span<const PlanBuffer* const> given) { return device_.run_init(given); }
  Recheck& recheck() { return recheck_; }
  Status load(const Artifact& artifact) { return device_.load(artifact); }

  bool has(std::string_view name) const { return by_name_.contains(name); }
  Result<const PlanBuffer*> find(std::string_view name) const;
  // One f32 (float) or i32 (int32_t) of the state. Its type is for the caller to know: the verifier of the IR (R11)
  // has checked that a named buffer has the type of ir/buffers.def.
  template <class T>
  Result<T> read_state(std::string_view name) {
    const PlanBuffer* buffer = GACC_TRY(find(name));
    return GACC_TRY(read<T>(buffer->offset, 1)).front();
  }
  template <class T>
  Status write_state(std::string_view name, T value) {
    return write_scalar(GACC_TRY(find(name)), value);
  }
  template <class T>
  Status write_scalar(const PlanBuffer* buffer, T value) {
    return device_.write(buffer->offset, std::as_bytes(std::span(&value, 1)));
  }
  // The words of buffers of one element each, in their order. Waits.
  Result<std::vector<uint32_t>> read_words(std::span<const PlanBuffer* const> buffers);

  template <class T>
  Result<std::vector<T>> read(int64_t offset, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    GACC_TRY(device_.read(offset, std::as_writable_bytes(std::span(values))));
    return values;
  }
  Status read_into(int64_t offset, std::span<std::byte> bytes) { return device_.read(offset, bytes); }
  Status write(int64_t offset, std::span<const std::byte> bytes) { return device_.write(offset, bytes); }
  Status zero(int64_t offset, int64_t bytes);
  Status copy(int64_t from, int64_t to, int64_t bytes);
  // The inputs that the program reads, of so many samples.
  Status write_inputs(InputBytes inputs, int64_t samples, Program program);

 private:
  Device& device_;
  const Plan& plan_;
  std::map<std::string_view, const PlanBuffer*> by_name_;
  Recheck recheck_;
  std::vector<ArenaWrite> inputs_;             // the last ones
  std::vector<std::vector<uint16_t>> halves_;  // by input: what is written of it, where that is half
};

}  // namespace gacc
