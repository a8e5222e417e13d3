// Draws digits as strokes: control points are shaken, curves smoothed, the whole turned, sheared, stretched
// and shifted at random, drawn with a round pen of random width, and overlaid with noise. Only + - * / and
// square roots are used, which are the same everywhere, so that the data are too.
#include "runtime/data/digits.h"

#include <algorithm>
#include <cmath>

#include "runtime/data/philox.h"

namespace gacc {
namespace {

struct Point {
  float x, y;  // in a glyph: 0..1, y downwards; on the image: pixels
};
struct Stroke {
  bool curve;  // corners are rounded
  std::vector<Point> points;
};

const std::vector<Stroke>& glyph(size_t digit) {
  static const std::vector<Stroke> glyphs[10] = {
      {{true, {{.5f, .02f}, {.9f, .1f}, {.92f, .9f}, {.5f, .98f}, {.08f, .9f}, {.1f, .1f}, {.5f, .02f}}}},
      {{false, {{.28f, .28f}, {.55f, .04f}, {.55f, .96f}}}},
      {{true, {{.14f, .3f}, {.2f, .02f}, {.8f, .0f}, {.9f, .35f}, {.6f, .6f}, {.14f, .95f}}},
       {false, {{.14f, .95f}, {.9f, .95f}}}},
      {{true, {{.14f, .12f}, {.6f, .0f}, {.92f, .12f}, {.88f, .42f}, {.4f, .48f}}},
       {true, {{.4f, .48f}, {.9f, .5f}, {1.f, .8f}, {.75f, 1.f}, {.1f, .9f}}}},
      {{false, {{.66f, .97f}, {.66f, .03f}, {.1f, .66f}, {.94f, .66f}}}},
      {{false, {{.84f, .05f}, {.25f, .05f}, {.2f, .46f}}},
       {true, {{.2f, .46f}, {.65f, .32f}, {.95f, .55f}, {.9f, .95f}, {.4f, 1.02f}, {.1f, .86f}}}},
      {{true,
        {{.76f, .04f},
         {.35f, .16f},
         {.1f, .55f},
         {.12f, .98f},
         {.6f, 1.04f},
         {.92f, .8f},
         {.8f, .48f},
         {.4f, .46f},
         {.16f, .74f}}}},
      {{false, {{.1f, .06f}, {.9f, .06f}, {.38f, .97f}}}},
      {{true, {{.5f, .48f}, {.14f, .4f}, {.16f, .04f}, {.5f, .0f}, {.84f, .04f}, {.86f, .4f}, {.5f, .48f}}},
       {true,
        {{.5f, .48f}, {.06f, .54f}, {.06f, .96f}, {.5f, 1.f}, {.94f, .96f}, {.94f, .54f}, {.5f, .48f}}}},
      {{true,
        {{.24f, .96f},
         {.65f, .84f},
         {.9f, .45f},
         {.88f, .02f},
         {.4f, -.04f},
         {.08f, .2f},
         {.2f, .52f},
         {.6f, .54f},
         {.84f, .26f}}}},
  };
  return glyphs[digit];
}

// Uniform numbers of one sample, in order.
class Random {
 public:
  Random(uint64_t seed, bool test, int64_t sample)
      : seed_(seed),
        sample_(static_cast<uint64_t>(sample)),
        stream_(test ? RandomStream::test_digits : RandomStream::train_digits) {}
  uint32_t word() {
    if (used_ == 4) {
      words_ = philox({block_++, static_cast<uint32_t>(sample_), static_cast<uint32_t>(sample_ >> 32),
                       static_cast<uint32_t>(stream_)},
                      seed_);
      used_ = 0;
    }
    return words_[used_++];
  }
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(word() >> 8) * 0x1p-24f);
  }

 private:
  uint64_t seed_, sample_;
  RandomStream stream_;
  uint32_t block_ = 0;
  PhiloxCounter words_{};
  size_t used_ = 4;
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
  float reach = radius + .5f;
  auto low = [&](float v) {
    return std::clamp(static_cast<int>(v - reach), 0, static_cast<int>(kDigitSide));
  };
  auto high = [&](float v) {
    return std::clamp(static_cast<int>(v + reach) + 1, 0, static_cast<int>(kDigitSide));
  };
  const float dx = b.x - a.x, dy = b.y - a.y, squared = dx * dx + dy * dy;
  for (int y = low(std::min(a.y, b.y)); y < high(std::max(a.y, b.y)); ++y)
    for (int x = low(std::min(a.x, b.x)); x < high(std::max(a.x, b.x)); ++x) {
      const float px = static_cast<float>(x) + .5f, py = static_cast<float>(y) + .5f;
      const float along =
          squared > 0 ? std::clamp(((px - a.x) * dx + (py - a.y) * dy) / squared, 0.f, 1.f) : 0.f;
      const float ex = px - (a.x + along * dx), ey = py - (a.y + along * dy);
      const float ink = std::clamp(reach - std::sqrt(ex * ex + ey * ey), 0.f, 1.f);
      float& pixel = image[y * kDigitSide + x];
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
  float image[kDigitSide * kDigitSide] = {};
  for (const Stroke& stroke : glyph(digit)) {
    std::vector<Point> points = stroke.points;
    for (Point& point : points) {
      point.x += random.uniform(-.06f, .06f);
      point.y += random.uniform(-.05f, .05f);
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
  for (int64_t i = 0; i < kDigitSide * kDigitSide; i += 4) {
    uint32_t word = random.word();
    for (int64_t j = i; j < i + 4; ++j, word >>= 8) {
      const float grain = (static_cast<float>(word & 255u) * (1 / 128.f) - 1) * noise;
      pixels[j] = static_cast<uint8_t>(std::clamp(image[j] * ink + grain, 0.f, 255.f));
    }
  }
  return digit;
}

}  // namespace

void make_digits(int64_t samples, uint64_t seed, bool test, Array& images, Array& labels) {
  constexpr int64_t kPixels = kDigitSide * kDigitSide;
  images = {"u8",
            {samples, kDigitSide, kDigitSide},
            std::vector<std::byte>(static_cast<size_t>(samples * kPixels))};
  labels = {"u8", {samples}, std::vector<std::byte>(static_cast<size_t>(samples))};
  for (int64_t i = 0; i < samples; ++i) {
    Random random(seed, test, i);
    auto* pixels = reinterpret_cast<uint8_t*>(images.bytes.data()) + i * kPixels;
    labels.bytes[static_cast<size_t>(i)] = std::byte{make_digit(random, pixels)};
  }
}

}  // namespace gacc
