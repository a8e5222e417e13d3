#include "codegen/host/engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "codegen/host/needed_launches.h"
#include "ir/dependence.h"
#include "ir/host_state.h"
#include "ir/product.h"
#include "ir/text/text.h"

namespace gacc::host {

namespace {

constexpr int64_t kCopied = int64_t{1} << 20;  // bytes of a task

}  // namespace

HostMemory::~HostMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

Status HostMemory::allocate(int64_t bytes, int64_t besides) {
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  bytes = std::max<int64_t>(bytes, 1);
  void* address = bytes > memory - besides ? MAP_FAILED
                                           : mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    return Status::error("the step needs {} bytes of memory at once; this machine has {}", bytes + besides,
                         memory);
  madvise(address, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  // The system's pages are zero: they only have to be there, so that none is missing later. Since Linux 5.14.
  const bool populated = madvise(address, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0;
#else
  constexpr bool populated = false;
#endif
  if (!populated) std::memset(address, 0, static_cast<size_t>(bytes));
  data_ = static_cast<char*>(address);
  bytes_ = bytes;
  return {};
}

std::span<char> HostEngine::memory(int64_t offset, int64_t bytes) const {
  const bool behind = offset >= arena_.bytes() && block_.data() != nullptr;
  const HostMemory& in = behind ? block_ : arena_;
  if (behind) offset -= arena_.bytes();
  if (offset < 0 || bytes < 0 || offset > in.bytes() || bytes > in.bytes() - offset) return {};
  return {in.data() + offset, static_cast<size_t>(bytes)};
}

Status HostEngine::load(std::string_view text, const Cache& cache, std::string_view build) {
  // Whoever opened the artifact has verified it (compiler/open_artifact.h).
  Diag diag("artifact", std::string(text));
  const std::optional<ir::Module> parsed = ir::parse(text, diag);
  if (!parsed || !parsed->arena_bytes)
    return Status::error("the artifact's IR is not sound:\n{}", diag.render());
  const ir::Module& module = *parsed;

  std::string problem;
  const std::optional<codegen::ModuleKernels> program =
      codegen::make_program(module, codegen::Purpose::host, problem);
  if (!program) return Status::error("internal error: {}", problem);
  const std::string key = codegen::host_key({build, text});
  if (const std::optional<std::string> objects = cache.load(key))
    code_ = codegen::HostCode::load(*objects, *program, problem);
  if (!code_) {
    const auto on_pool = [this](int64_t tasks, const std::function<void(int64_t)>& task) {
      pool_.run(tasks, task);
    };
    const std::string objects = codegen::compile_host(*program, problem, on_pool);
    if (!objects.empty()) code_ = codegen::HostCode::load(objects, *program, problem);
    if (!code_) return Status::error("internal error: host code: {}", problem);
    cache.store(key, objects);
  }
  GACC_TRY(arena_.allocate(*module.arena_bytes, module.host_bytes));
  if (module.host_bytes > 0) GACC_TRY(block_.allocate(module.host_bytes, *module.arena_bytes));
  for (const ir::RegionKind kind : ir::all_regions) GACC_TRY(prepare(module, *program, kind));
  return {};
}

// 1. Each kernel becomes a launch with the addresses of its operands; 2. consecutive launches that do not
// touch each other's results become one wave.
Status HostEngine::prepare(const ir::Module& module, const codegen::ModuleKernels& program,
                           ir::RegionKind kind) {
  Prepared& prepared = programs_[static_cast<size_t>(kind)];
  const ir::Region& region = module.region(kind);
  const std::vector<codegen::BodyCall>& calls = program.calls(kind);
  std::vector<ir::Kernel> kernels;
  for (const codegen::BodyCall& call : calls) kernels.push_back(call.kernel);
  const std::optional<ir::StateSection> section = ir::section_of_ops(region);
  const auto in_section = [&](size_t k) {
    const size_t op = kernels[k].members.front().op;
    return section && section->first <= op && op <= section->last;
  };
  if (section) {
    const ir::OpView at{module, region, region.ops[section->first]};
    Launch flag;
    GACC_TRY(add_operand(at, section->flag, flag));
    prepared.section.flag = flag.operands.front();
  }
  size_t next = 0;
  std::vector<size_t> ends = ir::Dependence(module, region, kernels).wave_ends();
  for (size_t k = 1; k < kernels.size(); ++k)
    if (in_section(k) != in_section(k - 1)) ends.push_back(k);
  std::ranges::sort(ends);
  for (const size_t end : ends) {
    Wave wave{prepared.launches.size(), 0, 0};
    if (next < end && in_section(next)) {
      if (prepared.section.last == 0) prepared.section.first = prepared.waves.size();
      prepared.section.last = prepared.waves.size() + 1;
    }
    for (; next < end; ++next) {
      if (kernels[next].form == ir::KernelForm::alias) continue;
      const ir::OpView at{module, region, region.ops[kernels[next].members.front().op]};
      GACC_TRY(prepare_launch(at, calls[next], program, prepared.launches.emplace_back()));
      if (kind != ir::RegionKind::init) continue;
      ir::Touched& bytes = prepared.bytes.emplace_back(ir::touched(module, region, kernels[next]));
      const auto conditional = [&](const ir::KernelMember& member) {
        return region.ops[member.op].when.has_value();
      };
      if (std::ranges::any_of(kernels[next].members,
                              conditional))  // what it may leave as it was is read, too
        bytes.reads.insert(bytes.reads.end(), bytes.writes.begin(), bytes.writes.end());
    }
    wave.last = prepared.launches.size();
    if (wave.last > wave.first) prepared.waves.push_back(wave);
  }
  prepared.first_task.resize(prepared.launches.size());
  prepared.most = module.most_samples(region);
  set_batch(prepared, prepared.most);
  return {};
}

Status HostEngine::prepare_launch(const ir::OpView& at, const codegen::BodyCall& call,
                                  const codegen::ModuleKernels& program, Launch& launch) {
  std::vector<ir::Operand> operands = call.operands;
  launch.name = at.op.info->name;
  if (call.kernel.form == ir::KernelForm::gemm) {
    GACC_TRY(prepare_product(at, launch));
    operands = {launch.product.a, launch.product.b, launch.product.c};
  } else if (call.kernel.form == ir::KernelForm::copy) {
    launch.copied = ir::type_bytes(operand_type(at.module, at.region, operands.front()), 1);
  } else if (call.function < 0) {
    launch.library = make_library_call(at, pool_.threads());
    if (launch.library == nullptr)
      return Status::error("internal error: `{}` is no library call", launch.name);
  } else {
    launch.name = program.functions[call.function].name;
    launch.function = code_->function(call.function);
    launch.extents = call.extents;
    launch.values.resize(launch.extents.size());
    launch.items = call.items;
    launch.tile = std::max<int64_t>(call.tile, 1);
  }
  for (const ir::Operand& operand : operands) GACC_TRY(add_operand(at, operand, launch));
  return {};
}

Status HostEngine::prepare_product(const ir::OpView& at, Launch& launch) {
  if (at.op.when) return Status::error("`{}` under a condition is not supported", launch.name);
  const ir::ProductCall& call = launch.product = ir::product_of(at.module, at.region, at.op);
  if (call.n.times_batch) return Status::error("internal error: a matrix product has B columns");
  const int64_t most = at.module.most_samples(at.region);
  launch.gemm = {.m = call.m.at(most),
                 .n = call.n.factor,
                 .k = call.k.at(most),
                 .transpose_a = at.flag("ta"),
                 .transpose_b = at.flag("tb"),
                 .accumulate = at.op.info->accumulates,
                 .type = operand_type(at.module, at.region, call.a).dtype,
                 .result = operand_type(at.module, at.region, call.c).dtype,
                 .ordered = ir::keeps_bits(at.module.settings),
                 .rows_of_sample = call.k.times_batch ? call.k.factor : 1,
                 .by_rows = call.m.times_batch && at.region.kind != ir::RegionKind::step};
  launch.gemm.cut();
  launch.name += fmt::format(" {}x{}x{}", launch.gemm.m, launch.gemm.n, launch.gemm.k);
  if (!launch.gemm.needs_scratch() || scratch_.data() != nullptr) return {};
  return scratch_.allocate(Gemm::kScratchBytes * pool_.threads());
}

Status HostEngine::add_operand(const ir::OpView& at, const ir::Operand& operand, Launch& launch) const {
  const std::optional<int64_t> offset = ir::arena_offset(at.module, at.region, operand);
  if (!offset)
    return Status::error("internal error: {} of `{}` has no place",
                         operand_text(at.module, at.region, operand), launch.name);
  const int64_t bytes =
      ir::type_bytes(operand_type(at.module, at.region, operand), at.module.most_samples(at.region));
  const std::span<char> place = memory(*offset, bytes);
  if (place.data() == nullptr || (place.data() - arena_.data() != *offset && launch.copied == 0))
    return Status::error("the artifact's IR reaches outside its arena");
  launch.operands.push_back(place.data());
  return {};
}

void HostEngine::set_batch(Prepared& prepared, int64_t batch) {
  prepared.batch = batch;
  for (Wave& wave : prepared.waves) {
    wave.tasks = 0;
    for (size_t i = wave.first; i < wave.last; ++i) {
      Launch& launch = prepared.launches[i];
      prepared.first_task[i] = wave.tasks;
      if (!launch.runs) continue;
      if (launch.copied > 0) {
        wave.tasks += ceil_divide(launch.copied, kCopied);
      } else if (launch.library != nullptr) {
        wave.tasks += launch.library->tasks(batch);
      } else if (launch.function != nullptr) {
        for (size_t e = 0; e < launch.extents.size(); ++e) launch.values[e] = launch.extents[e].at(batch);
        launch.item_count = launch.items.at(batch);
        wave.tasks += ceil_divide(launch.item_count, launch.tile);
      } else {
        const ir::ProductCall& product = launch.product;
        launch.gemm.m = product.m.at(batch);
        launch.gemm.k = product.k.at(batch);
        for (size_t i = 0; product.pitch && i < launch.gemm.pitch.size(); ++i)
          launch.gemm.pitch[i] = (*product.pitch)[i].at(batch);
        launch.gemm.prepare(pool_.threads());
        wave.tasks += launch.gemm.tasks();
      }
    }
  }
}

void HostEngine::run_task(const Prepared& prepared, const Wave& wave, int64_t task) {
  size_t i = wave.last - 1;
  while (prepared.first_task[i] > task) --i;  // the last launch that begins at or before the task
  const Launch& launch = prepared.launches[i];
  task -= prepared.first_task[i];
  if (launch.copied > 0) {
    const int64_t begin = task * kCopied, bytes = std::min(kCopied, launch.copied - begin);
    std::memcpy(launch.operands[0] + begin, launch.operands[1] + begin, static_cast<size_t>(bytes));
    return;
  }
  if (launch.function != nullptr) {
    const int64_t begin = task * launch.tile;
    launch.function(launch.operands.data(), launch.values.data(), begin,
                    std::min(begin + launch.tile, launch.item_count));
    return;
  }
  if (launch.library != nullptr) {
    if (!launch.library->run(launch.operands.data(), prepared.batch, task, Pool::current()))
      library_failed_.store(true, std::memory_order_relaxed);
    return;
  }
  ProductThread thread{.number = Pool::current()};
  if (scratch_.data() != nullptr)
    thread.scratch = reinterpret_cast<float*>(scratch_.data() + Gemm::kScratchBytes * thread.number);
  const std::vector<char*>& matrix = launch.operands;
  if (!launch.gemm.run(matrix[0], matrix[1], matrix[2], task, thread))
    library_failed_.store(true, std::memory_order_relaxed);
}

size_t HostEngine::next_wave(const Prepared& prepared, size_t wave) {
  const auto& [flag, first, last] = prepared.section;
  const size_t next = wave + 1;
  if (next != first || flag == nullptr) return next;
  int32_t value = 0;
  std::memcpy(&value, flag, sizeof value);
  return value != 0 ? next : last;
}

void HostEngine::run_profiled(Program program, const Prepared& prepared) {
  using Clock = std::chrono::steady_clock;
  const auto microseconds = [](Clock::duration d) {
    return std::chrono::duration<double, std::micro>(d).count();
  };
  for (size_t w = next_wave(prepared, SIZE_MAX); w < prepared.waves.size(); w = next_wave(prepared, w)) {
    const Wave& wave = prepared.waves[w];
    for (size_t i = wave.first; i < wave.last; ++i) {
      if (!prepared.launches[i].runs) continue;
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

Status HostEngine::run(Program program, int64_t batch) {
  Prepared& prepared = programs_[static_cast<size_t>(program)];
  if (!takes_samples(program)) batch = prepared.most;
  if (batch < 1 || batch > prepared.most)
    return Status::error("a micro-batch of {} samples; the step takes 1 to {}", batch, prepared.most);
  if (batch != prepared.batch) set_batch(prepared, batch);
  flip_.begin_run();
  if (profiling_)
    run_profiled(program, prepared);
  else
    for (size_t i = next_wave(prepared, SIZE_MAX); i < prepared.waves.size(); i = next_wave(prepared, i)) {
      const Wave& wave = prepared.waves[i];
      flip(i, prepared.waves.size());
      pool_.run(wave.tasks, [&](int64_t task) { run_task(prepared, wave, task); });
    }
  flip(prepared.waves.size(), prepared.waves.size());
  if (library_failed_.load(std::memory_order_relaxed))
    return Status::error("oneDNN: a matrix product or convolution failed (out of memory?)");
  return {};
}

Status HostEngine::run_init(std::span<const PlanBuffer* const> given) {
  Prepared& prepared = programs_[static_cast<size_t>(ir::RegionKind::init)];
  std::vector<ir::Bytes> overwritten;
  for (const PlanBuffer* buffer : given) overwritten.push_back({buffer->offset, buffer->bytes});
  const std::vector<bool> needed = needed_launches(prepared.bytes, overwritten);
  for (size_t i = 0; i < needed.size(); ++i) prepared.launches[i].runs = needed[i];
  set_batch(prepared, prepared.most);
  Status status = run(Program::init, prepared.most);
  for (Launch& launch : prepared.launches) launch.runs = true;
  set_batch(prepared, prepared.most);
  return status;
}

}  // namespace gacc::host
