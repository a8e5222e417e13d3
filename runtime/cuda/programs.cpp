// See programs.h. The plan says what the artifact's IR says (compiler/compare_plan.h); here it must also agree
// with the PTX, because the driver reads as many arguments as the entry declares.
#include "runtime/cuda/programs.h"

#include <algorithm>
#include <limits>

namespace gacc::cuda {
namespace {

constexpr size_t kMostArguments = 512;  // 4 KiB of parameters, the oldest limit of the hardware

}  // namespace

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
  Status status =
      driver_->check(driver_->module_function(&function, module, name.c_str()), "cannot find kernel " + name);
  if (!status) return status;
  int most = 0;
  status = driver_->check(driver_->function_attribute(&most, kFunctionMaxThreads, function),
                          "cannot ask about kernel " + name);
  if (status && block > most)
    return Status::error("kernel {} needs blocks of {} threads, this GPU can give it {}", name, block, most);
  return status;
}

Status Programs::add(Module module, const Artifact& artifact, Pointer arena, const PlanLaunch& planned,
                     Launch& launch) {
  const auto extent = [](const PlanArgument& argument) {
    return Number{static_cast<uint64_t>(argument.extent), argument.times_batch};
  };
  const auto address = [&](int64_t offset) { return arena + static_cast<uint64_t>(offset); };
  const std::string& kernel = planned.kernel.empty() ? planned.builtin.kernel : planned.kernel;
  const std::vector<PlanArgument> arguments =
      planned.kernel.empty() ? builtin_arguments(planned) : planned.arguments;
  if (arguments.size() > kMostArguments) return Status::error("kernel {} has too many arguments", kernel);
  for (const PlanArgument& argument : arguments)
    launch.arguments.push_back(argument.kind == PlanArgument::Kind::address ? Number{address(argument.offset)}
                                                                            : extent(argument));
  launch.name = planned.kernel.c_str();
  launch.stream = planned.stream;
  launch.after = planned.after;
  if (!planned.kernel.empty()) {
    launch.items = extent(planned.grid);
    launch.block = planned.block;
    launch.per_block = planned.per_block;
    launch.cooperative = planned.cooperative;
    const Status status = find_kernel(module, artifact.ptx, planned.kernel, planned.arguments.size(),
                                      planned.block, launch.function);
    return status && planned.resident ? find_residency(launch) : status;
  }
  launch.m = extent(planned.m);
  launch.n = extent(planned.n);
  launch.k = extent(planned.k);
  for (size_t i = 0; planned.pitch && i < launch.pitch.size(); ++i)
    launch.pitch[i] = extent((*planned.pitch)[i]);
  Product& product = launch.product;
  product.a = address(planned.a);
  product.b = address(planned.b);
  product.c = address(planned.c);
  product.transpose_a = planned.transpose_a;
  product.transpose_b = planned.transpose_b;
  product.accumulate = planned.accumulate;
  const auto element = [](std::string_view dtype) {
    return dtype == "f16" ? Element::f16 : dtype == "bf16" ? Element::bf16 : Element::f32;
  };
  product.type = element(planned.type);
  product.result = element(planned.result);
  if (planned.bias) product.bias = address(planned.bias->offset);
  if (planned.workspace) {
    product.workspace = address(planned.workspace->offset);
    launch.workspace_bytes = planned.workspace->bytes;
  }
  const PlanBuiltin& builtin = planned.builtin;
  if (builtin.kernel.empty()) return {};
  product.builtin = {nullptr, builtin.block, builtin.tile_m, builtin.tile_n, {}};
  return find_kernel(module, artifact.ptx, builtin.kernel, arguments.size(), builtin.block,
                     product.builtin.function);
}

// How many blocks run at once: the device's multiprocessors times what each takes of this kernel.
Status Programs::find_residency(Launch& launch) const {
  int multiprocessors = 0, each = 0;
  Status status =
      driver_->check(driver_->device_attribute(&multiprocessors, kAttributeMultiprocessors, device_),
                     "cannot ask about the GPU");
  if (status)
    status = driver_->check(driver_->occupancy(&each, launch.function, static_cast<int>(launch.block), 0),
                            fmt::format("cannot ask about kernel {}", launch.name));
  if (!status) return status;
  launch.most_blocks = int64_t{multiprocessors} * each;
  if (launch.most_blocks > 0) return {};
  return Status::error("kernel {} with blocks of {} threads does not fit this GPU", launch.name,
                       launch.block);
}

Status Programs::use_persistent(Program program, Module module, const PlanProgram& planned,
                                const Artifact& artifact, Pointer arena) {
  int able = 0;
  Status status = driver_->check(driver_->device_attribute(&able, kAttributeCooperative, device_),
                                 "cannot ask about the GPU");
  if (!status) return status;
  if (able == 0) return Status::error("this GPU cannot run cooperative kernels");
  Launch launch;
  if (status = add(module, artifact, arena, *planned.persistent, launch); !status) return status;
  programs_[index(program)] = {launch};
  values_[index(program)] = planned.persistent_values;
  persistent_[index(program)] = true;
  return {};
}

Status Programs::load(const Driver& driver, Module module, const Artifact& artifact, Pointer arena,
                      GemmEngine* gemm, const EmulatorLink* emulator, int device) {
  driver_ = &driver;
  emulator_ = emulator;
  arena_ = arena;
  device_ = device;
  gemm_ = gemm;
  micro_batch_ = artifact.plan.micro_batch;
  for (size_t i = 0; i < programs_.size(); ++i) {
    const auto& programs = artifact.plan.programs;
    auto found = std::find_if(programs.begin(), programs.end(),
                              [&](const PlanProgram& program) { return program.name == kProgramNames[i]; });
    const bool missing = found == programs.end();
    if (missing && !artifact.plan.needs(kPrograms[i])) continue;
    if (missing) return Status::error("the artifact's plan has no program {}", kProgramNames[i]);
    values_[i] = found->values;
    programs_[i].clear();
    programs_[i].reserve(found->launches.size());
    for (const PlanLaunch& planned : found->launches)
      if (Status status = add(module, artifact, arena, planned, programs_[i].emplace_back()); !status)
        return status;
    for (Launch& launch : programs_[i]) {
      launch.on_demand = predicts(kPrograms[i]);
      if (launch.after >= 0) programs_[i][static_cast<size_t>(launch.after)].awaited = true;
    }
    for (size_t j = 0; j < found->launches.size(); ++j) {
      const PlanLaunch& planned = found->launches[j];
      const auto number = static_cast<int64_t>(j);
      if (planned.bias) {
        programs_[i][j].then = planned.bias->launch;
        programs_[i][static_cast<size_t>(planned.bias->launch)].bias_of = number;
      }
      if (!planned.builtin.arguments.empty()) {
        programs_[i][j].then = planned.builtin.does;
        programs_[i][static_cast<size_t>(planned.builtin.does)].epilogue_of = number;
      }
    }
  }
  return {};
}

Product Programs::at_batch(const Launch& launch, int64_t batch) const {
  Product product = launch.product;
  product.m = static_cast<int64_t>(launch.m.at(batch));
  product.n = static_cast<int64_t>(launch.n.at(batch));
  product.k = static_cast<int64_t>(launch.k.at(batch));
  for (size_t i = 0; i < launch.pitch.size(); ++i)
    product.pitch[i] = static_cast<int64_t>(launch.pitch[i].at(batch));
  const bool varies = launch.m.times_batch || launch.n.times_batch || launch.k.times_batch;
  product.ragged = launch.on_demand || (varies && batch != micro_batch_);
  if (gemm_->workspace_bytes(product) > launch.workspace_bytes)
    product.workspace = workspaces_[static_cast<size_t>(launch.stream)];
  for (const Number& argument : launch.arguments) product.builtin.parameters.push_back(argument.at(batch));
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
    // What the product's kernel reads, launches between the product and the kernel's own place may read, too,
    // where the kernel does not write over it.
    const auto stays = [&](const PlanValue& value) {
      return value.first < number && value.last != number &&
             std::none_of(values.begin(), values.end(), [&](const PlanValue& other) {
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
    if (!launch.function)
      if (Status status = gemm_->prepare(at_batch(launch, batch), stream); !status) return status;
  return {};
}

int64_t Programs::workspace_bytes(Program program, int64_t stream) const {
  int64_t most = 0;
  for (const Launch& launch : programs_[index(program)]) {
    if (launch.function || launch.stream != stream) continue;
    const int64_t wanted = gemm_->workspace_bytes(at_batch(launch, micro_batch_));
    if (wanted > launch.workspace_bytes) most = std::max(most, wanted);
  }
  return most;
}

Status Programs::warm_up(Program program, Stream stream) const {
  for (const Launch& launch : programs_[index(program)])
    if (!launch.function)
      if (Status status = gemm_->warm_up(at_batch(launch, micro_batch_), stream); !status) return status;
  return {};
}

Status Programs::launch(Program program, int64_t batch, Stream stream, const Queued& queued) const {
  const std::vector<Launch>& launches = programs_[index(program)];
  const auto end = static_cast<int64_t>(launches.size());
  for (int64_t number = 0; number < end; ++number) {
    if (!done_before(launches, launches[static_cast<size_t>(number)], batch))
      if (Status status = tell_values(program, launches, number, batch, stream); !status) return status;
    if (Status status = launch_one(launches, number, batch, stream, queued); !status) return status;
  }
  return tell_values(program, launches, end, batch, stream);
}

bool Programs::forks(Program program) const {
  return std::ranges::any_of(programs_[index(program)],
                             [](const Launch& launch) { return launch.stream != 0; });
}

// What waits for a launch that a product has done waits for its place in the stream.
Status Programs::launch(Program program, int64_t batch, Fork& fork) const {
  const std::vector<Launch>& launches = programs_[index(program)];
  const auto end = static_cast<int64_t>(launches.size());
  Status status = fork.begin();
  for (int64_t number = 0; status && number < end; ++number) {
    const Launch& launch = launches[static_cast<size_t>(number)];
    const Stream stream = fork.stream(launch.stream);
    if (launch.after >= 0) status = fork.wait(launch.after, launch.stream);
    if (status && !done_before(launches, launch, batch))
      status = tell_values(program, launches, number, batch, stream);
    if (status) status = launch_one(launches, number, batch, stream, {});
    if (status && launch.awaited) status = fork.mark(number, launch.stream);
  }
  if (status) status = fork.end();
  return status ? tell_values(program, launches, end, batch, fork.stream(0)) : status;
}

Status Programs::launch_one(const std::vector<Launch>& launches, int64_t number, int64_t batch, Stream stream,
                            const Queued& queued) const {
  const Launch& launch = launches[static_cast<size_t>(number)];
  if (done_before(launches, launch, batch))  // a profile shows it, without a duration
    return queued ? queued(number, fmt::format("{} (in its product)", launch.name)) : Status();
  if (!launch.function) {
    const Product product = at_batch(launch, batch);
    if (Status status = gemm_->launch(product, stream); !status || !queued) return status;
    return queued(number, fmt::format("product {}x{}x{}", product.m, product.n, product.k));
  }
  const auto per_block = static_cast<uint64_t>(launch.per_block);
  uint64_t blocks = (launch.items.at(batch) + per_block - 1) / per_block;
  if (launch.most_blocks > 0) blocks = std::min(blocks, static_cast<uint64_t>(launch.most_blocks));
  if (blocks == 0) return {};  // nothing to do, and a grid without blocks is an error
  if (blocks > std::numeric_limits<int32_t>::max())
    return Status::error("kernel {} would need {} blocks, more than a launch can have", launch.name, blocks);
  uint64_t values[kMostArguments];  // the driver copies them at every launch
  void* parameters[kMostArguments];
  for (size_t i = 0; i < launch.arguments.size(); ++i) {
    values[i] = launch.arguments[i].at(batch);
    parameters[i] = &values[i];
  }
  const auto grid = static_cast<unsigned>(blocks), block = static_cast<unsigned>(launch.block);
  const int error =
      launch.cooperative
          ? driver_->launch_cooperative(launch.function, grid, 1, 1, block, 1, 1, 0, stream, parameters)
          : driver_->launch(launch.function, grid, 1, 1, block, 1, 1, 0, stream, parameters, nullptr);
  if (error != 0) return driver_->check(error, fmt::format("cannot launch kernel {}", launch.name));
  return queued ? queued(number, launch.name) : Status();
}

}  // namespace gacc::cuda
