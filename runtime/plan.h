// The plan: everything gacc-exec and a device need to know about a compiled step, without the compiler.
// `open_artifact` makes it from an artifact's IR (compiler/open_artifact.h). Offsets and sizes are bytes; shapes
// are row-major and may start with -1, the batch extent B (1 <= B <= micro_batch, chosen at each launch).
#pragma once
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/status.h"

namespace gacc {

constexpr int kArtifactVersion = 9;

// The programs of an artifact, which are the regions of its IR. `close` is there only with several lanes, `answer`
// only where predictions come in parts, `norms`, `ratios` and `clear` only where ranks share the optimizer's state,
// `decode` only in models that can go on with a text. `measure` adds the loss and the metrics of what `predict` leaves
// to the sums of `eval`; it is there only where the predictions are what the loss compares, and where there is room.
enum class Program : uint8_t {
#define GACC_REGION(name, batched) name,
#include "ir/regions.def"
};
inline constexpr Program kPrograms[] = {
#define GACC_REGION(name, batched) Program::name,
#include "ir/regions.def"
};
inline constexpr std::string_view kProgramNames[] = {
#define GACC_REGION(name, batched) #name,
#include "ir/regions.def"
};
// Says whether it makes or measures predictions.
constexpr bool predicts(Program program) {
  return program == Program::predict || program == Program::answer || program == Program::decode ||
         program == Program::measure;
}
// Says whether a run of it takes a micro-batch.
constexpr bool takes_samples(Program program) {
  constexpr bool answers[] = {
#define GACC_REGION(name, batched) batched,
#include "ir/regions.def"
  };
  return answers[static_cast<size_t>(program)];
}

// The end of a window that an epoch leaves open.
enum class Tail : uint8_t { flush, drop, carry };
inline constexpr std::string_view kTails[] = {"flush", "drop", "carry"};
constexpr std::string_view tail_text(Tail tail) { return kTails[static_cast<size_t>(tail)]; }
// Takes one of kTails.
Tail parse_tail(std::string_view text);

struct PlanInput {  // one named input of `step`, `eval` and `predict`; the bytes of a micro-batch lie at its
                    // offset
  std::string name;
  DType dtype = DType::f32;                 // f32 or i32, as the user gives it
  std::vector<int64_t> shape;               // per sample, without B
  int64_t step_offset = 0;                  // where `step` reads it
  int64_t eval_offset = 0;                  // where `eval` reads it
  std::optional<int64_t> predict_offset{};  // where `predict` does, if the output depends on it
  std::vector<double> mean, std;        // normalize: empty, one number, or one along the first axis of shape
  std::optional<int64_t> range;         // i32: valid values are 0..range-1 ...
  std::optional<int64_t> ignore_index;  // ... and this one, when it is the loss's target
  bool target = false;                  // what the loss compares with
  bool documents = false;               // numbers of documents, of which a text that goes on is one
  bool probability = false;             // f32: valid values are 0 to 1
  bool balanced = false;                // class weights follow from its counts in the training data
  bool normalize_data = false;          // normalize = "data": the training data's statistics
  std::optional<int64_t> measure_offset{};  // where `measure` reads it, if the loss depends on it
  std::optional<DType> stored{};            // of f32: the half type to which it is rounded in the arena
  std::vector<std::string> values{};        // i32: the texts that are 0, 1, 2 ... in data
  // f32: columns of texts, by name, each of which is as many elements as it has values.
  std::vector<std::pair<std::string, std::vector<std::string>>> columns{};

  // Returns where the program reads it, if it does.
  std::optional<int64_t> offset(Program program) const {
    return program == Program::predict   ? predict_offset
           : program == Program::measure ? measure_offset
           : program == Program::eval    ? eval_offset
                                         : step_offset;
  }
  int64_t bytes(int64_t samples) const;  // in the arena
};

enum class BufferKind : uint8_t { param, accum, state };  // as the IR's kinds
// Returns "param". The text ends in a zero byte.
std::string_view kind_text(BufferKind kind);

// The purpose of a buffer (ir/buffers.def).
enum class BufferRole : uint8_t {
#define ROLE(id, kind, suffix, combine) id,
#define NAMED(id, name, role, dtype)
#include "ir/buffers.def"
};

struct PlanBuffer {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t offset = 0;
  int64_t bytes = 0;             // of its numbers
  int64_t room = 0;              // bytes that are its own; what it has more than `bytes` holds zeros
  bool trainable = true;         // params only
  std::vector<double> values{};  // state that the runtime fills before it runs `init`; else empty
  BufferRole role = BufferRole::control;
  double kept =
      1;  // with lanes, of a sum that is no plain one: what a launch leaves of the launches before it
  // For state that ranks share (memory.shard): the shape of the whole, where this is one rank's rows of it ...
  std::vector<int64_t> whole{};
  std::string in{};  // ... and the buffer in whose place it lies.
  std::string of{};  // the buffer it belongs to: the parameter of a gradient, half copy or moment; else empty

  BufferKind kind() const;
};

// One argument of a kernel launch.
struct PlanArgument {
  enum class Kind : uint8_t { address, extent };
  Kind kind = Kind::address;
  int64_t offset = 0;        // address: from the start of the arena
  int64_t extent = 0;        // extent: constant factor ...
  bool times_batch = false;  // ... times B when true
  bool operator==(const PlanArgument&) const = default;
};

// The kernel of the PTX that computes a matrix product where no library does. Its parameters, 8 bytes each:
// addresses of A, B, C, then m, n, k, and where the product has them its three pitches. The matrices are row-
// major as they lie in memory (a transposed A is [k, m]). Transposes and accumulation are fixed by the entry.
// Block x of the one-dimensional grid computes the tile of C at row (x / T) * tile_m and column (x % T) *
// tile_n, where T = ceil(n / tile_n); the grid has ceil(m / tile_m) * T blocks. Tiles at the edges are cut by
// m and n.
struct PlanBuiltin {
  std::string kernel;  // entry name; "" when the artifact has none
  int64_t block = 0;   // threads in a block
  int64_t tile_m = 1, tile_n = 1;
  // The entry's arguments when it also does the work of a later launch of the program (a product's `then`, docs/ir.md),
  // which is then left out: the same bits in one launch.
  std::vector<PlanArgument> arguments{};
  int64_t does = 0;  // with arguments: that launch
  bool operator==(const PlanBuiltin&) const = default;
};

// A vector that a library may add to each row of a product. The only launch that reads the product's f32 result does
// just that, in place, and is then left out. The bits are the same: both round the sum to f32, and then what is added
// to it.
struct PlanBias {
  int64_t offset = 0;  // of n f32 numbers in the arena
  int64_t launch = 0;  // which one of the program, after the product
};

// A part of the arena that holds nothing while a matrix product runs: what is written before and read later
// lies elsewhere, and so do the product's operands, its result and its bias. A library's algorithm may work
// there.
struct PlanWorkspace {
  int64_t offset = 0, bytes = 0;
};

// A copy between the arena and the host's memory (memory.host), whose addresses begin where the arena's end.
struct PlanCopy {
  int64_t to = 0, from = 0, bytes = 0;
};

inline constexpr size_t kPlanStreams = 3;

// One launch of a program on the GPU: a kernel of the PTX, or a matrix product
// C[m, n] (+)= op(A)[m, k] @ op(B)[k, n], row-major, with f32 sums that are rounded once to C's type.
struct PlanLaunch {
  std::string kernel;                             // entry name; "" for a matrix product
  std::vector<PlanArgument> arguments;            // in the order of the entry's parameters
  int64_t block = 0;                              // threads in a block
  PlanArgument grid{PlanArgument::Kind::extent};  // work items; blocks = ceil(items / per_block)
  int64_t per_block = 1;
  // A merged kernel (codegen/gpu/merged_kernel.h): its blocks take turns, so the grid has no more than run at once ...
  bool resident = false;
  bool cooperative = false;      // ... and all of them must run at once, because they wait for each other
  std::vector<int64_t> touches;  // offsets of what it reads and writes, which its arguments do not show
  // matrix product
  int64_t a = 0, b = 0, c = 0;  // offsets
  PlanArgument m{PlanArgument::Kind::extent}, n{PlanArgument::Kind::extent}, k{PlanArgument::Kind::extent};
  // Extents: elements from one row of A, B and C to the next. None: their rows have no gaps.
  std::optional<std::array<PlanArgument, 3>> pitch{};
  std::array<int64_t, 3> rounded{};  // m, n, k as a library takes them, with the same sums; 0: as they are
  bool transpose_a = false, transpose_b = false, accumulate = false;  // accumulate: C is f32
  DType type = DType::f32, result = DType::f32;                       // of A and B, and of C
  PlanBuiltin builtin;
  std::optional<PlanBias> bias{};
  std::optional<PlanWorkspace> workspace{};
  // Its stream, below kPlanStreams, and the launches of others that must have ended. All on one stream in the order
  // of the program does the same.
  int64_t stream = 0;
  std::vector<int64_t> after{};
  std::optional<PlanCopy> copy{};  // it is one, and nothing else
};

// Returns the arguments of a product's built-in kernel: its own, or a, b, c, m, n, k and its pitches.
std::vector<PlanArgument> builtin_arguments(const PlanLaunch& product);

// Bytes of the arena that hold a value from launch `first`, which writes it, to launch `last` of the program.
// Of two values that share bytes one may begin in the launch in which the other ends. The emulator is told.
struct PlanValue {
  int64_t offset = 0, bytes = 0;
  // first is -1 for an input, which is there before; last the number of launches for what the next run reads.
  int64_t first = 0, last = 0;
  bool operator==(const PlanValue&) const = default;
};

// Launches first to last of a program, which run where the i32 at `flag` is not 0, once what stands before them has
// ended; else none of them does.
struct PlanSection {
  int64_t flag = 0, first = 0, last = 0;
};

struct PlanProgram {
  std::string name;  // of kProgramNames
  std::vector<PlanLaunch> launches;
  std::vector<PlanValue> values{};
  std::optional<PlanSection> section{};
  // step and update: all launches as one cooperative kernel, for a GPU on which its blocks run at once.
  // Where they do not, the launches do the same one after the other, unless the model file insists.
  std::optional<PlanLaunch> persistent{};
  bool persistent_required = false;
  std::vector<PlanValue> persistent_values{};  // counted in phases of that kernel instead of launches
  // The buffers that it writes, and those that it only reads, as numbers in Plan::buffers, by their offsets.
  std::vector<int64_t> writes{}, reads{};
};

struct PlanBytes {  // of the arena, by category; they add up to peak together with `padding`
  int64_t weights = 0, half_weights = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0,
          inputs = 0;
  int64_t peak = 0;
  int64_t lower_bound = 0;
  int64_t host = 0;  // beside the arena: the block in the host's memory
};

// schedule.type = "plateau": when the evaluations cut the rate (runtime/run/rates.h).
struct PlateauRules {
  std::string metric = "loss";  // or one of Plan::metrics
  int64_t patience = 10;        // evaluations in a row without progress, beyond which the rate is cut
  double threshold = 1e-4;      // relative: what counts as progress
};

// The length of a schedule, which the runtime compares with the run's, or makes of it.
struct PlanLength {
  int64_t total = 0;  // 0: that of the run (schedule.total = "run")
  std::string last;   // without schedule.total: what comes after `total`, such as "the first step"
  int64_t warmup = 0;
  double warmup_share = 0;  // in percent of the run's; 0: `warmup` says it
  bool epochs = false;      // counted instead of updates
};

// A schedule that multiplies the rate by `gamma` every `each` updates or epochs, without an end.
struct PlanDecay {
  double gamma = 1;
  int64_t each = 1, warmup = 0;
  bool epochs = false;  // counted instead of updates
};

// The seed of the backward pass where it is not 1: @loss.scale, or 1 without that state, over `elements`, those of one
// full micro-batch's loss (1 with f32). Accumulated gradients are multiplied by it.
struct SeedRules {
  int64_t elements = 1;
  bool dynamic = false;  // windows adjust the scale, and it may become too small
};
constexpr double kSmallestScale = 0x1p-14;  // below it a run ends

// The names of published weights in their file, and their layout there: [load] of the model file.
struct PlanLoad {
  struct Parameter {
    std::string name;
    std::vector<std::string> tensors;  // one, or several that follow each other along the first axis
    bool transpose = false;            // each lies in the file with its two axes exchanged
    std::vector<int64_t> parts{};      // the rows of each; of one tensor: see Split in weights.h
    // The rows of a head of each, where rows of a head's second half lie between those of its first; 0: they lie as
    // here. Empty: all do.
    std::vector<int64_t> interleave{};
    double shift = 0;  // what the file's numbers have more than ours
  };
  std::vector<Parameter> parameters{};  // those that are called or lie otherwise than here
  std::string prefix{};                 // before names in the file: in those of `parameters`, before ours
  std::vector<std::string> ignore{};    // patterns of names in the file
  bool part = false;                    // what the file lacks keeps its start
};

// alpha / rank * B A is added to the rows of `weight` from `begin` on; A is NAME.lora_A.weight [rank, in], B
// NAME.lora_B.weight [out, rank].
struct PlanAdapter {
  std::string name, weight;
  int64_t begin = 0;
  double alpha = 1;
  bool operator==(const PlanAdapter&) const = default;
};

// Layers that share a weight: what it would be called if it were the layer's own, and whose it is.
struct PlanTie {
  std::string name, weight;
  bool operator==(const PlanTie&) const = default;
};

// The result that is made of the outputs of `predict`, along the last axis or element by element.
enum class AnswerForm : uint8_t { logits, softmax, argmax, sigmoid, above_half };

// Predictions: f32 [samples, shape]. The program `predict` leaves them at `offset`; or, in parts, `answer` does, which
// may run any number of times after it, for another part each time.
struct PlanPredict {
  int64_t batch = 0;  // samples of a run, at most; 0: not even one fits into the arena ...
  int64_t needs = 0;  // ... which would need so many bytes
  int64_t offset = 0;
  std::vector<int64_t> shape{};
  AnswerForm answer = AnswerForm::logits;
  std::vector<int64_t>
      answer_shape{};       // `shape`, without the last axis where the answer is its largest's number
  int64_t rows = 0;         // of the first axis of `shape`, that a part has; 0: there are no parts
  int64_t rows_offset = 0;  // where `answer` reads their numbers, i32 [rows]
  bool measured = false;    // there is the program `measure`
  // For a model that gives [T, V] of i32 [T]: "causal" where positions meet in causal attention alone, else how they
  // meet.
  std::string positions{};
  // Texts of at most so many tokens are turned otherwise than longer ones: the f32 "text.length" says how many the
  // text has that is read. 0: all are turned alike, and there is no such state.
  int64_t short_text = 0;
  // The program `decode` goes on with one text: a run takes the token at `token_offset` and its position at
  // `position_offset`, i32 each, and leaves the outputs of that position, f32, at `offset`. The runs before it had the
  // positions before; no other program may come in between. Null where there is none.
  struct Decode {
    int64_t positions = 0;  // that a text may have
    int64_t token_offset = 0, position_offset = 0, offset = 0;
  };
  std::optional<Decode> decode{};

  int64_t parts() const { return rows > 0 ? shape[0] / rows : 1; }  // of a sample
  int64_t outputs() const;                                          // numbers that a run leaves at most
};

// The answers of a run of `eval` or of `measure`, f32 [samples, shape], which the runtime judges beside the targets
// (runtime/session/judgement.h).
struct PlanAnswers {
  enum class Form : uint8_t {
    logits,
    numbers,
    binary
  };  // of classes, of the last axis; or of yes, element by element
  Form form = Form::logits;
  int64_t eval_offset = 0, measure_offset = 0;
  std::vector<int64_t> shape{};
  int64_t classes = 0;
};

struct Plan {
  std::string model;
  std::string target;      // "sm_80"
  int64_t parameters = 0;  // number of elements of all params
  int64_t micro_batch = 1;
  int64_t accumulate = 1;
  int64_t lanes = 1;        // of a window; the sums of its lanes are added by a tree (runtime/ranks/lanes.h)
  bool keeps_bits = false;  // train.require = "bits"
  int64_t shard = 0;        // not 0: exactly so many ranks run it, which share the optimizer's state
  Tail tail = Tail::flush;
  int64_t epochs = 1;
  bool shuffle = true;
  int64_t seed = 0;
  double lr = 1e-3;              // optimizer.lr
  std::string optimizer;         // "adam"
  DType precision = DType::f32;  // precision.compute
  // The metrics of an evaluation besides the loss, from sums that eval accumulates in state `eval.NAME` (f32).
  std::vector<std::string> metrics;
  int64_t arena_bytes = 0;
  int64_t host_bytes = 0;  // of the block in the host's memory; offsets from arena_bytes on lie there
  PlanBytes bytes;
  int64_t flops_per_launch = 0;
  int64_t kernels_per_launch = 0;
  std::vector<std::string> passes;
  bool exact = true;  // equivalence
  std::vector<std::string> because;
  // Dynamic loss scale, or on_nonfinite = "skip": a window with a non-finite gradient is left out, and the
  // run goes on ...
  bool skip_nonfinite = false;
  int64_t max_skips = 100;  // ... until so many in a row
  std::optional<PlateauRules> plateau;
  std::optional<PlanLength> length;
  std::optional<PlanDecay> decay;
  std::optional<SeedRules> seed_rules;
  PlanPredict predict;
  std::optional<PlanAnswers> answers;
  std::optional<PlanLoad> load;
  std::optional<PlanLoad> gguf;  // the same in a GGUF: [gguf]
  std::vector<PlanAdapter> adapters;
  std::vector<PlanTie> ties;
  std::vector<std::string> presumes;  // "NAME=VALUE": what weights must be like beyond their shapes
  std::vector<PlanInput> inputs;
  std::vector<PlanBuffer> buffers;
  std::vector<PlanProgram> programs;
  // The identity of the model, for checkpoints: the settings that were given, by key, as the IR's text has them, and a
  // digest of what the step and an evaluation compute.
  std::vector<std::pair<std::string, std::string>> settings{};
  uint32_t operations = 0;

  const PlanBuffer* find(std::string_view buffer) const;
  // The first buffer of that role that belongs to `buffer`; nullptr when there is none.
  const PlanBuffer* find(BufferRole role, std::string_view buffer) const;
  // Says whether the artifact must have the program: others stand in it only where there is something to do.
  bool needs(Program program) const;
  // Returns the most samples of a run of the program.
  int64_t most_samples(Program program) const {
    return program == Program::decode ? 1 : predicts(program) ? predict.batch : micro_batch;
  }
  // Refuses a number of samples that no run of the program takes.
  Status check_samples(int64_t samples, Program program) const;
};

int64_t elements_of(const std::vector<int64_t>& shape);
// Returns that of all ranks' slices together, where the buffer is one.
const std::vector<int64_t>& whole_shape(const PlanBuffer& buffer);
int64_t whole_bytes(const PlanBuffer& buffer);

// The way in which the copies of several ranks become one (ir/buffers.def).
enum class CopiesOfRanks : uint8_t { none, sum, ordered, per_rank };

struct RoleRow {
  BufferKind kind;
  CopiesOfRanks combine;
};
inline constexpr RoleRow buffer_roles[] = {
#define ROLE(id, kind, suffix, combine) {BufferKind::kind, CopiesOfRanks::combine},
#define NAMED(id, name, role, dtype)
#include "ir/buffers.def"
};

// The buffers that are known by name, each of one element (ir/buffers.def): state::loss_sum is "loss.sum".
// The program `init` clears what is not of role `given`, which the runtime writes before it runs `init`.
namespace state {
#define ROLE(id, kind, suffix, combine)
#define NAMED(id, name, role, dtype) inline constexpr std::string_view id = name;
#include "ir/buffers.def"
}  // namespace state

}  // namespace gacc
