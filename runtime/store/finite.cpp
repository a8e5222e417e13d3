// Which numbers of a run must be finite in files.
#include "runtime/store/finite.h"

namespace gacc {
namespace {

Status check_tensor(const std::string& name, std::string dtype, const std::vector<int64_t>& shape,
                    std::span<const std::byte> bytes, const std::string& path) {
  return check_finite(
      StoredTensor{
          name, std::move(dtype), shape, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}},
      path + " is not written");
}

}  // namespace

Status check_finite(const std::vector<NamedTensor>& tensors, const std::string& path) {
  for (const NamedTensor& tensor : tensors)
    GACC_TRY(check_tensor(tensor.name, "F32", tensor.shape, std::as_bytes(std::span(tensor.data)), path));
  return {};
}

// Sums of an open window may be infinite, where a loss scale is too large; so may what follows from them.
Status check_finite(const PlanBuffer& buffer, std::span<const std::byte> bytes, const std::string& path) {
  if ((!is_saved(buffer) && buffer.role != BufferRole::moment) || buffer.dtype == DType::i32) return {};
  return check_tensor(buffer.name, stored_dtype(dtype_text(buffer.dtype)), whole_shape(buffer), bytes, path);
}

Result<std::vector<NamedTensor>> parameters_for(const std::string& path, Session& session) {
  std::vector<NamedTensor> tensors = GACC_TRY(session.parameters());
  GACC_TRY(check_finite(tensors, path));
  return tensors;
}

}  // namespace gacc
