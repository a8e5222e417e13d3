// The numbers that a hand-written kernel's function is compiled for. A family's Shape is a struct; only this file
// knows how it lies in a row of words.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <type_traits>
#include <vector>

namespace gacc::kernels {

// A Shape is a struct of 64-bit numbers, or has `members()`, a tuple of references to such numbers of which the last
// may be a vector of 64-bit numbers or of structs of them.
class CompiledShape {
 public:
  CompiledShape() = default;
  template <class Shape>
  explicit CompiledShape(Shape shape) {
    if constexpr (requires { shape.members(); })
      std::apply([&](const auto&... member) { (put(member), ...); }, shape.members());
    else
      put(shape);
  }
  template <class Shape>
  Shape as() const {
    Shape shape{};
    size_t at = 0;
    if constexpr (requires { shape.members(); })
      std::apply([&](auto&... member) { (take(member, at), ...); }, shape.members());
    else
      take(shape, at);
    return shape;
  }
  // Kernels of one op whose shapes have the same key share a function.
  const std::vector<int64_t>& key() const { return words_; }

 private:
  template <class T>
  using Words = std::array<int64_t, sizeof(T) / sizeof(int64_t)>;

  template <class T>
  void put(const T& numbers) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int64_t) == 0);
    const auto words = std::bit_cast<Words<T>>(numbers);
    std::ranges::copy(words, std::back_inserter(words_));
  }
  template <class T>
  void put(const std::vector<T>& list) {
    for (const T& each : list) put(each);
  }
  template <class T>
  void take(T& numbers, size_t& at) const {
    Words<T> words;
    std::copy_n(words_.begin() + static_cast<std::ptrdiff_t>(at), words.size(), words.begin());
    at += words.size();
    numbers = std::bit_cast<T>(words);
  }
  template <class T>
  void take(std::vector<T>& list, size_t& at) const {
    while (at < words_.size()) take(list.emplace_back(), at);
  }

  std::vector<int64_t> words_;
};

}  // namespace gacc::kernels
