// The cheapest backward pass of a chain of blocks within a memory, by dynamic programming.
//
// Block i makes y_i from y_i-1 ("passes"); its backward part reads y_i-1, may read y_i and what the block
// makes inside. The backward parts run in falling order, each once; before each, blocks pass again as needed.
// This is Revolve's problem (Griewank & Walther, ACM TOMS 26, 2000, Algorithm 799) where all blocks are
// equal, rotor's (Herrmann, Beaumont, Eyraud-Dubois, Joly & Shilova, INRIA RR-9302, 2019) where they are not;
// beyond rotor, y_i may stay from the backward part of block i+1 to that of block i, which reads it too.
//
// `Reversal` is exact among schedules that are *persistent* (a y_i or an inside that stays on one of the
// passes stays until the backward part that reads it) and *late* (blocks pass only for the backward part that
// is next). For chains of single operations of one size no other schedule is cheaper. Of others (y of several
// sizes; blocks of many operations, whose bytes alone are a model of what they take in the program) it makes
// good plans, no more.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gacc::passes::planner {

// One way in which a block deals with its insides. Bytes are counted without y_i-1.
struct Option {
  unsigned kept = 0;    // for the caller: which of them stay
  int64_t saved = 0;    // bytes of the insides that stay
  int64_t passing = 0;  // peak of the pass, y_i included
  int64_t reading = 0;  // peak of the backward part, with the gradients before and after it
  double extra = 0;     // cost of what the backward part makes again
};

struct Stage {
  int kind = 0;                  // stages of one kind are equal in all that follows
  double cost = 0;               // of a pass
  int64_t after = 0;             // bytes of y_i
  int64_t passing = 0;           // peak of a pass that keeps nothing inside
  int64_t gradients = 0;         // live before the backward part, and while blocks pass for it
  bool backward = true;          // there is a backward part
  bool reads_after = false;      // it reads y_i
  std::vector<Option> passed{};  // ways through both parts when all passes but the last leave nothing inside
  std::vector<Option> again[2]{};  // ways through the backward part alone, from y_i-1 [and from y_i]
};

// One choice of a schedule. Passes of a block count from 0, the first execution.
struct Decision {
  enum class Kind : uint8_t {
    store,   // y_i stays on this pass, until its readers in the backward part of block i+1 have run
    free,    // and goes then, though the backward part of block i reads it too
    keep,    // of the insides, what `passed[option]` says stays on this pass
    remake,  // the backward part makes the insides; what `again[held][option]` says stays for all its readers
  } kind = Kind::store;
  int stage = 0, pass = 0, option = 0;
  bool held = false;
};

class Reversal {
 public:
  // For budgets from `least` to `most`. The table counts memory in steps from `budget`, up and down: it is
  // exact for `budget` where the bytes of all that is stored are multiples of one step and it is not too
  // large with it. Where it is not, it rounds what is stored to the nearest step.
  // `stages`: the last one's backward part comes first, right after its first pass.
  Reversal(const std::vector<Stage>& stages, int64_t least, int64_t budget, int64_t most);

  bool solved() const { return !table_.empty(); }  // false: the chain is too long and has too many kinds
  // Cost beyond one pass of every block, in a budget that is no more than this; infinite where nothing fits.
  double extra(int64_t budget) const;
  std::vector<Decision> decisions(int64_t budget) const;

 private:
  enum class Choice : uint8_t { none, skip, free, remake, keep, split, keep_on };
  struct Cell {
    double cost;
    Choice choice = Choice::none;
    int index = 0;  // of the option, or where it splits, counted from s
  };
  size_t segment(size_t s, size_t t) const { return classes_[s * stages_.size() + t]; }
  const Cell* row(size_t s, size_t t, bool held) const { return &table_[row_begin(s, t, held)]; }
  size_t row_begin(size_t s, size_t t, bool held) const {
    return (rows_[segment(s, t)] + (held ? 1 : 0)) * (slots_ + 1);
  }
  size_t slots(int64_t bytes) const { return static_cast<size_t>((bytes + step_ / 2) / step_); }
  size_t slot_of(int64_t budget) const;
  int64_t room(int64_t need) const { return need > top_ ? -1 : (top_ - need) / step_; }
  bool last(size_t t) const { return t + 1 == stages_.size(); }
  void classify();
  void choose_step(int64_t least, int64_t budget, int64_t most);
  void fill(size_t s, size_t t, bool held);
  void walk(size_t s, size_t t, bool held, size_t slot, int pass, std::vector<Decision>& out) const;

  const std::vector<Stage>& stages_;
  std::vector<size_t> classes_;                      // [s][t]: segments of equal kinds are one
  std::vector<std::pair<size_t, size_t>> segments_;  // by class: the first such segment, shorter ones first
  std::vector<size_t> rows_;                         // by class: the first of its rows in the table
  std::vector<Cell> table_;  // [class][y_t is held, if it is read][slots taken by others]
  size_t slots_ = 0;
  int64_t step_ = 1, top_ = 0;
};

}  // namespace gacc::passes::planner
