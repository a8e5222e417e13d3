// Modules, memory, launches and reports behind emulator.h.
#include "emulator/emulator.h"

#include <algorithm>
#include <cstring>

#include "emulator/warp.h"

namespace gacc::emulator {
namespace {

Status decode_entries(const PtxFile& file, const Symbols& symbols, LoadedModule& module) {
  for (const Function& function : file.functions) {
    if (module.find(function.name))
      return Status::error("line {}: kernel `{}` is defined twice", function.line, function.name);
    module.kernels.push_back(GACC_TRY(decode(function, file, symbols)));
  }
  return {};
}

std::vector<const Variable*> module_variables(const PtxFile& file) {
  std::vector<const Variable*> list;
  auto add = [&](const Variable& v) {
    if (v.space == Space::global || v.space == Space::constant) list.push_back(&v);
  };
  for (const Variable& v : file.variables) add(v);
  for (const Function& f : file.functions)
    for (const Variable& v : f.variables) add(v);
  return list;
}

constexpr const char* kDefectNames[] = {
#define GACC_DEFECT(name, text) text,
#include "emulator/defects.def"
};

}  // namespace

std::string Report::render() const {
  std::string times = count == 1 ? "" : fmt::format(", {} times", count);
  return fmt::format("{}: line {}: {}: {}, block ({},{},{}) thread ({},{},{}){}", kernel, line,
                     kDefectNames[static_cast<size_t>(defect)], text, block.x, block.y, block.z, thread.x,
                     thread.y, thread.z, times);
}

Report* Reports::add(Defect defect, const std::string& kernel, int line) {
  auto [place, fresh] = index_.try_emplace({defect, kernel, line}, reports_.size());
  if (!fresh) {
    ++reports_[place->second].count;
    return nullptr;
  }
  Report& report = reports_.emplace_back();
  report.defect = defect;
  report.kernel = kernel;
  report.line = line;
  return &report;
}

const Kernel* LoadedModule::find(std::string_view name) const {
  for (const Kernel& kernel : kernels)
    if (kernel.info.name == name) return &kernel;
  return nullptr;
}

Status list_kernels(std::string_view text, std::vector<KernelInfo>& kernels) {
  const PtxFile file = GACC_TRY(parse_ptx(text));
  Symbols symbols;
  uint64_t next = kGlobalBase;
  for (const Variable* v : module_variables(file)) symbols[v->name] = next += 1 << 29;
  LoadedModule decoded;
  GACC_TRY(decode_entries(file, symbols, decoded));
  for (const Kernel& kernel : decoded.kernels) kernels.push_back(kernel.info);
  return {};
}

Status Emulator::load(std::string_view text, std::unique_ptr<LoadedModule>& module) {
  const PtxFile file = GACC_TRY(parse_ptx(text));
  auto loaded = std::make_unique<LoadedModule>();
  Symbols symbols;
  for (const Variable* v : module_variables(file)) {
    if (v->external) return Status::error("line {}: `{}` is external and not defined here", v->line, v->name);
    const uint64_t address = allocate(std::max<int64_t>(v->bytes, 1), v->name);
    if (address == 0) return Status::error("line {}: no memory for `{}`", v->line, v->name);
    fill(address, 0, 1, v->bytes);  // without an initialiser: zero
    write(address, v->initial.data(), static_cast<int64_t>(v->initial.size()));
    loaded->variables.push_back(address);
    symbols[v->name] = address;
  }
  if (Status status = decode_entries(file, symbols, *loaded); !status) {
    unload(*loaded);
    return status;
  }
  module = std::move(loaded);
  return {};
}

void Emulator::unload(const LoadedModule& module) {
  for (const uint64_t address : module.variables) release(address);
}

uint64_t Emulator::allocate(int64_t bytes, std::string name) {
  Region* region = memory_.allocate(bytes, std::move(name));
  return region ? region->base() : 0;
}

bool Emulator::write(uint64_t address, const void* from, int64_t bytes) {
  Region* region = memory_.find(address, bytes);
  if (!region || bytes == 0) return bytes == 0;
  std::memcpy(region->data() + region->offset(address), from, static_cast<size_t>(bytes));
  region->mark_written(region->offset(address), bytes);
  return true;
}

bool Emulator::read(uint64_t address, void* to, int64_t bytes) {
  Region* region = memory_.find(address, bytes);
  if (!region || bytes == 0) return bytes == 0;
  std::memcpy(to, region->data() + region->offset(address), static_cast<size_t>(bytes));
  return true;
}

bool Emulator::fill(uint64_t address, uint32_t pattern, int pattern_bytes, int64_t bytes) {
  Region* region = memory_.find(address, bytes);
  if (!region || bytes == 0) return bytes == 0;
  const int64_t at = region->offset(address);
  for (int64_t i = 0; i < bytes; i += pattern_bytes)
    std::memcpy(region->data() + at + i, &pattern, static_cast<size_t>(pattern_bytes));
  region->mark_written(at, bytes);
  return true;
}

bool Emulator::declare_live(uint64_t allocation, int64_t offset, int64_t bytes, std::string name) {
  Region* region = memory_.find(allocation);
  if (!region || bytes < 0) return false;
  offset += region->offset(allocation);
  if (offset < 0 || offset > region->bytes() || bytes > region->bytes() - offset) return false;
  region->declare_live(offset, bytes, std::move(name));
  return true;
}

Status Emulator::launch(const Kernel& kernel, Dim3 grid, Dim3 block, int64_t dynamic_shared,
                        const std::vector<uint8_t>& params, bool cooperative) {
  const KernelInfo& info = kernel.info;
  auto threads = block.count();
  if (threads == 0 || threads > EmulatedGpu::kThreads || block.z > EmulatedGpu::kDepth)
    return Status::error("`{}`: a block of {} threads", info.name, threads);
  if (info.max_threads > 0 && threads > static_cast<uint64_t>(info.max_threads))
    return Status::error("`{}`: a block of {} threads, .maxntid allows {}", info.name, threads,
                         info.max_threads);
  if (grid.count() == 0 || grid.count() > 0x7fffffff || grid.y > EmulatedGpu::kGridSide ||
      grid.z > EmulatedGpu::kGridSide)
    return Status::error("`{}`: a grid of {} blocks", info.name, grid.count());
  if (dynamic_shared < 0 ||
      info.shared_bytes + dynamic_shared > EmulatedGpu::kShared - EmulatedGpu::kSharedOfSystem)
    return Status::error("`{}`: {} bytes of shared memory", info.name, info.shared_bytes + dynamic_shared);
  if (static_cast<int64_t>(params.size()) != info.param_bytes)
    return Status::error("`{}`: {} bytes of parameters, it takes {}", info.name, params.size(),
                         info.param_bytes);
  if (cooperative &&
      grid.count() * ((threads + kLanes - 1) / kLanes) > EmulatedGpu::kMultiprocessors * EmulatedGpu::kWarps)
    return Status::error("`{}`: {} blocks do not fit on the device together", info.name, grid.count());
  Launch launch{kernel, memory_, lifetimes_, reports_, clocks_, grid, block, cooperative};
  launch.shared_bytes = info.shared_bytes + dynamic_shared;
  launch.params = params;
  launch.limit = limit_ + kPerByte * static_cast<uint64_t>(memory_.allocated());
  run_launch(launch);
  executed_ += launch.executed;
  last_ = launch.counts;
  last_.instructions = launch.executed;
  return {};
}

}  // namespace gacc::emulator
