#include "codegen/host/primitive.h"

#include <dlfcn.h>

#include <array>
#include <utility>

namespace gacc::host {

namespace {

constexpr size_t kMostArguments = 4;

}  // namespace

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// ISAs are sets of bits. ONEDNN_MAX_CPU_ISA=AVX512_CORE leaves these out.
bool has_isa(dnnl::cpu_isa isa) {
  static const auto own = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto wanted = static_cast<unsigned>(isa);
  return (own & wanted) == wanted;
}
bool multiplies_bf16() { return has_isa(dnnl::cpu_isa::avx512_core_bf16); }
bool has_amx() { return has_isa(dnnl::cpu_isa::avx512_core_amx); }

// OpenMP's setting is per thread. Where oneDNN was built without OpenMP there is nothing to ask.
void forbid_nested_threads() {
  using Setter = void (*)(int);
  static const Setter setter = [] {
    for (const char* name : {"libgomp.so.1", "libomp.so.5", "libiomp5.so"})
      if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD))
        if (void* symbol = dlsym(library, "omp_set_num_threads")) return reinterpret_cast<Setter>(symbol);
    return Setter{nullptr};
  }();
  static thread_local bool asked = false;
  if (setter != nullptr && !std::exchange(asked, true)) setter(1);
}

dnnl::primitive_attr shared_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

Primitive::Primitive(dnnl::primitive run, const std::vector<Argument>& arguments, int threads)
    : run_(std::move(run)) {
  for (const Argument& argument : arguments) roles_.push_back(argument.role);
  for (int thread = 0; thread < threads; ++thread)
    for (const Argument& argument : arguments) memories_.emplace_back(argument.memory, cpu(), nullptr);
}

bool Primitive::run(int thread, std::initializer_list<const void*> addresses) const {
  static thread_local const dnnl::stream stream(cpu());
  forbid_nested_threads();
  std::array<dnnl_exec_arg_t, kMostArguments> arguments{};
  size_t i = 0;
  for (const void* address : addresses) {
    dnnl_memory_t memory = memories_[static_cast<size_t>(thread) * roles_.size() + i].get();
    if (dnnl_memory_set_data_handle(memory, const_cast<void*>(address)) != dnnl_success) return false;
    arguments[i] = {roles_[i], memory};
    ++i;
  }
  return dnnl_primitive_execute(run_.get(), stream.get(), static_cast<int>(i), arguments.data()) ==
             dnnl_success &&
         dnnl_stream_wait(stream.get()) == dnnl_success;
}

}  // namespace gacc::host
