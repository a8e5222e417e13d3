#include "tools/weights_hash.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nettle/sha2.h>

#include <array>
#include <bit>

namespace gacc {

static_assert(std::endian::native == std::endian::little, "the elements are hashed as they lie in memory");

std::string weights_hash(std::span<const NamedTensor> tensors) {
  sha256_ctx context;
  sha256_init(&context);
  const auto add = [&](const void* from, size_t bytes) {
    sha256_update(&context, bytes, static_cast<const uint8_t*>(from));
  };
  for (const NamedTensor& tensor : tensors) {
    add(tensor.name.data(), tensor.name.size());
    add(tensor.data.data(), tensor.data.size() * sizeof(float));
  }
  std::array<uint8_t, SHA256_DIGEST_SIZE> digest{};
  sha256_digest(&context, digest.size(), digest.data());
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace gacc
