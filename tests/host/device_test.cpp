// The plug-in end to end: a small model's programs against the reference evaluator, threads, and the cache.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>

#include "compiler/plan/plan_of.h"
#include "ir/reference.h"
#include "ir/text/text.h"
#include "runtime/device.h"
#include "tests/host/model.h"

namespace gacc {
namespace {

namespace fs = std::filesystem;

gacc_create_device_fn plugin() {
  static void* library = dlopen(GACC_HOST_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  return library == nullptr ? nullptr
                            : reinterpret_cast<gacc_create_device_fn>(dlsym(library, "gacc_create_device"));
}

std::unique_ptr<Device> make(int threads) {
  const DeviceOptions options{threads};
  return std::unique_ptr<Device>(plugin()(kDeviceAbi, &options));
}

// One micro-batch of each input, as doubles; targets of a class loss are integers.
std::map<std::string, ir::Tensor> samples(const Plan& plan, int64_t batch, uint32_t seed) {
  std::mt19937 source(seed);
  std::map<std::string, ir::Tensor> result;
  for (const PlanInput& input : plan.inputs) {
    ir::Tensor& tensor = result[input.name];
    tensor.shape = {batch};
    tensor.shape.insert(tensor.shape.end(), input.shape.begin(), input.shape.end());
    for (int64_t i = 0; i < ir::elements(tensor.shape, 1); ++i)
      tensor.data.push_back(input.dtype == DType::i32
                                ? static_cast<double>(source() % 7)
                                : double{static_cast<float>(source() % 2000) / 1000 - 1});
  }
  return result;
}

void put(Device& device, int64_t offset, DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(4 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const float real = static_cast<float>(values[i]);
    const int32_t integer = static_cast<int32_t>(values[i]);
    std::memcpy(&bytes[4 * i], dtype == DType::i32 ? static_cast<const void*>(&integer) : &real, 4);
  }
  ASSERT_TRUE(device.write(offset, bytes));
}

std::vector<double> get(Device& device, const PlanBuffer& buffer) {
  std::vector<std::byte> bytes(static_cast<size_t>(buffer.bytes));
  EXPECT_TRUE(device.read(buffer.offset, bytes));
  std::vector<double> values;
  for (size_t i = 0; i < bytes.size(); i += 4) {
    float real;
    int32_t integer;
    std::memcpy(&real, &bytes[i], 4);
    std::memcpy(&integer, &bytes[i], 4);
    values.push_back(buffer.dtype == DType::i32 ? integer : double{real});
  }
  return values;
}

// A device and the reference side by side.
class Pair {
 public:
  Pair(const ir::Module& module, int threads)
      : module_(module), plan_(plan_of(module)), device_(make(threads)) {
    const Status status = device_->load({plan_, ir::print(module), ""});
    EXPECT_TRUE(status) << status.text();
    for (const PlanBuffer& buffer : plan_.buffers) {
      const bool rate = buffer.name == state::lr, seed = buffer.name.rfind("seed", 0) == 0;
      if (!rate && !seed) continue;
      const std::vector<double> value(static_cast<size_t>(buffer.bytes / 4), rate ? 1e-2f : 12345.0);
      put(*device_, buffer.offset, buffer.dtype, value);
      state_.buffers[buffer.name] = {buffer.shape, value};
    }
  }

  void run(ir::RegionKind kind, int64_t batch, uint32_t seed = 0) {
    std::map<std::string, ir::Tensor> inputs;
    if (kind == ir::RegionKind::step || kind == ir::RegionKind::eval) inputs = samples(plan_, batch, seed);
    for (const PlanInput& input : plan_.inputs)
      if (!inputs.empty())
        put(*device_, kind == ir::RegionKind::step ? input.step_offset : input.eval_offset, input.dtype,
            inputs[input.name].data);
    const Status status = device_->run(static_cast<Program>(kind), batch);
    EXPECT_TRUE(status) << status.text();
    ir::evaluate(module_, kind, batch, inputs, state_);
  }

  // Norm-wise per buffer: f32 rounding over a few dozen additions, and Adam's division by small roots.
  void agree(const char* when, double tolerance) {
    for (const PlanBuffer& buffer : plan_.buffers) {
      const std::vector<double> found = get(*device_, buffer);
      const auto wanted = state_.buffers.find(buffer.name);
      double error = 0, norm = 1e-12;
      for (size_t i = 0; i < found.size(); ++i) {
        const double want = wanted == state_.buffers.end() ? 0 : wanted->second.data[i];
        error += (found[i] - want) * (found[i] - want);
        norm += want * want;
      }
      EXPECT_LE(std::sqrt(error / norm), tolerance) << when << ": " << buffer.name;
    }
  }

  std::vector<std::byte> arena() {
    std::vector<std::byte> bytes(static_cast<size_t>(plan_.arena_bytes));
    EXPECT_TRUE(device_->read(0, bytes));
    return bytes;
  }
  Device& device() { return *device_; }
  const Plan& plan() const { return plan_; }

 private:
  const ir::Module& module_;
  Plan plan_;
  std::unique_ptr<Device> device_;
  ir::State state_;
};

void train(Pair& pair) {
  pair.run(ir::RegionKind::init, 1);
  for (uint32_t window = 0; window < 2; ++window) {
    uint32_t launch = 0;
    for (const int64_t batch : {6, 4, 1}) pair.run(ir::RegionKind::step, batch, 10 * window + ++launch);
    pair.run(ir::RegionKind::update, 1);
  }
}

class HostDevice : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gacc-device-XXXXXX";
    folder_ = mkdtemp(name);
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    fs::remove_all(folder_);
  }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> result;
    if (fs::exists(folder_ + "/gacc"))
      for (const auto& entry : fs::directory_iterator(folder_ + "/gacc")) result.push_back(entry.path());
    return result;
  }
  std::string folder_;
};

TEST_F(HostDevice, AgreesWithTheReference) {
  for (const char* loss : {"cross_entropy", "mse"}) {
    const std::optional<ir::Module> module = planned(small_model(loss));
    ASSERT_TRUE(module);
    Pair pair(*module, 2);
    EXPECT_EQ(pair.device().peak_bytes(), pair.plan().arena_bytes);
    EXPECT_EQ(pair.device().name().rfind("cpu (2 threads, ", 0), 0u) << pair.device().name();
    pair.run(ir::RegionKind::init, 1);
    pair.agree("init", 1e-6);
    pair.run(ir::RegionKind::step, 6, 1);
    pair.agree("step", 2e-6);
    pair.run(ir::RegionKind::step, 4, 2);
    pair.run(ir::RegionKind::step, 1, 3);
    pair.agree("ragged steps", 2e-6);
    pair.run(ir::RegionKind::update, 1);
    pair.agree("update", 1e-5);
    pair.run(ir::RegionKind::step, 6, 4);
    pair.run(ir::RegionKind::update, 1);
    pair.agree("second update", 1e-4);
    pair.run(ir::RegionKind::eval, 5, 5);
    pair.agree("eval", 1e-4);
  }
}

TEST_F(HostDevice, ThreadsDoNotChangeBits) {
  const std::optional<ir::Module> module = planned(small_model());
  ASSERT_TRUE(module);
  Pair one(*module, 1), two(*module, 2), four(*module, 4);
  for (Pair* pair : {&one, &two, &four}) train(*pair);
  EXPECT_EQ(one.arena(), two.arena());
  EXPECT_EQ(one.arena(), four.arena());
}

TEST_F(HostDevice, TheCacheIsUsedAndHealsItself) {
  const std::optional<ir::Module> module = planned(small_model());
  ASSERT_TRUE(module);
  Pair fresh(*module, 1);
  ASSERT_EQ(entries().size(), 1u);
  const fs::path entry = entries().front();
  const auto size = fs::file_size(entry);
  Pair cached(*module, 1);
  EXPECT_EQ(entries().size(), 1u);
  fs::resize_file(entry, size / 2);
  Pair healed(*module, 1);
  EXPECT_EQ(fs::file_size(entry), size);
  setenv("GACC_CACHE", "off", 1);
  Pair without(*module, 1);
  unsetenv("GACC_CACHE");
  for (Pair* pair : {&fresh, &cached, &healed, &without}) train(*pair);
  EXPECT_EQ(fresh.arena(), cached.arena());
  EXPECT_EQ(fresh.arena(), healed.arena());
  EXPECT_EQ(fresh.arena(), without.arena());
}

TEST_F(HostDevice, RefusesWhatItCannotRun) {
  const DeviceOptions options{1};
  EXPECT_EQ(plugin()(kDeviceAbi + 1, &options), nullptr);
  const std::optional<ir::Module> module = planned(small_model());
  ASSERT_TRUE(module);
  const Plan plan = plan_of(*module);
  std::string text = ir::print(*module);
  EXPECT_FALSE(make(1)->load({plan, text.substr(0, text.size() / 2), ""}));
  EXPECT_FALSE(make(1)->load({plan, "", ""}));
  std::unique_ptr<Device> device = make(1);
  ASSERT_TRUE(device->load({plan, text, ""}));
  EXPECT_TRUE(device->run(Program::step, 7));  // reported at the next read
  std::byte byte{};
  EXPECT_FALSE(device->read(0, {&byte, 1}));
  EXPECT_FALSE(device->write(plan.arena_bytes, {&byte, 1}));
  EXPECT_FALSE(device->write(-1, {&byte, 1}));
}

}  // namespace
}  // namespace gacc
