// gaccc --fits: which cards a model trains on, wholly and by adapters, and with windows of how many tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compiler/choose_batch.h"
#include "compiler/compile_step.h"
#include "compiler/published_source.h"

namespace gacc {

struct FitsRequest {
  // Reads the model with adapters of a rank and windows of so many tokens, where these are given; and what the options
  // set. Asked for the same model it gives the same.
  std::function<std::optional<CompileTrouble>(const PublishedOptions& options, ModelSource& source,
                                              std::vector<Override>& overrides)>
      read{};
  bool published = false;            // windows can have other lengths
  std::optional<int64_t> lora{};     // the rank; kUsualRank where none is given
  std::optional<int64_t> context{};  // of the rows' micro-batches
  std::vector<int64_t> cards{};      // bytes, ascending
  std::string target;
  bool strict = false;
};

// A way to train on one card.
struct FitsCard {
  bool asked = true;  // else another way fits already, and the rest is not known
  bool fits = false;
  ChosenBatch found{};               // the fastest that fits
  int64_t least = 0;                 // bytes that micro-batch 1 needs, proven
  std::optional<int64_t> context{};  // the longest window at micro-batch 1; 0: none fits
};

// A way to train: all parameters, or adapters beside a base of some type. A base in blocks is asked for on cards that
// nothing larger fits.
struct FitsWay {
  std::string key, name;
  std::string base{};  // type of the frozen matrices
  int64_t parameters = 0, trained = 0;
  bool adapters = false;
  // The least that micro-batch 1 needs, in parts, without a budget.
  int64_t weights = 0, state = 0, values = 0;
  std::string largest{};          // of the values then: "the logits", or a value's name
  std::vector<FitsCard> cards{};  // as in the request
  std::string refused{};          // why the model cannot be trained so
};

struct Fits {
  std::string model, target, precision, precision_because;
  int64_t effective_batch = 0;
  int64_t host = 0;  // bytes that the host may have (memory.host)
  std::vector<int64_t> cards{};
  std::optional<int64_t> context{},
      positions{};    // of the rows, and the most; nothing: windows have one length
  bool exact = true;  // micro-batches do not change what is trained
  std::vector<FitsWay> ways{};
};

// "4,6.5,512MiB": bytes, in GiB where no unit is given; nothing when it is no such list.
std::optional<std::vector<int64_t>> parse_cards(const std::string& text);
std::optional<CompileTrouble> find_fits(const FitsRequest& request, Fits& fits);
// Lines of so many columns: the ways stand side by side, or one below the other.
std::string fits_text(const Fits& fits, size_t columns);
nlohmann::ordered_json fits_json(const Fits& fits);

}  // namespace gacc
