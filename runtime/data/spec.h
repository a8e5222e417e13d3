// SPEC, the text that says which data to train on:
//
//   mnist:DIR[,split=train|test]   idx:NAME=FILE,...   npy:NAME=FILE,...   npz:FILE
//   csv:FILE[,label=COLUMN][,sep=C][,split=train|test][,missing=error|mean|drop]
//                                  synthetic:digits|tokens[,split=train|test]
//   tokens:FILE                    text:FILE[,split=train|test]
//
// each with `,limit=N` for the first N samples. The text up to the first ':' is the kind; the rest is cut at
// commas, so no path may hold a comma, while ':' and '=' are fine: a NAME=FILE is cut at its first '='.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/status.h"

namespace gacc {

enum class Missing : uint8_t { error, mean, drop };  // what a missing field of a csv file is

struct Spec {
  std::string kind;  // "mnist", "idx", "npy", "npz", "csv", "tokens", "text", "synthetic"
  std::string path;  // the folder, the file, or what to generate; empty for idx and npy
  std::vector<std::pair<std::string, std::string>> files;  // idx, npy: input and file, as written
  std::optional<int64_t> limit;                            // at least 1
  bool test = false;                                       // split=test
  bool split = false;                                      // split= is given
  std::optional<std::string> label;                        // csv
  char separator = ',';                                    // csv
  Missing missing = Missing::error;                        // csv
};

Status parse_spec(std::string_view text, Spec& spec);

// FOLDER/train-images-idx3-ubyte and whatever else the file may be called: with .gz, or, by some unpackers,
// with a dot for the last dash.
std::vector<std::string> mnist_files(std::string_view folder, bool test, bool labels);

// Every file that belongs to the data, the one part and the other. None of a text that is no SPEC.
std::vector<std::string> data_files(std::string_view text);

}  // namespace gacc
