// Convolutions of the host device, by oneDNN's primitives.
//
// A task computes its samples of a block of the result's channels, or of the groups; of the weight's gradient its part
// of a block of the output channels. The library wants images, places and weights in layouts of its own, so a task lays
// out its operands in the thread's memory, some samples at a time, and brings the result back. Halves become f32 on the
// way and results are rounded once, but for bf16 where the CPU multiplies it.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "codegen/host/library.h"
#include "codegen/host/primitive.h"
#include "codegen/host/products.h"
#include "kernels/gemm.h"
#include "kernels/handwritten/calls.h"

namespace gacc::host {

namespace {

using dnnl::memory;
using kernels::ConvKind;

// Tasks of a convolution of enough operations, and those that make a task worth a thread's while.
constexpr int64_t kTasks = 16, kTaskFlops = int64_t{1} << 20;
// A block has a multiple of so many channels, or groups: a register of the library's kernels has 16.
constexpr int64_t kBlockStep = 16;
// Images and places that are laid out at once: half of a core's second cache. Where a weight's gradient is larger than
// that, as much as it: it is added to for each lot.
constexpr int64_t kLotBytes = int64_t{512} << 10;
// Rows that begin a multiple of so many bytes apart meet in few sets of a cache.
constexpr int64_t kCrowdedBytes = 1024;
constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The thread's memory, of at least so many bytes.
char* scratch(size_t bytes) {
  static thread_local std::vector<char> own;
  if (own.size() < bytes + kAlignment) own.resize(bytes + kAlignment);
  return own.data() +
         (aligned(reinterpret_cast<uintptr_t>(own.data())) - reinterpret_cast<uintptr_t>(own.data()));
}

memory::data_type library_type(DType type) {
  return type == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// A tensor as it lies in the arena, and a task's share of it: `rows` of `columns` elements, `step` apart. Of images and
// places a row is a sample; of weights [O, I, kh, kw], or of their blocks, an output channel.
struct Tensor {
  int role = 0;
  DType type = DType::f32;
  memory::dims dims{};  // of one sample: [1, C, H, W], [O, I, kh, kw] or [G, O, I, kh, kw]
  int64_t rows = 1, columns = 1, step = 1;
  int64_t of_block = 0;  // elements from one block to the next
  bool samples = true;   // false: a weight
  bool copied = false;   // by way of f32 rows of the thread's memory, `pitch` apart
  int64_t pitch = 1;

  // As it lies in the arena, or in the copy, for n samples.
  memory::desc plain(int64_t n) const {
    memory::dims all = dims, strides(dims.size(), 1);
    if (samples) all[0] = n;
    for (size_t i = dims.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * dims[i + 1];
    const size_t row = dims.size() - 4;
    strides[row] = copied ? pitch : step;
    if (row > 0) strides[0] = strides[row] * dims[1];
    return {all, library_type(copied ? DType::f32 : type), strides};
  }
  int64_t many(int64_t n) const { return samples ? n : rows; }
  int64_t bytes(int64_t elements) const { return ir::dtype_bytes(type, elements); }
};

class Convolution final : public LibraryCall {
 public:
  Convolution(const ir::OpView& op, const kernels::ConvShape& shape, int threads)
      : kind_(kernels::conv_kind(*op.op.info)) {
    const kernels::WindowShape& w = shape.window;
    for (size_t axis = 0; axis < 2; ++axis) {
      const int64_t reach = w.dilation[axis] * (w.kernel[axis] - 1) + 1;
      strides_.push_back(w.stride[axis]);
      dilation_.push_back(w.dilation[axis] - 1);  // the library counts what is skipped
      before_.push_back(w.before[axis]);
      after_.push_back(
          std::max<int64_t>(0, (w.to[axis] - 1) * w.stride[axis] + reach - w.from[axis] - w.before[axis]));
    }
    const int64_t taps = shape.taps();
    weight_size_ = shape.groups * shape.out * shape.in * taps;
    if (kind_ == ConvKind::weight) parts_ = op.integer("parts"), part_ = shape.part;
    // With bits that must not depend on the micro-batch a task is a sample: what is multiplied at once decides them.
    if (!ir::keeps_bits(op.module.settings)) cut(shape, op.module.micro_batch());

    // The channels of a block: of all of its groups, in the images and in the places.
    const int64_t groups = shape.groups > 1 ? shape.groups / blocks_ : 1;
    const bool cut_in = shape.groups == 1 && kind_ == ConvKind::images;
    const bool cut_out = shape.groups == 1 && kind_ != ConvKind::images;
    const int64_t in = shape.in / (cut_in ? blocks_ : 1), out = shape.out / (cut_out ? blocks_ : 1);
    const int64_t pixels = shape.pixels(), places = shape.places();
    const DType type = op.operand(0).dtype;
    Tensor images{.role = kind_ == ConvKind::images ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC,
                  .type = type,
                  .dims = {1, groups * in, w.from[0], w.from[1]},
                  .columns = groups * in * pixels,
                  .step = shape.groups * shape.in * pixels,
                  .of_block = cut_out ? 0 : groups * in * pixels};
    Tensor outputs{.role = kind_ == ConvKind::forward ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST,
                   .type = type,
                   .dims = {1, groups * out, w.to[0], w.to[1]},
                   .columns = groups * out * places,
                   .step = shape.groups * shape.out * places,
                   .of_block = cut_in ? 0 : groups * out * places};
    Tensor weight{.role = kind_ == ConvKind::weight ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS,
                  .type = kind_ == ConvKind::weight ? DType::f32 : type,
                  .dims = {out, in, w.kernel[0], w.kernel[1]},
                  .rows = groups * out,
                  .columns = in * taps,
                  .step = shape.in * taps,
                  .of_block = cut_in ? in * taps : groups * out * in * taps,
                  .samples = false};
    if (shape.groups > 1) weight.dims.insert(weight.dims.begin(), groups);
    if (kind_ == ConvKind::forward) tensors_ = {images, weight, outputs};
    if (kind_ == ConvKind::images) tensors_ = {outputs, weight, images};
    if (kind_ == ConvKind::weight) tensors_ = {outputs, images, weight};
    const int64_t row_bytes = (images.columns + outputs.columns) * static_cast<int64_t>(sizeof(float));
    const int64_t weight_bytes = weight.rows * weight.columns * static_cast<int64_t>(sizeof(float));
    const int64_t most = kind_ == ConvKind::weight ? std::max(kLotBytes, weight_bytes) : kLotBytes;
    const int64_t lots =
        ceil_divide(task_samples(), std::clamp<int64_t>(most / row_bytes, 1, task_samples()));
    const int64_t lot = ceil_divide(task_samples(), lots);
    computed_ = type == DType::bf16 && multiplies_bf16() ? DType::bf16 : DType::f32;
    Described described = describe_lot(lot);
    if (computed_ == DType::bf16 && described.rank < 2) {
      computed_ = DType::f32;
      described = describe_lot(lot);
    }
    for (Tensor& tensor : tensors_) {
      const bool widened = tensor.type != DType::f32 && computed_ == DType::f32;
      const bool sum = part_ > 0 && &tensor == &tensors_.back();
      const bool crowded = !tensor.samples && tensor.bytes(tensor.step) % kCrowdedBytes == 0;
      tensor.copied = widened || sum || (crowded && tensor.type == DType::f32);
      tensor.pitch = tensor.columns + (tensor.samples ? 0 : kBlockStep);
    }
    lots_.push_back(make_lot(lot, described, threads));
    if (lot > 1) lots_.push_back(make_lot(1, describe_lot(1), threads));
  }

  int64_t tasks(int64_t batch) const override {
    return blocks_ * (part_ > 0 ? parts_ : ceil_divide(batch, samples_));
  }

  bool run(char* const* operands, int64_t batch, int64_t task, int thread) const override {
    const int64_t block = task % blocks_, chunk = task / blocks_;
    int64_t begin = chunk * task_samples();
    const int64_t end = std::min(begin + task_samples(), batch);
    std::array<char*, 3> at{};
    for (size_t i = 0; i < at.size(); ++i)
      at[i] = operands[i] + tensors_[i].bytes(block * tensors_[i].of_block);
    if (part_ > 0) {
      const Tensor& sum = tensors_.back();
      at.back() += sum.bytes(chunk * weight_size_);
      if (begin >= end) std::memset(at.back(), 0, static_cast<size_t>(sum.bytes(sum.rows * sum.step)));
    }
    bool more = false;  // the weight's gradient has samples
    for (const Lot& lot : lots_) {
      for (bool laid = false; begin + lot.samples <= end; begin += lot.samples, laid = more = true)
        if (!run(lot, at, begin, thread, laid, more && part_ > 0)) return false;
    }
    return true;
  }

 private:
  // The primitives for so many samples at once. A tensor that has another layout than the library wants is laid out, or
  // the result brought back, by `reorder`: from, or to, its copy where it has one.
  struct Lot {
    struct Side {
      std::optional<Primitive> reorder{};
      size_t laid = 0, copy = 0;  // places in the thread's memory
    };
    int64_t samples = 1;
    std::optional<Primitive> convolution{};
    std::array<Side, 3> sides{};
    size_t scratch = 0, total = 0;  // the place of the library's own memory, and the bytes of all
  };

  int64_t task_samples() const { return part_ > 0 ? part_ : samples_; }

  // Chooses blocks and samples of a task so that tasks are enough and little is laid out more than once: a weight by
  // each lot of samples, and by each block what a task needs all channels of.
  void cut(const kernels::ConvShape& shape, int64_t micro_batch) {
    const bool grouped = shape.groups > 1, in = kind_ == ConvKind::images;
    const int64_t flops = 2 * micro_batch * shape.places() * weight_size_;
    const int64_t wanted = std::clamp<int64_t>(flops / kTaskFlops, 1, kTasks);
    const int64_t channels = grouped ? shape.groups : in ? shape.in : shape.out;
    const int64_t uncut = grouped ? 0 : in ? shape.out * shape.places() : shape.in * shape.pixels();
    int64_t most = 0, least = 0;
    for (int64_t blocks = 1; blocks == 1 || channels % (blocks * kBlockStep) == 0; blocks *= 2) {
      const int64_t lots = part_ > 0 ? parts_ : std::min(micro_batch, ceil_divide(wanted, blocks));
      const int64_t tasks = std::min(lots * blocks, wanted);
      const int64_t laid = lots * weight_size_ + blocks * micro_batch * uncut;
      if (tasks < most || (tasks == most && laid >= least)) continue;
      most = tasks, least = laid;
      blocks_ = blocks, samples_ = ceil_divide(micro_batch, lots);
    }
  }

  // An implementation of the library, and the layouts that it wants.
  struct Described {
    dnnl::primitive primitive{};
    std::array<memory::desc, 3> laid{};  // of `tensors_`
    memory::desc scratch{};
    int rank = -1;  // 0: loops, 1: a product of columns, 2: better; -1: there is none
  };

  // The first of the best implementations: in the layouts that the library likes best, with channels last (in which its
  // gradients of weights are the faster ones), in the arena's.
  Described describe_lot(int64_t samples) const {
    using Tag = memory::format_tag;
    const bool weight = kind_ == ConvKind::weight;
    Described found = describe_lot(samples, weight ? Tag::nhwc : Tag::any);
    for (const Tag tag : {weight ? Tag::any : Tag::nhwc, Tag::nchw}) {
      if (found.rank == 2) break;
      if (Described other = describe_lot(samples, tag); other.rank > found.rank) found = std::move(other);
    }
    return found;
  }

  Described describe_lot(int64_t samples, memory::format_tag tag) const try {
    std::array<memory::desc, 3> free;
    for (size_t i = 0; i < free.size(); ++i) {
      memory::dims dims = tensors_[i].dims;
      if (tensors_[i].samples) dims[0] = samples;
      const bool sum = kind_ == ConvKind::weight && i == 2;  // f32, whatever its terms are
      free[i] = {dims, sum ? memory::data_type::f32 : library_type(computed_),
                 tensors_[i].samples ? tag : memory::format_tag::any};
    }
    // In the order of the library: images, weight, places.
    constexpr auto way = dnnl::algorithm::convolution_direct;
    const auto what = [&](size_t images, size_t weight, size_t places, const auto&... before) {
      return std::tuple(before..., way, free[images], free[weight], free[places], strides_, dilation_,
                        before_, after_);
    };
    const dnnl::primitive_attr attributes = shared_attributes();
    const auto forward = [&](size_t images, size_t weight, size_t places) {
      return describe<dnnl::convolution_forward>(
          attributes, what(images, weight, places, dnnl::prop_kind::forward_training));
    };
    const auto made = []<class P>(const P& description, std::array<memory::desc, 3> laid,
                                  dnnl::primitive primitive) {
      const std::string_view name = description.impl_info_str();
      const int rank = name.starts_with("ref") ? 0 : name.find("gemm") != std::string_view::npos ? 1 : 2;
      return Described{std::move(primitive), std::move(laid), description.scratchpad_desc(), rank};
    };
    switch (kind_) {
      case ConvKind::forward: {
        const auto d = forward(0, 1, 2);
        return made(d, {d.src_desc(), d.weights_desc(), d.dst_desc()}, dnnl::convolution_forward(d));
      }
      case ConvKind::images: {
        using Gradient = dnnl::convolution_backward_data;
        const auto d = describe<Gradient>(attributes, what(2, 1, 0), forward(2, 1, 0));
        return made(d, {d.diff_dst_desc(), d.weights_desc(), d.diff_src_desc()}, Gradient(d));
      }
      default: {
        using Gradient = dnnl::convolution_backward_weights;
        const auto d = describe<Gradient>(attributes, what(1, 2, 0), forward(1, 2, 0));
        return made(d, {d.diff_dst_desc(), d.src_desc(), d.diff_weights_desc()}, Gradient(d));
      }
    }
  } catch (const dnnl::error&) {
    return {};
  }

  Lot make_lot(int64_t samples, const Described& made, int threads) const {
    Lot lot{.samples = samples};
    size_t end = 0, work = made.scratch.get_size();
    const auto place = [&](size_t bytes) { return std::exchange(end, end + aligned(bytes)); };
    std::vector<Primitive::Argument> arguments;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i];
      Lot::Side& side = lot.sides[i];
      const memory::desc& laid = made.laid[i];
      arguments.push_back({tensor.role, laid});
      const memory::desc plain = tensor.plain(samples);
      if (tensor.copied)
        side.copy = place(static_cast<size_t>(tensor.many(samples) * tensor.pitch) * sizeof(float));
      if (plain == laid) continue;
      side.laid = place(laid.get_size());
      side.reorder = i == 2 ? reorder(laid, plain, threads, work) : reorder(plain, laid, threads, work);
    }
    lot.scratch = place(work);
    lot.total = end;
    arguments.push_back({DNNL_ARG_SCRATCHPAD, made.scratch});
    lot.convolution.emplace(made.primitive, arguments, threads);
    return lot;
  }

  // Copies a tensor from one layout to another. `work` becomes what the library works in, if that is more.
  static Primitive reorder(const memory::desc& from, const memory::desc& to, int threads, size_t& work) {
    const dnnl::reorder::primitive_desc description(cpu(), from, cpu(), to, shared_attributes());
    const memory::desc scratch = description.scratchpad_desc();
    work = std::max(work, scratch.get_size());
    return {dnnl::reorder(description),
            {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, scratch}},
            threads};
  }

  // `at`: the arena's tensors, from the task's block on; `begin`: the first sample. `laid`: the thread's memory has the
  // weight as this lot wants it. `more`: the result is added to.
  bool run(const Lot& lot, const std::array<char*, 3>& at, int64_t begin, int thread, bool laid,
           bool more) const {
    char *own = scratch(lot.total), *work = own + lot.scratch;
    std::array<char*, 3> used{};
    for (size_t i = 0; i < 2; ++i) {
      const Tensor& tensor = tensors_[i];
      const Lot::Side& side = lot.sides[i];
      const bool ready = laid && !tensor.samples;
      char* plain = at[i] + (tensor.samples ? tensor.bytes(begin * tensor.step) : 0);
      if (tensor.copied) {
        auto* copy = reinterpret_cast<float*>(own + side.copy);
        for (int64_t row = 0; !ready && row < tensor.many(lot.samples); ++row)
          widen_row(tensor, plain + tensor.bytes(row * tensor.step), copy + row * tensor.pitch);
        plain = own + side.copy;
      }
      used[i] = side.reorder ? own + side.laid : plain;
      if (side.reorder && !ready && !side.reorder->run(thread, {plain, used[i], work})) return false;
    }
    const Tensor& result = tensors_.back();
    const Lot::Side& side = lot.sides.back();
    char* to = at.back() + (result.samples ? result.bytes(begin * result.step) : 0);
    char* plain = result.copied ? own + side.copy : to;
    char* computed = side.reorder ? own + side.laid : plain;
    if (!lot.convolution->run(thread, {used[0], used[1], computed, work})) return false;
    if (side.reorder && !side.reorder->run(thread, {computed, plain, work})) return false;
    const auto* copy = reinterpret_cast<const float*>(plain);
    for (int64_t row = 0; result.copied && row < result.many(lot.samples); ++row)
      narrow_row(result, copy + row * result.pitch, to + result.bytes(row * result.step), more);
    return true;
  }

  static void widen_row(const Tensor& tensor, const char* from, float* to) {
    if (tensor.type == DType::f32)
      std::memcpy(to, from, static_cast<size_t>(tensor.bytes(tensor.columns)));
    else
      widen(half_type(tensor.type), from, to, tensor.columns);
  }
  static void narrow_row(const Tensor& tensor, const float* from, char* to, bool more) {
    auto* sums = reinterpret_cast<float*>(to);
    if (tensor.type != DType::f32)
      narrow(half_type(tensor.type), from, reinterpret_cast<uint16_t*>(to), tensor.columns);
    else if (more)
      for (int64_t i = 0; i < tensor.columns; ++i) sums[i] += from[i];
    else
      std::copy_n(from, tensor.columns, sums);
  }

  ConvKind kind_;
  std::array<Tensor, 3> tensors_;  // the operands, the result
  DType computed_ = DType::f32;    // what the library multiplies
  memory::dims strides_{}, dilation_{}, before_{}, after_{};
  int64_t blocks_ = 1, samples_ = 1;  // of channels or groups; samples of a task
  int64_t parts_ = 1, part_ = 0;      // of the weight's gradient: parts, samples of a part
  int64_t weight_size_ = 0;
  std::vector<Lot> lots_;  // for as many samples as are laid out at once, and for one
};

// Windows of one element that skip nothing: the image is the matrix, and nothing is laid out.
class PointConvolution final : public LibraryCall {
 public:
  static bool is(const kernels::ConvShape& shape) {
    const kernels::WindowShape& w = shape.window;
    return shape.groups == 1 && shape.taps() == 1 && std::ranges::equal(w.from, w.to) && w.before[0] == 0 &&
           w.before[1] == 0;
  }

  PointConvolution(const ir::OpView& op, const kernels::ConvShape& shape, int threads)
      : kind_(kernels::conv_kind(*op.op.info)), shape_(shape), type_(op.operand(0).dtype) {
    const int64_t in = shape.in, out = shape.out, pixels = shape.pixels();
    switch (kind_) {
      case ConvKind::forward:
        first_ = {.m = out, .n = pixels, .k = in};
        break;
      case ConvKind::images:
        first_ = {.m = in, .n = pixels, .k = out, .transpose_a = true};
        break;
      case ConvKind::weight:
        first_ = {.m = out, .n = in, .k = pixels, .transpose_b = true};
        break;
    }
    first_.type = type_;
    first_.result = kind_ == ConvKind::weight ? DType::f32 : type_;
    first_.cut();
    further_ = first_;
    further_.accumulate = true;
    first_.prepare(threads);
    if (kind_ == ConvKind::weight) further_.prepare(threads), parts_ = op.integer("parts");
  }

  int64_t tasks(int64_t batch) const override {
    return first_.tasks() * (kind_ == ConvKind::weight ? parts_ : batch);
  }

  bool run(char* const* operands, int64_t batch, int64_t task, int thread) const override {
    const ProductThread on{
        thread, first_.needs_scratch() ? reinterpret_cast<float*>(scratch(Gemm::kScratchBytes)) : nullptr};
    const int64_t tile = task % first_.tasks(), index = task / first_.tasks();
    const int64_t images = ir::dtype_bytes(type_, shape_.in * shape_.pixels());
    const int64_t places = ir::dtype_bytes(type_, shape_.out * shape_.pixels());
    const auto [a, b, c] = std::tuple(operands[0], operands[1], operands[2]);
    if (kind_ == ConvKind::forward) return first_.run(b, a + index * images, c + index * places, tile, on);
    if (kind_ == ConvKind::images) return first_.run(b, a + index * places, c + index * images, tile, on);
    const int64_t begin = index * shape_.part, end = std::min(begin + shape_.part, batch);
    auto* part = reinterpret_cast<float*>(c) + index * shape_.out * shape_.in;
    if (begin >= end && tile == 0) std::fill_n(part, shape_.out * shape_.in, 0.0f);
    for (int64_t sample = begin; sample < end; ++sample)
      if (!(sample > begin ? further_ : first_).run(a + sample * places, b + sample * images, part, tile, on))
        return false;
    return true;
  }

 private:
  ConvKind kind_;
  kernels::ConvShape shape_;
  DType type_;
  Gemm first_, further_;  // further: of the weight's gradient, the part's samples behind the first
  int64_t parts_ = 1;
};

}  // namespace

std::unique_ptr<LibraryCall> make_library_call(const ir::OpView& op, int threads) {
  const ir::OpInfo& info = *op.op.info;
  if (&info != &ir::op_conv2d && info.gradient_of != &ir::op_conv2d) return nullptr;
  const kernels::ConvShape shape = kernels::conv_shape(op);
  if (PointConvolution::is(shape)) return std::make_unique<PointConvolution>(op, shape, threads);
  return std::make_unique<Convolution>(op, shape, threads);
}

}  // namespace gacc::host
