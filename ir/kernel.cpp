#include "ir/kernel.h"

#include <fmt/format.h>

namespace gacc::ir {

int64_t columns(const Shape& domain) { return domain.empty() || domain.back() == kBatch ? 1 : domain.back(); }

int64_t rows(const Shape& domain, int64_t batch) { return elements(domain, batch) / columns(domain); }

Shape row_shape(const Shape& shape) {
  Shape row = shape;
  if (!row.empty() && row.back() != kBatch) row.back() = 1;
  return row;
}

std::optional<Access> access(const Shape& operand, const Shape& domain) {
  if (operand == domain) return Access::element;
  if (elements(operand, 2) == 1) return Access::scalar;
  if (operand == row_shape(domain)) return Access::row;
  if (has_batch(operand)) return std::nullopt;
  size_t skip = 0;
  while (operand[skip] == 1) ++skip;  // ends: not one element
  const size_t rest = operand.size() - skip;
  if (rest > domain.size()) return std::nullopt;
  const auto first = operand.begin() + static_cast<std::ptrdiff_t>(skip);
  const auto from = domain.end() - static_cast<std::ptrdiff_t>(rest);
  if (std::equal(first, operand.end(), from)) return Access::suffix;
  auto last = operand.end();  // of the axes before the trailing 1s
  while (*(last - 1) == 1) --last;
  if (last == operand.end() || !std::equal(first, last, from)) return std::nullopt;
  return Access::channel;
}

int64_t channel_inner(const Shape& operand, const Shape& domain) {
  int64_t inner = 1;
  for (size_t axis = 1; operand[operand.size() - axis] == 1; ++axis) inner *= domain[domain.size() - axis];
  return inner;
}

StorageRoots::StorageRoots(const Region& region) {
  by_value_.reserve(region.values.size());
  for (size_t i = 0; i < region.values.size(); ++i) by_value_.emplace_back(ValueId{static_cast<int32_t>(i)});
  for (const Op& op : region.ops)  // straight-line code: what a reshape reads has its root already
    if (op.info->lowering == Lowering::alias)
      by_value_[index(op.results.front())] = (*this)(op.operands.front());
}

namespace {

// The form of a kernel of one op that takes no others in.
std::optional<KernelForm> own_form(Lowering lowering) {
  switch (lowering) {
    case Lowering::gemm:
      return KernelForm::gemm;
    case Lowering::alias:
      return KernelForm::alias;
    case Lowering::handwritten:
      return KernelForm::handwritten;
    case Lowering::copy:
      return KernelForm::copy;
    default:
      return std::nullopt;
  }
}

bool is_reduce(Lowering lowering) {
  return lowering == Lowering::row_reduce || lowering == Lowering::column_reduce ||
         lowering == Lowering::total_reduce;
}

// Builds the kernel of `ops` except its reads and writes; says why it is none in `problem`.
class KernelBuilder {
 public:
  KernelBuilder(const Module& module, const Region& region, const std::vector<size_t>& ops)
      : module_(module), region_(region), ops_(ops) {}

  std::optional<Kernel> build(std::string& problem) {
    const bool good = classify() && members() && walkable();
    if (!good) problem = problem_;
    return good ? std::optional(std::move(kernel_)) : std::nullopt;
  }

 private:
  bool refuse(std::string why) {
    problem_ = std::move(why);
    return false;
  }

  // 1. The domain is the widest of the members' domains; 2. the form follows from the kinds of the members.
  bool classify() {
    bool row = false, column = false, total = false;
    int64_t widest = -1;
    std::optional<bool> ordered;
    for (const size_t i : ops_) {
      const Op& op = region_.ops[i];
      const Lowering lowering = op.info->lowering;
      if (lowering == Lowering::composite)
        return refuse(fmt::format("`{}` has no lowering of its own; run `expand` first", op.info->name));
      if (const std::optional<KernelForm> own = own_form(lowering)) {
        if (ops_.size() > 1) return refuse(fmt::format("`{}` stands alone in its kernel", op.info->name));
        kernel_.form = *own;
      }
      if (ops_.size() > 1 && !op.operands.empty() && op.info->is_written(0) &&
          is_blocks(operand_type(module_, region_, op.operands[0]).dtype))
        return refuse(fmt::format("`{}` writes blocks, and stands alone in its kernel", op.info->name));
      row = row || lowering == Lowering::row_reduce;
      if (lowering == Lowering::column_reduce || lowering == Lowering::total_reduce) {
        const bool in_order = has_flag(op, "ordered");
        if (ordered && *ordered != in_order)
          return refuse("a sum in order and one that may be cut do not share a kernel");
        ordered = in_order;
      }
      column = column || lowering == Lowering::column_reduce;
      total = total || lowering == Lowering::total_reduce;
      Shape domain = op_domain(module_, region_, op);
      const int64_t size = elements(domain, int64_t{1} << 20);  // any large B orders the candidates
      if (size > widest || (size == widest && domain.size() > kernel_.domain.size()))
        widest = size, kernel_.domain = std::move(domain);
    }
    if (kernel_.form != KernelForm::pointwise) return true;
    if (int{row} + int{column} + int{total} > 1)
      return refuse("reductions over different axes do not share a kernel");
    if (row) kernel_.form = KernelForm::rowwise;
    if (column) kernel_.form = KernelForm::column_reduce;
    if (total) kernel_.form = KernelForm::total_reduce;
    return true;
  }

  // 3. Every member runs over the domain or once a row, and finds its operands by an Access; 4. stages.
  bool members() {
    const Shape per_row = row_shape(kernel_.domain);
    for (const size_t i : ops_) {
      const Op& op = region_.ops[i];
      KernelMember member{.op = i};
      if (own_form(op.info->lowering)) {
        kernel_.members.push_back(member);
        return true;
      }
      const Shape domain = op_domain(module_, region_, op);
      if (domain != kernel_.domain) {
        if (domain != per_row || is_reduce(op.info->lowering))
          return refuse(fmt::format("`{}` runs over {}, the kernel over {}", op.info->name,
                                    shape_text(domain), shape_text(kernel_.domain)));
        if (kernel_.form != KernelForm::pointwise && kernel_.form != KernelForm::rowwise)
          return refuse(
              fmt::format("`{}` gives one value a row in a kernel that walks columns", op.info->name));
        kernel_.form = KernelForm::rowwise;
        member.per_row = true;
      }
      // A sum finds its buffer by columns, or it is one element, whatever the buffer's shape.
      const bool sums =
          op.info->lowering == Lowering::column_reduce || op.info->lowering == Lowering::total_reduce;
      const size_t own = sums ? op.operands.size() - 1 : 0;
      for (size_t o = own; o < op.operands.size(); ++o)
        if (!operand(op, op.operands[o], member)) return false;
      if (op.when && !operand(op, *op.when, member)) return false;
      kernel_.stages = std::max(kernel_.stages, member.stage + 1);
      kernel_.members.push_back(member);
    }
    return true;
  }

  bool operand(const Op& op, const Operand& operand, KernelMember& member) {
    if (as_number(operand) != nullptr) return true;
    if (const KernelMember* producer = produced(operand)) {
      const Op& from = region_.ops[producer->op];
      if (from.info->lowering == Lowering::column_reduce || from.info->lowering == Lowering::total_reduce)
        return refuse(
            fmt::format("`{}` uses the result of `{}` inside one kernel", op.info->name, from.info->name));
      if (member.per_row && from.info->lowering == Lowering::pointwise && !producer->per_row)
        return refuse(fmt::format("`{}` gives one value a row from one an element", op.info->name));
      member.stage =
          std::max(member.stage, producer->stage + (from.info->lowering == Lowering::row_reduce ? 1 : 0));
      return true;
    }
    const Shape& shape = operand_type(module_, region_, operand).shape;
    const std::optional<Access> how =
        access(shape, member.per_row ? row_shape(kernel_.domain) : kernel_.domain);
    if (!how)
      return refuse(fmt::format("`{}` cannot index {} over {}", op.info->name, shape_text(shape),
                                shape_text(kernel_.domain)));
    if (how == Access::channel) {
      const int64_t inner = channel_inner(shape, kernel_.domain);
      if (inner != columns(kernel_.domain) && kernel_.inner != 0 && kernel_.inner != inner)
        return refuse(fmt::format("`{}` has channels of other lengths", op.info->name));
      if (inner != columns(kernel_.domain)) kernel_.inner = inner;
    }
    by_row_ = by_row_ || how == Access::row || how == Access::suffix ||
              (how == Access::channel && channel_inner(shape, kernel_.domain) == columns(kernel_.domain));
    return true;
  }

  // Channels longer than a row: rows and columns are redrawn, so nobody may count on them.
  bool walkable() {
    if (kernel_.inner == 0) return true;
    const auto uses_column = [&](size_t i) {
      const std::vector<ScalarNode> nodes = record(OpView{module_, region_, region_.ops[i]}).nodes;
      return std::ranges::any_of(nodes, [](const ScalarNode& node) { return node.op == ScalarOp::column; });
    };
    if (kernel_.form == KernelForm::pointwise && !by_row_ && std::ranges::none_of(ops_, uses_column))
      return true;
    return refuse("channels of several axes go with pointwise ops alone");
  }

  const KernelMember* produced(const Operand& operand) const {
    const ValueId* value = as_value(operand);
    if (value == nullptr) return nullptr;
    for (const KernelMember& member : kernel_.members) {
      const std::vector<ValueId>& results = region_.ops[member.op].results;
      if (contains(results, *value)) return &member;
    }
    return nullptr;
  }

  const Module& module_;
  const Region& region_;
  const std::vector<size_t>& ops_;
  Kernel kernel_;
  bool by_row_ = false;  // an operand is found by its row or column
  std::string problem_;
};

void add_once(std::vector<Operand>& list, const Operand& operand) {
  if (!contains(list, operand)) list.push_back(operand);
}

// Reads: operands that no member makes. Writes: buffers, and results that somebody outside wants.
void add_traffic(const Region& region, const std::vector<bool>& wanted, Kernel& kernel) {
  if (kernel.form == KernelForm::alias) return;
  std::vector<Operand> made;
  for (const KernelMember& member : kernel.members) {
    const Op& op = region.ops[member.op];
    const auto read = [&](const Operand& operand) {
      const bool made_here = contains(made, operand);
      if (as_number(operand) == nullptr && !made_here) add_once(kernel.reads, operand);
    };
    for (size_t i = 0; i < op.operands.size(); ++i)
      if (op.info->is_read(i) || (op.when && kernel.form != KernelForm::copy)) read(op.operands[i]);
    if (op.when) read(*op.when);
    for (const ValueId result : op.results) made.emplace_back(result);
  }
  for (const KernelMember& member : kernel.members) {
    const Op& op = region.ops[member.op];
    for (const BufferId buffer : written(op)) add_once(kernel.writes, buffer);
    for (const ValueId result : op.results)
      if (wanted[index(result)] || kernel.form == KernelForm::handwritten) add_once(kernel.writes, result);
  }
}

}  // namespace

std::vector<Kernel> kernels(const Module& module, const Region& region, std::string* problem) {
  std::vector<Kernel> out;
  std::vector<size_t> maker(region.values.size());        // of a value: the kernel
  std::vector<bool> wanted(region.values.size(), false);  // by another kernel, or yielded
  const auto want = [&](const Operand& operand, std::optional<size_t> kernel) {
    const ValueId* value = as_value(operand);
    if (value != nullptr && maker[index(*value)] != kernel) wanted[index(*value)] = true;
  };
  for (const Yield& yield : region.yields) want(yield.what, std::nullopt);
  for (size_t i = 0; i < region.ops.size();) {
    std::vector<size_t> group = {i};
    const int32_t number = region.ops[i].kernel;
    while (number >= 0 && group.back() + 1 < region.ops.size() &&
           region.ops[group.back() + 1].kernel == number)
      group.push_back(group.back() + 1);
    std::string why;
    std::optional<Kernel> kernel = KernelBuilder(module, region, group).build(why);
    if (!kernel) {
      if (problem != nullptr)
        *problem = fmt::format("kernel {} of {}: {}", number, region_text(region.kind), why);
      return {};
    }
    kernel->number = number;
    for (const size_t member : group) {
      const Op& op = region.ops[member];
      op.each_operand([&](const Operand& operand) { want(operand, out.size()); });
      for (const ValueId result : op.results) maker[index(result)] = out.size();
    }
    out.push_back(std::move(*kernel));
    i = group.back() + 1;
  }
  for (Kernel& kernel : out) add_traffic(region, wanted, kernel);
  return out;
}

bool may_fuse(const Module& module, const Region& region, const std::vector<size_t>& ops) {
  std::string why;
  return KernelBuilder(module, region, ops).build(why).has_value();
}

std::optional<Kernel> kernel_of(const Module& module, const Region& region, const std::vector<size_t>& ops,
                                const std::vector<ValueId>& results) {
  std::string why;
  std::optional<Kernel> kernel = KernelBuilder(module, region, ops).build(why);
  std::vector<bool> wanted(region.values.size(), false);
  for (const ValueId result : results) wanted[index(result)] = true;
  if (kernel) add_traffic(region, wanted, *kernel);
  return kernel;
}

const Operand& reduced(const Op& op) { return op.operands.back(); }

Shape op_domain(const Module& module, const Region& region, const Op& op) {
  if (is_reduce(op.info->lowering)) return operand_type(module, region, reduced(op)).shape;
  if (!op.results.empty()) return region[op.results.front()].type.shape;
  return operand_type(module, region, op.operands.front()).shape;
}

bool may_reuse(const Region& region, const Kernel& kernel, ValueId operand, ValueId result) {
  const Op& first = region.ops[kernel.members.front().op];
  if (first.info->in_place) return first.operands.front() == Operand(operand);
  if (own_form(first.info->lowering)) return false;
  const Type &from = region[operand].type, &to = region[result].type;
  if (dtype_bytes(from.dtype) != dtype_bytes(to.dtype)) return false;
  if (access(from.shape, kernel.domain) != Access::element ||
      access(to.shape, kernel.domain) != Access::element || row_pitch(from) != row_pitch(to))
    return false;
  // Later stages read the row again, so only what the last stage stores may take the place of what it loads.
  for (const KernelMember& member : kernel.members) {
    const Op& op = region.ops[member.op];
    if (!contains(op.results, result)) continue;
    return !is_reduce(op.info->lowering) && !member.per_row && member.stage == kernel.stages - 1;
  }
  return false;
}

}  // namespace gacc::ir
