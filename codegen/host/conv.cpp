// Convolutions of the host device as matrix products of oneDNN: the windows of an image are laid out as the
// columns of a matrix [channels x kernel, places] (im2col), in tiles that stay in the cache, and back.
//
//   forward      y[O, places]        = weight[O, K] @ columns[K, places]      a task: a sample, a group, rows
//   images       columns[K, places]  = weight^T @ dy, added back to dx        a task: a sample, a group
//   weight       part[O, K]          = sum of dy @ columns^T                  a task: a part, a group,
//   channels
//
// Operands of half type are converted on the way into scratch memory of the thread, products are added in
// f32, and a half result is rounded once. Columns are scratch memory as well. Where a window is one f32
// element and nothing is skipped the image itself is the matrix.
#include <algorithm>
#include <cstring>
#include <vector>

#include "codegen/host/convert.h"
#include "codegen/host/gemm.h"
#include "codegen/host/library.h"
#include "ir/ops/window.h"

namespace gacc::host {

namespace {

constexpr int64_t kColumnBytes = int64_t{512} << 10;  // of a tile of columns: half of a core's second cache
constexpr int64_t kTasks = 16, kFewestRows = 32;      // weight: channels are split until there are so many

// The thread's memory: columns, and f32 copies of what is half.
enum Use : uint8_t { kColumns, kWeight, kPlaces, kImage };
float* scratch(Use use, int64_t elements) {
  static thread_local std::vector<float> memory[4];
  std::vector<float>& own = memory[use];
  if (own.size() < static_cast<size_t>(elements)) own.resize(static_cast<size_t>(elements));
  return own.data();
}

Element element(ir::DType dtype) {
  return dtype == ir::DType::f16 ? Element::f16 : dtype == ir::DType::bf16 ? Element::bf16 : Element::f32;
}

// `count` elements from element `first` on as f32, in `to`.
void read(Element type, const char* from, int64_t first, int64_t count, float* to) {
  if (type == Element::f32) {
    std::memcpy(to, from + first * 4, static_cast<size_t>(count) * 4);
  } else {
    widen(type, reinterpret_cast<const uint16_t*>(from) + first, to, count);
  }
}

enum class Direction : uint8_t { forward, images, weight };

class Convolution final : public LibraryCall {
 public:
  Convolution(const ir::OpView& op, Direction direction) : w_(ir::window_of(op)), direction_(direction) {
    const ir::Shape images = direction == Direction::forward  ? op.operand(0).shape
                             : direction == Direction::weight ? op.operand(1).shape
                                                              : op.result().shape;
    const ir::Shape places = direction == Direction::forward ? op.result().shape : op.operand(0).shape;
    type_ = element(op.operand(0).dtype);
    groups_ = op.integer("groups");
    in_ = images[1] / groups_, out_ = places[1] / groups_;
    for (size_t axis = 0; axis < 2; ++axis) size_[axis] = images[axis + 2], places_[axis] = places[axis + 2];
    taps_ = w_.kernel[0] * w_.kernel[1];
    if (direction == Direction::weight) {
      parts_ = op.integer("parts");
      part_ = ir::conv_part(op);
      channels_ = in_;
      while (parts_ * groups_ * blocks() < kTasks && channels_ / 2 * taps_ >= kFewestRows)
        channels_ = (channels_ + 1) / 2;
    } else {
      channels_ = in_;
    }
    const int64_t row = channels_ * taps_ * places_[1] * static_cast<int64_t>(sizeof(float));
    rows_ = std::clamp<int64_t>(kColumnBytes / row, 1, places_[0]);
    whole_ = taps_ == 1 && type_ == Element::f32;
    for (int axis = 0; axis < 2; ++axis)
      whole_ = whole_ && w_.stride[axis] == 1 && w_.before[axis] == 0 && w_.after[axis] == 0;
    if (whole_) rows_ = direction == Direction::forward ? std::max<int64_t>(rows_, 1) : places_[0];
  }

  int64_t tasks(int64_t batch) const override {
    switch (direction_) {
      case Direction::forward:
        return batch * groups_ * tiles();
      case Direction::images:
        return batch * groups_;
      case Direction::weight:
        break;
    }
    return parts_ * groups_ * blocks();
  }

  bool run(char* const* operands, int64_t batch, int64_t task) const override {
    switch (direction_) {
      case Direction::forward:
        return forward(operands[0], operands[1], operands[2], task);
      case Direction::images:
        return images(operands[0], operands[1], operands[2], task);
      case Direction::weight:
        break;
    }
    return weight(operands[0], operands[1], reinterpret_cast<float*>(operands[2]), batch, task);
  }

 private:
  int64_t tiles() const { return (places_[0] + rows_ - 1) / rows_; }
  int64_t blocks() const { return (in_ + channels_ - 1) / channels_; }
  int64_t image() const { return size_[0] * size_[1]; }
  int64_t plane() const { return places_[0] * places_[1]; }
  int64_t depth() const { return in_ * taps_; }

  // [rows, columns] of a matrix whose rows lie `step` elements apart, as f32: the matrix itself, or a copy.
  struct Matrix {
    const float* data;
    int64_t step;
  };
  Matrix matrix(Use use, const char* from, int64_t first, int64_t rows, int64_t columns, int64_t step) const {
    if (type_ == Element::f32) return {reinterpret_cast<const float*>(from) + first, step};
    float* copy = scratch(use, rows * columns);
    for (int64_t r = 0; r < rows; ++r) read(type_, from, first + r * step, columns, copy + r * columns);
    return {copy, columns};
  }

  bool forward(const char* x, const char* weight, char* y, int64_t task) const {
    const int64_t tile = task % tiles(), rest = task / tiles();  // rest: sample and group
    const int64_t first = tile * rows_, count = std::min(rows_, places_[0] - first) * places_[1];
    const Matrix w = matrix(kWeight, weight, rest % groups_ * out_ * depth(), out_, depth(), depth());
    Matrix columns{reinterpret_cast<const float*>(x) + rest * in_ * image() + first * places_[1], image()};
    if (!whole_) columns = unfold(x, rest * in_ * image(), in_, first, count / places_[1]);
    const int64_t to = rest * out_ * plane() + first * places_[1];
    const bool half = type_ != Element::f32;
    float* sums = half ? scratch(kPlaces, out_ * count) : reinterpret_cast<float*>(y) + to;
    if (!multiply({.m = out_,
                   .n = count,
                   .k = depth(),
                   .a = w.data,
                   .lda = w.step,
                   .b = columns.data,
                   .ldb = columns.step,
                   .c = sums,
                   .ldc = half ? count : plane()}))
      return false;
    for (int64_t o = 0; half && o < out_; ++o)
      narrow(type_, sums + o * count, reinterpret_cast<uint16_t*>(y) + to + o * plane(), count);
    return true;
  }

  bool images(const char* dy, const char* weight, char* dx, int64_t task) const {
    const int64_t size = in_ * image();
    const bool half = type_ != Element::f32;
    const Matrix w = matrix(kWeight, weight, task % groups_ * out_ * depth(), out_, depth(), depth());
    float* sums = half ? scratch(kImage, size) : reinterpret_cast<float*>(dx) + task * size;
    if (!whole_) std::fill_n(sums, size, 0.0f);
    for (int64_t first = 0; first < places_[0]; first += rows_) {
      const int64_t count = std::min(rows_, places_[0] - first) * places_[1];
      const Matrix d = matrix(kPlaces, dy, task * out_ * plane() + first * places_[1], out_, count, plane());
      float* columns = whole_ ? sums : scratch(kColumns, depth() * count);
      if (!multiply({.transpose_a = true,
                     .m = depth(),
                     .n = count,
                     .k = out_,
                     .a = w.data,
                     .lda = w.step,
                     .b = d.data,
                     .ldb = d.step,
                     .c = columns,
                     .ldc = count}))
        return false;
      if (!whole_) fold(columns, first, count / places_[1], sums);
    }
    if (half) narrow(type_, sums, reinterpret_cast<uint16_t*>(dx) + task * size, size);
    return true;
  }

  bool weight(const char* dy, const char* x, float* parts, int64_t batch, int64_t task) const {
    const int64_t block = task % blocks(), group = task / blocks() % groups_,
                  part = task / blocks() / groups_;
    const int64_t channel = block * channels_, channels = std::min(channels_, in_ - channel);
    parts += (part * groups_ + group) * out_ * depth() + channel * taps_;
    const int64_t begin = part * part_, end = std::min(begin + part_, batch);
    for (int64_t o = 0; begin >= end && o < out_; ++o)
      std::fill_n(parts + o * depth(), channels * taps_, 0.0f);
    bool more = false;
    for (int64_t sample = begin; sample < end; ++sample) {
      const int64_t from = ((sample * groups_ + group) * in_ + channel) * image();
      for (int64_t first = 0; first < places_[0]; first += rows_, more = true) {
        const int64_t count = std::min(rows_, places_[0] - first) * places_[1];
        const int64_t places = (sample * groups_ + group) * out_ * plane() + first * places_[1];
        const Matrix d = matrix(kPlaces, dy, places, out_, count, plane());
        Matrix columns{reinterpret_cast<const float*>(x) + from, image()};
        if (!whole_) columns = unfold(x, from, channels, first, count / places_[1]);
        if (!multiply({.transpose_b = true,
                       .accumulate = more,
                       .m = out_,
                       .n = channels * taps_,
                       .k = count,
                       .a = d.data,
                       .lda = d.step,
                       .b = columns.data,
                       .ldb = columns.step,
                       .c = parts,
                       .ldc = depth()}))
          return false;
      }
    }
    return true;
  }

  // The places of one row whose window element kx lies in the image: [low, high), its first at column `x`.
  struct Run {
    int64_t low, high, x;
  };
  Run inside(int64_t kx) const {
    const int64_t shift = kx * w_.dilation[1] - w_.before[1], stride = w_.stride[1];
    const int64_t low = shift >= 0 ? 0 : std::min((-shift + stride - 1) / stride, places_[1]);
    const int64_t room = size_[1] - shift;  // columns below it are in the image
    const int64_t high = room <= 0 ? 0 : std::min((room + stride - 1) / stride, places_[1]);
    return {low, std::max(low, high), low * stride + shift};
  }

  // Calls f(column row, the image's row or nothing, run) for every row of places of every row of columns.
  template <class F>
  void walk(int64_t channels, int64_t first, int64_t rows, F&& f) const {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t ky = 0; ky < w_.kernel[0]; ++ky) {
        for (int64_t kx = 0; kx < w_.kernel[1]; ++kx) {
          const Run run = inside(kx);
          const int64_t k = (c * w_.kernel[0] + ky) * w_.kernel[1] + kx;
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t y = (first + r) * w_.stride[0] - w_.before[0] + ky * w_.dilation[0];
            const bool there = y >= 0 && y < size_[0] && run.low < run.high;
            f((k * rows + r) * places_[1], there, c * image() + y * size_[1] + run.x, run);
          }
        }
      }
    }
  }

  // The windows of `channels` images from element `start` on as columns[channels x kernel, rows x places];
  // zero outside of the image.
  Matrix unfold(const char* x, int64_t start, int64_t channels, int64_t first, int64_t rows) const {
    const int64_t stride = w_.stride[1], width = places_[1];
    const Matrix from = matrix(kImage, x, start, 1, channels * image(), 0);
    float* columns = scratch(kColumns, channels * taps_ * rows * width);
    walk(channels, first, rows, [&](int64_t to, bool there, int64_t at, const Run& run) {
      float* out = columns + to;
      if (!there) {
        std::fill_n(out, width, 0.0f);
        return;
      }
      std::fill_n(out, run.low, 0.0f);
      const float* in = from.data + at;
      if (stride == 1) {
        std::copy_n(in, run.high - run.low, out + run.low);
      } else {
        for (int64_t i = run.low; i < run.high; ++i) out[i] = in[(i - run.low) * stride];
      }
      std::fill_n(out + run.high, width - run.high, 0.0f);
    });
    return {columns, rows * width};
  }

  // The reverse: adds each element of the columns to that of the images it stands for.
  void fold(const float* columns, int64_t first, int64_t rows, float* dx) const {
    const int64_t stride = w_.stride[1];
    walk(in_, first, rows, [&](int64_t from, bool there, int64_t to, const Run& run) {
      if (!there) return;
      const float* in = columns + from;
      float* out = dx + to;
      for (int64_t i = run.low; i < run.high; ++i) out[(i - run.low) * stride] += in[i];
    });
  }

  ir::Window2d w_;
  Direction direction_;
  Element type_ = Element::f32;  // of the operands, and of the result unless that is the weight's gradient
  bool whole_ = false;           // the image is the matrix of its windows
  int64_t groups_ = 1, in_ = 1, out_ = 1, taps_ = 1;  // channels of a group, elements of a window
  int64_t size_[2] = {1, 1}, places_[2] = {1, 1};
  int64_t rows_ = 1;              // rows of places in a tile of columns
  int64_t channels_ = 1;          // weight: input channels of a task
  int64_t parts_ = 1, part_ = 1;  // weight: parts, samples of a part
};

}  // namespace

std::unique_ptr<LibraryCall> make_library_call(const ir::OpView& op) {
  const std::string_view name = op.op.info->name;
  if (name == "conv2d") return std::make_unique<Convolution>(op, Direction::forward);
  if (name == "conv2d.grad") return std::make_unique<Convolution>(op, Direction::images);
  if (name == "conv2d.weight_grad") return std::make_unique<Convolution>(op, Direction::weight);
  return nullptr;
}

}  // namespace gacc::host
