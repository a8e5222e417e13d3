#include "ir/region_facts.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string_view>

namespace gacc::ir {

namespace {

// Mixes numbers into 64 bits.
class Stamp {
 public:
  Stamp& operator<<(uint64_t number) {
    value_ = std::rotl((value_ ^ number) * 0x9e3779b97f4a7c15u, 29);
    return *this;
  }
  Stamp& operator<<(int64_t number) { return *this << static_cast<uint64_t>(number); }
  Stamp& operator<<(int32_t number) { return *this << static_cast<uint64_t>(number); }
  Stamp& operator<<(bool flag) { return *this << uint64_t{flag}; }
  Stamp& operator<<(double number) { return *this << std::bit_cast<uint64_t>(number); }
  Stamp& operator<<(std::string_view text) { return *this << uint64_t{std::hash<std::string_view>{}(text)}; }
  Stamp& operator<<(ValueId value) { return *this << value.index; }
  Stamp& operator<<(BufferId buffer) { return *this << buffer.index; }
  template <class T>
  Stamp& operator<<(const std::vector<T>& list) {
    *this << uint64_t{list.size()};
    for (const T& one : list) *this << one;
    return *this;
  }
  template <class... T>
  Stamp& operator<<(const std::variant<T...>& one) {
    *this << uint64_t{one.index()};
    std::visit([&](const auto& value) { *this << value; }, one);
    return *this;
  }
  Stamp& operator<<(const Type& type) {
    return *this << static_cast<uint64_t>(type.dtype) << type.shape << type.pitch;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

uint64_t stamp_of(const Module& module, const Region& region) {
  Stamp stamp;
  stamp << region.inputs << uint64_t{region.values.size()} << uint64_t{region.ops.size()};
  for (const Value& value : region.values) stamp << value.type;
  const auto add = [&](const Operand& operand) {
    stamp << operand;
    if (const BufferId* buffer = as_buffer(operand)) stamp << module[*buffer].type;
  };
  for (const Op& op : region.ops) {
    stamp << std::bit_cast<uint64_t>(op.info) << op.kernel << op.results << op.when.has_value();
    stamp << uint64_t{op.operands.size()} << uint64_t{op.attrs.size()};
    op.each_operand(add);
    for (const auto& [name, value] : op.attrs) stamp << std::string_view(name) << value;
  }
  for (const Yield& yield : region.yields) add(yield.what);
  return stamp.value();
}

}  // namespace

RegionFacts::RegionFacts(const Module& module, const Region& region, uint64_t stamp)
    : stamp(stamp), kernels(ir::kernels(module, region, &problem)), numbers(kernels), root(region) {}

Readers RegionFacts::readers(const Region& region, size_t from, const Operand& value) const {
  Readers readers;
  for (size_t k = from + 1; k < kernels.size(); ++k) {
    const bool reads =
        kernels[k].form != KernelForm::alias &&
        std::ranges::any_of(kernels[k].reads, [&](const Operand& operand) { return root(operand) == value; });
    if (!reads) continue;
    readers.others = readers.first.has_value();
    if (readers.others) return readers;
    readers.first = k;
  }
  readers.others =
      std::ranges::any_of(region.yields, [&](const Yield& yield) { return root(yield.what) == value; });
  return readers;
}

Facts facts(const Module& module, const Region& region) {
  const uint64_t stamp = stamp_of(module, region);
  if (region.known_facts == nullptr || region.known_facts->stamp != stamp)
    region.known_facts = std::make_shared<const RegionFacts>(module, region, stamp);
  return region.known_facts;
}

}  // namespace gacc::ir
