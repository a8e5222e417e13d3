// The rules of the schedule.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "ir/host_state.h"
#include "ir/liveness.h"
#include "ir/product.h"
#include "ir/region_facts.h"
#include "ir/row_pitch.h"
#include "ir/schedule/launch_order.h"
#include "ir/verify/rules.h"

namespace gacc::ir {

namespace {

constexpr int64_t kMostThreads = 1024;  // of a block

class ScheduleRules : RegionRules {
 public:
  ScheduleRules(const Module& module, const Region& region, const Broken& broken)
      : RegionRules{module, region, broken},
        schedule_(*region.schedule),
        facts_(facts(module, region)),
        lines_(calls(schedule_)) {}

  void run() {
    if (!every_kernel_once()) return;
    for (size_t line = 0; line < lines_.size(); ++line) call(*lines_[line]);
    signatures();
    if (!broken.none()) return;
    Dependence dependence(module, region, facts_->kernels);
    for (const CallSite* line : lines_) done_in_product(*line, dependence);
    if (!broken.none()) return;
    order(dependence);
    workspaces();
    merged();
    streams();
  }

 private:
  const Op& op_of(const Kernel& kernel) const { return region.ops[kernel.members.front().op]; }
  const Kernel& kernel_of(const CallSite& call) const {
    return facts_->kernels[facts_->numbers[call.kernel]];
  }

  // R18
  bool every_kernel_once() {
    for (size_t line = 0; line < lines_.size(); ++line) {
      const CallSite& call = *lines_[line];
      const std::optional<size_t> known = facts_->numbers.find(call.kernel);
      if (!known) {
        broken("R18", call.at, "there is no kernel {} in {}", call.kernel, region_text(region.kind));
      } else if (!line_of_.emplace(*known, line).second) {
        broken("R18", call.at, "kernel {} stands in two calls", call.kernel);
      } else if (facts_->kernels[*known].form == KernelForm::alias ||
                 (facts_->kernels[*known].form == KernelForm::gemm) != (as_product(call) != nullptr) ||
                 (facts_->kernels[*known].form == KernelForm::copy) != (as_copy(call) != nullptr)) {
        broken("R18", call.at, "kernel {} is no {}", call.kernel,
               as_product(call) != nullptr ? "product"
               : as_copy(call) != nullptr  ? "copy"
                                           : "kernel to launch");
      }
    }
    for (size_t k = 0; k < facts_->kernels.size(); ++k) {
      if (facts_->kernels[k].form != KernelForm::alias && !line_of_.contains(k))
        broken("R18", region.at, "kernel {} of {} stands in no call", facts_->kernels[k].number,
               region_text(region.kind));
    }
    return broken.none();
  }

  // R19: what follows from the kernel
  void call(const CallSite& call) {
    if (const CopyCall* copy = as_copy(call)) {
      const Op& op = op_of(kernel_of(call));
      const bool fetch = !op.results.empty();
      if (*copy != CopyCall{fetch ? Operand(op.results[0]) : op.operands[0], op.operands[fetch ? 0 : 1],
                            type_bytes(operand_type(module, region, op.operands[0]), 1)})
        broken("R19", call.at, "the operands or bytes are not those of copy {}", call.kernel);
      return;
    }
    if (threads(call) < 1 || threads(call) > kMostThreads || shared_bytes(call) < 0 ||
        shared_bytes(call) > kBlockShared)
      broken("R19", call.at, "kernel {} has blocks of {} threads with {} bytes of shared memory", call.kernel,
             threads(call), shared_bytes(call));
    if (const ProductCall* product = as_product(call)) return product_call(call, *product);
    const KernelCall& kernel = *as_kernel(call);
    if (kernel.per_block < 1 || kernel.items.factor < 1)
      broken("R19", call.at, "kernel {} has a grid of nothing", call.kernel);
    if (kernel.operands != operands_of(kernel_of(call)))
      broken("R19", call.at, "the operands are not those of kernel {}", call.kernel);
  }
  std::vector<Operand> operands_of(const Kernel& kernel) const {
    std::vector<Operand> operands = kernel.reads;
    if (kernel.form == KernelForm::handwritten) {
      const Op& op = op_of(kernel);
      operands = op.operands;
      operands.insert(operands.end(), op.results.begin(), op.results.end());
      if (op.when) operands.push_back(*op.when);
      return operands;
    }
    for (const Operand& operand : kernel.writes)
      if (!contains(operands, operand)) operands.push_back(operand);
    return operands;
  }
  void product_call(const CallSite& call, const ProductCall& given) {
    if (given.tile_m < 1 || given.tile_n < 1 || given.slices < 1)
      return broken("R19", call.at, "the tile of product {} is empty", call.kernel);
    const ProductCall right = product_of(module, region, op_of(kernel_of(call)));
    if (std::tie(given.a, given.b, given.c) != std::tie(right.a, right.b, right.c) ||
        std::tie(given.m, given.n, given.k, given.pitch) != std::tie(right.m, right.n, right.k, right.pitch))
      broken("R19", call.at, "the operands or extents are not those of product {}", call.kernel);
  }
  void signatures() {
    std::map<std::string_view, const KernelCall*> first;
    for (const CallSite* line : lines_) {
      const KernelCall* kernel = as_kernel(*line);
      if (kernel == nullptr) continue;
      const KernelCall& other = *first.emplace(kernel->function, kernel).first->second;
      const bool same =
          kernel->operands.size() == other.operands.size() &&
          kernel->extents.size() == other.extents.size() &&
          std::equal(kernel->operands.begin(), kernel->operands.end(), other.operands.begin(),
                     [&](const Operand& a, const Operand& b) {
                       return operand_type(module, region, a).dtype == operand_type(module, region, b).dtype;
                     });
      if (!same)
        broken("R19", line->at, "the calls of `{}` have different operands or extents", kernel->function);
    }
  }

  // R21 and R22
  void done_in_product(const CallSite& call, Dependence& dependence) {
    const ProductCall* product = as_product(call);
    if (product == nullptr) return;
    if (product->bias) bias(call, *product);
    if (!product->then) return;
    const size_t from = facts_->numbers[call.kernel];
    const std::optional<size_t> place = facts_->numbers.find(product->then->kernel);
    if (!place || !line_of_.contains(*place))
      return broken("R21", call.at, "product {} does kernel {}, which is none", call.kernel,
                    product->then->kernel);
    const size_t k = *place;
    const CallSite& other = *lines_[line_of_.at(k)];
    const KernelCall* kernel = as_kernel(other);
    if (kernel == nullptr || facts_->kernels[k].form != KernelForm::pointwise || other.level ||
        !joined_.insert(k).second)
      return broken("R21", other.at, "kernel {} is not one that product {} alone does", other.kernel,
                    call.kernel);
    const Operand result = facts_->root(product->c);
    int64_t slots = 0;
    for (const Operand& operand : kernel->operands) slots += facts_->root(operand) == result ? 1 : 0;
    const auto slot = static_cast<size_t>(product->then->slot);
    const bool reads_it =
        slot < kernel->operands.size() && facts_->root(kernel->operands[slot]) == result && slots == 1;
    const Readers readers = facts_->readers(region, from, result);
    if (op_of(facts_->kernels[from]).results.empty() || !reads_it || readers.first != k)
      return broken("R21", other.at, "kernel {} is not the first to read product {}, element by element",
                    other.kernel, call.kernel);
    if (product->then->keeps != readers.others)
      broken("R21", call.at, "the result of product {} is{} read elsewhere", call.kernel,
             product->then->keeps ? " not" : "");
    if (!dependence.may_move(k, from))
      return broken("R21", other.at, "kernel {} cannot run as early as product {}", other.kernel,
                    call.kernel);
    dependence.join(from, k);
  }
  void bias(const CallSite& call, const ProductCall& product) {
    const Bias& bias = *product.bias;
    const auto fail = [&] {
      broken("R22", call.at, "kernel {} is not the one addition of @{} to product {} in place", bias.kernel,
             module[bias.vector].name, call.kernel);
    };
    if (!product.then || product.then->kernel != bias.kernel || product.then->keeps) return fail();
    const std::optional<size_t> k = facts_->numbers.find(bias.kernel);
    if (!k || facts_->kernels[*k].members.size() != 1) return fail();
    const std::optional<BufferId> vector =
        bias_of(module, region, op_of(facts_->kernels[*k]), facts_->root, product.c);
    if (vector != bias.vector || operand_type(module, region, product.a).dtype != DType::f32) fail();
  }

  // R20
  void order(const Dependence& dependence) {
    std::vector<int32_t> levels(facts_->kernels.size(), -1), line(facts_->kernels.size(), -1);
    for (size_t i = 0; i < lines_.size(); ++i) {
      const size_t k = facts_->numbers[lines_[i]->kernel];
      line[k] = static_cast<int32_t>(i);
      if (lines_[i]->level.has_value() == joined_.contains(k))
        return broken("R20", lines_[i]->at, "kernel {} has {} level", lines_[i]->kernel,
                      lines_[i]->level ? "a product that does it and a" : "no product that does it and no");
      levels[k] = lines_[i]->level.value_or(-1);
    }
    for (const auto* places : {&levels, &line}) {
      const auto fault = dependence.out_of_order(*places);
      if (!fault) continue;
      const CallSite& late = *lines_[line[fault->second]];
      broken("R20", late.at, "kernel {} must run after kernel {}: they touch the same bytes", late.kernel,
             facts_->kernels[fault->first].number);
    }
  }

  // R23
  void workspaces() {
    std::vector<std::pair<int, const CallSite*>> working;  // kernels whose workspace is a place in the arena
    for (const CallSite* line : lines_) {
      const ProductCall* product = as_product(*line);
      if (product == nullptr || !product->workspace) continue;
      const Bytes& bytes = *product->workspace;
      const int64_t end = module.arena_bytes.value_or(0);
      if (bytes.offset < 0 || bytes.offset % kWorkspaceAlignment != 0 || bytes.size < 1 ||
          bytes.size > kMostWorkspace || bytes.size > end || bytes.offset > end - bytes.size)
        broken("R23", line->at, "the workspace of product {} is misaligned, too large or outside the arena",
               line->kernel);
      else
        working.emplace_back(facts_->numbers[line->kernel], line);
    }
    // Bytes that are taken from kernel `first` to kernel `last`.
    const auto apart = [&](char sign, const std::string& name, const Bytes& taken, int first, int last) {
      for (const auto& [now, line] : working)
        if (first <= now && now <= last && overlap(*as_product(*line)->workspace, taken))
          broken("R23", line->at, "the workspace of product {} meets {}{}", line->kernel, sign, name);
    };
    const auto end = static_cast<int>(facts_->kernels.size());
    for (const Buffer& buffer : module.buffers)
      if (buffer.role != BufferRole::slot)
        apart('@', buffer.name, {buffer.offset.value_or(0), room_bytes(buffer)}, 0, end);
    for (const LiveRange& range : live_ranges(module, region, facts_->kernels)) {
      const Value& value = region[range.value];
      apart('%', value.name, {value.offset.value_or(0), range.bytes}, range.first, range.last);
    }
  }

  // R24
  void shared_kernel(const Location& at, const std::string& function, const Levels& levels, int64_t block,
                     int64_t grid) {
    if (block != merged_block(levels))
      return broken("R24", at, "`{}` has blocks of {} threads; its parts need {}", function, block,
                    merged_block(levels));
    for (const Calls& level : levels) {
      for (const CallSite* call : level)
        if (places(*call, block) < 1 || !countable(*call, module.micro_batch()))
          return broken("R24", call->at, "kernel {} cannot be a part of `{}`", call->kernel, function);
    }
    const int64_t right = merged_blocks(levels, block, module.micro_batch());
    if (grid != right) broken("R24", at, "`{}` has {} blocks; its parts need {}", function, grid, right);
  }
  void merged() {
    for (const Launch& launch : schedule_.launches) {
      const Merged* merged = std::get_if<Merged>(&launch);
      if (merged == nullptr) continue;
      for (const CallSite& part : merged->parts)
        if (as_kernel(part) == nullptr || part.level != merged->parts.front().level)
          return broken("R24", part.at, "`{}` is of kernels of one level", merged->function);
      shared_kernel(merged->at, merged->function, {parts(*merged)}, merged->block, merged->blocks);
      std::vector<std::string> functions;
      for (const CallSite& part : merged->parts) functions.push_back(as_kernel(part)->function);
      if (functions_.try_emplace(merged->function, functions).first->second != functions)
        return broken("R24", merged->at, "launches of `{}` have different functions", merged->function);
    }
    if (!schedule_.persistent) return;
    const Persistent& persistent = *schedule_.persistent;
    if (region.kind != RegionKind::step && region.kind != RegionKind::update)
      return broken("R24", persistent.at, "{} has no persistent kernel", region_text(region.kind));
    shared_kernel(persistent.at, persistent.function, by_level(schedule_), persistent.block,
                  persistent.blocks);
  }

  // R27
  void streams() {
    const auto place = [](const Launch& launch) -> const Location& {
      return std::visit([](const auto& one) -> const Location& { return one.at; }, launch);
    };
    const LaunchOrder order(schedule_);
    const std::vector<Launch>& launches = schedule_.launches;
    const bool passes = passes_state(region);  // state from the host and back
    const bool fetches = ir::fetches(region);
    const int32_t most = passes || fetches ? static_cast<int32_t>(kStreams) : 2;
    bool several = false;
    for (size_t i = 0; i < launches.size(); ++i) {
      const Branch& branch = ir::branch(launches[i]);
      if (branch == Branch{}) continue;
      several = true;
      if (branch.stream < 0 || branch.stream >= most)
        return broken("R27", place(launches[i]), "there is no stream {}", branch.stream);
      for (const int32_t kernel : branch.after) {
        const std::optional<size_t> other = order.launch_of(kernel);
        if (!other || *other >= i || ir::branch(launches[*other]).stream == branch.stream ||
            calls(launches[*other]).back()->kernel != kernel)
          return broken("R27", place(launches[i]),
                        "kernel {} is not the last one of an earlier launch of another stream", kernel);
      }
    }
    for (const Launch& launch : launches) {
      const Merged* merged = std::get_if<Merged>(&launch);
      if (merged == nullptr) continue;
      for (const CallSite& part : merged->parts)
        if (part.branch != Branch{})
          return broken("R27", part.at, "a part of `{}` has no stream of its own", merged->function);
    }
    if (!several) return;
    for (size_t i = 0; passes && i < launches.size(); ++i)
      if (ir::branch(launches[i]).stream != stream_of_state(region, launches[i]))
        return broken("R27", place(launches[i]), "kernel {} belongs on stream {}",
                      calls(launches[i]).front()->kernel, stream_of_state(region, launches[i]));
    for (size_t i = 0; fetches && i < launches.size(); ++i) {
      const CallSite& call = *calls(launches[i]).front();
      if ((as_copy(call) != nullptr) != (ir::branch(launches[i]).stream == kStreamOfFetches))
        return broken("R27", place(launches[i]), "kernel {} belongs on {} stream", call.kernel,
                      as_copy(call) != nullptr ? "the third" : "another");
    }
    if ((region.kind != RegionKind::step && !passes) || schedule_.persistent)
      return broken("R27", region.at,
                    "only a step that is a graph, and copies of state, have several streams");
    const std::vector<Touched> touched = launch_touched(module, region, facts_->kernels);
    for (size_t b = 0; b < launches.size(); ++b) {
      for (size_t a = 0; a < b; ++a)
        if (order.concurrent(a, b) && conflict(touched[a], touched[b]))
          return broken("R27", place(launches[b]),
                        "kernel {} may run beside kernel {}, and they touch the same bytes",
                        calls(launches[b]).front()->kernel, calls(launches[a]).front()->kernel);
    }
  }

  const Schedule& schedule_;
  const Facts facts_;
  const Calls lines_;
  std::map<size_t, size_t> line_of_;                           // of a kernel: its call
  std::set<size_t> joined_;                                    // kernels that a product does
  std::map<std::string, std::vector<std::string>> functions_;  // of the parts of a merged launch
};

}  // namespace

void verify_schedule(const Module& module, const Region& region, const Broken& broken) {
  ScheduleRules(module, region, broken).run();
}

}  // namespace gacc::ir
