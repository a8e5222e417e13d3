// Convolutions of the host device as matrix products of oneDNN: the windows of an image are laid out as the
// columns of a matrix [channels x kernel, places] (im2col), in tiles that stay in the cache, and back.
//
//   forward      y[O, places]        = weight[O, K] @ columns[K, places]      a task: a sample, a group, rows
//   images       columns[K, places]  = weight^T @ dy, added back to dx        a task: samples, a group
//       or, for steps of 1 where it costs less (see turn_back):
//                dx[C, elements]     = turned weight[C, O taps] @ columns of dy
//   weight       part[O, K]          = sum of dy @ columns^T                  a task: a part, a group,
//   channels
//
// Operands of half type are converted on the way into scratch memory of the thread, products are added in
// f32, and a half result is rounded once. Columns are scratch memory as well. Where a window is one f32
// element and nothing is skipped the image itself is the matrix.
#include <algorithm>
#include <vector>

#include "codegen/host/library.h"
#include "codegen/host/products.h"
#include "ir/ops/image_window.h"
#include "kernels/handwritten/calls.h"

namespace gacc::host {

namespace {

constexpr int64_t kColumnBytes = int64_t{512} << 10;  // of a tile of columns: half of a core's second cache
// The weight's gradient: channels are split until there are so many tasks, but to no fewer rows than that.
constexpr int64_t kLeastTasks = 16, kLeastRows = 32;
// Adding an element of a column to its image takes as long as laying out so many.
constexpr int64_t kLayoutsPerAddition = 4;

// The thread's memory: columns, and f32 copies of what is half.
enum Use : uint8_t { kColumns, kWeight, kTurned, kPlaces, kImage };
float* scratch(Use use, int64_t elements) {
  static thread_local std::vector<float> memory[5];
  std::vector<float>& own = memory[use];
  if (own.size() < static_cast<size_t>(elements)) own.resize(static_cast<size_t>(elements));
  return own.data();
}

// The windows of images of this size; their places are rows and columns as well.
struct Slide {
  ir::Window2d w;
  int64_t size[2] = {1, 1}, places[2] = {1, 1};
  int64_t image() const { return size[0] * size[1]; }
  int64_t plane() const { return places[0] * places[1]; }
  int64_t taps() const { return w.kernel[0] * w.kernel[1]; }

  // The places of one row whose window element kx lies in the image: [low, high), its first at column `x`.
  struct Run {
    int64_t low, high, x;
  };
  Run inside(int64_t kx) const {
    const int64_t shift = kx * w.dilation[1] - w.before[1], stride = w.stride[1];
    const int64_t low = shift >= 0 ? 0 : std::min((-shift + stride - 1) / stride, places[1]);
    const int64_t room = size[1] - shift;  // columns below it are in the image
    const int64_t high = room <= 0 ? 0 : std::min((room + stride - 1) / stride, places[1]);
    return {low, std::max(low, high), low * stride + shift};
  }

  // Calls f(column row, whether the image has that row, its first element there, run) for every row of
  // places, of `rows` from `first` on, of every row of columns.
  template <class F>
  void walk(int64_t channels, int64_t first, int64_t rows, F&& f) const {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t ky = 0; ky < w.kernel[0]; ++ky) {
        for (int64_t kx = 0; kx < w.kernel[1]; ++kx) {
          const Run run = inside(kx);
          const int64_t k = (c * w.kernel[0] + ky) * w.kernel[1] + kx;
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t y = (first + r) * w.stride[0] - w.before[0] + ky * w.dilation[0];
            const bool there = y >= 0 && y < size[0] && run.low < run.high;
            f((k * rows + r) * places[1], there, c * image() + y * size[1] + run.x, run);
          }
        }
      }
    }
  }

  // The same seen from an element of the image: the places whose windows hold it are a window over the
  // places, with its taps in reverse order. Steps of 1 only.
  Slide turned() const {
    Slide back = *this;
    for (int axis = 0; axis < 2; ++axis) {
      back.size[axis] = places[axis], back.places[axis] = size[axis];
      back.w.before[axis] = w.dilation[axis] * (w.kernel[axis] - 1) - w.before[axis];
    }
    return back;
  }
};

using kernels::ConvKind;

class Convolution final : public LibraryCall {
 public:
  explicit Convolution(const ir::OpView& op)
      : kind_(kernels::conv_kind(*op.op.info)), type_(op.operand(0).dtype) {
    const kernels::ConvShape shape = kernels::conv_shape(op);
    groups_ = shape.groups, in_ = shape.in, out_ = shape.out, part_ = shape.part;
    slide_.w = ir::window_of(op);
    for (size_t axis = 0; axis < 2; ++axis)
      slide_.size[axis] = shape.window.from[axis], slide_.places[axis] = shape.window.to[axis];
    taps_ = slide_.taps();
    whole_ = taps_ == 1 && type_ == Element::f32;
    bool steps = true;  // of 1
    for (int axis = 0; axis < 2; ++axis) {
      steps = steps && slide_.w.stride[axis] == 1;
      whole_ = whole_ && steps && slide_.w.before[axis] == 0 && slide_.w.after[axis] == 0;
    }
    channels_ = in_;
    if (kind_ == ConvKind::weight) {
      parts_ = op.integer("parts");
      // Blocks of channels decide how a product is cut, and so bits. Where these must not depend on the micro-batch,
      // which then has a part for each sample, there are no blocks.
      const int64_t parts = ir::keeps_bits(op.module.settings) ? kLeastTasks : parts_;
      while (parts * groups_ * blocks() < kLeastTasks && channels_ / 2 * taps_ >= kLeastRows)
        channels_ = (channels_ + 1) / 2;
    } else if (kind_ == ConvKind::images && steps && !whole_ && turn_back()) {
      turned_ = true;
      slide_ = slide_.turned();
      channels_ = out_;
      samples_ = std::max<int64_t>(1, op.module.micro_batch() * groups_ / kLeastTasks);
    }
    const int64_t row = channels_ * taps_ * slide_.places[1] * static_cast<int64_t>(sizeof(float));
    rows_ = std::clamp<int64_t>(kColumnBytes / row, 1, slide_.places[0]);
    if (whole_ && kind_ != ConvKind::forward) rows_ = slide_.places[0];
  }

  int64_t tasks(int64_t batch) const override {
    if (kind_ == ConvKind::forward) return batch * groups_ * tiles();
    if (kind_ == ConvKind::images) return (batch + samples_ - 1) / samples_ * groups_;
    return parts_ * groups_ * blocks();
  }

  bool run(char* const* operands, int64_t batch, int64_t task) const override {
    const char *x = operands[0], *y = operands[1];
    char* result = operands[2];
    if (kind_ == ConvKind::forward) return forward(x, y, result, task);
    if (kind_ == ConvKind::weight) return weight(x, y, reinterpret_cast<float*>(result), batch, task);
    return turned_ ? images_of_columns(x, y, result, batch, task) : images(x, y, result, task);
  }

 private:
  // Returns true if columns of dy are the cheaper way to the images' gradient, and not columns of dx. Those of dy are
  // O taps high and are laid out; those of dx are C taps high and are added to dx. For the former a task turns the
  // weight, an element at a time.
  bool turn_back() const {
    const int64_t plane = slide_.plane();
    return out_ * (plane + kLayoutsPerAddition * in_) <= kLayoutsPerAddition * in_ * plane;
  }

  int64_t tiles() const { return (slide_.places[0] + rows_ - 1) / rows_; }
  int64_t blocks() const { return (in_ + channels_ - 1) / channels_; }
  int64_t image() const { return slide_.image(); }
  int64_t plane() const { return slide_.plane(); }
  int64_t depth() const { return in_ * taps_; }

  // As as_f32, with a copy in the thread's memory.
  HostMatrix matrix(Use use, const char* from, int64_t first, int64_t rows, int64_t columns,
                    int64_t step) const {
    float* copy = type_ == Element::f32 ? nullptr : scratch(use, rows * columns);
    return as_f32(type_, from, first, rows, columns, step, copy);
  }
  // The weight of a group: [O, K].
  HostMatrix weights(const char* weight, int64_t group) const {
    return matrix(kWeight, weight, group * out_ * depth(), out_, depth(), depth());
  }

  // A tile of rows of places, from row `first` on, as matrix [many, channels x taps] @ columns. `at`: the
  // number of its sample and group.
  bool product(const HostMatrix& rows, int64_t many, const char* x, int64_t channels, int64_t at,
               int64_t first, char* result) const {
    const bool half = type_ != Element::f32;
    const int64_t places = std::min(rows_, slide_.places[0] - first), count = places * slide_.places[1];
    const int64_t to = at * many * plane() + first * slide_.places[1];
    const HostMatrix columns = unfold(x, at * channels * image(), channels, first, places);
    float* sums = half ? scratch(kPlaces, many * count) : reinterpret_cast<float*>(result) + to;
    if (!multiply({many, count, channels * taps_}, rows, columns, sums, half ? count : plane())) return false;
    if (half) round_rows(type_, sums, many, count, result, to, plane());
    return true;
  }

  bool forward(const char* x, const char* weight, char* y, int64_t task) const {
    const int64_t at = task / tiles();
    return product(weights(weight, at % groups_), out_, x, in_, at, task % tiles() * rows_, y);
  }

  // The images' gradient as the forward product of the turned window. Here dy are the images.
  bool images_of_columns(const char* dy, const char* weight, char* dx, int64_t batch, int64_t task) const {
    const int64_t group = task % groups_, begin = task / groups_ * samples_;
    const HostMatrix w = weights(weight, group);
    const int64_t height = out_ * taps_;
    float* turned = scratch(kTurned, in_ * height);
    for (int64_t o = 0; o < out_; ++o) {
      for (int64_t i = 0; i < in_; ++i)
        std::reverse_copy(w.data + o * w.step + i * taps_, w.data + o * w.step + (i + 1) * taps_,
                          turned + i * height + o * taps_);
    }
    for (int64_t sample = begin; sample < std::min(begin + samples_, batch); ++sample) {
      for (int64_t first = 0; first < slide_.places[0]; first += rows_)
        if (!product({turned, height}, in_, dy, out_, sample * groups_ + group, first, dx)) return false;
    }
    return true;
  }

  bool images(const char* dy, const char* weight, char* dx, int64_t task) const {
    const int64_t size = in_ * image();
    const bool half = type_ != Element::f32;
    HostMatrix w = weights(weight, task % groups_);
    w.transposed = true;
    float* sums = half ? scratch(kImage, size) : reinterpret_cast<float*>(dx) + task * size;
    if (!whole_) std::fill_n(sums, size, 0.0f);
    for (int64_t first = 0; first < slide_.places[0]; first += rows_) {
      const int64_t rows = std::min(rows_, slide_.places[0] - first), count = rows * slide_.places[1];
      const HostMatrix d =
          matrix(kPlaces, dy, task * out_ * plane() + first * slide_.places[1], out_, count, plane());
      float* columns = whole_ ? sums : scratch(kColumns, depth() * count);
      if (!multiply({depth(), count, out_}, w, d, columns, count)) return false;
      if (!whole_) fold(columns, first, rows, sums);
    }
    if (half) round_rows(type_, sums, 1, size, dx, task * size, size);
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
      for (int64_t first = 0; first < slide_.places[0]; first += rows_, more = true) {
        const int64_t rows = std::min(rows_, slide_.places[0] - first), count = rows * slide_.places[1];
        const int64_t places = (sample * groups_ + group) * out_ * plane() + first * slide_.places[1];
        const HostMatrix d = matrix(kPlaces, dy, places, out_, count, plane());
        HostMatrix columns = unfold(x, from, channels, first, rows);
        columns.transposed = true;
        if (!multiply({out_, channels * taps_, count}, d, columns, parts, depth(), more)) return false;
      }
    }
    return true;
  }

  // The windows of `channels` images from element `start` on as columns[channels x kernel, rows x places];
  // zero outside of the image.
  HostMatrix unfold(const char* x, int64_t start, int64_t channels, int64_t first, int64_t rows) const {
    const int64_t stride = slide_.w.stride[1], width = slide_.places[1];
    if (whole_) return {reinterpret_cast<const float*>(x) + start + first * width, image()};
    const HostMatrix from = matrix(kImage, x, start, 1, channels * image(), 0);
    float* columns = scratch(kColumns, channels * taps_ * rows * width);
    slide_.walk(channels, first, rows, [&](int64_t to, bool there, int64_t at, const Slide::Run& run) {
      float* out = columns + to;
      if (!there) {
        std::fill_n(out, width, 0.0f);
        return;
      }
      std::fill_n(out, run.low, 0.0f);
      const float* in = from.data + at;
      if (stride == 1)
        std::copy_n(in, run.high - run.low, out + run.low);
      else
        for (int64_t i = run.low; i < run.high; ++i) out[i] = in[(i - run.low) * stride];
      std::fill_n(out + run.high, width - run.high, 0.0f);
    });
    return {columns, rows * width};
  }

  // The reverse: adds each element of the columns to that of the images it stands for.
  void fold(const float* columns, int64_t first, int64_t rows, float* dx) const {
    const int64_t stride = slide_.w.stride[1];
    slide_.walk(in_, first, rows, [&](int64_t from, bool there, int64_t to, const Slide::Run& run) {
      if (!there) return;
      const float* in = columns + from;
      float* out = dx + to;
      for (int64_t i = run.low; i < run.high; ++i) out[(i - run.low) * stride] += in[i];
    });
  }

  Slide slide_;  // `turned_`: of the turned window, whose images are dy and whose places are dx
  ConvKind kind_;
  Element type_;         // of the operands, and of the result unless that is the weight's gradient
  bool whole_ = false;   // the image is the matrix of its windows
  bool turned_ = false;  // images: by columns of dy
  int64_t groups_ = 1, in_ = 1, out_ = 1, taps_ = 1;  // channels of a group, elements of a window
  int64_t rows_ = 1;                                  // rows of places in a tile of columns
  int64_t channels_ = 1;                              // of the columns of a task (weight: input channels)
  int64_t samples_ = 1;                               // images: of a task
  int64_t parts_ = 1, part_ = 1;                      // weight: parts, samples of a part
};

}  // namespace

std::unique_ptr<LibraryCall> make_library_call(const ir::OpView& op) {
  const ir::OpInfo& info = *op.op.info;
  if (&info != &ir::op_conv2d && info.gradient_of != &ir::op_conv2d) return nullptr;
  return std::make_unique<Convolution>(op);
}

}  // namespace gacc::host
