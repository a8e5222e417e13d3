// The command line of gacc-exec.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/run/predict.h"
#include "runtime/run/train.h"

namespace gacc {

struct Arguments {
  std::string artifact, data, eval, device = "auto", load, save, log, dump_grads, gemm = "auto", tune_gemm;
  std::string save_as, save_best, save_adapter, load_adapter, predict, checkpoint, tensorboard, profile;
  TrainOptions train;    // limits, evaluations, how often a checkpoint is written, and what is the best
  GenerateOptions text;  // of --generate, but for the number of tokens
  std::optional<int64_t> generate, seed;
  std::optional<double> lr;
  std::optional<int64_t> ranks;  // --ranks: to be started, by mpirun
  int64_t rank_timeout = 60;     // seconds without a sign of life of another rank
  int threads = 0;               // 0: all cores
  bool no_shuffle = false, init_only = false, quiet = false, resume = false, verify = false, merge = false;

  // --eval without --data: evaluates once, and trains nothing.
  bool only_evaluates() const { return data.empty() && !eval.empty() && !init_only; }
  // --predict or --generate.
  bool asks() const { return !predict.empty() || generate.has_value(); }
  bool trains() const { return !init_only && !only_evaluates() && !asks(); }
};

// The exit status, and everything is printed, when there is nothing to run: 0 after --help and --version, 2
// for a wrong command line.
[[nodiscard]] std::optional<int> parse_arguments(int argc, char** argv, Arguments& to);

}  // namespace gacc
