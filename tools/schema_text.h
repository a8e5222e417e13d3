// The schema of the model file as text, as JSON, and as the page docs/model.md.
#pragma once
#include <string>

namespace gacc {

std::string schema_text();
std::string schema_json();
std::string schema_markdown();

}  // namespace gacc
