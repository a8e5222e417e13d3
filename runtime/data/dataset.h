// Datasets: named columns of samples in memory, made from a SPEC (runtime/data/spec.h).
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/data_facts.h"
#include "runtime/data/file_bytes.h"
#include "runtime/plan.h"
#include "runtime/status.h"

namespace gacc {

// Names the place of an element, for messages.
using Place = std::function<std::string(int64_t element)>;

// One input's data, kept in the file's own element type until a batch is made.
struct Column {
  std::string name;            // of the plan's input
  std::string dtype;           // "u8", "u16", "i8", "i16", "i32", "i64", "f32", "f64" (converted in `gather`)
  std::vector<int64_t> shape;  // per sample, as stored; its product equals the plan input's
  std::vector<std::byte> bytes;  // samples * product(shape) elements; or none, and
  SharedFile file{};             // the file that holds them (targets are tokens one later) ...
  size_t first = 0;              // ... from this byte on
  Place place{};
  std::vector<double> mean{}, std{};  // normalize = "data": as in InputFacts
  bool found = false;                 // the data have it, even where its values are refused

  // Returns whether the file is too large to be read as a whole: values are checked as samples are taken from it.
  bool on_disk() const { return file && file->mapped(); }

  bool present() const { return !dtype.empty(); }  // data for predictions may lack it
};

struct Dataset {
  int64_t samples = 0;
  std::vector<Column> columns;         // one for every plan input, in the plan's order
  std::vector<std::string> remarks{};  // "note: ...", "warning: ...": for the user
  // The number of each sample's row in a table of which rows were left out, from 0, without the header. Else empty.
  std::vector<int64_t> rows{};

  // The elements of a column (see FileBytes::text of one on disk).
  std::span<const std::byte> bytes(size_t column) const;

  // Fills `destination` (f32 or i32, as the input says, batch-major) with the samples `order`: u8 scaled by
  // 1/255 for f32 inputs, then normalize. Fails only where a column is on disk: a value that does not fit
  // the input, a file that has changed.
  Status gather(size_t input, const PlanInput& plan, std::span<const int64_t> order,
                std::span<std::byte> destination) const;
};

// Returns the inputs of a model that says at each position which token is the next one: the tokens, and the targets.
std::optional<std::array<size_t, 2>> next_token_inputs(const Plan& plan);
// Fails where nearly all counted targets are the tokens at their own places. For a model with such inputs; i32.
Status check_next_tokens_of(const Plan& plan, std::span<const std::byte> tokens,
                            std::span<const std::byte> targets);

// Checks that data fit an input. For i32: whole numbers within its range, or the one that its loss ignores. For
// f32: finite numbers. `bytes` are elements of `dtype`.
Status check_values(const PlanInput& input, std::string_view dtype, std::span<const std::byte> bytes,
                    const Place& place);
// Why no f32 input takes `value`: it is not finite, or would not be as f32. "" when one does.
std::string_view unfit_for_f32(double value);

// The purpose of data. In training, facts that are not known yet are learnt from them; otherwise an input that needs
// them is an error. Predictions need only the inputs that the program predict reads.
enum class DataUse : uint8_t { training, evaluation, prediction };

// Reads SPEC for the inputs of `plan`; every mismatch of names, sizes, types, shapes and ranges is one clear
// sentence, and so is every mismatch with the `facts` of earlier data.
Status load_dataset(std::string_view spec, const Plan& plan, DataUse use, DataFacts& facts, Dataset& dataset);

// The order of an epoch's samples (epochs count from 0): a pure function of (samples, seed, epoch), or file
// order.
std::vector<int64_t> epoch_order(int64_t samples, uint64_t seed, int64_t epoch, bool shuffle);

}  // namespace gacc
