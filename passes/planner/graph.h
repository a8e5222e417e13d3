// A program as the recompute planner knows it: operations in program order, their costs, the tensors they
// read and write. It knows nothing of ops or values; the pass translates to it, gacc-plan reads it from a
// file.
#pragma once
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gacc::passes::planner {

struct Operation {
  double cost = 0;
  bool backward = false;
  std::string name{};
  std::vector<int> inputs{}, outputs{};  // tensors, each once
  // A file does not say these; the pass does.
  bool once = false;  // never runs again: its outputs live until nothing reads them
  double again = -1;  // the cost of running it again, where it is not the cost of the first time
  // (input, output) of one size: the output may take the bytes of the input, if that dies here.
  std::vector<std::pair<int, int>> in_place{};

  double again_cost() const { return again < 0 ? cost : again; }
};

struct Tensor {
  int64_t id = 0;           // in the file
  int producer = -1;        // operation, or -1: always there, costs no bytes
  int storage = -1;         // the tensor that owns the bytes: itself or, for an alias, another
  int64_t bytes = 0;        // of an owner; 0 for an alias
  bool wanted = false;      // must live at the end
  std::vector<int> uses{};  // operations that read it, ascending
};

// The last operation stands for the end: it costs nothing and reads the tensors that are wanted.
struct Graph {
  std::vector<Operation> operations;
  std::vector<Tensor> tensors;

  int end() const { return static_cast<int>(operations.size()) - 1; }
  const Operation& operation(int o) const { return operations[o]; }
  const Tensor& tensor(int x) const { return tensors[x]; }
  double base_cost() const;
  // Bytes of the inputs and outputs of an operation, those that can be shared in place once: nothing runs it
  // in less.
  int64_t own_bytes(int o) const;
  // The same with the tensors that must live across it since nothing makes them again; by operation.
  std::vector<int64_t> least_bytes() const;
  // Tells whether the tensor's maker never runs again.
  bool once(int x) const { return tensor(x).producer >= 0 && operation(tensor(x).producer).once; }
};

// The most bytes that the sizes in a file may add up to: sums of them stay far below 2^63.
inline constexpr int64_t kMostBytes = int64_t{1} << 60;

// Returns true if all of the text is one number.
template <class Number>
bool to_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

// `OP cost backward name n_in in... n_out {out bytes alias}...` and `GET id 1`, one per line.
// False with `problem` = "LINE: what is wrong".
[[nodiscard]] bool parse_graph(std::string_view text, Graph& graph, std::string& problem);

// One executed operation and the tensors freed after it.
struct Step {
  int operation = 0;
  std::vector<int> drops{};
};
std::string print_schedule(const Graph& graph, const std::vector<Step>& steps);

// The chain of blocks in a program: where one tensor alone crosses from one part of the forward pass to the next.
// A separator is the one tensor of the forward pass that is read across a point of it: the output of a block.
struct Chain {
  // The first operation of the backward pass, to which the last one of the forward pass (a loss) counts.
  int backward_begin = 0;
  // Separators in order, each with the first operation behind which it crosses alone.
  std::vector<int> tensors{}, points{};
};
Chain find_chain(const Graph& graph);

}  // namespace gacc::passes::planner
