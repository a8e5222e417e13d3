// Advice where a published model is asked for by its name.
#pragma once
#include <string>

namespace gacc {

// Returns how to get a path NAME/NAME that is not there, as published models are called; "" for another path.
std::string not_downloaded(const std::string& path);

}  // namespace gacc
