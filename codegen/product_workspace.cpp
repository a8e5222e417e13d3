// See product_workspace.h.
#include "codegen/product_workspace.h"

#include <algorithm>

#include "ir/liveness.h"

namespace gacc {

std::optional<PlanWorkspace> largest_free(std::vector<TakenBytes> taken, int64_t arena_bytes) {
  taken.push_back({arena_bytes, arena_bytes});
  std::sort(taken.begin(), taken.end(),
            [](const TakenBytes& a, const TakenBytes& b) { return a.begin < b.begin; });
  PlanWorkspace best;
  int64_t free = 0;  // all before it is taken, or was looked at
  for (const TakenBytes& next : taken) {
    const int64_t end = next.begin / kWorkspaceAlignment * kWorkspaceAlignment;
    const int64_t bytes = std::min(end - free, kMostWorkspace);
    if (bytes > best.bytes) best = {free, bytes};
    free = std::max(free, (next.end + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
  }
  return best.bytes > 0 ? std::optional(best) : std::nullopt;
}

std::vector<std::optional<PlanWorkspace>> product_workspaces(const ir::Module& module,
                                                             const ir::Region& region,
                                                             const std::vector<ir::Kernel>& kernels) {
  std::vector<TakenBytes> buffers;
  for (const ir::Buffer& buffer : module.buffers) {
    const int64_t begin = buffer.offset.value_or(0);
    buffers.push_back({begin, begin + ir::type_bytes(buffer.type, 1)});
  }
  const std::vector<ir::LiveRange> ranges = ir::live_ranges(module, region, kernels);
  std::vector<std::optional<PlanWorkspace>> found(kernels.size());
  for (size_t k = 0; k < kernels.size(); ++k) {
    if (kernels[k].form != ir::KernelForm::gemm) continue;
    std::vector<TakenBytes> taken = buffers;
    for (const ir::LiveRange& range : ranges) {
      const auto now = static_cast<int>(k);
      if (range.first > now || range.last < now) continue;
      const int64_t begin = region[range.value].offset.value_or(0);
      taken.push_back({begin, begin + range.bytes});
    }
    found[k] = largest_free(std::move(taken), module.arena_bytes.value_or(0));
  }
  return found;
}

}  // namespace gacc
