// The CUDA device over the fake driver: what it asks of the driver, and when. The fake runs nothing before
// somebody waits, so results that are right here are right without a wait in between.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/emulator_link.h"
#include "runtime/cuda/gemm_selection.h"
#include "runtime/cuda/gpu_choice.h"
#include "runtime/cuda/programs.h"
#include "tests/codegen/half_values.h"
#include "tests/cuda/tiny_artifact.h"

namespace gacc::test {
namespace {

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    void* library = dlopen(GACC_FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
    ASSERT_TRUE(library) << dlerror();
    fake_ = reinterpret_cast<FakeDriverFunction>(dlsym(library, "gacc_fake_driver"))();
    *fake_ = FakeDriver();
    fake_->kernel = tiny_kernel;
    options_.driver = GACC_FAKE_DRIVER;
    options_.cublas = {"libgacc-no-such-cublas.so"};
  }
  void TearDown() override {
    device_.reset();
    EXPECT_EQ(fake_->live_allocations, 0) << "something was not given back";
    EXPECT_EQ(fake_->out_of_context, std::set<std::string>()) << "in another context";
  }
  // Opens the device and loads the artifact; the first error.
  Status open(const Artifact& artifact) {
    device_.reset();
    Status status = cuda::open_device(options_, artifact, device_);
    return status ? device_->load(artifact) : status;
  }
  std::string error(const Artifact& artifact) {
    Status status = open(artifact);
    device_.reset();
    return status ? "no error" : status.text();
  }
  // Everything that allocates, anywhere.
  int allocations() const {
    int sum = 0;
    for (const char* name : {"cuMemAlloc_v2", "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate",
                             "cuModuleLoadDataEx", "cuGraphInstantiateWithFlags", "cuDevicePrimaryCtxRetain"})
      sum += fake_->count(name);
    return sum;
  }
  int waits() const { return fake_->count("cuStreamSynchronize") + fake_->count("cuEventSynchronize"); }

  FakeDriver* fake_ = nullptr;
  cuda::CudaOptions options_;
  std::unique_ptr<Device> device_;
};

TEST_F(CudaDeviceTest, TrainsLikeTheHost) {
  for (int samples :
       {32, 30}) {  // 30: the last micro-batch of an epoch has 2 samples, in `step` and in `eval`
    const Artifact artifact = tiny_artifact(4, 4);
    ASSERT_EQ(cuda::open_device(options_, artifact, device_).text(), "");
    expect_host_training(*device_, artifact, samples);
    device_.reset();
  }
}

TEST_F(CudaDeviceTest, AWindowIsOneGraphLaunchPerMicroBatchAndOneForTheUpdate) {
  const Artifact artifact = tiny_artifact(4, 4);
  ASSERT_EQ(cuda::open_device(options_, artifact, device_).text(), "");
  Session session(*device_, artifact.plan);
  ASSERT_EQ(session.open(artifact).text(), "");
  EXPECT_EQ(fake_->count("cuGraphInstantiateWithFlags"), 3);  // step, update, eval
  ASSERT_EQ(session.init(3, 0.5f).text(), "");
  const int captured = fake_->count("cuLaunchKernel"), before = allocations();
  const std::vector<float> x = numbers(4);
  const std::vector<int32_t> mark(4, 0);
  const std::span<const std::byte> inputs[] = {std::as_bytes(std::span(x)), std::as_bytes(std::span(mark))};
  for (int window = 0; window < 100; ++window) {
    fake_->graphs.clear();
    const int waited = waits();
    for (int i = 0; i < 4; ++i) ASSERT_EQ(session.step(inputs, 4).text(), "");
    EXPECT_EQ(waits(), waited) << "a step waited";
    ASSERT_EQ(session.update().status().text(), "");
    EXPECT_EQ(waits(), waited + 1) << "one wait for the sums and figures of the window";
    const std::string step = "tiny_sum tiny_gradient";
    EXPECT_EQ(fake_->graphs, (std::vector<std::string>{step, step, step, step, "tiny_update"}));
  }
  EXPECT_EQ(fake_->count("cuLaunchKernel"), captured) << "a kernel was launched outside a graph";
  EXPECT_EQ(allocations(), before) << "something was allocated after load";
}

// The second stream joins the capture, waits, is waited for and joins the first one again; launches without a
// graph need no event. What is created is given back (TearDown).
TEST_F(CudaDeviceTest, AGraphOnTwoStreamsIsForkedAndJoined) {
  Artifact artifact = tiny_artifact(4, 4);
  ASSERT_EQ(open(artifact).text(), "");
  EXPECT_EQ(fake_->count("cuStreamWaitEvent"), 0);
  const int events = fake_->count("cuEventCreate"), streams = fake_->count("cuStreamCreate");
  std::vector<PlanLaunch>& step = artifact.plan.programs[1].launches;
  ASSERT_EQ(step.size(), 2U);
  step[1].stream = 1;
  for (const int waits : {0, 1}) {
    step[1].after.assign(static_cast<size_t>(waits), 0);
    fake_->calls.clear();
    ASSERT_EQ(open(artifact).text(), "");
    EXPECT_EQ(fake_->count("cuStreamWaitEvent"), 2 + waits);
    EXPECT_EQ(fake_->count("cuEventCreate"), events + 2 + waits);
    EXPECT_EQ(fake_->count("cuStreamCreate"), streams + 1);
    ASSERT_EQ(device_->run(Program::step, 3).text(), "");  // not full, for the first time
    EXPECT_EQ(fake_->count("cuStreamWaitEvent"), 2 + waits);
    ASSERT_EQ(device_->run(Program::step, 3).text(), "");  // again: a graph of its own
    EXPECT_EQ(fake_->count("cuStreamWaitEvent"), 2 * (2 + waits));
    EXPECT_EQ(fake_->count("cuStreamCreate"), streams + 1);
  }
}

TEST_F(CudaDeviceTest, AMicroBatchThatIsNotFullGetsOneGraphWhenItComesAgain) {
  const Artifact artifact = tiny_artifact(40, 1);
  ASSERT_EQ(open(artifact).text(), "");
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(device_->run(Program::step, 3).text(), "");
    EXPECT_EQ(fake_->count("cuGraphInstantiateWithFlags"), round == 0 ? 3 : 4);
  }
  std::byte byte;
  ASSERT_EQ(device_->read(0, std::span(&byte, 1)).text(), "");
  ASSERT_EQ(fake_->launches.size(), 6U);
  EXPECT_EQ(fake_->launches[0].arguments.back(), 3U);
  // Few are kept, all are given back (TearDown).
  for (int round = 0; round < 2; ++round)
    for (int64_t batch = 1; batch < 40; ++batch) ASSERT_EQ(device_->run(Program::step, batch).text(), "");
  EXPECT_EQ(fake_->count("cuGraphInstantiateWithFlags"), 3 + 39);
  EXPECT_EQ(fake_->count("cuGraphExecDestroy"), 39 - 16);
  EXPECT_NE(device_->run(Program::step, 41).text(), "");
  EXPECT_NE(device_->run(Program::step, 0).text(), "");
}

// As the inputs of a micro-batch do; where one is short, its place is longer than it, and there are two copies.
TEST_F(CudaDeviceTest, WhatLiesSideBySideIsOneCopy) {
  Artifact artifact = tiny_artifact(4, 1);
  artifact.plan.arena_bytes = 4 << 20;
  ASSERT_EQ(open(artifact).text(), "");
  std::vector<std::byte> there(4 << 20), found(there.size());
  const auto write = [&](std::vector<std::pair<size_t, size_t>> places, int copies) {
    std::vector<std::vector<std::byte>> values;
    std::vector<ArenaWrite> writes;
    const int before = fake_->count("cuMemcpyHtoDAsync_v2");
    for (const auto& [offset, bytes] : places) {
      values.emplace_back(bytes, static_cast<std::byte>(1 + values.size() + bytes));
      std::ranges::copy(values.back(), there.begin() + static_cast<ptrdiff_t>(offset));
    }
    for (size_t i = 0; i < places.size(); ++i)
      writes.push_back({static_cast<int64_t>(places[i].first), values[i]});
    ASSERT_EQ(device_->write_all(writes).text(), "");
    EXPECT_EQ(fake_->count("cuMemcpyHtoDAsync_v2"), before + copies);
    ASSERT_EQ(device_->read(0, found).text(), "");
    EXPECT_TRUE(found == there);
  };
  write({{256, 500}, {768, 1024}, {1792, 8}, {8192, 8}}, 2);
  std::fill_n(there.begin() + 768, 512, std::byte{0});  // what is behind 300 bytes of it is set, too
  write({{256, 100}, {768, 300}, {1280, 8}}, 2);
  write({{0, 900 << 10}, {900 << 10, 300 << 10}}, 2);  // not in one half of the staging memory
}

TEST_F(CudaDeviceTest, WritesAnyAmountWithoutMixingItUp) {
  Artifact artifact = tiny_artifact(4, 1);
  artifact.plan.arena_bytes = (5 << 20) + 12;
  ASSERT_EQ(open(artifact).text(), "");
  const auto size = static_cast<size_t>(artifact.plan.arena_bytes);
  std::vector<std::byte> written(size), found(size);
  for (size_t i = 0; i < size; ++i) written[i] = static_cast<std::byte>(i * 2654435761U >> 13);
  const int before = allocations();
  // One piece larger than the staging halves, then thousands of small ones over it.
  ASSERT_EQ(device_->write(0, written).text(), "");
  for (size_t at = 0; at + 1000 < size; at += 1777) {
    for (size_t i = at; i < at + 999; ++i) written[i] ^= std::byte{0x5a};
    std::vector<std::byte> piece(written.begin() + static_cast<ptrdiff_t>(at),
                                 written.begin() + static_cast<ptrdiff_t>(at + 999));
    ASSERT_EQ(device_->write(static_cast<int64_t>(at), piece).text(), "");
    piece.assign(piece.size(), std::byte{0});  // may be reused on return
  }
  ASSERT_EQ(device_->read(0, found).text(), "");
  EXPECT_TRUE(found == written);
  EXPECT_EQ(allocations(), before);
  // Small reads, served from a window that a write makes stale.
  std::byte byte{};
  for (int64_t at :
       {int64_t{0}, int64_t{8191}, int64_t{100000}, int64_t{99990}, artifact.plan.arena_bytes - 1}) {
    ASSERT_EQ(device_->read(at, std::span(&byte, 1)).text(), "");
    EXPECT_EQ(byte, written[static_cast<size_t>(at)]) << at;
    const std::byte other = ~byte;
    ASSERT_EQ(device_->write(at, std::span(&other, 1)).text(), "");
    ASSERT_EQ(device_->read(at, std::span(&byte, 1)).text(), "");
    EXPECT_EQ(byte, other) << at;
  }
  EXPECT_NE(device_->read(artifact.plan.arena_bytes, std::span(&byte, 1)).text(), "");
  EXPECT_NE(device_->write(-1, std::span(&byte, 1)).text(), "");
}

TEST_F(CudaDeviceTest, TheArenaIsClearAndItsSizeIsThePlans) {
  const Artifact artifact = tiny_artifact(4, 1);
  ASSERT_EQ(open(artifact).text(), "");
  std::vector<std::byte> found(static_cast<size_t>(artifact.plan.arena_bytes));
  ASSERT_EQ(device_->read(0, found).text(), "");
  EXPECT_EQ(found, std::vector<std::byte>(found.size(), std::byte{0}));
  EXPECT_EQ(fake_->count("cuMemAlloc_v2"), 1);
  // Three graphs besides the arena, as the driver counts its free memory.
  EXPECT_EQ(device_->peak_bytes(), artifact.plan.arena_bytes + 3 * 4096);
  EXPECT_EQ(device_->kind(), "cuda:0");
  EXPECT_EQ(device_->name(), "Fake 0 (cuda:0, sm_80, CUDA 13.0)");
  EXPECT_NE(device_->load_note().find(fmt::format("arena {},", artifact.plan.arena_bytes)),
            std::string::npos);
}

TEST_F(CudaDeviceTest, AFailureOnTheGpuSurfacesAtTheNextRead) {
  const Artifact artifact = tiny_artifact(4, 1);
  ASSERT_EQ(open(artifact).text(), "");
  fake_->failing_launch = 700;
  EXPECT_EQ(device_->run(Program::step, 4).text(), "");
  std::byte byte;
  EXPECT_EQ(device_->read(0, std::span(&byte, 1)).text(),
            "the GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)");
}

// PyTorch may work with another GPU in this thread.
TEST_F(CudaDeviceTest, TheThreadKeepsItsContext) {
  int other = 0;
  const std::vector<void*> own = {&other};
  fake_->contexts = own;
  const Artifact artifact = tiny_artifact(4, 4);
  ASSERT_EQ(cuda::open_device(options_, artifact, device_).text(), "");
  EXPECT_EQ(fake_->contexts, own) << "opened";
  ASSERT_EQ(device_->load(artifact).text(), "");
  EXPECT_EQ(fake_->contexts, own) << "loaded";
  ASSERT_EQ(device_->run(Program::step, 4).text(), "");
  EXPECT_EQ(fake_->contexts, own) << "run";
  std::byte byte{};
  ASSERT_EQ(device_->write(0, std::span(&byte, 1)).text(), "");
  ASSERT_EQ(device_->read(0, std::span(&byte, 1)).text(), "");
  EXPECT_EQ(fake_->contexts, own) << "written and read";
  fake_->failing_launch = 700;
  EXPECT_EQ(device_->run(Program::step, 4).text(), "");
  EXPECT_NE(device_->read(0, std::span(&byte, 1)).text(), "");
  EXPECT_EQ(fake_->contexts, own) << "failed";
  device_.reset();
  EXPECT_EQ(fake_->contexts, own) << "closed";
}

// By its text the driver finds the code that it has made of it before.
TEST_F(CudaDeviceTest, TheDriverGetsThePtxAlone) {
  Artifact artifact = tiny_artifact(4, 4);
  artifact.ir = "module @one";
  ASSERT_EQ(open(artifact).text(), "");
  artifact.ir = "module @other\n";
  ASSERT_EQ(open(artifact).text(), "");
  EXPECT_EQ(fake_->images, (std::vector<std::string>{artifact.ptx, artifact.ptx}));
}

// State on the host is copied on streams of its own.
TEST_F(CudaDeviceTest, NoCopyGoesOnBehindAnError) {
  Artifact artifact = tiny_artifact(4, 4);
  Plan& plan = artifact.plan;
  plan.host_bytes = 8;
  PlanProgram& update = plan.programs[2];
  ASSERT_EQ(update.name, "update");
  PlanLaunch copy;
  copy.copy = PlanCopy{plan.find("w")->offset, plan.arena_bytes, 8};
  copy.stream = 1;
  update.launches.insert(update.launches.begin(), copy);
  update.section = PlanSection{plan.find("loss.count")->offset, 0, 1};
  ASSERT_EQ(open(artifact).text(), "");
  ASSERT_EQ(device_->run(Program::step, 4).text(), "");
  fake_->refused_launch = 719;
  EXPECT_NE(device_->run(Program::update, 4).text(), "");
  const std::map<void*, int> nothing;
  EXPECT_EQ(fake_->queued, nothing) << "a stream works behind the error";
}

TEST_F(CudaDeviceTest, SaysInOneSentenceWhyNoGpuRunsTheArtifact) {
  Artifact artifact = tiny_artifact(4, 1);
  options_.driver = "libgacc-no-such-driver.so.1";
  EXPECT_EQ(error(artifact), "no NVIDIA driver (libgacc-no-such-driver.so.1 is not there)");
  options_.driver = GACC_FAKE_DRIVER;
  fake_->init_error = 100;
  EXPECT_EQ(error(artifact), "the NVIDIA driver finds no GPU");
  fake_->init_error = 34;
  EXPECT_EQ(error(artifact), "no NVIDIA driver (" GACC_FAKE_DRIVER " is the CUDA toolkit's stub library)");
  fake_->init_error = 999;
  EXPECT_EQ(error(artifact), "the NVIDIA driver does not start: CUDA_ERROR_UNKNOWN (unknown error)");
  fake_->init_error = 0;
  fake_->version = 10020;
  EXPECT_EQ(error(artifact),
            "the NVIDIA driver is too old: the artifact is PTX 7.0, which needs CUDA 11.0; the driver "
            "supports CUDA 10.2");
  fake_->version = 13000;
  fake_->capabilities = {};
  EXPECT_EQ(error(artifact), "the NVIDIA driver finds no GPU");
  fake_->capabilities = {75, 61};
  EXPECT_EQ(error(artifact),
            "GPU 0 (Fake 0) has compute capability 7.5; GPU 1 (Fake 1) has compute capability 6.1, which "
            "cannot run an "
            "artifact for sm_80; compile it with --target for this GPU");
  options_.ordinal = 2;
  EXPECT_EQ(error(artifact), "there is no GPU 2: this machine has 2, numbered from 0");
  options_.ordinal = 1;
  EXPECT_EQ(
      error(artifact),
      "GPU 1 (Fake 1) has compute capability 6.1, which cannot run an artifact for sm_80; compile it with "
      "--target for this GPU");
  options_.ordinal = -1;
  fake_->capabilities = {80};
  artifact.plan.arena_bytes = 1 << 20;
  fake_->free_bytes = 1000000;
  EXPECT_EQ(error(artifact),
            "GPU 0 (Fake 0) has too little memory: the artifact needs 1048576 bytes, 1000000 are free");
  fake_->free_bytes = 1 << 29;
  artifact.plan.host_bytes = 64 << 20;
  fake_->lockable_bytes = (42 << 20) - 1;
  EXPECT_EQ(
      error(artifact),
      "cannot lock 67108864 bytes of the host's memory for optimizer state: CUDA_ERROR_OUT_OF_MEMORY (out of "
      "memory); 41943040 can be locked: compile it with a memory.host of at most that, or with a larger "
      "memory.budget, with which less lies there");
  EXPECT_EQ(fake_->launches.size(), 0U);
  fake_->lockable_bytes = 1 << 29;
  EXPECT_EQ(error(artifact), "no error");
  artifact.plan.host_bytes = 0;
  fake_->jit_log = "ptxas fatal: line 7\nsyntax error\n";
  EXPECT_EQ(error(artifact),
            "the driver does not take the artifact's PTX: CUDA_ERROR_INVALID_PTX (a PTX JIT compilation "
            "failed): ptxas "
            "fatal: line 7;syntax error");
  fake_->jit_log.clear();
  fake_->max_threads = 16;
  EXPECT_EQ(error(artifact), "kernel tiny_init needs blocks of 32 threads, this GPU can give it 16");
  fake_->max_threads = 1024;
  EXPECT_EQ(error(artifact), "no error");
}

TEST_F(CudaDeviceTest, TakesTheFirstGpuThatCan) {
  fake_->capabilities = {75, 90, 80};
  ASSERT_EQ(open(tiny_artifact(4, 1)).text(), "");
  EXPECT_EQ(device_->kind(), "cuda:1");
  options_.ordinal = 2;
  ASSERT_EQ(open(tiny_artifact(4, 1)).text(), "");
  EXPECT_EQ(device_->kind(), "cuda:2");
}

TEST_F(CudaDeviceTest, PlanAndPtxMustAgree) {
  Artifact artifact = tiny_artifact(4, 1);
  artifact.plan.programs[0].launches[0].arguments.pop_back();
  EXPECT_EQ(error(artifact),
            "the artifact's plan gives kernel tiny_init 2 arguments, its PTX does not take them");
  artifact = tiny_artifact(4, 1);
  artifact.plan.programs[1].launches[0].kernel = "tiny_su";
  EXPECT_NE(error(artifact), "no error");
  artifact = tiny_artifact(4, 1);
  artifact.plan.programs.pop_back();
  EXPECT_EQ(error(artifact), "the artifact's plan has no program eval");
}

PlanLaunch tiny_product(bool builtin) {
  PlanLaunch product;
  product.a = 256;
  product.b = 512;
  product.c = 1024;
  product.m = {PlanArgument::Kind::extent, 0, 5, true};
  product.n = {PlanArgument::Kind::extent, 0, 17, false};
  product.k = {PlanArgument::Kind::extent, 0, 3, false};
  product.transpose_b = true;
  if (builtin) product.builtin = {"tiny_gemm_nt", 64, 8, 8};
  return product;
}

TEST_F(CudaDeviceTest, BuiltInProductsAreLaunchedAsThePlanDescribes) {
  Artifact artifact = tiny_artifact(4, 1);
  artifact.plan.arena_bytes = 8192;
  artifact.plan.programs[1].launches = {tiny_product(true)};
  ASSERT_EQ(open(artifact).text(), "");
  EXPECT_NE(device_->name().find("built-in"), std::string::npos);
  ASSERT_EQ(device_->run(Program::step, 4).text(), "");
  ASSERT_EQ(device_->run(Program::step, 3).text(), "");
  std::byte byte;
  ASSERT_EQ(device_->read(0, std::span(&byte, 1)).text(), "");
  ASSERT_EQ(fake_->launches.size(), 2U);
  EXPECT_EQ(fake_->launches[0].grid, 9U);  // ceil(20 / 8) * ceil(17 / 8)
  EXPECT_EQ(fake_->launches[1].grid, 6U);  // ceil(15 / 8) * ceil(17 / 8)
  EXPECT_EQ(fake_->launches[0].block, 64U);
  const std::vector<uint64_t>& arguments = fake_->launches[1].arguments;
  ASSERT_EQ(arguments.size(), 6U);
  EXPECT_EQ(arguments[1] - arguments[0], 256U);
  EXPECT_EQ(arguments[2] - arguments[1], 512U);
  EXPECT_EQ(std::vector<uint64_t>(arguments.begin() + 3, arguments.end()),
            (std::vector<uint64_t>{15, 17, 3}));
}

// A built-in product that does the kernel behind it takes what the plan says, and that kernel is left out;
// with cuBLAS it is launched.
TEST_F(CudaDeviceTest, AnEpilogueIsNoLaunchOfItsOwn) {
  Artifact artifact = tiny_artifact(4, 1);
  artifact.plan.arena_bytes = 8192;
  std::vector<PlanLaunch>& launches = artifact.plan.programs[1].launches;
  PlanLaunch kernel = launches.front();
  PlanLaunch product = tiny_product(true);
  product.builtin.arguments = {
      {PlanArgument::Kind::address, 768},       {PlanArgument::Kind::address, 256},
      {PlanArgument::Kind::address, 512},       {PlanArgument::Kind::extent, 0, 2, false},
      {PlanArgument::Kind::extent, 0, 5, true}, {PlanArgument::Kind::extent, 0, 9, false}};
  product.builtin.does = 1;
  launches = {product, kernel};
  ASSERT_EQ(open(artifact).text(), "");
  ASSERT_EQ(device_->run(Program::step, 3).text(), "");
  std::byte byte;
  ASSERT_EQ(device_->read(0, std::span(&byte, 1)).text(), "");
  ASSERT_EQ(fake_->launches.size(), 1U);
  const std::vector<uint64_t>& arguments = fake_->launches[0].arguments;
  EXPECT_EQ(fake_->launches[0].grid, 6U);  // as for the product alone
  ASSERT_EQ(arguments.size(), 6U);
  EXPECT_EQ(arguments[0] - arguments[1], 512U);
  EXPECT_EQ(std::vector<uint64_t>(arguments.begin() + 3, arguments.end()), (std::vector<uint64_t>{2, 15, 9}));
  // Four arguments are not what the entry takes.
  artifact.plan.programs[1].launches[0].builtin.arguments.resize(4);
  EXPECT_NE(error(artifact).find("gives kernel tiny_gemm_nt 4 arguments"), std::string::npos)
      << error(artifact);
}

TEST_F(CudaDeviceTest, MatrixProductsAreChosenByWhatIsThere) {
  Artifact artifact = tiny_artifact(4, 1);
  artifact.plan.arena_bytes = 8192;
  artifact.plan.programs[1].launches = {tiny_product(false)};
  const std::string none = "no matrix products for the GPU: ",
                    again = ", and the artifact has no built-in ones; compile it again";
  const std::string missing = "cuBLAS is not installed (none of libgacc-no-such-cublas.so)";
  EXPECT_EQ(error(artifact), none + missing + again);
  options_.gemm = GemmChoice::cublas;
  EXPECT_EQ(error(artifact), missing);
  options_.gemm = GemmChoice::builtin;
  EXPECT_EQ(error(artifact), none + "--gemm builtin was asked for" + again);
  options_.cublas = {"libgacc-no-such-cublas.so", GACC_FAKE_CUBLAS};
  options_.gemm = GemmChoice::automatic;
  ASSERT_EQ(open(artifact).text(), "");
  EXPECT_EQ(device_->name(), "Fake 0 (cuda:0, sm_80, CUDA 13.0, cuBLASLt 13.1)");
}

// 2 MiB are what the fake library's first proposal asks for.
constexpr int64_t kDemand = 2 << 20;

// `step` and `eval` are one product each, which may work in so many bytes of the arena.
Artifact with_workspaces(int64_t step, int64_t eval) {
  Artifact artifact = tiny_artifact(4, 1);
  artifact.plan.arena_bytes = 4 << 20;
  for (const auto& [program, bytes] : {std::pair(1, step), std::pair(3, eval)}) {
    PlanLaunch product = tiny_product(false);
    if (bytes > 0) product.workspace = PlanWorkspace{4096, bytes};
    artifact.plan.programs[static_cast<size_t>(program)].launches = {product};
  }
  return artifact;
}

// Memory beside the arena is what the largest demand needs that the plan has no room for, or none; it is said
// to the byte, and nothing is taken after load.
TEST_F(CudaDeviceTest, ProductsWorkInTheArenaWhereItHasRoom) {
  options_.cublas = {GACC_FAKE_CUBLAS};
  for (const auto& [step, eval, beside] :
       {std::tuple(kDemand, kDemand, int64_t{0}), std::tuple(kDemand, kDemand - 256, kDemand),
        std::tuple(int64_t{0}, 2 * kDemand - 8192, kDemand)}) {
    const Artifact artifact = with_workspaces(step, eval);
    fake_->calls.clear();
    ASSERT_EQ(open(artifact).text(), "");
    EXPECT_EQ(fake_->count("cuMemAlloc_v2"), beside > 0 ? 2 : 1);
    EXPECT_EQ(device_->peak_bytes(), artifact.plan.arena_bytes + beside + 3 * 4096);
    EXPECT_NE(device_->load_note().find(fmt::format("(arena {}, matrix products' workspace {}, code",
                                                    artifact.plan.arena_bytes, beside)),
              std::string::npos)
        << device_->load_note();
    EXPECT_NE(device_->load_note().find(": a micro-batch is one graph with cuBLASLt 13.1; "),
              std::string::npos)
        << device_->load_note();
    const int before = allocations();
    for (const int64_t batch : {4, 3, 2, 1})  // the sizes that are not full come once: they get no graph
      for (const Program program : {Program::step, Program::eval})
        ASSERT_EQ(device_->run(program, batch).text(), "");
    EXPECT_EQ(allocations(), before);
  }
}

TEST_F(CudaDeviceTest, TheWorkspaceBesideTheArenaMustFit) {
  options_.cublas = {GACC_FAKE_CUBLAS};
  fake_->free_bytes = 5 << 20;  // enough for the arena alone
  EXPECT_EQ(error(with_workspaces(kDemand, kDemand)), "no error");
  EXPECT_EQ(error(with_workspaces(kDemand, 0)),
            fmt::format("GPU 0 (Fake 0) has too little memory: the artifact needs {} bytes, {} are free",
                        (4 << 20) + kDemand, 5 << 20));
}

// The algorithms are measured in memory that is given back.
TEST_F(CudaDeviceTest, TuningLeavesNoMemoryBehind) {
  options_.cublas = {GACC_FAKE_CUBLAS};
  options_.tune_gemm = true;
  ASSERT_EQ(open(with_workspaces(kDemand, kDemand)).text(), "");
  EXPECT_EQ(fake_->count("cuMemAlloc_v2"), 2);
  EXPECT_EQ(device_->peak_bytes(), (4 << 20) + 3 * 4096);
  EXPECT_NE(device_->gemm_choices().find("\"product\""), std::string::npos);
}

// A GPU multiplies zeros faster than what training brings; the arena is cleared all the same.
TEST_F(CudaDeviceTest, TuningMeasuresOnRandomNumbers) {
  options_.cublas = {GACC_FAKE_CUBLAS};
  options_.tune_gemm = true;
  const auto zero_operands = [] {
    return reinterpret_cast<int (*)()>(
        dlsym(dlopen(GACC_FAKE_CUBLAS, RTLD_NOW | RTLD_LOCAL), "fake_zero_operands"))();
  };
  const int before = zero_operands();
  const Artifact artifact = with_workspaces(kDemand, kDemand);
  ASSERT_EQ(open(artifact).text(), "");
  EXPECT_EQ(zero_operands(), before);
  std::vector<std::byte> arena(static_cast<size_t>(artifact.plan.arena_bytes), std::byte{1});
  ASSERT_EQ(device_->read(0, arena).text(), "");
  EXPECT_TRUE(std::all_of(arena.begin(), arena.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(CudaParts, RandomOperandsAreBetweenAQuarterAndOne) {
  for (const auto type : {DType::f32, DType::f16, DType::bf16}) {
    const std::vector<std::byte> bytes = cuda::random_operand(type, 4096, 7);
    ASSERT_EQ(bytes.size(), 4096U * static_cast<size_t>(dtype_bytes(type)));
    std::set<float> values;
    for (size_t i = 0; i < 4096; ++i) {
      float value = 0;
      if (type == DType::f32) {
        std::memcpy(&value, bytes.data() + 4 * i, 4);
      } else {
        uint16_t bits = 0;
        std::memcpy(&bits, bytes.data() + 2 * i, 2);
        value = codegen::half_value(bits, type == DType::f16 ? ir::DType::f16 : ir::DType::bf16);
      }
      ASSERT_TRUE(std::abs(value) >= 0.25F && std::abs(value) < 1) << value;
      values.insert(value);
    }
    EXPECT_TRUE(*values.begin() < 0 && *values.rbegin() > 0);
    EXPECT_GT(values.size(), type == DType::bf16 ? 500U : 2000U);
  }
}

TEST(CudaParts, TargetsRunWhereTheyCan) {
  EXPECT_TRUE(cuda::runs_on("sm_80", 80) && cuda::runs_on("sm_80", 90) && cuda::runs_on("sm_75", 120));
  EXPECT_FALSE(cuda::runs_on("sm_90", 89) || cuda::runs_on("sm_100", 90));
  EXPECT_TRUE(cuda::runs_on("sm_90a", 90));
  EXPECT_FALSE(cuda::runs_on("sm_90a", 100) || cuda::runs_on("sm_90a", 89));
  EXPECT_TRUE(cuda::runs_on("sm_100f", 103));
  EXPECT_FALSE(cuda::runs_on("sm_100f", 120) || cuda::runs_on("gfx90a", 90) || cuda::runs_on("sm_", 90));
}

TEST(CudaParts, ThePtxVersionNamesTheDriver) {
  std::string shown;
  EXPECT_EQ(cuda::driver_for_ptx("//\n.version 8.3\n.target sm_90", shown), 12030);
  EXPECT_EQ(shown, "8.3");
  EXPECT_EQ(cuda::driver_for_ptx(".version 7.0\n", shown), 11000);
  EXPECT_EQ(cuda::driver_for_ptx("//\n.version 99.0\n", shown), 0);
  for (const char* text : {"", ".version", "\n.version 7", "\n.version x.y", "\n.version 7."})
    EXPECT_EQ(cuda::driver_for_ptx(text, shown), 0) << text;
}

TEST(CudaParts, EntryParametersAreCounted) {
  const std::string ptx =
      ".entry one(\n\t.param .u64 one_param_0\n)\n.entry two(.param .u64 .ptr .global .align 16 a, .param "
      ".b64 b)\n"
      ".entry none()\n.entry small(.param .u32 a)\n.entry cut(.param .u64";
  EXPECT_EQ(cuda::entry_parameters(ptx, "one"), 1);
  EXPECT_EQ(cuda::entry_parameters(ptx, "two"), 2);
  EXPECT_EQ(cuda::entry_parameters(ptx, "none"), 0);
  EXPECT_EQ(cuda::entry_parameters(ptx, "small"), -1);
  EXPECT_EQ(cuda::entry_parameters(ptx, "tw"), -1);
}

TEST(CudaParts, LiveRangesLeavePaddingOut) {
  Plan plan;
  plan.arena_bytes = 8192;
  plan.buffers.push_back({"w", DType::f32, {10}, 256, 40, 40, true, {}, BufferRole::weight});
  plan.buffers.push_back({"lr", DType::f32, {}, 0, 4, 4, true});
  plan.inputs.push_back({"x", DType::f32, {}, 768, 1024, {}, {}, {}, {}, {}});
  PlanLaunch launch;
  launch.kernel = "k";
  launch.arguments = {{PlanArgument::Kind::address, 512}, {PlanArgument::Kind::address, 256}};
  plan.programs.push_back({"step", {launch}});
  std::string text;
  for (const cuda::NamedBytes& range : cuda::named_bytes(plan))
    text += fmt::format("{} {}+{} ", range.name, range.offset, range.bytes);
  EXPECT_EQ(text, "lr 0+4 w 256+40 values 512+7680 ");
}

}  // namespace
}  // namespace gacc::test
