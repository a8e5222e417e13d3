// libgacc-emu.so through its C symbols, as the CUDA device uses them: module, memory, capture with copied
// values, reports.
#include <dlfcn.h>

#include "tests/emulator/harness.h"

namespace gacc::emulator {
namespace {

struct Library {
  void* handle = dlopen(GACC_EMULATOR_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  template <class... A>
  int operator()(const char* name, A... arguments) {
    auto function = reinterpret_cast<int (*)(A...)>(dlsym(handle, name));
    EXPECT_NE(function, nullptr) << name;
    return function ? function(arguments...) : -1;
  }
};

constexpr const char* kPtx = R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 p, .param .u32 n)
{
	.reg .b32 %r<5>;
	.reg .b64 %rd<5>;
	ld.param.u64 %rd1, [p];
	ld.param.u32 %r1, [n];
	mov.u32 %r2, %tid.x;
	mul.wide.u32 %rd2, %r2, 4;
	add.s64 %rd3, %rd1, %rd2;
	ld.global.u32 %r3, [%rd3];
	add.s32 %r4, %r3, %r1;
	st.global.u32 [%rd3], %r4;
	ret;
}
)";

TEST(Driver, LaunchCaptureReplayReport) {
  Library cu;
  ASSERT_NE(cu.handle, nullptr) << dlerror();
  void *module = nullptr, *function = nullptr, *stream = nullptr, *graph = nullptr, *executable = nullptr;
  int count = 0, value = 0;
  unsigned long long p = 0;
  ASSERT_EQ(cu("cuInit", 0u), 0);
  ASSERT_EQ(cu("cuDeviceGetCount", &count), 0);
  EXPECT_EQ(count, 1);
  ASSERT_EQ(cu("cuDeviceGetAttribute", &value, 75, 0), 0);
  EXPECT_EQ(value, 9);
  ASSERT_EQ(cu("cuModuleLoadDataEx", &module, static_cast<const void*>(kPtx), 0u, static_cast<int*>(nullptr),
               static_cast<void**>(nullptr)),
            0);
  ASSERT_EQ(cu("cuModuleGetFunction", &function, module, "add"), 0);
  EXPECT_EQ(cu("cuModuleGetFunction", &function, module, "sub"), 500);
  ASSERT_EQ(cu("cuModuleGetFunction", &function, module, "add"), 0);
  ASSERT_EQ(cu("cuStreamCreate", &stream, 1u), 0);
  ASSERT_EQ(cu("cuMemAlloc_v2", &p, size_t{128}), 0);
  ASSERT_EQ(cu("cuMemsetD32Async", p, 5u, size_t{32}, stream), 0);

  unsigned n = 2;
  void* parameters[] = {&p, &n};
  auto launch = [&] {
    return cu("cuLaunchKernel", function, 1u, 1u, 1u, 32u, 1u, 1u, 0u, stream,
              static_cast<void**>(parameters), static_cast<void**>(nullptr));
  };
  ASSERT_EQ(cu("cuStreamBeginCapture_v2", stream, 0), 0);
  ASSERT_EQ(launch(), 0);
  EXPECT_EQ(cu("cuStreamSynchronize", stream), 900);
  ASSERT_EQ(cu("cuStreamEndCapture", stream, &graph), 0);
  n = 1000;  // the graph keeps 2
  ASSERT_EQ(cu("cuGraphInstantiateWithFlags", &executable, graph, 0ull), 0);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cu("cuGraphLaunch", executable, stream), 0);
  ASSERT_EQ(launch(), 0);
  int got[32];
  ASSERT_EQ(cu("cuMemcpyDtoH_v2", static_cast<void*>(got), p, sizeof got), 0);
  for (int v : got) ASSERT_EQ(v, 5 + 3 * 2 + 1000);

  auto reports = reinterpret_cast<size_t (*)()>(dlsym(cu.handle, "gacc_emu_report_count"));
  auto text = reinterpret_cast<size_t (*)(char*, size_t)>(dlsym(cu.handle, "gacc_emu_reports"));
  auto declare = reinterpret_cast<void (*)(uint64_t, uint64_t, uint64_t, const char*)>(
      dlsym(cu.handle, "gacc_emu_declare_live"));
  EXPECT_EQ(reports(), 0u);
  declare(p, 0, 64, "@w");
  ASSERT_EQ(launch(), 0);
  EXPECT_EQ(reports(), 2u);
  std::string all(text(nullptr, 0) + 1, '\0');
  text(all.data(), all.size());
  EXPECT_NE(all.find("add: line 13: out-of-bounds access: 4 bytes of global memory at offset 64"),
            std::string::npos)
      << all;
  EXPECT_EQ(cu("cuGraphExecDestroy", executable), 0);
  EXPECT_EQ(cu("cuGraphDestroy", graph), 0);
  EXPECT_EQ(cu("cuMemFree_v2", p), 0);
  EXPECT_EQ(cu("cuModuleUnload", module), 0);
  EXPECT_EQ(cu("cuStreamDestroy_v2", stream), 0);
}

// A second stream joins a capture by an event; at the end all that it was given must have been joined.
TEST(Driver, ACaptureOfTwoStreamsIsJoined) {
  Library cu;
  void *first = nullptr, *second = nullptr, *begun = nullptr, *ended = nullptr, *graph = nullptr;
  unsigned long long p = 0;
  ASSERT_EQ(cu("cuInit", 0u), 0);
  ASSERT_EQ(cu("cuMemAlloc_v2", &p, size_t{128}), 0);
  for (void** stream : {&first, &second}) ASSERT_EQ(cu("cuStreamCreate", stream, 1u), 0);
  for (void** event : {&begun, &ended}) ASSERT_EQ(cu("cuEventCreate", event, 2u), 0);
  const auto fill = [&](void* stream) { return cu("cuMemsetD32Async", p, 5u, size_t{32}, stream); };
  // What was recorded before the last operation of the second stream does not join that.
  for (const auto& [late, result] : {std::pair(false, 0), std::pair(true, 904)}) {
    ASSERT_EQ(cu("cuStreamBeginCapture_v2", first, 2), 0);
    ASSERT_EQ(cu("cuEventRecord", begun, first), 0);
    ASSERT_EQ(cu("cuStreamWaitEvent", second, begun, 0u), 0);
    ASSERT_EQ(fill(second), 0);
    ASSERT_EQ(cu("cuEventRecord", ended, second), 0);
    if (late) {
      ASSERT_EQ(fill(second), 0);
    }
    ASSERT_EQ(cu("cuStreamWaitEvent", first, ended, 0u), 0);
    ASSERT_EQ(fill(first), 0);
    EXPECT_EQ(cu("cuStreamEndCapture", second, &graph), 903);
    EXPECT_EQ(cu("cuStreamEndCapture", first, &graph), result);
    if (result == 0) {
      EXPECT_EQ(cu("cuGraphDestroy", graph), 0);
    }
  }
  for (void* event : {begun, ended}) EXPECT_EQ(cu("cuEventDestroy_v2", event), 0);
  for (void* stream : {first, second}) EXPECT_EQ(cu("cuStreamDestroy_v2", stream), 0);
  EXPECT_EQ(cu("cuMemFree_v2", p), 0);
}

TEST(Driver, RefusedModuleLeavesALog) {
  Library cu;
  char log[200] = {};
  int options[] = {5, 6};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  void* module = nullptr;
  EXPECT_EQ(
      cu("cuModuleLoadDataEx", &module, static_cast<const void*>(".version 7.0\n.target sm_80\nnonsense"), 2u,
         static_cast<int*>(options), static_cast<void**>(values)),
      218);
  EXPECT_STREQ(log, "line 3: `nonsense` is not expected here");
  const char* name = nullptr;
  EXPECT_EQ(cu("cuGetErrorName", 218, &name), 0);
  EXPECT_STREQ(name, "CUDA_ERROR_INVALID_PTX");
}

}  // namespace
}  // namespace gacc::emulator
