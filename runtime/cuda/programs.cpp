// The plan was made from the artifact's IR; here it must also agree with the PTX, because the
// driver reads as many arguments as the entry declares.
#include "runtime/cuda/programs.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace gacc::cuda {

constexpr size_t kMostArguments = 512;  // 4 KiB of parameters, the oldest limit of the hardware

int entry_parameters(std::string_view ptx, std::string_view name) {
  const std::string head = fmt::format(".entry {}(", name);
  size_t at = ptx.find(head);
  if (at == std::string_view::npos) return -1;
  at += head.size();
  const std::string_view list = ptx.substr(at, ptx.find(')', at) - at);
  constexpr std::string_view kParameter = ".param .";
  int count = 0;
  for (size_t next = list.find(kParameter); next != std::string_view::npos;
       next = list.find(kParameter, next + 1)) {
    const std::string_view type = list.substr(next + kParameter.size(), 3);
    if (type != "u64" && type != "b64" && type != "s64") return -1;
    ++count;
  }
  return count;
}

Status Programs::find_kernel(Module module, const std::string& ptx, const std::string& name,
                             size_t parameters, int64_t block, Function& function) const {
  if (entry_parameters(ptx, name) != static_cast<int>(parameters))
    return Status::error("the artifact's plan gives kernel {} {} arguments, its PTX does not take them", name,
                         parameters);
  GACC_TRY(driver_->check(driver_->module_function(&function, module, name.c_str()),
                          "cannot find kernel " + name));
  int most = 0;
  GACC_TRY(driver_->check(driver_->function_attribute(&most, kFunctionMaxThreads, function),
                          "cannot ask about kernel " + name));
  if (block <= most) return {};
  return Status::error("kernel {} needs blocks of {} threads, this GPU can give it {}", name, block, most);
}

Status Programs::add(Module module, const Artifact& artifact, const PlanLaunch& planned, Launch& launch) {
  const auto address = [&](int64_t offset) { return arena_ + static_cast<uint64_t>(offset); };
  launch.planned = planned;
  if (planned.copy) return {};
  if (planned.kernel.empty()) launch.planned.arguments = builtin_arguments(planned);
  const std::string& kernel = planned.kernel.empty() ? planned.builtin.kernel : planned.kernel;
  const size_t arguments = launch.planned.arguments.size();
  if (arguments > kMostArguments) return Status::error("kernel {} has too many arguments", kernel);
  if (!planned.kernel.empty()) {
    GACC_TRY(find_kernel(module, artifact.ptx, kernel, arguments, planned.block, launch.function));
    return planned.resident ? find_residency(launch) : Status();
  }
  Product& product = launch.product;
  product.a = address(planned.a);
  product.b = address(planned.b);
  product.c = address(planned.c);
  product.transpose_a = planned.transpose_a;
  product.transpose_b = planned.transpose_b;
  product.accumulate = planned.accumulate;
  product.type = planned.type;
  product.result = planned.result;
  if (planned.bias) product.bias = address(planned.bias->offset);
  if (planned.workspace) product.workspace = address(planned.workspace->offset);
  const PlanBuiltin& builtin = planned.builtin;
  if (builtin.kernel.empty()) return {};
  product.builtin = {nullptr, builtin.block, builtin.tile_m, builtin.tile_n, {}};
  return find_kernel(module, artifact.ptx, kernel, arguments, builtin.block, product.builtin.function);
}

// Finds how many blocks run at once: the device's multiprocessors times the blocks of this kernel on each.
Status Programs::find_residency(Launch& launch) const {
  int multiprocessors = 0, each = 0;
  const auto& [kernel, block] = std::tie(launch.planned.kernel, launch.planned.block);
  GACC_TRY(driver_->check(driver_->device_attribute(&multiprocessors, kAttributeMultiprocessors, device_),
                          "cannot ask about the GPU"));
  GACC_TRY(driver_->check(driver_->occupancy(&each, launch.function, static_cast<int>(block), 0),
                          fmt::format("cannot ask about kernel {}", kernel)));
  launch.most_blocks = int64_t{multiprocessors} * each;
  if (launch.most_blocks > 0) return {};
  return Status::error("kernel {} with blocks of {} threads does not fit this GPU", kernel, block);
}

Status Programs::use_persistent(Program program, Module module, const PlanProgram& planned,
                                const Artifact& artifact) {
  int able = 0;
  GACC_TRY(driver_->check(driver_->device_attribute(&able, kAttributeCooperative, device_),
                          "cannot ask about the GPU"));
  if (able == 0) return Status::error("this GPU cannot run cooperative kernels");
  Launch launch;
  GACC_TRY(add(module, artifact, *planned.persistent, launch));
  programs_[index(program)] = {launch};
  values_[index(program)] = planned.persistent_values;
  persistent_[index(program)] = true;
  return {};
}

Status Programs::load(const Driver& driver, Module module, const Artifact& artifact, Pointer arena,
                      std::byte* host_state, GemmEngine* gemm, const EmulatorLink* emulator, int device) {
  driver_ = &driver;
  host_state_ = host_state;
  arena_bytes_ = artifact.plan.arena_bytes;
  emulator_ = emulator;
  arena_ = arena;
  device_ = device;
  gemm_ = gemm;
  micro_batch_ = artifact.plan.micro_batch;
  for (const PlanBuffer& buffer : artifact.plan.buffers)
    if (buffer.role == BufferRole::given) read_by_init_.insert(buffer.offset);
  for (size_t i = 0; i < programs_.size(); ++i) {
    const auto& programs = artifact.plan.programs;
    const auto found = std::ranges::find(programs, kProgramNames[i], &PlanProgram::name);
    const bool missing = found == programs.end();
    if (missing && !artifact.plan.needs(kPrograms[i])) continue;
    if (missing) return Status::error("the artifact's plan has no program {}", kProgramNames[i]);
    values_[i] = found->values;
    sections_[i] = found->section;
    std::vector<Launch>& launches = programs_[i];
    launches.resize(found->launches.size());
    for (size_t j = 0; j < launches.size(); ++j)
      GACC_TRY(add(module, artifact, found->launches[j], launches[j]));
    for (size_t j = 0; j < launches.size(); ++j) {
      const PlanLaunch& planned = found->launches[j];
      const auto number = static_cast<int64_t>(j);
      launches[j].on_demand = predicts(kPrograms[i]);
      for (const int64_t awaited : planned.after) launches[static_cast<size_t>(awaited)].awaited = true;
      if (planned.bias) {
        launches[j].then = planned.bias->launch;
        launches[static_cast<size_t>(planned.bias->launch)].bias_of = number;
      }
      if (planned.builtin.arguments.empty()) continue;
      launches[j].then = planned.builtin.does;
      launches[static_cast<size_t>(planned.builtin.does)].epilogue_of = number;
    }
  }
  return {};
}

uint64_t Programs::value(const PlanArgument& argument, int64_t batch) const {
  if (argument.kind == PlanArgument::Kind::address) return arena_ + static_cast<uint64_t>(argument.offset);
  return static_cast<uint64_t>(argument.extent) * static_cast<uint64_t>(argument.times_batch ? batch : 1);
}

Product Programs::at_batch(const Launch& launch, int64_t batch) const {
  Product product = launch.product;
  const auto& [m, n, k, pitch] =
      std::tie(launch.planned.m, launch.planned.n, launch.planned.k, launch.planned.pitch);
  const auto extent = [&](const PlanArgument& of) { return static_cast<int64_t>(value(of, batch)); };
  product.m = extent(m);
  product.n = extent(n);
  product.k = extent(k);
  if (!gemm_->builtin()) {
    const std::array<int64_t*, 3> own = {&product.m, &product.n, &product.k};
    for (size_t i = 0; i < own.size(); ++i)
      if (const int64_t rounded = launch.planned.rounded[i]; rounded != 0) *own[i] = rounded;
  }
  if (pitch) std::ranges::transform(*pitch, product.pitch.begin(), extent);
  const bool varies = m.times_batch || n.times_batch || k.times_batch;
  product.ragged = launch.on_demand || (varies && batch != micro_batch_);
  if (gemm_->workspace_bytes(product) > planned_workspace(launch))
    product.workspace = workspaces_[static_cast<size_t>(launch.planned.stream)];
  for (const PlanArgument& argument : launch.planned.arguments)
    product.builtin.parameters.push_back(value(argument, batch));
  return product;
}

bool Programs::done_before(const std::vector<Launch>& launches, const Launch& launch, int64_t batch) const {
  if (launch.epilogue_of >= 0 && gemm_->builtin()) return true;
  return launch.bias_of >= 0 &&
         gemm_->adds_bias(at_batch(launches[static_cast<size_t>(launch.bias_of)], batch));
}

Status Programs::tell_values(Program program, const std::vector<Launch>& launches, int64_t number,
                             int64_t batch, Stream stream) const {
  const std::vector<PlanValue>& values = values_[index(program)];
  if (!emulator_ || values.empty()) return {};
  if (persistent_[index(program)] && number == 0) return emulator_->values(stream, arena_, values);
  std::vector<PlanValue> now;
  if (number < static_cast<int64_t>(launches.size())) {
    const int64_t then = launches[static_cast<size_t>(number)].then;
    const bool both = then >= 0 && done_before(launches, launches[static_cast<size_t>(then)], batch);
    const auto at = [&](int64_t launch) { return both && launch == then ? 0 : launch - number; };
    // Launches between the product and the kernel's own place may also read the operands of the product's kernel, where
    // it does not write over them.
    const auto stays = [&](const PlanValue& value) {
      return value.first < number && value.last != number &&
             std::ranges::none_of(values, [&](const PlanValue& other) {
               return at(other.first) == 0 && other.offset < value.offset + value.bytes &&
                      value.offset < other.offset + other.bytes;
             });
    };
    for (const PlanValue& value : values)
      if (at(value.first) == 0 || (at(value.last) == 0 && !stays(value)))
        now.push_back({value.offset, value.bytes, at(value.first), at(value.last)});
  }
  return emulator_->values(stream, arena_, now);
}

Status Programs::prepare(Program program, int64_t batch, Stream stream) const {
  for (const Launch& launch : programs_[index(program)])
    if (launch.is_product()) GACC_TRY(gemm_->prepare(at_batch(launch, batch), stream));
  return {};
}

int64_t Programs::workspace_bytes(Program program, int64_t stream) const {
  int64_t most = 0;
  for (const Launch& launch : programs_[index(program)]) {
    if (!launch.is_product() || launch.planned.stream != stream) continue;
    const int64_t wanted = gemm_->workspace_bytes(at_batch(launch, micro_batch_));
    if (wanted > planned_workspace(launch)) most = std::max(most, wanted);
  }
  return most;
}

Status Programs::warm_up(Program program, Stream stream) const {
  for (const Launch& launch : programs_[index(program)])
    if (launch.is_product()) GACC_TRY(gemm_->warm_up(at_batch(launch, micro_batch_), stream));
  return {};
}

int64_t Programs::last_stream(Program program) const {
  int64_t last = 0;
  for (const Launch& launch : programs_[index(program)]) last = std::max(last, launch.planned.stream);
  return last;
}

// A launch that waits for one that a product has done waits for that one's place in the stream.
Status Programs::launch(Program program, int64_t batch, Fork& fork, const Queued& queued) const {
  const std::vector<Launch>& launches = programs_[index(program)];
  const auto end = static_cast<int64_t>(launches.size());
  const std::optional<PlanSection>& section = sections_[index(program)];
  GACC_TRY(fork.begin());
  for (int64_t number = 0; number < end; ++number) {
    if (section && number == section->first) {
      bool runs = false;
      GACC_TRY(read_flag(*section, fork.stream(0), runs));
      if (!runs) number = section->last + 1;
      if (number == end) break;
    }
    const Launch& launch = launches[static_cast<size_t>(number)];
    const auto& [at, after] = std::tie(launch.planned.stream, launch.planned.after);
    const Stream stream = fork.stream(at);
    for (const int64_t other : after) GACC_TRY(fork.wait(other, at));
    if (!done_before(launches, launch, batch))
      GACC_TRY(tell_values(program, launches, number, batch, stream));
    GACC_TRY(launch_one(launches, number, batch, stream, queued));
    if (launch.awaited) GACC_TRY(fork.mark(number, at));
  }
  GACC_TRY(fork.end());
  return tell_values(program, launches, end, batch, fork.stream(0));
}

// The operands of a launch of `init` are buffers: some that the runtime has given it, and others that it fills.
void Programs::leave_out(std::span<const PlanBuffer* const> given) {
  std::set<int64_t> overwritten;
  for (const PlanBuffer* buffer : given) overwritten.insert(buffer->offset);
  for (Launch& launch : programs_[index(Program::init)]) {
    const PlanLaunch& planned = launch.planned;
    const auto fills_given = [&](const PlanArgument& argument) {
      return argument.kind != PlanArgument::Kind::address || overwritten.contains(argument.offset) ||
             read_by_init_.contains(argument.offset);
    };
    launch.runs = planned.copy ? !overwritten.contains(planned.copy->to)
                               : !launch.function || !std::ranges::all_of(planned.arguments, fills_given);
  }
}

Status Programs::read_flag(const PlanSection& section, Stream stream, bool& runs) const {
  int32_t flag = 0;
  GACC_TRY(driver_->read(&flag, arena_ + static_cast<Pointer>(section.flag), sizeof flag, stream));
  runs = flag != 0;
  return {};
}

Status Programs::copy(const PlanCopy& copy, Stream stream) const {
  const auto on_gpu = [&](int64_t offset) { return arena_ + static_cast<Pointer>(offset); };
  const auto on_host = [&](int64_t offset) { return host_state_ + (offset - arena_bytes_); };
  const auto bytes = static_cast<size_t>(copy.bytes);
  if (copy.to < arena_bytes_)
    return driver_->check(driver_->copy_in(on_gpu(copy.to), on_host(copy.from), bytes, stream),
                          "cannot copy from the host to the GPU");
  return driver_->check(driver_->copy_out(on_host(copy.to), on_gpu(copy.from), bytes, stream),
                        "cannot copy state from the GPU");
}

Status Programs::launch_one(const std::vector<Launch>& launches, int64_t number, int64_t batch, Stream stream,
                            const Queued& queued) const {
  const Launch& launch = launches[static_cast<size_t>(number)];
  const PlanLaunch& planned = launch.planned;
  if (done_before(launches, launch, batch))  // a profile shows it, without a duration
    return queued ? queued(number, fmt::format("{} (in its product)", planned.kernel)) : Status();
  if (!launch.runs) return {};
  if (planned.copy) {
    GACC_TRY(copy(*planned.copy, stream));
    const char* way = planned.copy->to < arena_bytes_ ? "in" : "out";
    return queued ? queued(number, fmt::format("copy {} {}", way, planned.copy->bytes)) : Status();
  }
  if (!launch.function) {
    const Product product = at_batch(launch, batch);
    if (Status status = gemm_->launch(product, stream); !status || !queued) return status;
    return queued(number, fmt::format("product {}x{}x{}", product.m, product.n, product.k));
  }
  const auto per_block = static_cast<uint64_t>(planned.per_block);
  uint64_t blocks = (value(planned.grid, batch) + per_block - 1) / per_block;
  if (launch.most_blocks > 0) blocks = std::min(blocks, static_cast<uint64_t>(launch.most_blocks));
  if (blocks == 0) return {};  // nothing to do, and a grid without blocks is an error
  if (blocks > std::numeric_limits<int32_t>::max())
    return Status::error("kernel {} would need {} blocks, more than a launch can have", planned.kernel,
                         blocks);
  uint64_t values[kMostArguments];  // the driver copies them at every launch
  void* parameters[kMostArguments];
  for (size_t i = 0; i < planned.arguments.size(); ++i) {
    values[i] = value(planned.arguments[i], batch);
    parameters[i] = &values[i];
  }
  const auto grid = static_cast<unsigned>(blocks), block = static_cast<unsigned>(planned.block);
  const int error =
      planned.cooperative
          ? driver_->launch_cooperative(launch.function, grid, 1, 1, block, 1, 1, 0, stream, parameters)
          : driver_->launch(launch.function, grid, 1, 1, block, 1, 1, 0, stream, parameters, nullptr);
  if (error != 0) return driver_->check(error, fmt::format("cannot launch kernel {}", planned.kernel));
  return queued ? queued(number, planned.kernel) : Status();
}

}  // namespace gacc::cuda
