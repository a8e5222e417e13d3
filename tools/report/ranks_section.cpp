#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "codegen/plan_writer.h"
#include "ir/size_text.h"
#include "runtime/lanes.h"
#include "tools/report/report.h"

namespace gacc::report {

namespace {

constexpr int64_t kNumber = 4;  // bytes; what is sent are f32 sums and i32 counts

// The nodes of the lanes' tree that a rank has at a window's end.
int64_t nodes_of(LaneRange mine, int64_t lanes) {
  int64_t nodes = 0;
  for (int64_t lane = mine.low; lane < mine.high; ++nodes) lane = node_in(mine, lane, lanes).high;
  return nodes;
}

}  // namespace

RankCosts rank_costs(const ir::Module& module, std::optional<double> link, const KernelCosts& kernels) {
  RankCosts costs{.ranks = *module.settings.train.ranks,
                  .lanes = *module.settings.train.lanes,
                  .shared = ir::sharing_ranks(module.settings) > 1,
                  .link = link};
  // Of sums that ranks get whole, and of a slice of the others; bytes of a slice of what the update makes.
  int64_t numbers = 0, slice = 0, made = 0;
  for (const ir::Buffer& buffer : module.buffers) {
    const int64_t own = ir::elements(buffer.type.shape, module.micro_batch());
    if (buffer.kind == ir::BufferKind::accum && role_info(buffer.role).combines()) numbers += own;
    if (buffer.role != ir::BufferRole::slice) continue;
    const ir::Buffer& whole = module[*buffer.of];
    if (whole.kind != ir::BufferKind::accum) {
      made += ir::type_bytes(buffer.type, 1);
      continue;
    }
    numbers -= ir::elements(whole.type.shape, 1);
    slice += own;
  }
  const LaneWindow window{costs.lanes, module.accumulate(), module.accumulate()};
  costs.launches = 0;
  for (int64_t rank = 0; rank < costs.ranks; ++rank) {
    const LaneRange mine = lanes_of_rank(rank, costs.lanes, costs.ranks);
    const int64_t launches = window.launches_of(mine);
    // Its nodes of the others' slices, then the sum of its own slice to each other rank.
    const int64_t own = numbers * (rank + 1) / costs.ranks - numbers * rank / costs.ranks;
    const int64_t others = costs.ranks - 1, nodes = nodes_of(mine, costs.lanes);
    const int64_t sent = kNumber * (nodes * (numbers - own + others * slice) + others * own) + others * made;
    const double closes = module.close.ops.empty() ? 0 : static_cast<double>(mine.high - mine.low);
    costs.launches = std::max(costs.launches, launches);
    costs.bytes = std::max(costs.bytes, sent);
    costs.rest = std::max(costs.rest, static_cast<double>(launches) * kernels.step.seconds +
                                          closes * kernels.close.seconds + kernels.update.seconds);
  }
  if (link) costs.seconds = static_cast<double>(costs.bytes) / *link;
  return costs;
}

std::string ranks_text(const RankCosts& costs, const KernelCosts& kernels) {
  std::string text = "ranks\n";
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<18}{}\n", name, value);
  };
  line("ranks", fmt::format("{} of at most {} (train.lanes), with up to {} of an update each", costs.ranks,
                            costs.lanes, ir::counted(costs.launches, "launch")));
  if (costs.shared)
    line("state",
         fmt::format("a slice of the optimizer's on each of exactly {} ranks (memory.shard)", costs.ranks));
  line("sums", fmt::format("{} sent by a rank for an update ({} bytes)", ir::short_size_text(costs.bytes),
                           count_text(costs.bytes)));
  if (!costs.link) {
    line("time", "unknown without --link, as in --link 25GB/s");
    return text;
  }
  line("time", fmt::format("{:.2f} ms at {:g} GB/s, estimated", 1e3 * costs.seconds, *costs.link / 1e9));
  line("share",
       fmt::format("{:.1f} % of an update of {:.2f} ms, estimated for {} ({})", 100 * costs.share(),
                   1e3 * (costs.seconds + costs.rest), kernels.machine->target, kernels.machine->card));
  return text;
}

void add_ranks(nlohmann::ordered_json& plan, const RankCosts& costs) {
  nlohmann::ordered_json seconds, share;  // null
  if (costs.link) {
    seconds = costs.seconds;
    share = costs.share();
  }
  plan["ranks"] = {{"ranks", costs.ranks},
                   {"lanes", costs.lanes},
                   {"reduce_bytes", costs.bytes},
                   {"reduce_seconds", std::move(seconds)},
                   {"share", std::move(share)}};
}

}  // namespace gacc::report
