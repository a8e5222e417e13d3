// Data without a file: drawn digits, and tokens by a rule. Sample i is a pure function of (seed, split, i);
// the two splits have nothing in common but the rule.
//
// Digits are drawn as strokes: control points are shaken, curves smoothed, the whole turned, sheared,
// stretched and shifted at random, drawn with a round pen of random width, and overlaid with noise. Only
// + - * / and square roots are used, which are the same everywhere, so that the data are too.
#include <algorithm>
#include <cmath>

#include "runtime/data/philox.h"
#include "runtime/data/source.h"

namespace gacc {
namespace {

constexpr int64_t kSamples = 10000;  // without a limit
constexpr int kSide = 28, kPixels = kSide * kSide;

struct Point {
  float x, y;  // in a glyph: 0..100, y downwards; on the image: pixels
};
struct Stroke {
  bool curve;  // corners are rounded
  std::vector<Point> points;
};

const std::vector<Stroke>& glyph(size_t digit) {
  static const std::vector<Stroke> glyphs[10] = {
      {{true, {{50, 2}, {90, 10}, {92, 90}, {50, 98}, {8, 90}, {10, 10}, {50, 2}}}},
      {{false, {{28, 28}, {55, 4}, {55, 96}}}},
      {{true, {{14, 30}, {20, 2}, {80, 0}, {90, 35}, {60, 60}, {14, 95}}}, {false, {{14, 95}, {90, 95}}}},
      {{true, {{14, 12}, {60, 0}, {92, 12}, {88, 42}, {40, 48}}},
       {true, {{40, 48}, {90, 50}, {100, 80}, {75, 100}, {10, 90}}}},
      {{false, {{66, 97}, {66, 3}, {10, 66}, {94, 66}}}},
      {{false, {{84, 5}, {25, 5}, {20, 46}}},
       {true, {{20, 46}, {65, 32}, {95, 55}, {90, 95}, {40, 102}, {10, 86}}}},
      {{true, {{76, 4}, {35, 16}, {10, 55}, {12, 98}, {60, 104}, {92, 80}, {80, 48}, {40, 46}, {16, 74}}}},
      {{false, {{10, 6}, {90, 6}, {38, 97}}}},
      {{true, {{50, 48}, {14, 40}, {16, 4}, {50, 0}, {84, 4}, {86, 40}, {50, 48}}},
       {true, {{50, 48}, {6, 54}, {6, 96}, {50, 100}, {94, 96}, {94, 54}, {50, 48}}}},
      {{true, {{24, 96}, {65, 84}, {90, 45}, {88, 2}, {40, -4}, {8, 20}, {20, 52}, {60, 54}, {84, 26}}}},
  };
  return glyphs[digit];
}

// Four random words: those of number `block` of a sample.
PhiloxCounter random_words(uint64_t seed, RandomStream stream, int64_t sample, uint32_t block) {
  const auto number = static_cast<uint64_t>(sample);
  return philox({block, static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32),
                 static_cast<uint32_t>(stream)},
                seed);
}

// The random words of one sample, in order.
struct Random {
  uint32_t word() {
    if (used % 4 == 0) words = random_words(seed, stream, sample, used / 4);
    return words[used++ % 4];
  }
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(word() >> 8) * 0x1p-24f);
  }

  const uint64_t seed;
  const RandomStream stream;
  const int64_t sample;
  uint32_t used = 0;
  PhiloxCounter words{};
};

// Chaikin's corner cutting: every corner is replaced by two points near it; the ends stay.
void smooth(std::vector<Point>& points) {
  std::vector<Point> cut = {points.front()};
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    const Point a = points[i], b = points[i + 1];
    cut.push_back({.75f * a.x + .25f * b.x, .75f * a.y + .25f * b.y});
    cut.push_back({.25f * a.x + .75f * b.x, .25f * a.y + .75f * b.y});
  }
  cut.push_back(points.back());
  points = std::move(cut);
}

// Lays the segment from a to b on the image, 0..1 a pixel, with a soft edge of one pixel.
void draw(Point a, Point b, float radius, float* image) {
  const float reach = radius + .5f;
  const auto low = [&](float v) { return std::clamp(static_cast<int>(v - reach), 0, kSide); };
  const auto high = [&](float v) { return std::clamp(static_cast<int>(v + reach) + 1, 0, kSide); };
  const float dx = b.x - a.x, dy = b.y - a.y, squared = dx * dx + dy * dy;
  for (int y = low(std::min(a.y, b.y)); y < high(std::max(a.y, b.y)); ++y)
    for (int x = low(std::min(a.x, b.x)); x < high(std::max(a.x, b.x)); ++x) {
      const float px = static_cast<float>(x) + .5f, py = static_cast<float>(y) + .5f;
      const float along =
          squared > 0 ? std::clamp(((px - a.x) * dx + (py - a.y) * dy) / squared, 0.f, 1.f) : 0.f;
      const float ex = px - (a.x + along * dx), ey = py - (a.y + along * dy);
      const float ink = std::clamp(reach - std::sqrt(ex * ex + ey * ey), 0.f, 1.f);
      float& pixel = image[y * kSide + x];
      pixel = std::max(pixel, ink);
    }
}

uint8_t make_digit(Random& random, uint8_t* pixels) {
  auto digit = static_cast<uint8_t>((uint64_t{random.word()} * 10) >> 32);
  // 1. The transform: turn by up to 14 degrees, shear, stretch, shift. With t = tan(angle / 2) no sine is
  // needed.
  const float t = random.uniform(-.12f, .12f);
  const float cosine = (1 - t * t) / (1 + t * t), sine = 2 * t / (1 + t * t);
  const float shear = random.uniform(-.2f, .3f);
  const float width = random.uniform(10.f, 15.f), height = random.uniform(16.f, 20.f);
  const float middle_x = 14.f + random.uniform(-2.f, 2.f), middle_y = 14.f + random.uniform(-2.f, 2.f);
  const float radius = random.uniform(.7f, 1.5f);
  const float ink = random.uniform(190.f, 255.f), noise = random.uniform(0.f, 40.f);

  // 2. The strokes.
  float image[kPixels] = {};
  for (const Stroke& stroke : glyph(digit)) {
    std::vector<Point> points = stroke.points;
    for (Point& point : points) {
      point.x = point.x / 100 + random.uniform(-.06f, .06f);
      point.y = point.y / 100 + random.uniform(-.05f, .05f);
    }
    if (stroke.curve) {
      smooth(points);
      smooth(points);
    }
    for (Point& point : points) {
      const float y = (point.y - .5f) * height, x = (point.x - .5f) * width - shear * y;
      point = {middle_x + cosine * x - sine * y, middle_y + sine * x + cosine * y};
    }
    for (size_t i = 0; i + 1 < points.size(); ++i) draw(points[i], points[i + 1], radius, image);
  }

  // 3. Noise: four bytes of a random word serve four pixels.
  for (int i = 0; i < kPixels; i += 4) {
    uint32_t word = random.word();
    for (int j = i; j < i + 4; ++j, word >>= 8) {
      const float grain = (static_cast<float>(word & 255u) * (1 / 128.f) - 1) * noise;
      pixels[j] = static_cast<uint8_t>(std::clamp(image[j] * ink + grain, 0.f, 255.f));
    }
  }
  return digit;
}

Status make_images(DataReader& r, int64_t samples, bool test) {
  constexpr int64_t kMost = int64_t{1} << 24;  // 12 GiB of pixels
  if (samples > kMost)
    return Status::error("synthetic:digits makes at most {} samples, not {}", kMost, samples);
  const auto count = static_cast<size_t>(samples);
  Array images{"u8", {samples, kSide, kSide}, std::vector<std::byte>(count * kPixels)};
  Array labels{"u8", {samples}, std::vector<std::byte>(count)};
  auto* pixels = reinterpret_cast<uint8_t*>(images.bytes.data());
  for (int64_t i = 0; i < samples; ++i, pixels += kPixels) {
    Random random{static_cast<uint64_t>(r.plan.seed),
                  test ? RandomStream::test_digits : RandomStream::train_digits, i};
    labels.bytes[static_cast<size_t>(i)] = std::byte{make_digit(random, pixels)};
  }
  return r.give_images("synthetic:digits", std::move(images), "synthetic:digits", std::move(labels));
}

// An alphabet of min(range, 256) tokens, in which the two tokens before it fix the next one seven times out
// of eight, by a rule that the train and the test set share.
Status make_tokens(DataReader& r, int64_t samples, bool test) {
  constexpr int64_t kMost = int64_t{1} << 32;  // tokens
  const auto inputs = GACC_TRY(r.token_inputs());
  const PlanInput &tokens = r.plan.inputs[inputs[0]], &targets = r.plan.inputs[inputs[1]];
  const int64_t length = tokens.shape[0];
  if (length >= kMost || samples > kMost / (length + 1))
    return Status::error("synthetic:tokens makes at most {} tokens, not {} times {}", kMost, samples, length);
  const auto alphabet = static_cast<uint32_t>(
      std::min({int64_t{256}, tokens.range.value_or(256), targets.range.value_or(256)}));
  const RandomStream stream = test ? RandomStream::test_tokens : RandomStream::train_tokens;
  Array now{"u8", {samples, length}, {}}, later = now;
  for (int64_t sample = 0; sample < samples; ++sample) {
    uint32_t before = 0, last = 0;
    for (int64_t i = 0; i <= length; ++i) {
      const PhiloxCounter random =
          random_words(static_cast<uint64_t>(r.plan.seed), stream, sample, static_cast<uint32_t>(i));
      // The rule is linear, so that a small model finds it: next = last + before + 1 in the alphabet.
      uint32_t next = (last + before + 1) % alphabet;
      if (i < 2 || random[0] % 8 == 0) next = random[1] % alphabet;
      if (i < length) now.bytes.push_back(static_cast<std::byte>(next));
      if (i > 0) later.bytes.push_back(static_cast<std::byte>(next));
      before = last;
      last = next;
    }
  }
  const auto place = [](int64_t element) { return fmt::format("synthetic:tokens: token {}", element); };
  r.give(inputs[0], "synthetic:tokens", std::move(now), place);
  r.give(inputs[1], "synthetic:tokens", std::move(later), place);
  return {};
}

}  // namespace

const DataSource sources::synthetic{
    .name = "synthetic",
    .path = "digits|tokens",
    .says =
        "`digits`: drawn digits, 28 × 28, in ten classes; `tokens`: sequences in which the two tokens before "
        "it fix the next one seven times out of eight",
    .keys = {{"split", "train|test", "train", "which of two sets that share nothing but the rule"}},
    .files = [](const Spec&) { return std::vector<std::string>(); },
    .read =
        [](DataReader& r) {
          const auto make = r.spec.path == "digits" ? make_images : make_tokens;
          return make(r, r.spec.limit.value_or(kSamples), r.spec.option("split") == "test");
        },
};

}  // namespace gacc
