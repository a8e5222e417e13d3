// The model files of examples/, which `gaccc --example NAME` prints.
#pragma once
#include <string>
#include <vector>

namespace gacc {

struct Example {
  std::string file, text;  // "mixer.toml"
};
const std::vector<Example>& examples();  // by name

}  // namespace gacc
