// The command line of gacc-exec. One table has all of its options (option_table): beside what tools/option_table.h
// says, in which modes one stands, and what ranks must have alike of it.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/ranks/collective.h"
#include "runtime/run/predict.h"
#include "runtime/run/train.h"
#include "tools/option_table.h"

namespace gacc {

// The work of a run. An option asks for it, but for the first two: train is what is left, and evaluate is --eval
// without --data.
enum class Mode : uint8_t { train, evaluate, init_only, predict, generate, verify };

struct Arguments {
  std::string artifact, data, eval, device = "auto", load, save, log, dump_grads, gemm = "auto", tune_gemm;
  std::string like, save_as, save_type = "f32", save_best, save_best_adapter, save_adapter, load_adapter,
                             predict, checkpoint, tensorboard, profile;
  TrainOptions train;    // limits, evaluations, how often a checkpoint is written, and what is the best
  GenerateOptions text;  // of --generate, but for the number of tokens
  std::string prompts;
  std::optional<int64_t> generate, seed;
  std::optional<double> lr;
  std::optional<int64_t> ranks;  // --ranks: to be started, by mpirun
  int64_t rank_timeout = 60;     // seconds without a sign of life of another rank
  int threads = 0;               // 0: all cores
  bool no_shuffle = false, init_only = false, quiet = false, resume = false, verify = false, merge = false;
  int64_t recheck = 0;  // 0: none
  int64_t check = 0;    // samples; 0: no check of what is written
  bool log_hash = false;
  std::vector<std::string> command;  // as it was typed

  Mode mode() const;
  bool trains() const { return mode() == Mode::train; }
  // Says that the run is asked for outputs, of --predict or --generate.
  bool asks() const { return mode() == Mode::predict || mode() == Mode::generate; }
};

// The agreement that an option needs among ranks' command lines. The first rank alone writes what `first` writes.
enum class AmongRanks : uint8_t {
  own,       // each may have another value
  same,      // all have the same one
  given,     // all have one or none has: each does a part of what it asks for
  compared,  // what it leads to is compared: a checksum, the number of samples
};

class Modes {
 public:
  constexpr Modes(std::initializer_list<Mode> modes) {
    for (const Mode mode : modes) bits_ |= 1u << static_cast<unsigned>(mode);
  }
  constexpr bool has(Mode mode) const { return (bits_ >> static_cast<unsigned>(mode) & 1) != 0; }

 private:
  unsigned bits_ = 0;
};

struct ExecRow {
  OptionRow option;
  AmongRanks ranks;
  Modes modes;  // those that it may stand in
};

static_assert(!std::is_default_constructible_v<Modes>, "a row without its last column would compile");

// Returns the table of all options, over the members of `to`.
std::vector<ExecRow> option_table(Arguments& to);

// Returns what ranks must have alike of their command lines.
Facts facts_of_options(const Arguments& arguments);
// Returns the arguments of a rank that is not the first: it writes nothing, and shows nothing.
Arguments without_outputs(Arguments arguments);

// Reads the command line. Returns the exit status, and everything is printed, when there is nothing to run: 0
// after --help and --version, 2 for a wrong command line.
[[nodiscard]] std::optional<int> parse_arguments(int argc, char** argv, Arguments& to);

}  // namespace gacc
