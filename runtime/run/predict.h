// Asking a trained model: its outputs for data, and text that it goes on with. Trains nothing.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/session/session.h"

namespace gacc {

// The form of written outputs: an npy file, f32 [samples, ...], or a csv file with a row for each sample.
struct OutputForm {
  std::vector<std::string> columns{};  // of a csv file; empty: it is an npy file
  // The target's, one for each column, where it is normalised by its data and a csv file is in its own units.
  std::vector<double> mean{}, std{};
  std::vector<std::string> classes{};  // of a csv file of classes: what it calls them; empty: by number
  std::vector<int64_t> rows{};         // numbers of the samples, where some rows are left out (Dataset::rows)
  std::string remark{};                // for the user
};

// Chooses the form by the path's ending. `layer`: the layer whose outputs they are; empty: the loss's input.
// `facts` tells how the target is normalised.
Result<OutputForm> output_form(const Plan& plan, const std::string& layer, const std::string& path,
                               const DataFacts& facts);

// Calls `take` with the outputs of the first samples, in the data's order: some at a time, which it may change, and the
// number of the first of them. Ends where that gives false. Adds all of them to `evaluation`, unless it is null; then
// the plan has `measure`, and the data have targets.
using TakeOutputs = std::function<Result<bool>(int64_t first, std::span<float> outputs)>;
Status each_output(Session& session, const Plan& plan, const Dataset& data, int64_t samples,
                   const TakeOutputs& take, Evaluation* evaluation = nullptr);

// Writes the outputs of all samples, in the data's order. `interrupted` ends it, and leaves no file.
// `warning`: what there is to say of outputs that are no numbers. `measured`, unless it is null, becomes their loss and
// metrics, as with `each_output`.
Status predict(Session& session, const Plan& plan, const Dataset& data, const std::string& path,
               const OutputForm& form, const std::function<bool()>& asked_to_end, bool& interrupted,
               std::string& warning, EvalReport* measured = nullptr);

// The way that a token is drawn.
struct DrawOptions {
  double temperature = 1;  // 0: always the most likely
  std::optional<int64_t> top_k{};
  double top_p = 1;  // draws among the fewest of the most likely tokens whose probabilities make this
  uint64_t seed = 0;
};

struct GenerateOptions : DrawOptions {
  int64_t tokens = 0;
  // Bytes where the vocabulary has at most 256 entries (empty: a newline), else numbers with spaces between.
  std::string prompt{};
  std::string stop{};  // the text ends before these tokens, written as a prompt is; empty: it does not
  std::function<bool()> interrupted;
  std::function<void(std::string_view)> print;
};

// Returns a text as one line: a new line as a backslash and n, a backslash as two.
std::string line_of(std::string_view text);

// Returns the prompts of a file, each as `line_of` writes it; all of them are tokens of the model.
Result<std::vector<std::string>> read_prompts(const Plan& plan, const std::string& path);

// Why the model cannot predict, or not go on with a text, or why not with these options; before anything is done.
Status check_predict(const Plan& plan);
Status check_text(const Plan& plan);
Status check_generate(const Plan& plan, const GenerateOptions& options);

// Reads texts with a session's parameters. The keys and values of a text's positions stay in the arena where it has
// room for them, so that of the next text only what differs is computed; `forget` where anything else has run there, or
// the parameters are others.
class TextReader {
 public:
  TextReader(Session& session, const Plan& plan);  // a plan that passes check_text; both must outlive it
  // Gives the logits of the token that follows the text, which is not empty: of its last tokens where it is longer
  // than there is room for. Returns false where `interrupted`, asked before each token, ended it.
  Result<bool> read(std::span<const int32_t> text, std::vector<float>& logits,
                    const std::function<bool()>& interrupted);
  // Computes the keys and values of a text, as far as they are not there. Returns as `read` does.
  Result<bool> keep(std::span<const int32_t> text, const std::function<bool()>& interrupted);
  void forget() { kept_.clear(); }

 private:
  Result<bool> read_told(std::span<const int32_t> text, std::vector<float>& logits,
                         const std::function<bool()>& interrupted);
  Result<bool> keep_told(std::span<const int32_t> text, const std::function<bool()>& interrupted);
  // Calls `read_them` with the model told that the text has so many tokens, as one must know that turns short texts
  // otherwise. What is kept of a short text is none of a longer one's.
  Result<bool> told(size_t tokens, const std::function<Result<bool>()>& read_them);

  Session& session_;
  const Plan& plan_;
  size_t room_;                // positions whose keys and values have a place
  std::vector<int32_t> kept_;  // the tokens of which they are there ...
  bool kept_short_ = false;    // ... turned as those of a short text
};

// Draws the token at `position` of a text. The random number is a function of the seed and of the position.
Result<int32_t> draw(std::span<const float> logits, const DrawOptions& options, uint64_t position);

// Says whether a text of the model's tokens is numbers, and not bytes.
bool writes_numbers(const Plan& plan);

// Reads a text as tokens of the model; at least one. `place` begins the error.
Result<std::vector<int32_t>> parse_prompt(const Plan& plan, std::string_view prompt,
                                          std::string_view place = "--prompt");

// Prints each token as soon as it is drawn and cannot begin `stop`, and returns how many were drawn.
Result<int64_t> generate(Session& session, const Plan& plan, const GenerateOptions& options,
                         bool& interrupted);

}  // namespace gacc
