// The pass manager: runs passes in order, checks phases, verifies after each, and prints what was asked for.
//
//   PipelineResult result = run_pipeline(module, {.print_after = {"fuse"}, .sink = to_stderr}, diag);
//   if (!result) → result.internal_error is the text of a bug in gacc (exit 3), or empty and `diag` says
//                  what is wrong with the model (exit 1)
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "passes/pass.h"

namespace gacc::passes {

// When the verifier looks at the module. `twice`: before memory is planned, and at the end. What it then finds is
// looked for once more, after each pass, so that the report names the one. `never` is for a module that only says what
// it would need.
enum class Verify : uint8_t { never, twice, each_pass };

struct PipelineOptions {
  std::vector<std::string> passes{};       // names in order; empty: all_passes()
  bool nothing = false;                    // run no pass at all (an empty --passes "")
  std::vector<std::string> print_after{};  // names, or "all"
  std::string stop_after{};                // "" runs to the end; "model" runs nothing
  Verify verify = Verify::each_pass;
  bool time_passes = false;      // a table at the end
  bool print_locations = false;  // in what print_after prints
  // Hears of each pass before it runs: its name, its number from 1, and how many there are.
  std::function<void(std::string_view pass, size_t number, size_t of)> on_pass{};
  // Receives what print_after and time_passes print; both need it.
  std::function<void(std::string_view text)> sink{};
  Options options{};
};

struct [[nodiscard]] PipelineResult {
  bool ok = false;
  std::string internal_error{};  // begins with "internal error: "; empty when `diag` has the reason
  explicit operator bool() const { return ok; }
};

// A sentence about the first unknown pass name in passes, print_after or stop_after, with the nearest known
// one; "" when all are known. Commands check it first and exit 2.
std::string unknown_pass(const PipelineOptions& options);

PipelineResult run_pipeline(ir::Module& module, const PipelineOptions& options, Diag& diag);

}  // namespace gacc::passes
