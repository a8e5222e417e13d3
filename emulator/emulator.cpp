// Modules, memory and launches behind emulator.h.
#include "emulator/emulator.h"

#include <algorithm>
#include <cstring>

#include "emulator/warp.h"

namespace gacc::emulator {
namespace {

KernelInfo describe(const Program& program) {
  KernelInfo info;
  info.name = program.name;
  for (size_t i = 0; i < program.params.size(); ++i)
    info.params.push_back(
        {program.params[i].name, program.params[i].type.name, program.param_at[i], program.params[i].bytes});
  info.param_bytes = program.param_bytes;
  info.registers = program.registers;
  info.shared_bytes = program.shared_bytes;
  info.local_bytes = program.local_bytes;
  info.max_threads = program.max_threads;
  return info;
}

Status decode_entries(PtxFile& file, const Symbols& symbols, std::vector<std::unique_ptr<Kernel>>& kernels) {
  for (Function& function : file.functions) {
    for (const auto& other : kernels)
      if (other->info.name == function.name)
        return Status::error("line {}: kernel `{}` is defined twice", function.line, function.name);
    auto kernel = std::make_unique<Kernel>();
    GACC_TRY(decode(function, file, symbols, kernel->program));
    kernel->info = describe(kernel->program);
    kernels.push_back(std::move(kernel));
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

}  // namespace

const Kernel* LoadedModule::find(std::string_view name) const {
  for (const auto& kernel : kernels)
    if (kernel->info.name == name) return kernel.get();
  return nullptr;
}

Status list_kernels(std::string_view text, std::vector<KernelInfo>& kernels) {
  PtxFile file;
  GACC_TRY(parse_ptx(text, file));
  Symbols symbols;
  uint64_t next = kGlobalBase;
  for (const Variable* v : module_variables(file)) symbols[v->name] = next += 1 << 29;
  std::vector<std::unique_ptr<Kernel>> decoded;
  GACC_TRY(decode_entries(file, symbols, decoded));
  for (const auto& kernel : decoded) kernels.push_back(kernel->info);
  return {};
}

Status Emulator::load(std::string_view text, std::unique_ptr<LoadedModule>& module) {
  PtxFile file;
  GACC_TRY(parse_ptx(text, file));
  auto loaded = std::make_unique<LoadedModule>();
  loaded->target = file.target;
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
  if (Status status = decode_entries(file, symbols, loaded->kernels); !status) {
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
  if (bytes == 0) return true;
  Region* region = memory_.find(address);
  if (!region || !region->covers(address, bytes)) return false;
  auto at = static_cast<int64_t>(address - region->base());
  std::memcpy(region->data() + at, from, static_cast<size_t>(bytes));
  region->mark_written(at, bytes);
  return true;
}

bool Emulator::read(uint64_t address, void* to, int64_t bytes) {
  if (bytes == 0) return true;
  Region* region = memory_.find(address);
  if (!region || !region->covers(address, bytes)) return false;
  std::memcpy(to, region->data() + (address - region->base()), static_cast<size_t>(bytes));
  return true;
}

bool Emulator::fill(uint64_t address, uint32_t pattern, int pattern_bytes, int64_t bytes) {
  if (bytes == 0) return true;
  Region* region = memory_.find(address);
  if (!region || !region->covers(address, bytes)) return false;
  auto at = static_cast<int64_t>(address - region->base());
  for (int64_t i = 0; i + pattern_bytes <= bytes; i += pattern_bytes)
    std::memcpy(region->data() + at + i, &pattern, static_cast<size_t>(pattern_bytes));
  region->mark_written(at, bytes);
  return true;
}

bool Emulator::declare_live(uint64_t allocation, int64_t offset, int64_t bytes, std::string name) {
  Region* region = memory_.find(allocation);
  if (!region || bytes < 0) return false;
  offset += static_cast<int64_t>(allocation - region->base());
  if (offset < 0 || offset > region->bytes() || bytes > region->bytes() - offset) return false;
  region->declare_live(offset, bytes, std::move(name));
  return true;
}

Status Emulator::launch(const Kernel& kernel, Dim3 grid, Dim3 block, int64_t dynamic_shared,
                        const std::vector<uint8_t>& params, bool cooperative) {
  const Program& program = kernel.program;
  auto threads = block.count();
  if (threads == 0 || threads > 1024 || block.z > 64)
    return Status::error("`{}`: a block of {} threads", program.name, threads);
  if (program.max_threads > 0 && threads > static_cast<uint64_t>(program.max_threads))
    return Status::error("`{}`: a block of {} threads, .maxntid allows {}", program.name, threads,
                         program.max_threads);
  if (grid.count() == 0 || grid.count() > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
    return Status::error("`{}`: a grid of {} blocks", program.name, grid.count());
  if (dynamic_shared < 0 || program.shared_bytes + dynamic_shared > 227 * 1024)
    return Status::error("`{}`: {} bytes of shared memory", program.name,
                         program.shared_bytes + dynamic_shared);
  if (static_cast<int64_t>(params.size()) != program.param_bytes)
    return Status::error("`{}`: {} bytes of parameters, it takes {}", program.name, params.size(),
                         program.param_bytes);
  if (cooperative && grid.count() * ((threads + 31) / 32) > 132 * 64)
    return Status::error("`{}`: {} blocks do not fit on the device together", program.name, grid.count());
  Launch launch{program, memory_, lifetimes_, reports_, clocks_, grid, block, cooperative};
  launch.shared_bytes = program.shared_bytes + dynamic_shared;
  launch.params = params;
  launch.limit = limit_ + kPerByte * static_cast<uint64_t>(memory_.allocated());
  run_launch(launch);
  executed_ += launch.executed;
  last_ = launch.counts;
  last_.instructions = launch.executed;
  return {};
}

}  // namespace gacc::emulator
