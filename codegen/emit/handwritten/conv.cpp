// Convolutions for the GPU that are no matrix products (kernels/handwritten/conv_calls.cpp says which): those of groups
// with few channels, and gradients of small weights. A thread computes `tile` neighbouring channels of one pixel:
// what it reads of the images it uses for each of them, neighbouring threads read neighbouring pixels, and all
// threads of a warp read the same weights. Sums run over channels and windows in order, in f32.
//
// The gradient of the weight: a block computes `tile` neighbouring taps for one pair of channels, its threads
// share the samples and places of its part.
#include "codegen/emit/handwritten/emitters.h"

namespace gacc::codegen {

namespace {

class Convolving {
 public:
  explicit Convolving(Target& t) : t_(t), b_(t.b), s_(t.body.shape.as<ConvShape>()), w_(s_.window) {}

  void forward() {
    t_.items([&](Value* item) {
      const Place at = place(item, w_.to, s_.out);
      Value *top = shifted(at.y, 0), *left = shifted(at.x, 1);
      Value* x = times(b_.CreateAdd(times(at.sample, s_.groups), at.group), s_.in * s_.pixels());
      Value* weight = times(at.channel, s_.in * s_.taps());
      const Values sums = sweep(s_.in, s_.in * s_.taps(), [&](Value* c, Value* ky, Value* kx) {
        Value* value = element(0, b_.CreateAdd(x, times(c, s_.pixels())), top, left, ky, kx);
        return Term{value, b_.CreateAdd(weight, b_.CreateAdd(times(c, s_.taps()), tap_of(ky, kx)))};
      });
      store(at, w_.to, s_.out, sums);
    });
  }

  // The element (y, x) meets tap (ky, kx) in the place whose first element lies that tap before it, if the
  // stride has a place there.
  void images() {
    t_.items([&](Value* item) {
      const Place at = place(item, w_.from, s_.in);
      Value* py = b_.CreateAdd(at.y, word(w_.before[0]));
      Value* px = b_.CreateAdd(at.x, word(w_.before[1]));
      Value* dy = times(b_.CreateAdd(times(at.sample, s_.groups), at.group), s_.out * s_.places());
      const Values sums = sweep(s_.out, s_.taps(), [&](Value* o, Value* ky, Value* kx) {
        const Step y = back(py, ky, 0), x = back(px, kx, 1);
        Value* there = b_.CreateAnd(b_.CreateAnd(y.whole, x.whole), inside(y.place, x.place, w_.to));
        Value* value =
            t_.gather(0, b_.CreateAdd(dy, times(o, s_.places())), offset(y.place, x.place, w_.to), there);
        // weight[group * out + o, channel within the group, ky, kx]
        Value* row = b_.CreateAdd(times(at.group, s_.out), o);
        row = b_.CreateAdd(times(row, s_.in), at.within);
        return Term{value, b_.CreateAdd(times(row, s_.taps()), tap_of(ky, kx))};
      });
      store(at, w_.from, s_.in, sums);
    });
  }

  void weight() {
    t_.parts([&](Value* item) {
      const int64_t tiles = s_.taps() / s_.tile, outs = s_.groups * s_.out, places = s_.places();
      Value *tile = b_.CreateURem(item, t_.index(tiles)), *rest = b_.CreateUDiv(item, t_.index(tiles));
      Value *c = b_.CreateURem(rest, t_.index(s_.in)), *row = b_.CreateUDiv(rest, t_.index(s_.in));
      Value *o = b_.CreateURem(row, t_.index(outs)), *part = b_.CreateUDiv(row, t_.index(outs));
      Value* channel = b_.CreateAdd(times(b_.CreateUDiv(o, t_.index(s_.out)), s_.in), c);
      Value* begin = t_.smaller(times(part, s_.part), t_.extents[1]);
      Value* end = t_.smaller(b_.CreateAdd(times(part, s_.part), t_.index(s_.part)), t_.extents[1]);
      const std::vector<Reduction> sums(static_cast<size_t>(s_.tile), {ir::Combine::sum, b_.getFloatTy()});
      Value* first = times(tile, s_.tile);
      Value* count = times(b_.CreateSub(end, begin), places);
      const Values totals = t_.reduce(t_.index(0), t_.index(0), count, sums, [&](const Point& point) {
        Value* sample = b_.CreateAdd(begin, b_.CreateUDiv(point.column, t_.index(places)));
        Value* at = b_.CreateURem(point.column, t_.index(places));
        Value* dy = t_.load_one(0, b_.CreateAdd(times(b_.CreateAdd(times(sample, outs), o), places), at));
        Value* top = shifted(t_.word(b_.CreateUDiv(at, t_.index(w_.to[1]))), 0);
        Value* left = shifted(t_.word(b_.CreateURem(at, t_.index(w_.to[1]))), 1);
        Value* x = times(b_.CreateAdd(times(sample, s_.groups * s_.in), channel), s_.pixels());
        Values terms;
        for (int64_t j = 0; j < s_.tile; ++j) {
          Value* tap = t_.word(b_.CreateAdd(first, t_.index(j)));
          Value* ky = b_.CreateUDiv(tap, word(w_.kernel[1]));
          Value* kx = b_.CreateURem(tap, word(w_.kernel[1]));
          terms.push_back(b_.CreateFMul(dy, element(1, x, top, left, ky, kx)));
        }
        return terms;
      });
      t_.once([&] {
        Value* to = b_.CreateAdd(times(rest, s_.taps()), first);
        for (size_t j = 0; j < totals.size(); ++j)
          t_.store_one(2, b_.CreateAdd(to, t_.index(static_cast<int64_t>(j))), totals[j]);
      });
    });
  }

 private:
  // The results of a thread: channels channel, channel + 1, ... of one pixel of one sample.
  struct Place {
    Value *sample, *group, *within, *channel;  // within: channel, counted in its group
    Value *pixel, *y, *x;                      // y, x: i32
  };
  struct Step {
    Value *place, *whole;
  };

  static int64_t area(const int64_t (&size)[2]) { return size[0] * size[1]; }
  Value* word(int64_t value) { return t_.integer(value); }
  Value* times(Value* index, int64_t factor) { return b_.CreateMul(index, t_.index(factor)); }

  // Items count pixels first, then tiles of channels, then samples. `channels`: of a group.
  Place place(Value* item, const int64_t (&size)[2], int64_t channels) {
    const int64_t tiles = channels / s_.tile;
    Place at{};
    at.pixel = b_.CreateURem(item, t_.index(area(size)));
    Value* rest = b_.CreateUDiv(item, t_.index(area(size)));
    Value* tile = b_.CreateURem(rest, t_.index(tiles * s_.groups));
    at.sample = b_.CreateUDiv(rest, t_.index(tiles * s_.groups));
    at.group = b_.CreateUDiv(tile, t_.index(tiles));
    at.within = times(b_.CreateURem(tile, t_.index(tiles)), s_.tile);
    at.channel = b_.CreateAdd(times(at.group, channels), at.within);
    at.y = t_.word(b_.CreateUDiv(at.pixel, t_.index(size[1])));
    at.x = t_.word(b_.CreateURem(at.pixel, t_.index(size[1])));
    return at;
  }

  // The first element of the window at a place; may be negative.
  Value* shifted(Value* place, int axis) {
    return b_.CreateSub(b_.CreateMul(place, word(w_.stride[axis])), word(w_.before[axis]));
  }
  Step back(Value* element, Value* tap, int axis) {
    Value* from =
        b_.CreateSub(element, b_.CreateMul(tap, word(w_.dilation[axis])));  // wraps: then not inside
    Value* stride = word(w_.stride[axis]);
    Value* whole =
        b_.CreateAnd(b_.CreateICmpEQ(b_.CreateURem(from, stride), word(0)), b_.CreateICmpSGE(from, word(0)));
    return {b_.CreateUDiv(from, stride), whole};
  }
  // Returns the condition that y and x are inside; as unsigned numbers those before the first are large as well.
  Value* inside(Value* y, Value* x, const int64_t (&size)[2]) {
    return b_.CreateAnd(b_.CreateICmpULT(y, word(size[0])), b_.CreateICmpULT(x, word(size[1])));
  }
  Value* offset(Value* y, Value* x, const int64_t (&size)[2]) {
    return b_.CreateAdd(b_.CreateMul(y, word(size[1])), x);
  }
  Value* tap_of(Value* ky, Value* kx) {
    return b_.CreateZExtOrTrunc(offset(ky, kx, w_.kernel), t_.index_type);
  }
  // Returns the element of the image at `base` at tap (ky, kx) of the window that begins at (top, left); 0 outside.
  Value* element(int32_t slot, Value* base, Value* top, Value* left, Value* ky, Value* kx) {
    Value* y = b_.CreateAdd(top, b_.CreateMul(ky, word(w_.dilation[0])));
    Value* x = b_.CreateAdd(left, b_.CreateMul(kx, word(w_.dilation[1])));
    Value* there = inside(y, x, w_.from);
    return t_.gather(slot, base, offset(y, x, w_.from), there);
  }

  // The sums of f(channel, ky, kx) for all `channels` and taps, in order.
  struct Term {
    Value *value, *weight;  // weight: its place; that of the next sum is `apart` elements on
  };
  Values sweep(int64_t channels, int64_t apart, const std::function<Term(Value*, Value*, Value*)>& f) {
    const auto add = [&](const Term& term, Values sums) {
      for (size_t j = 0; j < sums.size(); ++j) {
        Value* place = b_.CreateAdd(term.weight, t_.index(static_cast<int64_t>(j) * apart));
        sums[j] = t_.math.fma(term.value, t_.load_one(1, place), sums[j]);
      }
      return sums;
    };
    const Values zeros(static_cast<size_t>(s_.tile), t_.real(0));
    return t_.loop(t_.index(0), t_.index(channels), t_.index(1), zeros, [&](Value* c, const Values& outer) {
      return t_.loop(word(0), word(w_.kernel[0]), word(1), outer, [&](Value* ky, const Values& middle) {
        return t_.loop(word(0), word(w_.kernel[1]), word(1), middle,
                       [&](Value* kx, const Values& inner) { return add(f(c, ky, kx), inner); });
      });
    });
  }

  void store(const Place& at, const int64_t (&size)[2], int64_t channels, const Values& sums) {
    Value* row = b_.CreateAdd(times(at.sample, s_.groups * channels), at.channel);
    Value* to = b_.CreateAdd(times(row, area(size)), at.pixel);
    for (size_t j = 0; j < sums.size(); ++j)
      t_.store_one(2, b_.CreateAdd(to, t_.index(static_cast<int64_t>(j) * area(size))), sums[j]);
  }

  Target& t_;
  llvm::IRBuilder<>& b_;
  ConvShape s_;
  const WindowShape& w_;
};

}  // namespace

void emit_conv(Target& t) { Convolving(t).forward(); }
void emit_conv_images(Target& t) { Convolving(t).images(); }
void emit_conv_weight(Target& t) { Convolving(t).weight(); }

}  // namespace gacc::codegen
