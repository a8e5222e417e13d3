// The region `close`. With V lanes a step adds to the sum of the open lane, @S. The sums of closed lanes wait in
// @S.node0, @S.node1, ... from left to right: the nodes of the binary tree over the lanes whose other half is
// not there yet. `close` runs between two launches; the runtime says by flags what it does (runtime/ranks/lanes.h):
//
//   1. x = @S, then from the last node to the first, where @lane.join.D is set: x = @S.nodeD + x
//   2. where @lane.keep.D is set: @S.nodeD = x
//   3. @S = x where @lane.rest is set, else 0: the next lane begins
//
// The change of a running statistic is no plain sum: a launch leaves the part 1 - momentum of what those before it
// have moved, so a node is multiplied by @S.keptD first, what all launches to the right of it leave.
//
// So every address is fixed, and a sum is read and written once however many nodes it meets.
#include "passes/accumulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "ir/builder.h"

namespace gacc::passes {

using namespace ir;

int64_t most_nodes(int64_t lanes, int64_t ranks) {
  size_t most = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::pair<int64_t, int64_t>> held;  // first lane and number of lanes, of each node
    for (int64_t lane = (rank * lanes + ranks - 1) / ranks; lane * ranks / lanes == rank && lane < lanes;
         ++lane) {
      held.emplace_back(lane, 1);
      most = std::max(most, held.size());
      while (held.size() > 1 && held.end()[-2].second == held.back().second &&
             held.end()[-2].first % (2 * held.back().second) == 0) {
        held.pop_back();
        held.back().second *= 2;
      }
    }
  }
  return static_cast<int64_t>(most);
}

int64_t most_nodes_from(int64_t lanes, int64_t ranks) {
  int64_t most = 1;
  for (; ranks < lanes; ++ranks) {
    const auto length = static_cast<uint64_t>(ceil_divide(lanes, ranks));  // of the longest row of lanes
    // Nodes that wait grow from the left, then shrink, each by a factor of two; beside them one is open.
    if (most >= 2 * static_cast<int64_t>(std::bit_width(length)) + 1) break;
    most = std::max(most, most_nodes(lanes, ranks));
  }
  return most;
}

void build_close(Module& module, Diag& diag) {
  const int64_t lanes = *module.settings.train.lanes;
  const int64_t ranks = *module.settings.train.ranks;
  const bool exactly = sharing_ranks(module.settings) > 0;
  const int64_t waiting = (exactly ? most_nodes(lanes, ranks) : most_nodes_from(lanes, ranks)) - 1;
  if (waiting == 0) return;  // every rank has one lane
  std::vector<BufferId> sums;
  for (const BufferId id : module.buffer_ids())
    if (module[id].kind == BufferKind::accum && role_info(module[id].role).combines()) sums.push_back(id);
  const auto flag = [&](const std::string& name) {
    return module.add_buffer({.name = "lane." + name, .role = BufferRole::lane, .type = {DType::i32, {}}});
  };
  std::vector<BufferId> join, keep;
  for (int64_t d = 0; d < waiting; ++d) {
    join.push_back(flag(fmt::format("join.{}", d)));
    keep.push_back(flag(fmt::format("keep.{}", d)));
  }
  const BufferId rest = flag("rest");
  Builder build(module, module.close, diag);
  for (const BufferId sum : sums) {
    const std::string name = module[sum].name;
    std::vector<BufferId> nodes;
    for (int64_t d = 0; d < waiting; ++d)
      nodes.push_back(module.belonging(sum, BufferRole::node, fmt::format(".node{}", d), module[sum].type));
    const bool moves = module[sum].role == BufferRole::change;
    Operand x = sum;
    for (size_t d = nodes.size(); d-- > 0;) {
      Operand node = nodes[d];
      if (moves) {
        const BufferId kept = module.add_buffer(
            {.name = fmt::format("{}.kept{}", name, d), .role = BufferRole::lane, .type = {DType::f32, {}}});
        node = build.make("mul", fmt::format("{}.rest{}", name, d), {node, kept});
      }
      const ValueId both = build.make("add", fmt::format("{}.both{}", name, d), {node, x});
      x = build.make("select", fmt::format("{}.join{}", name, d), {join[d], both, x});
    }
    for (size_t d = 0; d < nodes.size(); ++d) {
      build.when = keep[d];
      build.effect("store", {nodes[d], x});
      build.when.reset();
    }
    build.effect("store", {sum, build.make("select", name + ".open", {rest, x, 0.0})});
  }
}

}  // namespace gacc::passes
