// Costs are microseconds of a machine of 60 Tflop/s and 1 TB/s with 3 us per launch; values are f16.
// Attention saves its probabilities (no flash kernel), which is what makes recompute choices interesting.
#include "tests/planner/gpt_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gacc::passes::planner {

namespace {

class Writer {
 public:
  // One operation with one output of `bytes`; returns its tensor.
  int op(const std::string& name, bool backward, double flops, const std::vector<int>& inputs, double bytes) {
    double moved = bytes;
    for (const int x : inputs) moved += bytes_[static_cast<size_t>(x)];
    line(name, backward, std::max(flops / 60e6, moved / 1e6) + 3, inputs);
    const int out = fresh(bytes);
    text_ += bytes > 0 ? fmt::format(" 1 {} {} -1\n", out, static_cast<int64_t>(bytes)) : " 0\n";
    return out;
  }
  int view(const std::string& name, int of) {
    line(name, false, 0, {of});
    const int out = fresh(bytes_[static_cast<size_t>(of)]);
    text_ += fmt::format(" 1 {} 0 {}\n", out, of);
    return out;
  }
  int source() { return fresh(0); }
  void get(int x) { gets_ += fmt::format("GET {} 1\n", x); }
  std::string text() const { return text_ + gets_; }

 private:
  void line(const std::string& name, bool backward, double cost, const std::vector<int>& inputs) {
    text_ += fmt::format("OP {} {} {} {}", cost, backward ? 1 : 0, name, inputs.size());
    for (const int x : inputs) text_ += fmt::format(" {}", x);
  }
  int fresh(double bytes) {
    bytes_.push_back(bytes);
    return static_cast<int>(bytes_.size()) - 1;
  }
  std::string text_, gets_;
  std::vector<double> bytes_;
};

}  // namespace

std::string gpt_graph(const GptShape& s) {
  Writer w;
  const double rows = s.batch * s.length, act = rows * s.width * 2;
  const double scores = s.batch * s.heads * s.length * s.length * 2;
  const double mm = 2 * rows * s.width * s.width, attend = 2 * rows * s.length * s.width;
  struct Block {
    int x, n1, qkv, q, p, o, a, n2, h, g;
  };
  std::vector<Block> blocks;
  const int ids = w.source();
  int x = w.op("embed", false, 0, {ids}, act);
  for (int i = 0; i < s.blocks; ++i) {
    Block b{};
    const auto name = [&](const char* part) { return fmt::format("b{}.{}", i, part); };
    b.x = x;
    b.n1 = w.op(name("ln1"), false, 0, {b.x}, act);
    b.qkv = w.op(name("qkv"), false, 3 * mm, {b.n1}, 3 * act);
    b.q = w.view(name("split"), b.qkv);
    const int raw = w.op(name("scores"), false, attend, {b.q}, scores);
    b.p = w.op(name("softmax"), false, 0, {raw}, scores);
    b.o = w.op(name("attend"), false, attend, {b.p, b.q}, act);
    const int proj = w.op(name("proj"), false, mm, {b.o}, act);
    b.a = w.op(name("add1"), false, 0, {b.x, proj}, act);
    b.n2 = w.op(name("ln2"), false, 0, {b.a}, act);
    b.h = w.op(name("fc1"), false, 4 * mm, {b.n2}, 4 * act);
    b.g = w.op(name("gelu"), false, 0, {b.h}, 4 * act);
    const int f = w.op(name("fc2"), false, 4 * mm, {b.g}, act);
    x = w.op(name("add2"), false, 0, {b.a, f}, act);
    blocks.push_back(b);
  }
  const int last = w.op("lnf", false, 0, {x}, act);
  const int pooled = w.op("head", false, 2 * rows * s.width * s.words, {last}, rows * 4);
  const int loss = w.op("loss", false, 0, {pooled}, 4);
  const int dhead = w.op("d.head", true, 4 * rows * s.width * s.words, {last, pooled}, act);
  int d = w.op("d.lnf", true, 0, {dhead, x}, act);
  for (int i = s.blocks - 1; i >= 0; --i) {
    const Block& b = blocks[static_cast<size_t>(i)];
    const auto name = [&](const char* part) { return fmt::format("d.b{}.{}", i, part); };
    w.op(name("fc2.w"), true, 4 * mm, {d, b.g}, 0);
    const int dg = w.op(name("fc2.x"), true, 4 * mm, {d}, 4 * act);
    const int dh = w.op(name("gelu"), true, 0, {dg, b.h}, 4 * act);
    w.op(name("fc1.w"), true, 4 * mm, {dh, b.n2}, 0);
    const int dn2 = w.op(name("fc1.x"), true, 4 * mm, {dh}, act);
    const int da2 = w.op(name("ln2"), true, 0, {dn2, b.a}, act);
    const int da = w.op(name("add1"), true, 0, {d, da2}, act);
    w.op(name("proj.w"), true, mm, {da, b.o}, 0);
    const int doo = w.op(name("proj.x"), true, mm, {da}, act);
    const int dp = w.op(name("attend.p"), true, attend, {doo, b.q}, scores);
    const int dv = w.op(name("attend.v"), true, attend, {doo, b.p}, act);
    const int ds = w.op(name("softmax"), true, 0, {dp, b.p}, scores);
    const int dqkv = w.op(name("scores"), true, 2 * attend, {ds, b.q, dv}, 3 * act);
    w.op(name("qkv.w"), true, 3 * mm, {dqkv, b.n1}, 0);
    const int dn1 = w.op(name("qkv.x"), true, 3 * mm, {dqkv}, act);
    d = w.op(name("ln1"), true, 0, {dn1, b.x, da}, act);
  }
  w.op("d.embed", true, 0, {d, ids}, 0);
  w.get(loss);
  return w.text();
}

}  // namespace gacc::passes::planner
