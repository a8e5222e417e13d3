// The loader, on a thread of its own and on a device's: the right samples in order, and an end at any moment.
#include "runtime/data/loader.h"

#include <chrono>
#include <thread>

#include "tests/data/make_files.h"
#include "tests/runtime/fake_device.h"

namespace gacc::test {
namespace {

class LoaderTest : public testing::TestWithParam<bool> {
 protected:
  LoaderTest() : plan_(image_label_plan()) {
    plan_.inputs[1].range.reset();
    constexpr int64_t kSamples = 103;
    std::vector<float> images;
    std::vector<int32_t> labels;
    for (int32_t i = 0; i < kSamples; ++i) {
      labels.push_back(i);
      for (int j = 0; j < 4; ++j) images.push_back(static_cast<float>(10 * i + j));
    }
    auto bytes = [](const auto& list) {
      auto all = std::as_bytes(std::span(list));
      return std::vector<std::byte>(all.begin(), all.end());
    };
    data_.samples = kSamples;
    data_.columns = {{"image", "f32", {2, 2}, bytes(images)}, {"label", "i32", {}, bytes(labels)}};
  }

  // Every sample that comes, checking that both inputs tell of the same one.
  std::vector<int64_t> drain(Loader& loader, std::vector<int64_t>* sizes = nullptr) {
    std::vector<int64_t> seen;
    while (const Batch* batch = loader.next()) {
      if (sizes) sizes->push_back(batch->samples);
      EXPECT_EQ(batch->inputs[0].size(), static_cast<size_t>(batch->samples * 16));
      EXPECT_EQ(batch->inputs[1].size(), static_cast<size_t>(batch->samples * 4));
      for (int64_t i = 0; i < batch->samples; ++i) {
        int32_t label;
        float pixel;
        std::memcpy(&label, batch->inputs[1].data() + 4 * i, 4);
        std::memcpy(&pixel, batch->inputs[0].data() + 16 * i + 12, 4);
        EXPECT_EQ(pixel, static_cast<float>(10 * label + 3));
        seen.push_back(label);
      }
    }
    return seen;
  }

  Plan plan_;
  Dataset data_;
  FakeDevice device_{plan_, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(EveryCore, LoaderTest, testing::Bool());

TEST_P(LoaderTest, DeliversInOrderWithARaggedEnd) {
  Loader loader(data_, plan_, device_);
  EXPECT_EQ(loader.next(), nullptr);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order = epoch_order(data_.samples, 5, epoch, epoch > 0), sizes;
    loader.start(order, 4);
    EXPECT_EQ(drain(loader, &sizes), order);
    ASSERT_EQ(sizes.size(), 26u);
    for (size_t i = 0; i < 25; ++i) EXPECT_EQ(sizes[i], 4);
    EXPECT_EQ(sizes[25], 3);
    EXPECT_EQ(loader.next(), nullptr);
  }
}

TEST_P(LoaderTest, TakesAnyOrderAndBatchSize) {
  Loader loader(data_, plan_, device_);
  std::vector<int64_t> order = {7, 7, 1, 102, 0};
  for (int64_t size : {1, 2, 3, 4}) {
    loader.start(order, size);
    EXPECT_EQ(drain(loader), order);
  }
  loader.start({}, 4);
  EXPECT_EQ(loader.next(), nullptr);
}

TEST_P(LoaderTest, ABatchStaysWhileTheNextIsMade) {
  Loader loader(data_, plan_, device_);
  loader.start(epoch_order(data_.samples, 0, 0, false), 4);
  const Batch* batch = loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // time enough to make more than one ahead
  auto first = values<int32_t>({batch->inputs[1].begin(), batch->inputs[1].end()});
  EXPECT_EQ(first, (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST_P(LoaderTest, EndsOrRestartsAtAnyMoment) {
  for (int taken = 0; taken < 30; ++taken) {
    Loader loader(data_, plan_, device_);
    loader.start(epoch_order(data_.samples, 1, 0, true), 4);
    for (int i = 0; i < taken; ++i) (void)loader.next();
    if (taken % 3 == 1) {
      loader.start({3, 2, 1}, 2);
      EXPECT_EQ(drain(loader), (std::vector<int64_t>{3, 2, 1}));
    }
    if (taken % 3 == 2) {
      loader.start({}, 1);
      EXPECT_EQ(loader.next(), nullptr);
    }
  }
}

// An epoch over samples that are all kept is not read from the dataset again.
TEST(Loader, KeepsSamplesForADeviceWithAMemoryOfItsOwn) {
  Plan plan;
  plan.micro_batch = 4;
  plan.inputs = {input("x", DType::f32, {2}), input("y", DType::i32, {})};
  plan.inputs[0].mean = {1};
  plan.inputs[0].std = {2};
  for (const bool has_own_memory : {true, false}) {
    Dataset data;
    data.samples = 10;
    data.columns = {{"x", "u8", {2}, std::vector<std::byte>(20, std::byte{255})},
                    {"y", "u8", {}, std::vector<std::byte>(10, std::byte{7})}};
    class Own : public FakeDevice {
     public:
      Own(const Plan& plan, bool own) : FakeDevice(plan), own_(own) {}
      std::span<std::byte> host_memory(int64_t, int64_t) override {
        return own_ ? std::span<std::byte>() : std::span(word_);
      }

     private:
      bool own_;
      std::array<std::byte, 1> word_{};
    } device(plan, has_own_memory);
    Loader loader(data, plan, device);
    const auto check_epoch = [&](const std::vector<int64_t>& order, float x, int32_t y) {
      loader.start(order, 4);
      size_t samples = 0;
      for (; const Batch* batch = loader.next(); samples += static_cast<size_t>(batch->samples)) {
        const auto count = static_cast<size_t>(batch->samples);
        EXPECT_EQ(values<float>({batch->inputs[0].begin(), batch->inputs[0].end()}),
                  std::vector<float>(2 * count, x));
        EXPECT_EQ(values<int32_t>({batch->inputs[1].begin(), batch->inputs[1].end()}),
                  std::vector<int32_t>(count, y));
      }
      EXPECT_EQ(samples, order.size());
    };
    check_epoch({0, 1, 2, 3, 4}, 0, 7);  // a part of an epoch
    check_epoch(epoch_order(10, 5, 0, /*shuffle=*/true), 0, 7);
    std::ranges::fill(data.columns[0].bytes, std::byte{0});
    std::ranges::fill(data.columns[1].bytes, std::byte{1});
    check_epoch(epoch_order(10, 5, 1, /*shuffle=*/true), has_own_memory ? 0 : -0.5f, has_own_memory ? 7 : 1);
    check_epoch({9, 9, 0}, has_own_memory ? 0 : -0.5f, has_own_memory ? 7 : 1);
  }
}

// What the arena has as half is rounded by whoever makes a batch; a target the host reads as well.
TEST(Loader, GivesHalvesWhereTheArenaHasThem) {
  Plan plan;
  plan.micro_batch = 4;
  plan.inputs = {input("x", DType::f32, {}), input("y", DType::f32, {})};
  plan.inputs[0].stored = plan.inputs[1].stored = DType::f16;
  plan.inputs[1].target = true;
  const std::vector<float> x = {1 + 0x1p-11f, 1 + 0x3p-11f, -0.5f};
  Dataset data;
  data.samples = 3;
  const auto bytes = std::as_bytes(std::span(x));
  data.columns = {{"x", "f32", {}, {bytes.begin(), bytes.end()}},
                  {"y", "f32", {}, {bytes.begin(), bytes.end()}}};
  for (const bool every_core : {false, true}) {
    FakeDevice device(plan, every_core);
    Loader loader(data, plan, device);
    loader.start({2, 0, 1}, 4);
    const Batch* batch = loader.next();
    ASSERT_NE(batch, nullptr);
    EXPECT_EQ(values<uint16_t>({batch->inputs[0].begin(), batch->inputs[0].end()}),
              (std::vector<uint16_t>{0xb800, 0x3c00, 0x3c02}));
    EXPECT_EQ(values<float>({batch->inputs[1].begin(), batch->inputs[1].end()}),
              (std::vector<float>{x[2], x[0], x[1]}));
  }
}

}  // namespace
}  // namespace gacc::test
