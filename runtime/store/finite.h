// Before parameters are written: an error where a number is not finite, so that no file takes the place of a good one
// with weights that are of no use.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/safetensors.h"
#include "runtime/session/session.h"

namespace gacc {

// The errors begin with `path`, the file that is not written.
Status check_finite(const std::vector<NamedTensor>& tensors, const std::string& path);
// `bytes` are those of the buffer, or of the whole where it is a shard.
Status check_finite(const PlanBuffer& buffer, std::span<const std::byte> bytes, const std::string& path);
// The session's parameters for a file, checked.
Result<std::vector<NamedTensor>> parameters_for(const std::string& path, Session& session);

}  // namespace gacc
