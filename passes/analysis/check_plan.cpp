// The plan checker. It keeps, for every byte range of the arena, whose value the bytes hold now:
//
//   1. buffers own their bytes first, and must not overlap each other;
//   2. for each region: the inputs take theirs, then kernel by kernel
//      a. every read must find its bytes held by the value it means (a buffer: by that buffer),
//      b. every write takes its bytes; it may take those of a buffer only if it is a write to that buffer,
//         and those that this kernel reads only where the kernel may work in place,
//      c. no two writes of one kernel meet,
//      d. a product's workspace takes its bytes too, which may be nothing's that it reads or writes, nor a
//      buffer's;
//   3. at the end of a region every buffer still owns all of its bytes, and so does every yielded value.
//
// Overwriting a value that is read later shows as the later read finding somebody else's bytes.
#include "passes/analysis/check_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include "ir/host_state.h"
#include "ir/region_facts.h"
#include "ir/row_pitch.h"

namespace gacc::passes {

namespace {

using namespace ir;

// The owners of the arena's bytes: disjoint ranges by start.
class Arena {
 public:
  void take(int64_t start, int64_t size, const Operand& owner) {
    release(start, start + size);
    ranges_.insert_or_assign(start, Range{start + size, owner});
  }
  // Calls f(owner, its start, its end) for each range that meets [start, start + size).
  template <class F>
  void ranges(int64_t start, int64_t size, F&& f) const {
    auto at = ranges_.upper_bound(start);
    if (at != ranges_.begin()) --at;
    for (; at != ranges_.end() && at->first < start + size; ++at)
      if (at->second.end > start) f(at->second.owner, at->first, at->second.end);
  }
  template <class F>
  void owners(int64_t start, int64_t size, F&& f) const {
    ranges(start, size, [&](const Operand& owner, int64_t, int64_t) { f(owner); });
  }
  // Tells whether all of [start, start + size) is held by `owner`.
  bool held(int64_t start, int64_t size, const Operand& owner) const {
    int64_t next = start;
    bool same = true;
    ranges(start, size, [&](const Operand& other, int64_t begin, int64_t end) {
      same = same && other == owner && begin <= next;
      next = end;
    });
    return same && next >= start + size;
  }

 private:
  struct Range {
    int64_t end;
    Operand owner;
  };
  void release(int64_t start, int64_t end) {
    auto at = ranges_.upper_bound(start);
    if (at != ranges_.begin()) --at;
    while (at != ranges_.end() && at->first < end) {
      const int64_t from = at->first;
      const Range range = at->second;
      if (range.end <= start) {
        ++at;
        continue;
      }
      at = ranges_.erase(at);
      if (from < start) ranges_.insert_or_assign(from, Range{start, range.owner});
      if (range.end > end) at = ranges_.insert_or_assign(end, Range{range.end, range.owner}).first;
    }
  }
  std::map<int64_t, Range> ranges_;
};

class Checker {
 public:
  explicit Checker(const Module& module) : module_(module) {}

  std::string run() {
    if (!module_.arena_bytes) return "the module has no arena size";
    for (const BufferId id : module_.buffer_ids()) storage_.push_back(storage_of(module_, id));
    for (const BufferId id : module_.buffer_ids()) {
      const Buffer& buffer = module_[id];
      const auto name = [&] { return "buffer @" + buffer.name; };
      if (!place(id, name)) return problem_;
      if (buffer.role == BufferRole::slot) continue;  // of a region
      if (const BufferId in = storage_[index(id)]; in != id) {
        const Buffer& storage = module_[in];
        const int64_t begin = part_begin(module_, id);
        if (*buffer.offset != *storage.offset + begin || begin + size_ > room_bytes(storage))
          fail("{} does not lie in the place of @{}", name(), storage.name);
        continue;
      }
      buffers_.owners(offset_, size_, [&](const Operand& other) {
        fail("{} overlaps buffer @{}", name(), module_[*as_buffer(other)].name);
      });
      buffers_.take(offset_, size_, id);
    }
    for (const RegionKind kind : all_regions)
      if (problem_.empty()) region(module_.region(kind));
    return problem_;
  }

 private:
  template <class... A>
  bool fail(fmt::format_string<A...> format, A&&... args) {
    if (problem_.empty()) problem_ = where_ + fmt::format(format, std::forward<A>(args)...);
    return false;
  }

  // Sets offset_ and size_; checks that the place is aligned and inside the arena. Where it is not, asks `name()`.
  template <class Name>
  bool place(const std::optional<int64_t>& offset, int64_t bytes, const Name& name,
             int64_t alignment = kArenaAlignment, bool host = false) {
    if (!offset) return fail("{} has no place", name());
    offset_ = *offset;
    size_ = bytes;
    if (offset_ % alignment != 0)
      return fail("{} is at {}, which is not a multiple of {}", name(), offset_, alignment);
    const int64_t begin = host ? *module_.arena_bytes : 0,
                  all = host ? module_.host_bytes : *module_.arena_bytes;
    if (offset_ < begin || offset_ > begin + all - size_)
      return fail("{} of {} bytes at {} leaves the {} of {} bytes", name(), size_, offset_,
                  host ? "host's block" : "arena", all);
    return true;
  }
  template <class Name>
  bool place(BufferId id, const Name& name) {
    const Buffer& buffer = module_[id];
    return place(buffer.offset, room_bytes(buffer), name, alignment(buffer),
                 module_[storage_[index(id)]].host);
  }
  bool place(const Region& region, const Operand& operand) {
    const auto name = [&] { return operand_text(module_, region, operand); };
    if (const BufferId* buffer = as_buffer(operand)) return place(*buffer, name);
    const Value& value = region[*as_value(operand)];
    return place(value.offset, type_bytes(value.type, module_.most_samples(region)), name);
  }

  void region(const Region& region) {
    where_ = fmt::format("{}: ", region_text(region.kind));
    facts_ = facts(module_, region);
    const std::vector<Kernel>& all = facts_->kernels;
    if (!facts_->problem.empty()) {
      fail("{}", facts_->problem);
      return;
    }
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (!region.schedule) return replay(region, all, order, {});
    Workspaces workspaces;
    const KernelNumbers& numbers = facts_->numbers;
    for (const CallSite* call : calls(*region.schedule)) {
      const ProductCall* product = as_product(*call);
      if (product != nullptr && product->workspace) workspaces[numbers[call->kernel]] = *product->workspace;
    }
    replay(region, all, order, workspaces);
    for (const bool reverse : {false, true})
      if (problem_.empty()) replay(region, all, by_levels(region, numbers, reverse), {});
    if (std::ranges::all_of(region.schedule->launches,
                            [](const Launch& launch) { return branch(launch) == Branch{}; }))
      return;
    const size_t streams = passes_state(region) || fetches(region) ? kStreams : 2;
    for (size_t first = 0; first < streams; ++first) {
      if (problem_.empty()) replay(region, all, by_streams(region, numbers, first, false), workspaces);
      if (problem_.empty()) replay(region, all, by_streams(region, numbers, first, true), {});
    }
  }

  // The kernels in the order of several streams, of which `first` runs as far as it can before another does
  // anything. `joined`: a product does what it may do.
  std::vector<size_t> by_streams(const Region& region, const KernelNumbers& numbers, size_t first,
                                 bool joined) {
    std::array<std::vector<const Launch*>, kStreams> waiting;  // the next one last
    for (const Launch& launch : region.schedule->launches) waiting[branch(launch).stream].push_back(&launch);
    for (std::vector<const Launch*>& stream : waiting) std::ranges::reverse(stream);
    std::vector<size_t> order;
    std::set<int32_t> done;  // kernels
    const auto run = [&](const Launch& launch) {
      for (const CallSite* call : calls(launch)) {
        done.insert(call->kernel);
        if (joined && !call->level) continue;
        order.push_back(numbers[call->kernel]);
        const ProductCall* product = as_product(*call);
        if (joined && product != nullptr && product->then) order.push_back(numbers[product->then->kernel]);
      }
    };
    const auto is_empty = [](const auto& queue) { return queue.empty(); };
    while (!std::ranges::all_of(waiting, is_empty)) {
      bool ran = false;
      for (size_t i = 0; i < kStreams && !ran; ++i) {
        std::vector<const Launch*>& queue = waiting[(first + i) % kStreams];
        if (queue.empty()) continue;
        const std::vector<int32_t>& after = branch(*queue.back()).after;
        if (!std::ranges::all_of(after, [&](int32_t kernel) { return done.contains(kernel); })) continue;
        run(*queue.back());
        queue.pop_back();
        ran = true;
      }
      if (!ran) {
        fail("its streams wait for each other");
        break;
      }
    }
    return order;
  }

  // The kernels in the order in which launches of one level come in this order or in reverse.
  static std::vector<size_t> by_levels(const Region& region, const KernelNumbers& numbers, bool reverse) {
    std::vector<size_t> order;
    for (Calls& level : by_level(*region.schedule)) {
      if (reverse) std::ranges::reverse(level);
      for (const CallSite* call : level) {
        order.push_back(numbers[call->kernel]);
        const ProductCall* product = as_product(*call);
        if (product != nullptr && product->then) order.push_back(numbers[product->then->kernel]);
      }
    }
    return order;
  }

  using Workspaces = std::map<size_t, Bytes>;  // by kernel
  void replay(const Region& region, const std::vector<Kernel>& all, const std::vector<size_t>& order,
              const Workspaces& workspaces) {
    Arena bytes = buffers_;
    for (const ValueId input : region.inputs)
      if (!write(region, bytes, input, nullptr)) return;
    for (const size_t k : order) {
      if (!problem_.empty()) return;
      where_ = fmt::format("{}, kernel {}: ", region_text(region.kind), k);
      kernel(region, all[k], bytes);
      const auto workspace = workspaces.find(k);
      if (workspace != workspaces.end() && problem_.empty()) work(region, all[k], workspace->second, bytes);
    }
    if (!problem_.empty()) return;
    where_ = fmt::format("end of {}: ", region_text(region.kind));
    for (const Yield& yield : region.yields)
      if (as_number(yield.what) == nullptr) read(region, bytes, yield.what);
    for (const BufferId id : module_.buffer_ids())
      if (module_[id].role != BufferRole::slot) read(region, bytes, id);
  }

  void kernel(const Region& region, const Kernel& kernel, Arena& bytes) {
    for (const Operand& operand : kernel.reads)
      if (!read(region, bytes, operand)) return;
    Arena written;
    for (const Operand& operand : kernel.writes) {
      if (!place(region, operand)) return;
      written.owners(offset_, size_, [&](const Operand& other) {
        fail("{} and {} are written to the same bytes", operand_text(module_, region, operand),
             operand_text(module_, region, other));
      });
      written.take(offset_, size_, operand);
      if (!write(region, bytes, operand, &kernel)) return;
    }
    // A slot ends when it has gone out.
    if (kernel.form != KernelForm::copy) return;
    for (const Operand& operand : kernel.reads) {
      const BufferId* buffer = as_buffer(operand);
      if (buffer == nullptr || module_[*buffer].role != BufferRole::slot || !place(region, operand)) continue;
      bytes.take(offset_, size_, Operand(0.0));
    }
  }

  void work(const Region& region, const Kernel& kernel, const Bytes& scratch, Arena& bytes) {
    const std::string name = fmt::format("what it works in ({} bytes at {})", scratch.size, scratch.offset);
    if (scratch.offset % kArenaAlignment != 0) {
      fail("{} is not at a multiple of {}", name, kArenaAlignment);
      return;
    }
    if (scratch.offset < 0 || scratch.size < 0 || scratch.size > *module_.arena_bytes - scratch.offset) {
      fail("{} leaves the arena of {} bytes", name, *module_.arena_bytes);
      return;
    }
    for (const auto* operands : {&kernel.reads, &kernel.writes}) {
      for (const Operand& operand : *operands) {
        if (!place(region, facts_->root(operand))) return;
        if (offset_ < scratch.offset + scratch.size && scratch.offset < offset_ + size_)
          fail("{} meets {}", name, operand_text(module_, region, operand));
      }
    }
    bytes.owners(scratch.offset, scratch.size, [&](const Operand& other) {
      if (as_buffer(other) != nullptr) fail("{} meets buffer @{}", name, module_[*as_buffer(other)].name);
    });
    bytes.take(scratch.offset, scratch.size, Operand(0.0));  // nobody's
  }

  // Returns the owner of an operand's bytes: a buffer in another's place belongs to that one.
  Operand holder(const Operand& operand) const {
    const BufferId* buffer = as_buffer(operand);
    return buffer == nullptr ? operand : storage_[index(*buffer)];
  }

  // The bytes of `operand` must hold it (a reshape: what it is a reshape of).
  bool read(const Region& region, const Arena& bytes, const Operand& operand) {
    const Operand root = facts_->root(operand);
    if (!place(region, root)) return false;
    const int64_t offset = offset_;
    if (!bytes.held(offset, size_, holder(root)))
      return fail("{} is read at {}, but not all of these bytes hold it",
                  operand_text(module_, region, operand), offset);
    if (as_value(operand) != nullptr && operand != root) {
      const std::optional<int64_t>& own = region[*as_value(operand)].offset;
      if (own && *own != offset)
        return fail("{} is at {}, what it is a reshape of at {}", operand_text(module_, region, operand),
                    *own, offset);
    }
    return true;
  }

  bool write(const Region& region, Arena& bytes, const Operand& operand, const Kernel* kernel) {
    if (!place(region, operand)) return false;
    const auto name = [&] { return operand_text(module_, region, operand); };
    bytes.owners(offset_, size_, [&](const Operand& other) {
      if (other == holder(operand)) return;
      if (as_buffer(other) != nullptr)
        fail("{} is written over buffer @{}", name(), module_[*as_buffer(other)].name);
      if (kernel == nullptr) {
        fail("{} and {} have the same bytes", name(), operand_text(module_, region, other));
        return;
      }
      for (const Operand& operand_read : kernel->reads) {
        if (facts_->root(operand_read) != other) continue;
        const ValueId *from = as_value(operand_read), *to = as_value(operand), *root = as_value(other);
        const bool in_place = from != nullptr && to != nullptr && region[*root].offset == offset_ &&
                              type_bytes(region[*root].type, module_.most_samples(region)) == size_ &&
                              may_reuse(region, *kernel, *from, *to);
        if (!in_place)
          fail("{} is written over {}, which the kernel reads", name(),
               operand_text(module_, region, operand_read));
      }
    });
    bytes.take(offset_, size_, holder(operand));
    return problem_.empty();
  }

  const Module& module_;
  Arena buffers_;
  std::vector<BufferId> storage_;  // by buffer
  Facts facts_{};                  // of the region that is being checked
  std::string where_, problem_;
  int64_t offset_ = 0, size_ = 0;
};

}  // namespace

std::string check_plan(const Module& module) { return Checker(module).run(); }

}  // namespace gacc::passes
