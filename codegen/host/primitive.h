// Primitives of oneDNN as the host device runs them: made once, each run by one thread, by many threads at once.
#pragma once
#include <oneapi/dnnl/dnnl.hpp>

#include <initializer_list>
#include <tuple>
#include <vector>

namespace gacc::host {

// The library's engine of the CPU.
const dnnl::engine& cpu();

// True where the CPU multiplies bf16 itself (AVX512-BF16, AMX), and where it has AMX for that.
bool multiplies_bf16();
bool has_amx();

// Has the library run what the calling thread makes or runs on that thread alone: with threads of its own, bits would
// follow their number.
void forbid_nested_threads();

// Describes a primitive P with these attributes. `what`: the arguments of its description; `hint`: that of the forward
// primitive where P is a backward one. For the calling thread alone, as above.
template <class P, class... What, class... Hint>
typename P::primitive_desc describe(const dnnl::primitive_attr& attributes, const std::tuple<What...>& what,
                                    const Hint&... hint) {
  forbid_nested_threads();
  return std::apply(
      [&](const What&... each) {
#if DNNL_VERSION_MAJOR >= 3
        return typename P::primitive_desc(cpu(), each..., hint..., attributes);
#else
        return typename P::primitive_desc(typename P::desc(each...), attributes, cpu(), hint...);
#endif
      },
      what);
}

// Attributes of a primitive that many threads run at once: each brings the memory that it works in.
dnnl::primitive_attr shared_attributes();

// A primitive and, for each thread that runs it, memories of which only the addresses change: making one costs the
// library as much as a product of 1 MFLOP.
class Primitive {
 public:
  struct Argument {
    int role;  // DNNL_ARG_SRC and its like
    dnnl::memory::desc memory;
  };
  Primitive(dnnl::primitive run, const std::vector<Argument>& arguments, int threads);
  // `thread`: below the number of threads that it was made for. `addresses`: of its arguments, in their order.
  // False when the library refuses.
  [[nodiscard]] bool run(int thread, std::initializer_list<const void*> addresses) const;

 private:
  dnnl::primitive run_;
  std::vector<int> roles_;
  std::vector<dnnl::memory> memories_;  // of the first thread, of the second, ...
};

}  // namespace gacc::host
