// From the kernels of a module to distinct bodies and their calls. No LLVM here: gacc-exec's plug-in runs
// this even when the machine code comes from its cache.
#include "kernels/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>

#include "ir/region_facts.h"
#include "kernels/approximate.h"
#include "kernels/handwritten.h"
#include "kernels/specialisation.h"

namespace gacc::kernels {

namespace {

using ir::KernelForm;
using ir::Operand;
using ir::ScalarOp;

int64_t constant_bits(const ir::ScalarNode& node) {
  if (node.kind == ir::ScalarKind::real) return std::bit_cast<uint32_t>(static_cast<float>(node.value));
  return static_cast<uint32_t>(static_cast<int64_t>(node.value));
}

// A hand-written kernel. Slots are the op's operands as they stand, then its results, so that
// the emitter knows them by number.
Specialisation handwritten_kernel(const ir::Module& module, const ir::Region& region,
                                  const ir::Kernel& kernel, Purpose purpose, const GpuTarget& gpu) {
  const ir::Op& op = region.ops[kernel.members.front().op];
  for (size_t i = 0; i < op.operands.size(); ++i)
    if (ir::as_number(op.operands[i]) != nullptr)
      throw Unfit(fmt::format("`{}`: operand {} must lie in memory", op.info->name, i));
  Specialisation made = describe_handwritten({module, region, op}, purpose, gpu);
  BodyCall& call = made.call;
  Body& body = made.body;
  call.kernel = kernel;
  call.unit = Unit::rows;
  body.form = KernelForm::handwritten;
  body.extents = static_cast<int32_t>(call.extents.size());
  body.block = call.block;
  body.wide_index = body.wide_index && purpose == Purpose::device;
  const auto add = [&](const Operand& operand, bool read, bool written) {
    call.operands.push_back(operand);
    body.slots.push_back(
        {.dtype = ir::operand_type(module, region, operand).dtype, .read = read, .written = written});
  };
  for (size_t i = 0; i < op.operands.size(); ++i)
    add(op.operands[i], op.info->is_read(i), op.info->is_written(i));
  for (const ir::ValueId result : op.results) add(result, false, true);
  if (op.when) add(*op.when, true, false);
  return made;
}

// Numbers as bytes, one after the other. A list begins with its length, so that equal bytes are equal numbers.
class Key {
 public:
  template <class... Numbers>
  void add(Numbers... numbers) {
    (append(static_cast<int64_t>(numbers)), ...);
  }
  void add(const Source& source) {
    add(source.from, source.index, source.result, std::bit_cast<int64_t>(source.number));
  }
  template <class T, class F>
  void each(const std::vector<T>& list, F&& add_one) {
    add(list.size());
    for (const T& one : list) add_one(one);
  }
  template <class T>
  void each(const std::vector<T>& list) {
    each(list, [&](const auto& one) { add(one); });
  }
  std::string take() { return std::move(bytes_); }

 private:
  void append(int64_t number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  std::string bytes_;
};

// All that makes two bodies one function, except the values of constants.
std::string body_key(const Body& body) {
  Key key;
  key.add(body.form, body.flat, body.stages, body.vector, body.gaps, body.wide_index, body.team, body.block,
          body.held, body.held_as_stored, body.holds_all, body.side, body.extents, body.chunk,
          body.rows_of_sample, body.samples);
  key.add(std::bit_cast<uintptr_t>(body.op), body.by_tiles, body.op != nullptr ? body.cost : 0);
  key.each(body.shape.key());
  key.each(body.slots, [&](const Slot& slot) {
    key.add(slot.dtype, slot.access, slot.period, slot.pitch, slot.read, slot.written);
  });
  key.each(body.members, [&](const Member& member) {
    key.add(member.kind, member.combine, member.stage, member.per_row, member.accumulate, member.ordered);
    key.add(member.when.has_value());
    if (member.when) key.add(*member.when);
    key.each(member.inputs);
    key.each(member.program.nodes, [&](const ir::ScalarNode& node) {
      key.add(node.op, node.kind, node.op == ScalarOp::input ? std::bit_cast<int64_t>(node.value) : 0);
      for (const int32_t arg : node.args) key.add(arg);
    });
    key.each(member.program.results);
    key.each(member.approximate);
    key.each(member.types);
    key.each(member.stores);
    key.each(member.old);
  });
  return key.take();
}

std::string body_name(const ir::Region& region, const ir::Kernel& kernel, size_t number) {
  std::string name;
  for (size_t m = 0; m < std::min<size_t>(kernel.members.size(), 4); ++m)
    name += std::string(region.ops[kernel.members[m].op].info->name) + "_";
  std::replace(name.begin(), name.end(), '.', '_');
  return fmt::format("{}{}", name, number);
}

// A matrix product, or a value that lies where another does: nothing is emitted for it.
BodyCall call_without_body(const ir::Kernel& kernel) {
  BodyCall call;
  call.kernel = kernel;
  call.operands = kernel.reads;
  for (const Operand& operand : kernel.writes)
    if (!contains(call.operands, operand)) call.operands.push_back(operand);
  return call;
}

// Kernels one after the other; equal bodies become one function.
class ProgramBuilder {
 public:
  ProgramBuilder(const ir::Module& module, Purpose purpose, const GpuTarget& gpu)
      : module_(module), purpose_(purpose), gpu_(gpu) {}

  ModuleKernels build() {
    for (const ir::RegionKind kind : ir::all_regions) {
      const ir::Region& region = module_.region(kind);
      const ir::Facts facts = ir::facts(module_, region);
      if (!facts->problem.empty()) throw Unfit(facts->problem);
      std::vector<BodyCall>& calls = program_.regions[static_cast<size_t>(kind)];
      calls.reserve(facts->kernels.size());  // uses point into it
      const Specialiser specialiser(module_, region, purpose_, gpu_);
      for (const ir::Kernel& kernel : facts->kernels) add(region, specialiser.make(kernel), calls);
    }
    for (size_t f = 0; f < program_.functions.size(); ++f) lift_constants(program_.functions[f], uses_[f]);
    return std::move(program_);
  }

 private:
  // The calls of a function and the bits of its constants in each.
  struct Uses {
    std::vector<std::pair<int32_t, int32_t>> constants;  // (member, node)
    std::vector<BodyCall*> calls;
    std::vector<std::vector<int64_t>> bits;  // of each call, of each constant
  };

  void add(const ir::Region& region, Specialisation made, std::vector<BodyCall>& calls) {
    auto& [call, body, constants] = made;
    const KernelForm form = call.kernel.form;
    const bool library_call = form == KernelForm::handwritten && body.op == nullptr;
    if (form == KernelForm::gemm || form == KernelForm::alias || form == KernelForm::copy || library_call)
      return calls.push_back(std::move(call));
    std::vector<int64_t> bits;
    for (const auto& [m, n] : constants) {
      const Member& member = body.members[m];
      bits.push_back(constant_bits(member.program.nodes[n]));
    }
    const auto [place, fresh] =
        known_.emplace(body_key(body), static_cast<int32_t>(program_.functions.size()));
    call.function = place->second;
    const auto function = static_cast<size_t>(call.function);
    if (fresh) {
      body.name = body_name(region, call.kernel, function);
      program_.functions.push_back(std::move(body));
      uses_.emplace_back().constants = std::move(constants);
    }
    calls.push_back(std::move(call));
    uses_[function].calls.push_back(&calls.back());
    uses_[function].bits.push_back(std::move(bits));
  }

  // Constants that differ from call to call become arguments.
  static void lift_constants(Body& body, const Uses& uses) {
    for (size_t c = 0; c < uses.constants.size(); ++c) {
      const bool same =
          std::ranges::all_of(uses.bits, [&](const auto& bits) { return bits[c] == uses.bits[0][c]; });
      if (same) continue;
      const auto [m, n] = uses.constants[c];
      body.members[m].lifted.emplace_back(n, body.extents++);
      for (size_t u = 0; u < uses.calls.size(); ++u)
        uses.calls[u]->extents.push_back({uses.bits[u][c], false});
    }
  }

  const ir::Module& module_;
  Purpose purpose_;
  GpuTarget gpu_;
  ModuleKernels program_;
  std::map<std::string, int32_t> known_;  // body key -> function
  std::vector<Uses> uses_;                // of each function
};

}  // namespace

Specialiser::Specialiser(const ir::Module& module, const ir::Region& region, Purpose purpose,
                         const GpuTarget& gpu)
    : module_(module), region_(region), purpose_(purpose), gpu_(gpu) {
  if (purpose_ == Purpose::device && gpu_.capability > 0) half_ = half_values(module_, region_);
}

Specialisation Specialiser::make(const ir::Kernel& kernel) const {
  if (kernel.form == KernelForm::copy) {
    const ir::Op& op = region_.ops[kernel.members.front().op];
    std::vector<Operand> operands = op.operands;
    if (!op.results.empty()) operands.insert(operands.begin(), op.results.front());
    return {{.kernel = kernel, .operands = std::move(operands)}, {}, {}};
  }
  if (kernel.form == KernelForm::gemm || kernel.form == KernelForm::alias)
    return {call_without_body(kernel), {}, {}};
  Specialisation made = kernel.form == KernelForm::handwritten
                            ? handwritten_kernel(module_, region_, kernel, purpose_, gpu_)
                            : specialise(module_, region_, kernel, purpose_);
  if (!half_.empty()) approximate(kernel, made.body);
  return made;
}

void Specialiser::approximate(const ir::Kernel& kernel, Body& body) const {
  for (size_t m = 0; m < body.members.size(); ++m) {
    Member& member = body.members[m];
    if (member.kind != ir::Lowering::pointwise) continue;
    const ir::OpView op{module_, region_, region_.ops[kernel.members[m].op]};
    member.approximate = approximate_nodes(op, member.program, member.types, half_);
  }
}

std::set<int32_t> Body::slots_of_stage(int number) const {
  std::set<int32_t> slots, computed;
  const std::function<void(const Source&)> need = [&](const Source& source) {
    if (source.from == Source::From::slot && source.index >= 0) slots.insert(source.index);
    if (source.from != Source::From::member || !computed.insert(source.index).second) return;
    const Member& member = members[source.index];
    if (member.kind != ir::Lowering::pointwise || member.per_row) return;
    std::ranges::for_each(member.inputs, need);
    for (const int32_t slot : member.old)
      if (slot >= 0) slots.insert(slot);
  };
  for (size_t m = 0; m < members.size(); ++m) {
    const Member& member = members[m];
    if (member.per_row || stage_of(member) != number) continue;
    const bool reduces = member.kind != ir::Lowering::pointwise;
    if (reduces) need(member.inputs[0]);
    if (!reduces && std::ranges::any_of(member.stores, [](int32_t slot) { return slot >= 0; }))
      need({Source::From::member, static_cast<int32_t>(m)});
  }
  return slots;
}

int Body::stage_of(const Member& member) const {
  const bool overwrites =
      std::ranges::any_of(member.stores, [&](int32_t slot) { return slot >= 0 && slots[slot].read; });
  return member.kind == ir::Lowering::pointwise && overwrites ? stages - 1 : member.stage;
}

std::optional<ModuleKernels> make_program(const ir::Module& module, Purpose purpose, std::string& problem,
                                          const GpuTarget& gpu) try {
  return ProgramBuilder(module, purpose, gpu).build();
} catch (const Unfit& unfit) {
  problem = unfit.what();
  return std::nullopt;
}

}  // namespace gacc::kernels
