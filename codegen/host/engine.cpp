// See engine.h.
#include "codegen/host/engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "codegen/compare_plan.h"
#include "codegen/host/build_id.h"
#include "codegen/launches.h"

namespace gacc::host {

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

Status Arena::allocate(int64_t bytes) {
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  bytes = std::max<int64_t>(bytes, 1);
  void* address = bytes > memory ? MAP_FAILED
                                 : mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    return Status::error("the step needs {} bytes of memory at once; this machine has {}", bytes, memory);
  madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  std::memset(address, 0, static_cast<size_t>(bytes));
  data_ = static_cast<char*>(address);
  bytes_ = bytes;
  return {};
}

namespace {

// Programs are numbered like regions.
static_assert(static_cast<int>(Program::init) == static_cast<int>(ir::RegionKind::init) &&
              static_cast<int>(Program::step) == static_cast<int>(ir::RegionKind::step) &&
              static_cast<int>(Program::update) == static_cast<int>(ir::RegionKind::update) &&
              static_cast<int>(Program::eval) == static_cast<int>(ir::RegionKind::eval));

Element element(std::string_view dtype) {
  return dtype == "f16" ? Element::f16 : dtype == "bf16" ? Element::bf16 : Element::f32;
}
int64_t element_bytes(Element element) { return element == Element::f32 ? 4 : 2; }

codegen::Extent extent(const PlanArgument& argument) { return {argument.extent, argument.times_batch}; }

}  // namespace

Status Engine::load(std::string_view text, const Cache& cache) {
  ir::Module module;
  if (Status status = read_ir(text, module); !status) return status;
  micro_batch_ = module.micro_batch();

  std::string problem;
  const std::optional<codegen::Program> program =
      codegen::make_program(module, codegen::Purpose::host, problem);
  if (!program) return Status::error("internal error: {}", problem);
  const std::string key = CacheKey().add(build_id()).add(codegen::host_key()).add(text).text();
  if (const std::optional<std::string> object = cache.load(key))
    code_ = codegen::HostCode::load(*object, *program, problem);
  if (!code_) {
    const std::string object = codegen::compile_host(*program, problem);
    if (!object.empty()) code_ = codegen::HostCode::load(object, *program, problem);
    if (!code_) return Status::error("internal error: host code: {}", problem);
    cache.store(key, object);
  }
  if (Status status = arena_.allocate(*module.arena_bytes); !status) return status;
  for (const ir::RegionKind kind : ir::all_regions)
    if (Status status = prepare(module, *program, kind); !status) return status;
  return {};
}

bool Engine::conflict(const std::vector<Range>& a, const std::vector<Range>& b) {
  for (const Range& x : a)
    for (const Range& y : b)
      if ((x.written || y.written) && x.begin < y.end && y.begin < x.end) return true;
  return false;
}

// 1. Each kernel becomes a launch with the addresses of its operands; 2. consecutive launches that do not
// touch each other's results become one wave.
Status Engine::prepare(const ir::Module& module, const codegen::Program& program, ir::RegionKind kind) {
  Prepared& prepared = programs_[static_cast<size_t>(kind)];
  std::vector<std::vector<Range>> touched;
  for (const codegen::Call& call : program.calls(kind)) {
    if (call.kernel.form == ir::KernelForm::alias) continue;
    const Place place{module, module.region(kind), call};
    Launch launch;
    std::vector<Range> ranges;
    const Status status =
        call.kernel.form == ir::KernelForm::gemm ? prepare_product(place, launch, ranges)
        : call.function < 0
            ? prepare_library_call(place, launch, ranges)
            : prepare_function(place, program.functions[static_cast<size_t>(call.function)], launch, ranges);
    if (!status) return status;
    for (const Range& range : ranges) {
      if (range.begin < 0 || range.end > arena_.bytes())
        return Status::error("the artifact's IR reaches outside its arena");
      launch.operands.push_back(arena_.data() + range.begin);
    }
    bool apart = prepared.waves.empty();
    for (size_t other = apart ? 0 : prepared.waves.back().first; other < touched.size() && !apart; ++other)
      apart = conflict(ranges, touched[other]);
    if (apart) prepared.waves.push_back({touched.size(), touched.size(), 0});
    ++prepared.waves.back().last;
    touched.push_back(std::move(ranges));
    prepared.launches.push_back(std::move(launch));
  }
  prepared.first_task.resize(prepared.launches.size());
  set_batch(prepared, micro_batch_);
  return {};
}

Status Engine::prepare_product(const Place& at, Launch& launch, std::vector<Range>& ranges) {
  std::string problem;
  const std::optional<PlanLaunch> plan = gemm_launch(at.module, at.region, at.call.kernel, problem);
  if (!plan) return Status::error("internal error: {}", problem);
  if (plan->n.times_batch) return Status::error("internal error: a matrix product has B columns");
  launch.gemm_m = extent(plan->m);
  launch.gemm_k = extent(plan->k);
  const int64_t m = launch.gemm_m.at(micro_batch_), n = plan->n.extent, k = launch.gemm_k.at(micro_batch_);
  launch.gemm = {.m = m,
                 .n = n,
                 .k = k,
                 .transpose_a = plan->transpose_a,
                 .transpose_b = plan->transpose_b,
                 .accumulate = plan->accumulate,
                 .type = element(plan->type),
                 .result = element(plan->result)};
  launch.gemm.cut();
  launch.name = fmt::format("{} {}x{}x{}", at.op().info->name, m, n, k);
  const int64_t bytes = element_bytes(launch.gemm.type), c_bytes = element_bytes(launch.gemm.result);
  ranges = {{plan->a, plan->a + bytes * m * k, false},
            {plan->b, plan->b + bytes * k * n, false},
            {plan->c, plan->c + c_bytes * m * n, true}};
  if (!launch.gemm.needs_scratch() || scratch_.data() != nullptr) return {};
  return scratch_.allocate(Gemm::kScratchBytes * pool_.threads());
}

Status Engine::prepare_library_call(const Place& at, Launch& launch, std::vector<Range>& ranges) {
  launch.name = at.op().info->name;
  launch.library = make_library_call({at.module, at.region, at.op()});
  if (launch.library == nullptr) return Status::error("internal error: `{}` is no library call", launch.name);
  const std::vector<ir::Operand>& writes = at.call.kernel.writes;
  for (const ir::Operand& operand : at.call.operands) {
    const bool written = std::find(writes.begin(), writes.end(), operand) != writes.end();
    if (Status status = add_range(at, operand, written, launch.name, ranges); !status) return status;
  }
  return {};
}

Status Engine::prepare_function(const Place& at, const codegen::Body& body, Launch& launch,
                                std::vector<Range>& ranges) {
  launch.name = body.name;
  launch.function = code_->function(at.call.function);
  if (launch.function == nullptr) return Status::error("internal error: no code for kernel {}", body.name);
  launch.extents = at.call.extents;
  launch.values.resize(launch.extents.size());
  launch.items = at.call.items;
  launch.tile = std::max<int64_t>(at.call.tile, 1);
  for (size_t i = 0; i < at.call.operands.size(); ++i) {
    const Status status = add_range(at, at.call.operands[i], body.slots[i].written, body.name, ranges);
    if (!status) return status;
  }
  return {};
}

Status Engine::add_range(const Place& at, const ir::Operand& operand, bool written, std::string_view who,
                         std::vector<Range>& ranges) const {
  const std::optional<int64_t> offset = arena_offset(at.module, at.region, operand);
  if (!offset)
    return Status::error("internal error: {} of `{}` has no place",
                         operand_text(at.module, at.region, operand), who);
  const int64_t bytes = ir::type_bytes(operand_type(at.module, at.region, operand), micro_batch_);
  ranges.push_back({*offset, *offset + bytes, written});
  return {};
}

void Engine::set_batch(Prepared& prepared, int64_t batch) {
  prepared.batch = batch;
  for (Wave& wave : prepared.waves) {
    wave.tasks = 0;
    for (size_t i = wave.first; i < wave.last; ++i) {
      Launch& launch = prepared.launches[i];
      prepared.first_task[i] = wave.tasks;
      if (launch.library != nullptr) {
        wave.tasks += launch.library->tasks(batch);
        continue;
      }
      if (launch.function == nullptr) {
        launch.gemm.m = launch.gemm_m.at(batch);
        launch.gemm.k = launch.gemm_k.at(batch);
        wave.tasks += launch.gemm.tasks();
        continue;
      }
      for (size_t e = 0; e < launch.extents.size(); ++e) launch.values[e] = launch.extents[e].at(batch);
      launch.item_count = launch.items.at(batch);
      wave.tasks += (launch.item_count + launch.tile - 1) / launch.tile;
    }
  }
}

void Engine::run_task(const Prepared& prepared, const Wave& wave, int64_t task) {
  size_t i = wave.last - 1;
  while (prepared.first_task[i] > task) --i;  // the last launch that begins at or before the task
  const Launch& launch = prepared.launches[i];
  task -= prepared.first_task[i];
  if (launch.function != nullptr) {
    const int64_t begin = task * launch.tile;
    launch.function(launch.operands.data(), launch.values.data(), begin,
                    std::min(begin + launch.tile, launch.item_count));
    return;
  }
  if (launch.library != nullptr) {
    if (!launch.library->run(launch.operands.data(), prepared.batch, task))
      library_failed_.store(true, std::memory_order_relaxed);
    return;
  }
  auto* scratch = reinterpret_cast<float*>(scratch_.data());
  if (scratch != nullptr) scratch += Gemm::kScratchBytes / 4 * Pool::current();
  const std::vector<char*>& matrix = launch.operands;
  if (!launch.gemm.run(matrix[0], matrix[1], matrix[2], task, scratch))
    library_failed_.store(true, std::memory_order_relaxed);
}

void Engine::run_profiled(Program program, const Prepared& prepared) {
  using Clock = std::chrono::steady_clock;
  const auto microseconds = [](Clock::duration d) {
    return std::chrono::duration<double, std::micro>(d).count();
  };
  for (const Wave& wave : prepared.waves) {
    for (size_t i = wave.first; i < wave.last; ++i) {
      const int64_t first = prepared.first_task[i];
      const int64_t end = i + 1 < wave.last ? prepared.first_task[i + 1] : wave.tasks;
      const Clock::time_point begin = Clock::now();
      pool_.run(end - first, [&](int64_t task) { run_task(prepared, {wave.first, i + 1, 0}, first + task); });
      const Clock::time_point done = Clock::now();
      if (timings_.empty()) profile_begin_ = begin;
      if (timings_.size() == kMostTimings) continue;
      timings_.push_back({prepared.launches[i].name, program, static_cast<int64_t>(i), prepared.batch,
                          microseconds(begin - profile_begin_), microseconds(done - begin)});
    }
  }
}

Status Engine::run(Program program, int64_t batch) {
  Prepared& prepared = programs_[static_cast<size_t>(program)];
  if (program == Program::init || program == Program::update) batch = micro_batch_;
  if (batch < 1 || batch > micro_batch_)
    return Status::error("a micro-batch of {} samples; the step takes 1 to {}", batch, micro_batch_);
  if (batch != prepared.batch) set_batch(prepared, batch);
  if (profiling_) run_profiled(program, prepared);
  for (const Wave& wave : profiling_ ? std::vector<Wave>() : prepared.waves)
    pool_.run(wave.tasks, [&](int64_t task) { run_task(prepared, wave, task); });
  if (library_failed_.load(std::memory_order_relaxed))
    return Status::error("oneDNN: a matrix product or convolution failed (out of memory?)");
  return {};
}

}  // namespace gacc::host
