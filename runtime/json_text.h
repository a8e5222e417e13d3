// JSON as a line of text. Bytes that are no UTF-8, which names out of files may have, become U+FFFD.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace gacc {

template <class Json>  // nlohmann::json or ordered_json
std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace gacc
