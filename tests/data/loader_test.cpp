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

}  // namespace
}  // namespace gacc::test
