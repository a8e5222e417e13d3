// Pooling. A point is one place (forward) or one element of the images (gradient): everything is gathered,
// nothing scattered, so no two points store to one address and windows may overlap.
//
// Within a plane indices are 32 bits; what lies outside of the image has its lane masked.
//
// Windows that are tiles (WindowShape::tiles) need no gathers on the host: a row of the windows of
// neighbouring places is one run of the image, whose elements are dealt out to as many vectors as a window
// has columns. No element is in two windows, so there the gradient's points are places: each stores all
// elements of its window.
//
// Where windows overlap a work item of the host's gradient is a plane: its windows are taken one after the other, and
// each adds to its largest element.
#include <limits>

#include "codegen/emit/handwritten/emitters.h"

namespace gacc::codegen {

namespace {

constexpr int kUnrolled = 36;  // steps of a loop nest that are written out

class Pooling {
 public:
  explicit Pooling(Target& t) : t_(t), b_(t.b), s_(t.body.shape.as<PoolShape>()), w_(s_.window) {}

  void forward() {
    places([&](const Point& point) {
      return (by_window() ? largest_of(tile(point)) : largest(window_at(y_, x_))).value;
    });
  }

  void mean() {
    places([&](const Point&) {
      const Window window = window_at(y_, x_);
      Value* sum =
          each(w_.kernel[0], w_.kernel[1], {real(0)}, [&](Value* ky, Value* kx, const Values& carried) {
            return Values{b_.CreateFAdd(carried[0], element(window, ky, kx).value)};
          })[0];
      return b_.CreateFDiv(sum, elements());
    });
  }

  // The element (y, x) lies in the windows of places (y + before) / stride - j for j = 0, 1, ...; of each
  // (largest: of each whose largest element it is) it gets the gradient.
  void gradient(bool of_largest) {
    if (of_largest && by_window()) return tiles_gradient();
    if (of_largest && s_.walk == PoolShape::kByPlane) return planes_gradient();
    t_.points([&](Value* row) { begin_row(row, w_.from[0]); },
              [&](const Point& point) {
                begin_point(point);
                Value* py = b_.CreateAdd(y_, lane(w_.before[0]));
                Value* px = b_.CreateAdd(x_, lane(w_.before[1]));
                Value* last_y = b_.CreateUDiv(py, lane(w_.stride[0]));
                Value* last_x = b_.CreateUDiv(px, lane(w_.stride[1]));
                Value* sum =
                    each(overlap(0), overlap(1), {real(0)}, [&](Value* j, Value* i, const Values& carried) {
                      Value *oy = b_.CreateSub(last_y, j), *ox = b_.CreateSub(last_x, i);
                      Value* there = inside(oy, ox, w_.to);
                      Value* ky = b_.CreateSub(py, b_.CreateMul(oy, lane(w_.stride[0])));
                      Value* kx = b_.CreateSub(px, b_.CreateMul(ox, lane(w_.stride[1])));
                      there = both(both(there, inside(ky, kx, w_.kernel)), point.mask);
                      Value* mine = there;
                      if (of_largest) {
                        const Best best = largest(window_at(oy, ox), there);
                        mine = both(there, b_.CreateICmpEQ(best.step, number(ky, kx, w_.kernel)));
                      }
                      Value* dy = t_.gather(of_largest ? 1 : 0, plane(w_.to), number(oy, ox, w_.to), mine);
                      return Values{b_.CreateFAdd(carried[0], dy)};
                    })[0];
                Value* result = of_largest ? sum : b_.CreateFDiv(sum, elements());
                t_.store(of_largest ? 2 : 1, output(point, w_.from[1]), result, point);
              });
  }

 private:
  struct Window {
    Value *top, *left;  // of its first element; may be negative
  };
  struct Element {
    Value *value, *there;  // there: whether it lies in the image
  };
  struct Best {
    Value *value, *step;  // step: row * kernel width + column within the window
  };

  bool by_window() const { return s_.walk == PoolShape::kByWindow; }
  int64_t overlap(int axis) const { return ceil_divide(w_.kernel[axis], w_.stride[axis]); }
  Value* lane(int64_t value) { return t_.integer(value, lanes_); }
  Value* both(Value* a, Value* b) { return b == nullptr ? a : b_.CreateAnd(a, b); }

  // The result at each place.
  void places(const std::function<Value*(const Point&)>& result) {
    t_.points([&](Value* row) { begin_row(row, w_.to[0]); },
              [&](const Point& point) {
                begin_point(point);
                Value* value = result(point);
                t_.store(1, output(point, w_.to[1]), value, point);
              });
  }

  // Emits the gradient for tiles: the largest element of every window gets it, the others get 0, and so do the rows and
  // columns of the image that are in no window.
  void tiles_gradient() {
    const int64_t rows = w_.kernel[0], columns = w_.kernel[1];
    t_.points(
        [&](Value* row) {
          begin_row(row, w_.to[0]);
          for (int64_t ky = 0; ky < rows; ++ky) clear(image_row(ky), w_.to[1] * columns);
          const int64_t below = w_.from[0] - w_.to[0] * rows;  // rows in no window
          if (below == 0) return;
          Value* last = b_.CreateICmpEQ(row_y_, t_.integer(w_.to[0] - 1));
          t_.branch(last, [&] {
            for (int64_t y = 0; y < below; ++y) clear(image_row(rows + y), 0);
          });
        },
        [&](const Point& point) {
          begin_point(point);
          const Best best = largest_of(tile(point));
          // Added to 0, as every sum of gradients is.
          Value* dy = b_.CreateFAdd(real(0), t_.load(1, output(point, w_.to[1]), point));
          for (int64_t ky = 0; ky < rows; ++ky) {
            Values shares;
            for (int64_t kx = 0; kx < columns; ++kx) {
              Value* mine = b_.CreateICmpEQ(best.step, lane(ky * columns + kx));
              shares.push_back(b_.CreateSelect(mine, dy, real(0)));
            }
            t_.store_runs(2, first_of_run(point, ky), shares, point);
          }
        });
  }

  // Emits the gradient plane by plane, from zeros.
  void planes_gradient() {
    t_.rows([&](Value* row) {
      plane_ = row, mask_ = nullptr, lanes_ = 1;
      Value *images = plane(w_.from), *places = plane(w_.to);
      y_ = t_.word(row);  // gives the lanes their number
      t_.each(images, b_.CreateAdd(images, t_.index(w_.from[0] * w_.from[1])), t_.index(1),
              [&](Value* at) { t_.store_one(2, at, real(0)); });
      t_.each(t_.index(0), t_.index(w_.to[0] * w_.to[1]), t_.index(1), [&](Value* place) {
        Value *word = t_.word(place), *width = lane(w_.to[1]);
        const Window window = window_at(b_.CreateUDiv(word, width), b_.CreateURem(word, width));
        const Best best = largest_inside(window);
        t_.branch(b_.CreateICmpNE(best.step, lane(-1)), [&] {
          Value* ky = b_.CreateUDiv(best.step, lane(w_.kernel[1]));
          Value* kx = b_.CreateURem(best.step, lane(w_.kernel[1]));
          Value* in = number(b_.CreateAdd(window.top, ky), b_.CreateAdd(window.left, kx), w_.from);
          Value* at = b_.CreateAdd(images, b_.CreateZExt(in, t_.index_type));
          Value* dy = t_.load_one(1, b_.CreateAdd(places, place));
          t_.store_one(2, at, b_.CreateFAdd(t_.load_one(2, at), dy));
        });
      });
    });
  }

  // A row is (plane, y) of [planes, height].
  void begin_row(Value* row, int64_t height) {
    row_ = row;
    plane_ = b_.CreateUDiv(row, t_.index(height));
    row_y_ = t_.word(b_.CreateURem(row, t_.index(height)));
  }
  void begin_point(const Point& point) {
    lanes_ = point.lanes;
    y_ = t_.splat(row_y_, lanes_);
    x_ = t_.columns_of(point);
    mask_ = point.mask;
  }
  Value* output(const Point& point, int64_t width) {
    return b_.CreateAdd(b_.CreateMul(row_, t_.index(width)), point.column);
  }
  Value* plane(const int64_t (&size)[2]) { return b_.CreateMul(plane_, t_.index(size[0] * size[1])); }

  Window window_at(Value* y, Value* x) {
    return {b_.CreateSub(b_.CreateMul(y, lane(w_.stride[0])), lane(w_.before[0])),
            b_.CreateSub(b_.CreateMul(x, lane(w_.stride[1])), lane(w_.before[1]))};
  }

  // Returns the index in x of the first element of a tile's row `ky`; beyond the window's rows, of a row after it.
  Value* image_row(int64_t ky) {
    Value* y = b_.CreateAdd(b_.CreateMul(b_.CreateZExt(row_y_, t_.index_type), t_.index(w_.kernel[0])),
                            t_.index(ky));
    y = b_.CreateAdd(b_.CreateMul(plane_, t_.index(w_.from[0])), y);
    return b_.CreateMul(y, t_.index(w_.from[1]));
  }
  Value* first_of_run(const Point& point, int64_t ky) {
    return b_.CreateAdd(image_row(ky), b_.CreateMul(point.column, t_.index(w_.kernel[1])));
  }
  // The elements of the windows of a point's places, row by row.
  Values tile(const Point& point) {
    Values all;
    for (int64_t ky = 0; ky < w_.kernel[0]; ++ky) {
      const Values row = t_.load_runs(0, first_of_run(point, ky), static_cast<unsigned>(w_.kernel[1]), point);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  // Zeros in a row of the result from column `first` on.
  void clear(Value* row, int64_t first) {
    if (first == w_.from[1]) return;
    t_.each(t_.index(first), t_.index(w_.from[1]), t_.index(1),
            [&](Value* column) { t_.store_one(2, b_.CreateAdd(row, column), t_.math.real(column, 0)); });
  }

  Value* real(double value) { return t_.math.real(y_, value); }
  Value* elements() { return real(static_cast<double>(w_.kernel[0] * w_.kernel[1])); }
  // Returns the condition that y and x are inside; as unsigned numbers those before the first are large as well.
  Value* inside(Value* y, Value* x, const int64_t (&size)[2]) {
    return both(b_.CreateICmpULT(y, lane(size[0])), b_.CreateICmpULT(x, lane(size[1])));
  }
  // Counted row by row.
  Value* number(Value* y, Value* x, const int64_t (&size)[2]) {
    return b_.CreateAdd(b_.CreateMul(y, lane(size[1])), x);
  }
  Element element(const Window& window, Value* ky, Value* kx, Value* wanted = nullptr) {
    Value *y = b_.CreateAdd(window.top, ky), *x = b_.CreateAdd(window.left, kx);
    Value* there = inside(y, x, w_.from);
    Value* at = number(y, x, w_.from);
    there = both(both(there, mask_), wanted);
    return {t_.gather(0, plane(w_.from), at, there), there};
  }

  // carried = f(row, column, carried) for row and column (i32, in every lane) of a small rectangle, row by
  // row.
  Values each(int64_t rows, int64_t columns, Values carried,
              const std::function<Values(Value*, Value*, const Values&)>& f) {
    if (rows * columns <= kUnrolled) {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) carried = f(lane(r), lane(c), carried);
      return carried;
    }
    return t_.loop(t_.index(0), t_.index(rows), t_.index(1), carried, [&](Value* r, const Values& outer) {
      return t_.loop(t_.index(0), t_.index(columns), t_.index(1), outer, [&](Value* c, const Values& inner) {
        return f(t_.splat(t_.word(r), lanes_), t_.splat(t_.word(c), lanes_), inner);
      });
    });
  }

  Value* is_better(Value* value, Value* best) {
    return b_.CreateOr(b_.CreateFCmpOGT(value, best), b_.CreateFCmpUNO(value, value));
  }
  Best largest_of(const Values& window) {
    Best best{window.front(), lane(0)};
    for (size_t i = 1; i < window.size(); ++i) {
      Value* better = is_better(window[i], best.value);
      best = {b_.CreateSelect(better, window[i], best.value),
              b_.CreateSelect(better, lane(static_cast<int64_t>(i)), best.step)};
    }
    return best;
  }
  // The window's largest element: the first of equals, and a NaN over everything, as PyTorch has it.
  Best largest(const Window& window, Value* wanted = nullptr) {
    const Values none = {real(-std::numeric_limits<double>::infinity()), lane(-1)};
    const Values found =
        each(w_.kernel[0], w_.kernel[1], none, [&](Value* ky, Value* kx, const Values& best) {
          const auto [value, there] = element(window, ky, kx, wanted);
          Value* better = is_better(value, best[0]);
          better = b_.CreateOr(better, b_.CreateICmpEQ(best[1], lane(-1)));  // -inf alone is found as well
          better = b_.CreateAnd(better, there);
          Value* step = number(ky, kx, w_.kernel);
          return Values{b_.CreateSelect(better, value, best[0]), b_.CreateSelect(better, step, best[1])};
        });
    return {found[0], found[1]};
  }

  // The same in one lane: few windows reach over the image's edge, and the others need not ask.
  Best largest_inside(const Window& window) {
    const int64_t rows = w_.from[0] - w_.kernel[0], columns = w_.from[1] - w_.kernel[1];
    if (rows < 0 || columns < 0 || w_.kernel[0] * w_.kernel[1] > kUnrolled) return largest(window);
    Value* whole =
        both(b_.CreateICmpULE(window.top, lane(rows)), b_.CreateICmpULE(window.left, lane(columns)));
    const auto values = [](const Best& best) { return Values{best.value, best.step}; };
    const Values found = t_.either(
        whole,
        [&] {
          Values all;
          for (int64_t ky = 0; ky < w_.kernel[0]; ++ky)
            for (int64_t kx = 0; kx < w_.kernel[1]; ++kx) {
              Value* at =
                  number(b_.CreateAdd(window.top, lane(ky)), b_.CreateAdd(window.left, lane(kx)), w_.from);
              all.push_back(t_.gather(0, plane(w_.from), at, nullptr));
            }
          return values(largest_of(all));
        },
        [&] { return values(largest(window)); });
    return {found[0], found[1]};
  }

  Target& t_;
  llvm::IRBuilder<>& b_;
  PoolShape s_;
  const WindowShape& w_;
  Value *row_ = nullptr, *plane_ = nullptr, *row_y_ = nullptr;
  Value *y_ = nullptr, *x_ = nullptr, *mask_ = nullptr;
  unsigned lanes_ = 1;
};

}  // namespace

void emit_max_pool(Target& t) { Pooling(t).forward(); }
void emit_max_pool_gradient(Target& t) { Pooling(t).gradient(true); }
void emit_mean_pool(Target& t) { Pooling(t).mean(); }
void emit_mean_pool_gradient(Target& t) { Pooling(t).gradient(false); }

}  // namespace gacc::codegen
