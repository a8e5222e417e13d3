// Batches: conversion, scaling, normalisation; and the order of an epoch.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/data/make_files.h"

namespace gacc::test {
namespace {

template <class T>
Dataset one_column(const std::string& dtype, std::vector<int64_t> shape, const std::vector<T>& list) {
  int64_t each = 1;
  for (int64_t extent : shape) each *= extent;
  auto all = std::as_bytes(std::span(list));
  return {static_cast<int64_t>(list.size()) / each, {{"x", dtype, shape, {all.begin(), all.end()}}}};
}

template <class T>
std::vector<T> gathered(const Dataset& data, const PlanInput& input, const std::vector<int64_t>& order) {
  int64_t each = 1;
  for (int64_t extent : input.shape) each *= extent;
  std::vector<std::byte> bytes(order.size() * static_cast<size_t>(each) * 4);
  EXPECT_TRUE(data.gather(0, input, order, bytes));
  return values<T>(bytes);
}

PlanInput input_of(DType dtype, std::vector<int64_t> shape) {
  PlanInput input;
  input.name = "x";
  input.dtype = dtype;
  input.shape = std::move(shape);
  return input;
}

TEST(Gather, BytesAreScaledLikeTorchAndNormalisedInDouble) {
  std::vector<uint8_t> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0);
  Dataset data = one_column<uint8_t>("u8", {256}, bytes);
  for (size_t copies : {1, 4}) {  // few elements take the direct way, many the table
    std::vector<float> plain =
        gathered<float>(data, input_of(DType::f32, {256}), std::vector<int64_t>(copies, 0));
    PlanInput input = input_of(DType::f32, {16, 16});
    input.mean = {0.1307};
    input.std = {0.3081};
    std::vector<float> normal = gathered<float>(data, input, std::vector<int64_t>(copies, 0));
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(plain[i], static_cast<float>(bytes[i % 256]) / 255.0f);
      EXPECT_EQ(normal[i], static_cast<float>((bytes[i % 256] / 255.0 - 0.1307) / 0.3081));
    }
  }
}

// f32 makes one number of all of these.
TEST(Gather, TimesInSecondsStayApart) {
  constexpr double kStart = 1.7e9, kMean = kStart + 19.5;
  std::vector<double> times(40);
  std::iota(times.begin(), times.end(), kStart);
  PlanInput input = input_of(DType::f32, {40});
  input.mean = {kMean};
  input.std = {11.5};
  std::vector<float> expected;
  for (int i = 0; i < 40; ++i) expected.push_back(static_cast<float>((i - 19.5) / 11.5));
  EXPECT_EQ(gathered<float>(one_column<double>("f64", {40}, times), input, {0}), expected);
  EXPECT_EQ(gathered<float>(one_column<int64_t>("i64", {40}, {times.begin(), times.end()}), input, {0}),
            expected);
}

TEST(Gather, NormalisesAlongTheFirstAxis) {
  PlanInput input = input_of(DType::f32, {2, 2});
  input.mean = {1, 2};
  input.std = {2, 4};
  std::vector<float> expected = {
      (5 - 1) / 2.f, (6 - 1) / 2.f, (7 - 2) / 4.f, (8 - 2) / 4.f, 0, .5f, .25f, .5f};
  EXPECT_EQ(gathered<float>(one_column<float>("f32", {4}, {1, 2, 3, 4, 5, 6, 7, 8}), input, {1, 0}),
            expected);
  EXPECT_EQ(gathered<float>(one_column<double>("f64", {4}, {1, 2, 3, 4, 5, 6, 7, 8}), input, {1, 0}),
            expected);
  EXPECT_EQ(gathered<float>(one_column<int64_t>("i64", {4}, {1, 2, 3, 4, 5, 6, 7, 8}), input, {1, 0}),
            expected);
  input.mean = {1};
  input.std = {};
  EXPECT_EQ(gathered<float>(one_column<int16_t>("i16", {4}, {1, -2, 3, 4}), input, {0}),
            (std::vector<float>{0, -3, 2, 3}));
}

TEST(Gather, OnlyBytesAreScaledAndOnlyForFloats) {
  EXPECT_EQ(gathered<float>(one_column<int8_t>("i8", {2}, {1, -1}), input_of(DType::f32, {2}), {0}),
            (std::vector<float>{1, -1}));
  EXPECT_EQ(gathered<float>(one_column<uint16_t>("u16", {2}, {255, 65535}), input_of(DType::f32, {2}), {0}),
            (std::vector<float>{255, 65535}));
  EXPECT_EQ(gathered<int32_t>(one_column<uint8_t>("u8", {1}, {3, 255}), input_of(DType::i32, {}), {1, 0, 1}),
            (std::vector<int32_t>{255, 3, 255}));
  EXPECT_EQ(gathered<int32_t>(one_column<double>("f64", {1}, {3, -100}), input_of(DType::i32, {}), {1, 0}),
            (std::vector<int32_t>{-100, 3}));
}

TEST(EpochOrder, IsAPermutationAndAPureFunction) {
  for (int64_t samples : {0, 1, 2, 10, 1000}) {
    std::vector<int64_t> order = epoch_order(samples, 42, 3, true), sorted = order,
                         file(static_cast<size_t>(samples));
    std::iota(file.begin(), file.end(), 0);
    EXPECT_EQ(order, epoch_order(samples, 42, 3, true));
    EXPECT_EQ(epoch_order(samples, 42, 3, false), file);
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, file);
  }
}

TEST(EpochOrder, DiffersByEpochAndBySeed) {
  std::vector<int64_t> order = epoch_order(100, 1, 0, true);
  EXPECT_NE(order, epoch_order(100, 1, 1, true));
  EXPECT_NE(order, epoch_order(100, 2, 0, true));
  EXPECT_NE(order, epoch_order(100, 1 + (uint64_t{1} << 32), 0, true));
  EXPECT_NE(order, epoch_order(100, 1, 0, false));
}

// Every sample should come first equally often: 4,000 epochs of 8 samples, 500 each, deviation sqrt(437)
// = 21.
TEST(EpochOrder, HasNoFavourite) {
  std::vector<int> first(8), last(8);
  for (int64_t epoch = 0; epoch < 4000; ++epoch) {
    std::vector<int64_t> order = epoch_order(8, 9, epoch, true);
    ++first[static_cast<size_t>(order.front())];
    ++last[static_cast<size_t>(order.back())];
  }
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(first[i], 500, 105);
    EXPECT_NEAR(last[i], 500, 105);
  }
}

}  // namespace
}  // namespace gacc::test
