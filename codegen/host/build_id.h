// Which build of the plug-in this is: part of the cache's key, so that a new emitter never runs old objects.
#pragma once
#include <string>

namespace gacc::host {

// Version, and size and time of the file this code was loaded from.
std::string build_id();

}  // namespace gacc::host
