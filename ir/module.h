// The IR: a Module holds named buffers, which live across launches, and regions of straight-line SSA ops.
// Everything is a vector addressed by small typed ids, so a Module copies by copying. docs/ir.md is the
// spec.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/buffer_role.h"
#include "ir/diag.h"
#include "ir/schedule/schedule.h"
#include "ir/schema/settings.h"

namespace gacc::ir {

struct OpInfo;

enum class Phase : uint8_t {
  model,
  gradient,
  accumulated,
  scaled,
  half,
  fused,
  recomputed,
  planned,
  scheduled
};
std::string_view phase_text(Phase phase);
std::optional<Phase> parse_phase(std::string_view text);

struct Buffer {
  std::string name{};  // "fc1.weight", "fc1.weight.grad", "fc1.weight.m", "lr"
  BufferKind kind = BufferKind::state;
  BufferRole role = BufferRole::control;
  std::optional<BufferId> of{};  // the buffer it belongs to, where its role says that it does
  Type type{};
  bool trainable = true;            // params only; printed as `frozen` when false
  int32_t group = -1;               // params only: which of optimizer.groups it is in; -1: none
  int64_t from = 0;                 // parts only: the element of the other buffer that is its first
  bool host = false;                // lies in the host's memory, behind the arena's addresses (memory.host)
  std::optional<int64_t> offset{};  // bytes from the start of the arena, once planned
  Location at{};
};

// Bytes at whose multiples things begin in the arena. cuBLAS and vector loads want 256. A buffer of one number is
// read as that number alone; a step has up to a dozen, which so share a kilobyte.
inline constexpr int64_t kArenaAlignment = 256, kNumberAlignment = 16;
int64_t alignment(const Buffer& buffer);
constexpr int64_t aligned(int64_t bytes, int64_t to = kArenaAlignment) { return ceil_divide(bytes, to) * to; }

struct Value {
  std::string name{};  // unique in its region
  Type type{};
  std::optional<int64_t> offset{};  // bytes from the start of the arena, once planned; none: in registers
};

// The reason that an op is there. forward: it computes what the model says; gradient: the derivative of that; init
// and update: the ops of those regions.
enum class Origin : uint8_t { forward, gradient, init, update };
std::string_view origin_text(Origin origin);

struct Op {
  // Calls f(operand) for each operand and the condition.
  template <class F>
  void each_operand(F&& f) const {
    std::ranges::for_each(operands, f);
    if (when) f(*when);
  }
  template <class F>
  void each_operand(F&& f) {
    std::ranges::for_each(operands, f);
    if (when) f(*when);
  }
  bool reads(const Operand& operand) const { return when == operand || contains(operands, operand); }

  const OpInfo* info = nullptr;  // never null
  std::vector<Operand> operands{};
  std::vector<ValueId> results{};
  Attrs attrs{};                  // only those that differ from the table's defaults
  std::optional<Operand> when{};  // a scalar i32: the op writes its buffers only where it is not 0
  int32_t kernel = -1;            // ops of a region that share a number run as one kernel, once fused
  // To be kept out of half precision, whatever the table says: half-casts gives it f32 operands and clears
  // the mark. Layers with precision = "f32", and gradients of ops that compute in f32.
  bool keep_f32 = false;
  int32_t segment = -1;             // what is dropped and made again together (recompute); -1: none
  std::optional<ValueId> remat{};   // a recomputed op: the first result of the op it repeats
  Origin origin = Origin::forward;  // printed where it is not that of the region
  Location at{};
};

// The meaning of a yielded value. loss: the f32 sum; count: the i32 number of its elements; weights: the f32 sum of
// their weights; grad: the gradient of a parameter; metric: a named f32 sum; output, rows: of predict, answer, decode.
enum class YieldRole : uint8_t { loss, count, weights, grad, metric, output, rows };
std::string_view yield_role_text(YieldRole role);  // "loss", as in IR text
std::optional<YieldRole> parse_yield_role(std::string_view text);

// A value that a region hands out.
struct Yield {
  YieldRole role = YieldRole::loss;
  std::string metric{};  // of a metric: "accuracy"
  BufferId of{};         // of a grad: the parameter
  Operand what{};
};

enum class RegionKind : uint8_t {
#define GACC_REGION(name, batched) name,
#include "ir/regions.def"
};
inline constexpr RegionKind all_regions[] = {
#define GACC_REGION(name, batched) RegionKind::name,
#include "ir/regions.def"
};
// The regions that decide the size of the arena.
inline constexpr RegionKind training_regions[] = {RegionKind::init,   RegionKind::step,  RegionKind::update,
                                                  RegionKind::eval,   RegionKind::close, RegionKind::norms,
                                                  RegionKind::ratios, RegionKind::clear};
constexpr std::string_view region_text(RegionKind kind) {
  constexpr std::string_view texts[] = {
#define GACC_REGION(name, batched) #name,
#include "ir/regions.def"
  };
  return texts[static_cast<size_t>(kind)];
}
// Returns true if a run of it takes a micro-batch: it has inputs, and values with the extent B.
constexpr bool is_batched(RegionKind kind) {
  constexpr bool answers[] = {
#define GACC_REGION(name, batched) batched,
#include "ir/regions.def"
  };
  return answers[static_cast<size_t>(kind)];
}
// Returns the origin that IR text leaves out: update of the regions that make an update, init of init, else forward.
Origin natural_origin(RegionKind kind);

struct RegionFacts;

struct Region {
  RegionKind kind = RegionKind::init;
  std::vector<ValueId> inputs{};  // the micro-batch, one value an input, first dimension B
  std::vector<Value> values{};    // addressed by ValueId; entries of deleted ops may remain
  std::vector<Op> ops{};
  std::vector<Yield> yields{};
  std::optional<Schedule> schedule{};  // once scheduled, where there are ops
  Location at{};                       // of the region's keyword, when it was read from text
  // The latest result of ir::facts for the region. A copy has the same until one of them changes.
  mutable std::shared_ptr<const RegionFacts> known_facts{};

  Value& operator[](ValueId id) { return values[index(id)]; }
  const Value& operator[](ValueId id) const { return values[index(id)]; }
  // A new value; `name` gets a suffix if it is taken, so that names stay unique.
  ValueId add_value(std::string name, Type type);
  std::optional<ValueId> find(std::string_view name) const;
  // Returns true if a module has no such region.
  bool empty() const { return inputs.empty() && ops.empty() && yields.empty(); }
};

struct Module {
  std::string name;
  std::string source{};  // the model file, for messages
  Phase phase = Phase::model;
  Settings settings{};  // what the model file says that is not an op
  Results results{};    // what the compiler found out
  std::vector<Buffer> buffers{};
#define GACC_REGION(name, batched) Region name{RegionKind::name};
#include "ir/regions.def"
  std::optional<int64_t> arena_bytes{};  // once planned: the size of the one allocation
  int64_t host_bytes = 0;  // of the block in the host's memory, whose addresses follow the arena's
  std::string target{};    // once scheduled: the GPU that the schedules are for, "sm_80"

  Buffer& operator[](BufferId id) { return buffers[index(id)]; }
  const Buffer& operator[](BufferId id) const { return buffers[index(id)]; }
  std::vector<BufferId> buffer_ids() const;  // of the buffers that there are now, in order
  BufferId add_buffer(Buffer buffer);        // the name must be free
  BufferId need_buffer(Buffer buffer);       // the one of that name, or this one added
  std::optional<BufferId> find_buffer(std::string_view name) const;
  // A buffer of buffers.def, made when there is none.
  BufferId named(Named which);
  std::optional<BufferId> find(Named which) const { return find_buffer(named_info(which).name); }
  // The buffer that is another one's gradient, half copy, moment ...: made when there is none, f32 in its
  // shape unless said. `suffix` names a moment.
  BufferId belonging(BufferId of, BufferRole role, std::string_view suffix = {},
                     std::optional<Type> type = {});
  std::optional<BufferId> find_belonging(BufferId of, BufferRole role) const;  // the first

  Region& region(RegionKind kind);
  const Region& region(RegionKind kind) const;

  int64_t micro_batch() const { return *settings.train.micro_batch; }
  // The most samples of a run of the region, for which its values have bytes: the micro-batch, or what the
  // memory plan had room for.
  int64_t most_samples(const Region& region) const;
  int64_t accumulate() const { return *settings.train.accumulate; }
};

// Returns the buffer whose bytes this one uses. A slice uses those of the buffer it is cut from. A parameter with a
// master is used in full length by `init` alone, and there uses the bytes of its gradient. A part uses some of the
// other buffer's. Any other uses its own.
BufferId storage_of(const Module& module, BufferId buffer);
// Returns the place of a part in the buffer that storage_of gives for it, in bytes; 0 for any other buffer.
int64_t part_begin(const Module& module, BufferId buffer);
// Returns the number of ranks that share the optimizer's state (memory.shard), or 0.
int64_t sharing_ranks(const Settings& settings);
// Returns true if weights must not depend on how an effective batch is split (train.require = "bits").
bool keeps_bits(const Settings& settings);
// Returns the type of the full-length tensor of which this buffer has one rank's rows; nothing for other buffers.
std::optional<Type> full_length_type(const Module& module, const Buffer& buffer);

// The settings of [optimizer] for one parameter: those of its group, else those by its rank, else those for all.
struct ParamRule {
  double weight_decay = 0;
  double lr_factor = 1;  // of the rate that the schedule gives
};
ParamRule optimizer_rule(const Module& module, const Buffer& parameter);

// Returns the type of the value or the buffer; of a number, a scalar f32.
Type operand_type(const Module& module, const Region& region, const Operand& operand);
// "%fc1", "@fc1.weight" or "0.25".
std::string operand_text(const Module& module, const Region& region, const Operand& operand);
// Removes dead entries of Region::values and renumbers; after it, every value is an input or a result.
void compact(Region& region);
// Returns true if the op makes the operand.
bool makes(const Op& op, const Operand& operand);
// Returns the index in region.ops of the op that makes the operand; their number where none does.
size_t maker_of(const Region& region, const Operand& operand);
// Returns true if an op or a yield reads the value.
bool is_read(const Region& region, ValueId value);
// Removes the ops whose results nobody reads and that write no buffer, and returns them.
std::vector<Op> take_dead(Region& region);
// The same, and compacts the region.
void remove_dead(Region& region);
// Removes dead ops, and inputs that nothing reads then.
void remove_unread(Region& region);

}  // namespace gacc::ir
