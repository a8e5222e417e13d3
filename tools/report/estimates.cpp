// Estimated times on a GPU: the launches of a step (docs/gpu.md), and the sums of ranks (docs/ranks.md).
#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "compiler/plan/show.h"
#include "ir/host_state.h"
#include "ir/row_pitch.h"
#include "ir/text/size_text.h"
#include "runtime/ranks/lanes.h"
#include "tools/report/report.h"

namespace gacc::report {

namespace {

using kernels::LaunchCost;
using kernels::RegionCost;

constexpr int64_t kNumber = 4;  // bytes; what ranks send are f32 sums and i32 counts

// Returns the text with … in its middle where it has more than `most` characters.
std::string shortened(std::string_view text, size_t most) {
  std::vector<size_t> starts;  // of characters
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) starts.push_back(i);
  if (starts.size() <= most) return std::string(text);
  const size_t head = most / 2, tail = most - head - 1;
  return fmt::format("{}…{}", text.substr(0, starts[head]), text.substr(starts[starts.size() - tail]));
}

// Launches of one name that ask for the same.
struct Row {
  const LaunchCost* one = nullptr;
  int64_t count = 0;
  double seconds = 0, floor = 0;
};

std::vector<Row> rows_of(const RegionCost& cost) {
  std::vector<Row> rows;
  for (const LaunchCost& launch : cost.launches) {
    auto row = std::ranges::find_if(rows, [&](const Row& known) {
      const LaunchCost& other = *known.one;
      return other.name == launch.name && other.blocks == launch.blocks && other.bytes == launch.bytes &&
             other.seconds == launch.seconds;
    });
    if (row == rows.end()) row = rows.insert(row, {&launch});
    ++row->count;
    row->seconds += launch.seconds;
    row->floor += launch.floor;
  }
  std::ranges::stable_sort(rows, std::greater{}, &Row::seconds);
  return rows;
}

double total(const std::vector<Row>& rows) {
  double all = 0;
  for (const Row& one : rows) all += one.seconds;
  return all;
}

double share(double seconds, const std::vector<Row>& rows) {
  const double all = total(rows);
  return all > 0 ? seconds / all : 0;
}

// Says why rows add up to more than the step takes; "" where they do not.
std::string overlap_text(const RegionCost& cost, const std::vector<Row>& rows) {
  const double all = total(rows);
  if (1e6 * (all - cost.seconds) < 0.05) return "";
  return fmt::format("{:.1f} us: {}", 1e6 * all,
                     cost.two_streams ? "launches of two streams run side by side and share the machine"
                                      : "launches of one level run side by side, the longest counts");
}

std::string bound(const Row& row) {
  return row.seconds > 0 ? std::string(kernels::bound_text(row.one->bound)) : "in its product";
}

std::string how(const RegionCost& cost) {
  return cost.persistent    ? "one kernel with products of its own"
         : cost.two_streams ? "a graph of two streams, products by cuBLASLt"
                            : "a graph, products by cuBLASLt";
}

std::string sum_text(const RegionCost& cost) {
  return fmt::format("{:.1f} us estimated, floor {:.1f} us, ratio {:.2f}", 1e6 * cost.seconds,
                     1e6 * cost.floor, cost.floor > 0 ? cost.seconds / cost.floor : 0);
}

// The nodes of the lanes' tree that a rank has at a window's end.
int64_t nodes_of(LaneRange mine, int64_t lanes) {
  int64_t nodes = 0;
  for (int64_t lane = mine.low; lane < mine.high; ++nodes) lane = node_in(mine, lane, lanes).high;
  return nodes;
}

}  // namespace

KernelCosts kernel_costs(const ir::Module& module, std::optional<double> link) {
  KernelCosts costs{&kernels::machine(module.target), {}, {}, {}};
  std::string problem;
  const auto program =
      kernels::make_program(module, kernels::Purpose::device, problem, kernels::GpuTarget(module.target));
  if (!program) return costs;  // select has made it, so there is one
  using enum ir::RegionKind;
  for (const auto& [kind, cost] : {std::pair(step, &costs.step), std::pair(update, &costs.update),
                                   std::pair(ir::RegionKind::close, &costs.close)}) {
    const ir::Region& region = module.region(kind);
    if (region.schedule)
      *cost =
          kernels::region_cost(module, region, *program, *costs.machine, link.value_or(kernels::kHostLink));
  }
  return costs;
}

std::string kernels_text(const KernelCosts& costs) {
  std::string text = fmt::format("kernels of a micro-batch, estimated for {} ({}) and not measured: {}\n",
                                 costs.machine->target, costs.machine->card, how(costs.step));
  text += fmt::format("  {:<38} {:>4} {:>8} {:>9} {:>10} {:>10} {:>10} {:>6}  {}\n", "kernel or product", "n",
                      "blocks", "MB each", "MFLOP each", "us each", "us", "share", "bounded by");
  const std::vector<Row> rows = rows_of(costs.step);
  for (const Row& row : rows) {
    const LaunchCost& one = *row.one;
    text += fmt::format("  {:<38} {:>4} {:>8} {:>9.3f} {:>10.1f} {:>10.2f} {:>10.1f} {:>5.1f}%  {}\n",
                        shortened(one.name, 38), row.count, one.blocks, one.bytes / 1e6,
                        static_cast<double>(one.flops) / 1e6, 1e6 * one.seconds, 1e6 * row.seconds,
                        100 * share(row.seconds, rows), bound(row));
  }
  if (const std::string why = overlap_text(costs.step, rows); !why.empty())
    text += fmt::format("  {:<18}{}\n", "sum of the rows", why);
  text += fmt::format("  {:<18}{}\n", "micro-batch", sum_text(costs.step));
  text += fmt::format("  {:<18}{}; {}\n", "update", sum_text(costs.update),
                      costs.update.persistent ? "one kernel" : "a graph");
  return text;
}

void add_kernels(nlohmann::ordered_json& plan, const KernelCosts& costs) {
  auto& list = plan["kernels"] = nlohmann::ordered_json::array();
  const auto add = [&](std::string_view program, const RegionCost& cost) {
    for (const LaunchCost& launch : cost.launches)
      list.push_back({{"program", program},
                      {"name", launch.name},
                      {"stream", launch.stream},
                      {"blocks", launch.blocks},
                      {"threads", launch.threads},
                      {"bytes", static_cast<int64_t>(launch.bytes)},
                      {"flops", launch.flops},
                      {"seconds", launch.seconds},
                      {"builtin_seconds", launch.own},
                      {"floor_seconds", launch.floor},
                      {"bound", kernels::bound_text(launch.bound)}});
  };
  add("step", costs.step);
  add("update", costs.update);
  plan["step_seconds"] = costs.step.seconds;
  plan["step_floor_seconds"] = costs.step.floor;
  plan["estimate"] = {{"target", costs.machine->target},
                      {"card", costs.machine->card},
                      {"launched_as", how(costs.step)},
                      {"overlap", overlap_text(costs.step, rows_of(costs.step))}};
}

int64_t HostCosts::accumulate() const {
  constexpr double kShare = 0.05;
  return step > 0 ? static_cast<int64_t>(std::ceil(seconds / step / kShare)) : 1;
}

HostCosts host_costs(const ir::Module& module, std::optional<double> link, const KernelCosts& kernels) {
  HostCosts costs{.bytes = module.host_bytes,
                  .fetch_uncovered = kernels.step.uncovered,
                  .step = kernels.step.seconds,
                  .uncovered = kernels.update.uncovered};
  if (link) costs.link = *link;
  for (const ir::Buffer& buffer : module.buffers) {
    using enum ir::BufferRole;
    const bool fetched = ir::is_fetched(buffer);
    if (buffer.host) ++(fetched ? costs.weights : costs.tensors);
    if (buffer.host && !fetched) costs.state_bytes += ir::aligned(ir::room_bytes(buffer));
    const bool state = buffer.role == moment || buffer.role == master ||
                       (buffer.role == weight && buffer.trainable &&
                        module.find_belonging(*module.find_buffer(buffer.name), half));
    if (state && !buffer.type.shape.empty()) costs.kept += ir::aligned(ir::room_bytes(buffer));
  }
  costs.kept = *module.settings.memory.host > 0 ? costs.kept - *module.results.host_possible : 0;
  if (module.step.schedule)
    for (const ir::CallSite* call : ir::calls(*module.step.schedule))
      if (const ir::CopyCall* copy = ir::as_copy(*call)) costs.fetched += copy->bytes, ++costs.fetches;
  costs.fetch_seconds = static_cast<double>(costs.fetched) / costs.link;
  if (!module.update.schedule) return costs;
  for (const ir::CallSite* call : ir::calls(*module.update.schedule)) {
    const ir::CopyCall* copy = ir::as_copy(*call);
    if (copy == nullptr || call->branch.stream != 1) continue;  // as much goes out as comes in
    costs.moved += copy->bytes;
    ++costs.copies;
  }
  costs.seconds = static_cast<double>(costs.moved) / costs.link;
  return costs;
}

std::string host_text(const HostCosts& costs) {
  if (costs.bytes + costs.kept == 0 && costs.curve.empty()) return "";
  std::string text = "host\n";
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<18}{}\n", name, value);
  };
  if (costs.kept > 0)
    line("in the arena", fmt::format("{} of state must stay there: more than the update's pieces use it",
                                     ir::short_size_text(costs.kept)));
  const auto points = [&] {
    std::string_view name = "least arena";
    for (const HostPoint& point : costs.curve)
      line(std::exchange(name, ""),
           fmt::format("{} with {} on the host{}", ir::short_size_text(point.arena),
                       ir::short_size_text(point.host), point.proven ? " (proven)" : ""));
  };
  if (costs.bytes == 0) {
    points();
    return text;
  }
  line("locked memory",
       fmt::format("{} ({} bytes)", ir::short_size_text(costs.bytes), count_text(costs.bytes)));
  if (costs.weights > 0) {
    line("weights",
         fmt::format("{} of {}; a micro-batch fetches {} in {}", ir::counted(costs.weights, "tensor"),
                     ir::short_size_text(costs.bytes - costs.state_bytes), ir::short_size_text(costs.fetched),
                     ir::counted(costs.fetches, "piece")));
    line(
        "time",
        fmt::format("{:.2f} ms a micro-batch at {:g} GB/s, of which kernels do not hide {:.2f} ms; estimated",
                    1e3 * costs.fetch_seconds, costs.link / 1e9, 1e3 * costs.fetch_uncovered));
  }
  if (costs.tensors > 0) {
    line("state", fmt::format("{} of {}", ir::counted(costs.tensors, "tensor"),
                              ir::short_size_text(costs.state_bytes)));
    line("copies", fmt::format("{} each way for an update, in {}", ir::short_size_text(costs.moved),
                               ir::counted(costs.copies, "piece")));
    line("time",
         fmt::format(
             "{:.2f} ms an update at {:g} GB/s each way, of which kernels do not hide {:.2f} ms; estimated",
             1e3 * costs.seconds, costs.link / 1e9, 1e3 * costs.uncovered));
    line("", fmt::format("less than 5 % of the launches' time from train.accumulate = {} on",
                         costs.accumulate()));
  }
  points();
  return text;
}

void add_host(nlohmann::ordered_json& plan, const HostCosts& costs) {
  if (costs.bytes == 0 && costs.curve.empty()) return;
  plan["host"] = {{"bytes", costs.bytes},
                  {"tensors", costs.tensors},
                  {"weights", costs.weights},
                  {"fetches", costs.fetches},
                  {"fetched_bytes", costs.fetched},
                  {"fetch_seconds", costs.fetch_seconds},
                  {"fetch_uncovered_seconds", costs.fetch_uncovered},
                  {"link_bytes", costs.moved},
                  {"copies", costs.copies},
                  {"link", costs.link},
                  {"link_seconds", costs.seconds},
                  {"uncovered_seconds", costs.uncovered},
                  {"accumulate", costs.accumulate()},
                  {"curve", nlohmann::ordered_json::array()}};
  for (const HostPoint& point : costs.curve)
    plan["host"]["curve"].push_back({{"host", point.host}, {"arena", point.arena}, {"proven", point.proven}});
}

RankCosts rank_costs(const ir::Module& module, std::optional<double> link, const KernelCosts& kernels) {
  RankCosts costs{.ranks = *module.settings.train.ranks,
                  .lanes = *module.settings.train.lanes,
                  .shared = ir::sharing_ranks(module.settings) > 1,
                  .link = link};
  // The numbers that ranks get whole, and a shard of the others; `made`: bytes of a shard of the update's results.
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
