// Philox4x32-10 (Salmon et al., 2011): four random words as a pure function of a key and a counter, so that
// any element of a random sequence can be computed by itself, on any machine and thread.
#pragma once
#include <array>
#include <cstdint>

namespace gacc {

using PhiloxCounter = std::array<uint32_t, 4>;

inline PhiloxCounter philox(PhiloxCounter counter, uint64_t key) {
  auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ low, static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ high, static_cast<uint32_t>(a)};
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  return counter;
}

// The last counter word keeps the uses of one seed apart.
enum class RandomStream : uint32_t {
  shuffle = 0x5348,
  train_digits = 0x4454,
  test_digits = 0x4445,
  train_tokens = 0x544b,
  test_tokens = 0x4554,
  generate = 0x4745
};

}  // namespace gacc
