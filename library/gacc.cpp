// gacc.h over the runtime: each function checks its call, then does what gacc-exec does.
#include "library/gacc.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <exception>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compiler/compare_config.h"
#include "compiler/open_artifact.h"
#include "compiler/plan/show.h"
#include "library/compiler_plugin.h"
#include "runtime/artifact.h"
#include "runtime/atomic_file.h"
#include "runtime/data/user_batch.h"
#include "runtime/plugin.h"
#include "runtime/run/begin.h"
#include "runtime/run/feed.h"
#include "runtime/run/open_device.h"
#include "runtime/run/predict.h"
#include "runtime/run/rates.h"
#include "runtime/safetensors.h"
#include "runtime/session/answers.h"
#include "runtime/session/session.h"
#include "runtime/store/checkpoint.h"
#include "runtime/text.h"
#include "runtime/weights/adapters.h"
#include "runtime/weights/saved.h"
#include "runtime/weights/weights.h"

using namespace gacc;

namespace {

// The artifact, checked, and what is told of it. Never changes.
struct CheckedStep {
  std::string text;  // the artifact's
  Artifact artifact;
  std::string plan;
};

}  // namespace

// The caller's share of it; sessions have others.
struct gacc_step {
  std::shared_ptr<const CheckedStep> checked;
};

struct gacc_session {
  explicit gacc_session(std::shared_ptr<const CheckedStep> of)
      : step(std::move(of)), plan(step->artifact.plan), batch(plan) {}

  std::mutex mutex;
  std::shared_ptr<const CheckedStep> step;
  const Plan& plan;
  UserBatch batch;
  DataFacts facts;
  std::unique_ptr<Device> device;
  std::optional<Session> session;
  std::optional<TextReader> text;  // of gacc_session_next_token
  Weights loaded;                  // by gacc_session_load
  std::optional<Feed> feed;        // of gacc_session_train
  bool ready = false;              // initialised, or `start` is to do it
  // Keeps what gacc_session_init was told until a call needs the parameters: what is loaded before is not drawn.
  struct Start {
    uint64_t seed = 0;
    int64_t epoch_samples = 0;
  };
  std::optional<Start> start;
  bool closed = false;        // by another thread, while a call waited
  bool lacks_length = false;  // of the run, without which there is no rate
  Status broken;              // the error after which nothing goes on
};

namespace {

// ---- errors

// The answer of a function of the interface; as a Status, for GACC_TRY.
struct Answer : gacc_error {
  Answer(gacc_kind of, std::string_view said) : gacc_error{of, 0, 0, ""} {
    size_t size = std::min(said.size(), sizeof text - 1);
    if (size < said.size())
      while (size > 0 && (static_cast<unsigned char>(said[size]) & 0xC0) == 0x80)
        --size;  // not inside of a letter
    std::memcpy(text, said.data(), size);
    text[size] = '\0';
  }
  Answer(const Status& status = {}) : Answer(status ? GACC_OK : GACC_FAILED, status.text()) {}
  explicit operator bool() const { return kind == GACC_OK; }
  const Answer& status() const { return *this; }
  void take() {}
};

template <class... A>
Answer wrong_call(fmt::format_string<A...> format, A&&... a) {
  return {GACC_WRONG_CALL, fmt::format(format, std::forward<A>(a)...)};
}

// Runs `f` where none of the pointers `given` is null, else `without` says so. No exception crosses the interface.
template <class F>
Answer guarded(std::initializer_list<const void*> given, const char* without, F&& f) noexcept {
  try {
    if (std::ranges::count(given, static_cast<const void*>(nullptr)) > 0) return {GACC_WRONG_CALL, without};
    return f();
  } catch (const std::bad_alloc&) {
    return {GACC_FAILED, "out of memory"};
  } catch (const std::exception& error) {
    return {GACC_BUG, error.what()};
  }
}

// The place of the first line "FILE:LINE:COLUMN: ..." of what the compiler says.
void find_place(std::string_view text, const std::string& file, gacc_error& error) {
  for (size_t at = 0; at < text.size(); at = std::min(text.find('\n', at), text.size() - 1) + 1) {
    if (!text.substr(at).starts_with(file + ":")) continue;
    const char *begin = text.data() + at + file.size() + 1, *const end = text.data() + text.size();
    const auto line = std::from_chars(begin, end, error.line);
    if (line.ec != std::errc()) continue;  // of no place, such as a table that is missing
    if (line.ptr != end && *line.ptr == ':') std::from_chars(line.ptr + 1, end, error.column);
    return;
  }
}

// ---- steps

Answer make_step(std::string text, const std::string& name, gacc_step** to) {
  auto step = std::make_shared<CheckedStep>();
  step->text = std::move(text);
  step->artifact = GACC_TRY(read_artifact(step->text, name));
  const ir::Module module = GACC_TRY(check_artifact(step->artifact, name));
  const Plan& plan = step->artifact.plan;
  const auto recompute = passes::recompute_report(module, plan.target);
  step->plan = plan_json(plan, module, recompute).dump(2);
  *to = new gacc_step{std::move(step)};
  return {};
}

// Plug-ins are looked for from this library, whatever program has loaded it.
void look_from_here() {
  static std::once_flag once;
  std::call_once(once, [] {
    Dl_info info;
    std::error_code error;
    if (dladdr(reinterpret_cast<void*>(&gacc_version), &info) == 0) return;
    const auto file = std::filesystem::canonical(info.dli_fname, error);
    if (!error) set_plugin_home(file.parent_path().string());
  });
}

struct CompilerAnswer {
  std::string artifact, trouble, warnings;
};

extern "C" void take_answer(void* to, CompilerOutput what, const char* bytes, size_t size) {
  auto* answer = static_cast<CompilerAnswer*>(to);
  std::string& text = what == kArtifactText  ? answer->artifact
                      : what == kWarningText ? answer->warnings
                                             : answer->trouble;
  text.assign(bytes, size);
}

// Without a text it is the published model `name`.
Answer compile(const std::optional<std::string>& text, const std::string& name,
               const gacc_compile_options* options, gacc_step** to) {
  const gacc_compile_options none{};
  const gacc_compile_options& given = options == nullptr ? none : *options;
  for (size_t i = 0; i < given.sets; ++i)
    if (given.set == nullptr || given.set[i] == nullptr)
      return wrong_call("options->set: entry {} is null", i);
  if (text && text->find('\0') != std::string::npos)
    return Status::error("{}: a model file is text, and this has a byte 0", name);
  look_from_here();
  constexpr Plugin kCompiler = {"the compiler", "libgacc-compiler.so", "gacc-compiler"};
  const LoadedPlugin plugin = GACC_TRY(load_plugin(kCompiler, kCompilerEntry, RTLD_LOCAL));
  const auto compile_step = reinterpret_cast<gacc_compile_step_fn>(plugin.entry);
  CompilerAnswer answer;
  const CompilerRequest request = {text ? text->c_str() : nullptr, name.c_str(), given};
  const int ended = compile_step == nullptr ? -1 : compile_step(kCompilerAbi, &request, take_answer, &answer);
  if (ended == 0) {
    GACC_TRY(make_step(std::move(answer.artifact), name, to));
    return {GACC_OK, answer.warnings};
  }
  if (ended < 0) return plugin.outdated();
  Answer error(ended == 1 ? GACC_FAILED : GACC_BUG, answer.trouble);
  find_place(answer.trouble, name, error);
  return error;
}

void describe(const char* name, const char* kind, const char* dtype, const std::vector<int64_t>& shape,
              int64_t bytes, gacc_tensor& to) {
  to = {name, kind, dtype, {}, std::min<size_t>(shape.size(), GACC_MOST_AXES), bytes};
  std::copy_n(shape.begin(), to.axes, to.shape);
}

constexpr int64_t kFloatBytes = sizeof(float);

// ---- sessions

// The sessions that are not closed. A call holds its own until it is done, so that a session which another thread
// closes lives as long as somebody works with it or waits for it.
class OpenSessions {
 public:
  void add(std::shared_ptr<gacc_session> session) {
    const std::lock_guard lock(mutex_);
    gacc_session* const handle = session.get();
    open_[handle] = std::move(session);
  }
  // Null for a session that is not open.
  std::shared_ptr<gacc_session> find(gacc_session* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(handle);
    return found == open_.end() ? nullptr : found->second;
  }
  std::shared_ptr<gacc_session> remove(gacc_session* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = open_.extract(handle);
    return found.empty() ? nullptr : std::move(found.mapped());
  }

 private:
  std::mutex mutex_;
  std::map<gacc_session*, std::shared_ptr<gacc_session>> open_;
};

// Never destroyed: threads may close sessions while the process ends.
OpenSessions& open_sessions() {
  static auto* const sessions = new OpenSessions();
  return *sessions;
}

// A Status or a Result of the device.
template <class T>
T after(gacc_session& session, T result) {
  if (!result) session.broken = result.status();
  return result;
}

// Does what gacc_session_init has put off, with the parameters of these files.
Status start(gacc_session& run, const Weights* weights = nullptr, const Adapter* adapter = nullptr) {
  const gacc_session::Start wanted = *std::exchange(run.start, std::nullopt);
  GACC_TRY(begin(*run.session, run.plan,
                 {.seed = wanted.seed, .lr = run.plan.lr, .weights = weights, .adapter = adapter}));
  return begin_rates(*run.session, run.plan, rules_of(run.plan, wanted.epoch_samples));
}

// Says how far a session must be for a call.
enum class Needs : uint8_t { open, init, parameters };

// Runs `f` on a session that is as far as `call` needs; an error of the device ends the session.
template <class F>
Answer with_text(gacc_session* handle, const char* call, Needs needs, F&& f) noexcept {
  return guarded({}, "", [&]() -> Answer {
    if (handle == nullptr) return wrong_call("{}: the session is null", call);
    const std::shared_ptr<gacc_session> session = open_sessions().find(handle);
    if (!session) return wrong_call("{}: the session is closed", call);
    const std::lock_guard lock(session->mutex);
    if (session->closed) return wrong_call("{}: the session is closed", call);
    GACC_TRY(session->broken);
    if (needs != Needs::open && !session->ready)
      return wrong_call("{} comes after gacc_session_init or gacc_session_resume", call);
    if (needs == Needs::parameters && session->start) GACC_TRY(after(*session, start(*session)));
    return f(*session);
  });
}

// The same; what the session keeps of a text is no longer there.
template <class F>
Answer with_session(gacc_session* session, const char* call, Needs needs, F&& f) noexcept {
  return with_text(session, call, needs, [&](gacc_session& run) -> Answer {
    run.text.reset();
    return f(run);
  });
}

Answer take_arrays(const char* call, const gacc_array* arrays, size_t count, std::vector<UserArray>& given) {
  if (arrays == nullptr && count > 0) return wrong_call("{}: the arrays are null", call);
  for (size_t i = 0; i < count; ++i) {
    const gacc_array& array = arrays[i];
    if (array.name == nullptr || array.dtype == nullptr || array.data == nullptr)
      return wrong_call("{}: the name, the dtype or the data of array {} is null", call, i);
    given.push_back({array.name, array.dtype, {static_cast<const std::byte*>(array.data), array.bytes}});
  }
  return {};
}

Answer fill_batch(gacc_session& session, const char* call, const gacc_array* arrays, size_t count,
                  int64_t samples, Program program, int64_t first = 0) {
  std::vector<UserArray> given;
  GACC_TRY(take_arrays(call, arrays, count, given));
  return session.batch.fill(given, samples, session.facts, program, first);
}

Answer check_step(const gacc_session& session, const char* call) {
  if (session.lacks_length)
    return wrong_call(
        "{}: schedule.total is \"run\": gacc_session_expect (Python: updates=) says how many updates the run "
        "makes",
        call);
  if (session.session->window().launches() < session.plan.accumulate) return {};
  return wrong_call("{}: the window has its {}: gacc_session_update ends it", call,
                    counted(session.plan.accumulate, "launch"));
}

gacc_window to_c(const WindowReport& report) {
  return {report.launches, report.samples, report.applied, !report.finite,
          report.loss,     report.norm,    report.lr};
}

Answer save(gacc_session& session, const SaveForm& form) {
  constexpr std::string_view kEndings[] = {".safetensors", ".gguf"};
  const auto endings = std::span(kEndings).first(form.adapter ? 2 : 1);  // no GGUF without --like
  if (const std::string wrong = wrong_ending("saving", form.path, endings); !wrong.empty())
    return wrong_call("{}", wrong);
  GACC_TRY(check_save(form, session.plan, session.loaded));
  std::vector<NamedTensor> tensors =
      GACC_TRY(after(session, parameters_for({form}, session.plan, *session.session)));
  return save_parameters(form, session.plan, session.loaded, tensors, to_metadata(session.facts));
}

// Settings that must agree for a session to go on from a checkpoint: the model's, not the data's.
Settings settings_of_session(const gacc_session& session) {
  Settings settings = settings_of(session.step->artifact, {}, {});
  keep_to_model(settings, {});
  return settings;
}
const std::pair<std::string, std::string> kNoPosition = {"the position in a data set",
                                                         "none (a session of gacc.h has no data set)"};

Answer find_buffer(gacc_session& session, const char* call, const char* name, const void* data, size_t bytes,
                   const PlanBuffer*& buffer) {
  if (name == nullptr || data == nullptr) return wrong_call("{}: the name or the data is null", call);
  buffer = session.plan.find(name);
  if (buffer == nullptr) {
    std::vector<std::string> names;
    for (const PlanBuffer& each : session.plan.buffers) names.push_back(each.name);
    return wrong_call("{}: the plan has no buffer {}{}", call, in_quotes(name), hint(name, names));
  }
  if (static_cast<int64_t>(bytes) != buffer->bytes)
    return wrong_call("{}: {} has {} bytes, {} were given", call, name, buffer->bytes, bytes);
  return {};
}

}  // namespace

const char* gacc_version() { return GACC_VERSION; }

gacc_error gacc_open(const char* path, gacc_step** step) {
  return guarded({path, step}, "gacc_open: the path or the step is null",
                 [&]() -> Answer { return make_step(GACC_TRY(read_file(path)), path, step); });
}

gacc_error gacc_compile_file(const char* path, const gacc_compile_options* options, gacc_step** step) {
  return guarded({path, step}, "gacc_compile_file: the path or the step is null", [&]() -> Answer {
    std::error_code ignored;
    const std::string_view file = path;
    const bool published =
        file.ends_with(".json") || file.ends_with(".gguf") || std::filesystem::is_directory(path, ignored);
    if (published) return compile(std::nullopt, path, options, step);
    return compile(GACC_TRY(read_model(path)), path, options, step);
  });
}

gacc_error gacc_compile_text(const char* text, const char* name, const gacc_compile_options* options,
                             gacc_step** step) {
  return guarded({text, step}, "gacc_compile_text: the text or the step is null",
                 [&] { return compile(text, name == nullptr ? "model" : name, options, step); });
}

gacc_error gacc_step_save(const gacc_step* step, const char* path) {
  return guarded({step, path}, "gacc_step_save: the step or the path is null",
                 [&] { return write_file_atomically(path, step->checked->text); });
}

const char* gacc_step_plan(const gacc_step* step) {
  return step == nullptr ? nullptr : step->checked->plan.c_str();
}

gacc_error gacc_step_info_of(const gacc_step* step, gacc_step_info* info) {
  return guarded({step, info}, "gacc_step_info_of: the step or the info is null", [&]() -> Answer {
    const Plan& plan = step->checked->artifact.plan;
    *info = {plan.model.c_str(),
             plan.micro_batch,
             plan.accumulate,
             plan.parameters,
             plan.arena_bytes,
             plan.epochs,
             plan.seed,
             tail_text(plan.tail).data(),
             plan.inputs.size(),
             plan.buffers.size(),
             {}};
    if (plan.predict.batch > 0)
      describe("output", "output", "f32", plan.predict.answer_shape,
               elements_of(plan.predict.answer_shape) * kFloatBytes, info->output);
    return {};
  });
}

gacc_error gacc_step_input(const gacc_step* step, size_t index, gacc_tensor* tensor) {
  return guarded({step, tensor}, "gacc_step_input: the step or the tensor is null", [&]() -> Answer {
    const auto& inputs = step->checked->artifact.plan.inputs;
    if (index >= inputs.size())
      return wrong_call("gacc_step_input: there {} {}", inputs.size() == 1 ? "is" : "are",
                        counted(inputs.size(), "input"));
    const PlanInput& input = inputs[index];
    const int64_t bytes = elements_of(input.shape) * 4;  // f32 and i32
    describe(input.name.c_str(), "input", dtype_text(input.dtype).data(), input.shape, bytes, *tensor);
    return {};
  });
}

gacc_error gacc_step_buffer(const gacc_step* step, size_t index, gacc_tensor* tensor) {
  return guarded({step, tensor}, "gacc_step_buffer: the step or the tensor is null", [&]() -> Answer {
    const auto& buffers = step->checked->artifact.plan.buffers;
    if (index >= buffers.size()) return wrong_call("gacc_step_buffer: there are {} buffers", buffers.size());
    const PlanBuffer& buffer = buffers[index];
    describe(buffer.name.c_str(), kind_text(buffer.kind()).data(), dtype_text(buffer.dtype).data(),
             buffer.shape, buffer.bytes, *tensor);
    return {};
  });
}

void gacc_step_free(gacc_step* step) { delete step; }

gacc_error gacc_session_open(const gacc_step* step, const char* device, const gacc_device_options* options,
                             gacc_session** session) {
  return guarded({step, session}, "gacc_session_open: the step or the session is null", [&]() -> Answer {
    const std::string choice = device == nullptr ? "auto" : device;
    const bool known = choice == "auto" || choice == "cpu" || choice == "emulate" || choice == "cuda" ||
                       choice.starts_with("cuda:");
    if (!known) return wrong_call("device {}: expected auto, cpu, cuda, cuda:N or emulate", choice);
    if (options != nullptr && options->threads < 0)
      return wrong_call("threads {}: expected 0 for all cores, or more", options->threads);
    if (options != nullptr && options->recheck < 0)
      return wrong_call("recheck {}: expected 0 for never, or more", options->recheck);
    look_from_here();
    const CheckedStep& of = *step->checked;
    auto made = std::make_shared<gacc_session>(step->checked);
    DeviceOptions wanted;
    wanted.threads = options == nullptr ? 0 : options->threads;
    made->device = GACC_TRY(open_device(choice, wanted, of.artifact));
    made->session.emplace(*made->device, made->plan);
    GACC_TRY(made->session->open(of.artifact));
    if (options != nullptr) made->session->recheck().begin(options->recheck);
    *session = made.get();
    open_sessions().add(std::move(made));
    return {};
  });
}

gacc_error gacc_session_init(gacc_session* session, int64_t seed, int64_t epoch_samples) {
  return with_session(session, "gacc_session_init", Needs::open, [&](gacc_session& run) -> Answer {
    if (seed < 0 || epoch_samples < 0)
      return wrong_call("gacc_session_init: the seed and the samples of an epoch are at least 0");
    const bool epochs = run.plan.find(state::updates_per_epoch) != nullptr;
    if (epochs && epoch_samples == 0)
      return wrong_call("gacc_session_init: the schedule counts epochs: say of how many samples");
    run.start = {static_cast<uint64_t>(seed), epoch_samples};
    run.feed.emplace(*run.session, run.plan);
    run.loaded = Weights();
    run.ready = true;
    run.lacks_length = run.plan.find(state::run_total) != nullptr;
    return {};
  });
}

gacc_error gacc_session_expect(gacc_session* session, int64_t updates, char* remark, size_t size) {
  return with_session(session, "gacc_session_expect", Needs::parameters, [&](gacc_session& run) -> Answer {
    if (updates < 1)
      return wrong_call("gacc_session_expect: a run makes an update at least, not {}", updates);
    const std::string said = GACC_TRY(tell_length(*run.session, run.plan, updates));
    run.lacks_length = false;
    if (remark != nullptr && size > 0) remark[said.copy(remark, size - 1)] = '\0';
    return {};
  });
}

gacc_error gacc_session_load(gacc_session* session, const char* path) {
  return with_session(session, "gacc_session_load", Needs::init, [&](gacc_session& run) -> Answer {
    if (path == nullptr) return wrong_call("gacc_session_load: the path is null");
    if (is_adapter(path)) {
      Adapter adapter;
      GACC_TRY(adapter.open(path, run.plan));
      return after(run, run.start ? start(run, nullptr, &adapter) : adapter.write(*run.session));
    }
    Weights weights;
    DataFacts facts;
    GACC_TRY(compare_config(path, run.plan));
    GACC_TRY(weights.open(path, run.plan));  // refuses before the device has a part in it
    GACC_TRY(read_facts(weights.metadata(), path, run.plan, facts));
    Status status = run.start ? start(run, &weights) : weights.write(*run.session);
    if (status) status = run.session->write_class_weights(class_weights(facts, run.plan));
    if (status) {
      run.facts = std::move(facts);
      run.loaded = std::move(weights);
    }
    return after(run, status);
  });
}

gacc_error gacc_session_step(gacc_session* session, const gacc_array* arrays, size_t count, int64_t samples) {
  return with_session(session, "gacc_session_step", Needs::parameters, [&](gacc_session& run) -> Answer {
    GACC_TRY(check_step(run, "gacc_session_step"));
    GACC_TRY(fill_batch(run, "gacc_session_step", arrays, count, samples, Program::step));
    return after(run, run.session->step(run.batch.inputs(), samples));
  });
}

int64_t gacc_session_launches(gacc_session* session) {
  int64_t launches = 0;
  with_text(session, "gacc_session_launches", Needs::open, [&](gacc_session& run) -> Answer {
    if (!run.start) launches = run.session->window().launches();
    return {};
  });
  return launches;
}

gacc_error gacc_session_update(gacc_session* session, gacc_window* window) {
  return with_session(session, "gacc_session_update", Needs::parameters, [&](gacc_session& run) -> Answer {
    if (run.session->window().launches() == 0)
      return wrong_call("gacc_session_update: the window has no launch: gacc_session_step makes one");
    const WindowReport report = GACC_TRY(after(run, update_window(*run.session, run.plan)));
    if (window != nullptr) *window = to_c(report);
    return {};
  });
}

gacc_error gacc_session_train(gacc_session* session, const gacc_array* arrays, size_t count, int64_t samples,
                              gacc_window* window) {
  return with_session(session, "gacc_session_train", Needs::parameters, [&](gacc_session& run) -> Answer {
    if (window == nullptr) return wrong_call("gacc_session_train: the window is null");
    GACC_TRY(check_step(run, "gacc_session_train"));
    GACC_TRY(run.feed->check_order());
    GACC_TRY(fill_batch(run, "gacc_session_train", arrays, count, samples, Program::step));
    const auto closed = GACC_TRY(after(run, run.feed->take(run.batch.inputs(), samples)));
    *window = closed ? to_c(*closed) : gacc_window();
    return {};
  });
}

gacc_error gacc_session_end_epoch(gacc_session* session, gacc_window* window) {
  return with_session(session, "gacc_session_end_epoch", Needs::parameters, [&](gacc_session& run) -> Answer {
    if (window == nullptr) return wrong_call("gacc_session_end_epoch: the window is null");
    const auto closed = GACC_TRY(after(run, run.feed->end_epoch()));
    *window = closed ? to_c(*closed) : gacc_window();
    return {};
  });
}

gacc_error gacc_session_eval(gacc_session* session, const gacc_array* arrays, size_t count, int64_t samples) {
  return with_session(session, "gacc_session_eval", Needs::parameters, [&](gacc_session& run) -> Answer {
    GACC_TRY(fill_batch(run, "gacc_session_eval", arrays, count, samples, Program::eval,
                        run.session->evaluation().samples()));
    if (run.session->evaluation().samples() == 0) GACC_TRY(after(run, run.session->evaluation().begin()));
    return after(run, run.session->evaluation().add(run.batch.inputs(), samples));
  });
}

gacc_error gacc_session_eval_end(gacc_session* session, gacc_evaluation* evaluation) {
  return with_session(session, "gacc_session_eval_end", Needs::parameters, [&](gacc_session& run) -> Answer {
    if (evaluation == nullptr) return wrong_call("gacc_session_eval_end: the evaluation is null");
    if (run.session->evaluation().samples() == 0)
      return wrong_call("gacc_session_eval_end: nothing is evaluated: gacc_session_eval adds samples");
    const EvalReport report = GACC_TRY(after(run, run.session->evaluation().end()));
    const size_t metrics = std::min<size_t>(report.metrics.size(), GACC_MOST_METRICS);
    *evaluation = {report.samples, report.count, report.loss, metrics, {}};
    const std::vector<std::string>& names = run.step->artifact.plan.metrics;
    for (size_t i = 0; i < evaluation->metrics; ++i)
      evaluation->metric[i] = {names[i].c_str(), report.metrics[i]};
    return {};
  });
}

gacc_error gacc_session_evaluated(gacc_session* session, const gacc_evaluation* evaluation,
                                  const char* metric, double* best, int* better) {
  return with_session(session, "gacc_session_evaluated", Needs::parameters, [&](gacc_session& run) -> Answer {
    if (metric == nullptr || best == nullptr || better == nullptr)
      return wrong_call("gacc_session_evaluated: the metric, best or better is null");
    if (const Status known = check_metric(run.plan, metric); !known)
      return wrong_call("{}: {}", metric, known.text());
    *better = 0;
    if (evaluation == nullptr) return {};
    EvalReport report{evaluation->samples, evaluation->counted, evaluation->loss, {}};
    for (size_t i = 0; i < std::min<size_t>(evaluation->metrics, GACC_MOST_METRICS); ++i)
      report.metrics.push_back(evaluation->metric[i].value);
    if (report.metrics.size() != run.plan.metrics.size())
      return wrong_call("gacc_session_evaluated: the evaluation is of another model");
    GACC_TRY(after(run, evaluated(*run.session, run.plan, report)));
    const double value = metric_of(report, run.plan, metric);
    *better = is_better(metric, value, *best);
    if (*better != 0) *best = value;
    return {};
  });
}

gacc_error gacc_session_predict(gacc_session* session, const gacc_array* arrays, size_t count,
                                int64_t samples, float* outputs, size_t bytes) {
  return with_session(session, "gacc_session_predict", Needs::parameters, [&](gacc_session& run) -> Answer {
    if (outputs == nullptr) return wrong_call("gacc_session_predict: the outputs are null");
    std::vector<UserArray> given, part;
    GACC_TRY(take_arrays("gacc_session_predict", arrays, count, given));
    GACC_TRY(check_predict(run.plan));
    const PlanPredict& predict = run.plan.predict;
    const int64_t each = elements_of(predict.answer_shape), raw = elements_of(predict.shape);
    if (samples < 1 || samples > std::numeric_limits<int64_t>::max() / kFloatBytes / each)
      return wrong_call("gacc_session_predict: at least one sample is predicted, {} were given", samples);
    if (static_cast<int64_t>(bytes) != samples * each * kFloatBytes)
      return wrong_call("gacc_session_predict: the outputs of {} are {} bytes, {} were given",
                        counted(samples, "sample"), samples * each * kFloatBytes, bytes);
    for (const UserArray& array : given)
      if (array.bytes.size() % static_cast<size_t>(samples) != 0)
        return Status::error("the array {}: {} bytes are not of {}", array.name, array.bytes.size(),
                             counted(samples, "sample"));
    // Answers that are as many as the outputs are made in their place.
    std::vector<float> logits(raw == each ? 0 : static_cast<size_t>(std::min(samples, predict.batch) * raw));
    for (int64_t first = 0; first < samples; first += predict.batch) {
      const int64_t some = std::min(predict.batch, samples - first);
      part = given;
      for (UserArray& array : part) {
        const size_t sample = array.bytes.size() / static_cast<size_t>(samples);
        array.bytes =
            array.bytes.subspan(static_cast<size_t>(first) * sample, static_cast<size_t>(some) * sample);
      }
      GACC_TRY(run.batch.fill(part, some, run.facts, Program::predict, first));
      const std::span to(outputs + first * each, static_cast<size_t>(some * each));
      const std::span from = raw == each ? to : std::span(logits).first(static_cast<size_t>(some * raw));
      GACC_TRY(after(run, run.session->prediction().run(run.batch.inputs(), some)));
      GACC_TRY(after(run, run.session->prediction().read(0, from)));
      make_answers(predict, from, to);
    }
    return {};
  });
}

gacc_error gacc_session_next_token(gacc_session* session, const int32_t* text, size_t count,
                                   const gacc_draw_options* draw_options, int32_t* token) {
  return with_text(session, "gacc_session_next_token", Needs::parameters, [&](gacc_session& run) -> Answer {
    constexpr gacc_draw_options kMostLikely = {0, 0, 1, 0};
    const gacc_draw_options& given = draw_options == nullptr ? kMostLikely : *draw_options;
    if (text == nullptr || count == 0) return wrong_call("gacc_session_next_token: the text has no token");
    if (!(given.temperature >= 0) || given.top_k < 0 || !(given.top_p > 0 && given.top_p <= 1) ||
        given.seed < 0)
      return wrong_call(
          "gacc_session_next_token: temperature, top_k and seed are at least 0, top_p is above 0 and at most "
          "1");
    GACC_TRY(check_text(run.plan));
    const std::span<const int32_t> tokens(text, count);
    const int64_t known = run.plan.predict.shape.back();
    for (const int32_t each : tokens)
      if (each < 0 || each >= known)
        return Status::error("the text has the token {}, and the model knows 0 to {}", each, known - 1);
    if (!run.text) run.text.emplace(*run.session, run.plan);
    if (token == nullptr) return after(run, run.text->keep(tokens, {})).status();
    std::vector<float> logits;
    GACC_TRY(after(run, run.text->read(tokens, logits, {})));
    DrawOptions how;
    how.temperature = given.temperature;
    if (given.top_k > 0) how.top_k = given.top_k;
    how.top_p = given.top_p;
    how.seed = static_cast<uint64_t>(given.seed);
    *token = GACC_TRY(draw(logits, how, count));
    return {};
  });
}

gacc_error gacc_session_read(gacc_session* session, const char* name, void* data, size_t bytes) {
  return with_session(session, "gacc_session_read", Needs::parameters, [&](gacc_session& run) -> Answer {
    const PlanBuffer* buffer = nullptr;
    GACC_TRY(find_buffer(run, "gacc_session_read", name, data, bytes, buffer));
    return after(run, run.device->read(buffer->offset, {static_cast<std::byte*>(data), bytes}));
  });
}

gacc_error gacc_session_write(gacc_session* session, const char* name, const void* data, size_t bytes) {
  return with_session(session, "gacc_session_write", Needs::parameters, [&](gacc_session& run) -> Answer {
    const PlanBuffer* buffer = nullptr;
    GACC_TRY(find_buffer(run, "gacc_session_write", name, data, bytes, buffer));
    if (buffer->kind() == BufferKind::param && buffer->dtype == DType::f32)  // its half copy, too
      return after(run, run.session->write_parameter(
                            *buffer, 0, {static_cast<const float*>(data), bytes / sizeof(float)}));
    return after(run, run.session->write_buffer(*buffer, {static_cast<const std::byte*>(data), bytes}));
  });
}

gacc_error gacc_session_save_as(gacc_session* session, const char* path, const gacc_save_options* options) {
  return with_session(session, "gacc_session_save_as", Needs::parameters, [&](gacc_session& run) -> Answer {
    if (path == nullptr) return wrong_call("gacc_session_save_as: the path is null");
    const gacc_save_options none{};
    const gacc_save_options& given = options == nullptr ? none : *options;
    const std::string_view type = given.type == nullptr ? "f32" : given.type;
    if (type != "f32" && type != "bf16" && type != "f16")
      return wrong_call("type {}: expected f32, bf16 or f16", type);
    return save(run, {.option = "gacc_session_save_as",
                      .path = path,
                      .adapter = given.adapter != 0,
                      .merge = given.merge != 0,
                      .published = given.published != 0,
                      .dtype = stored_dtype(type)});
  });
}

gacc_error gacc_session_checkpoint(gacc_session* session, const char* folder) {
  return with_session(session, "gacc_session_checkpoint", Needs::parameters,
                      [&](gacc_session& run) -> Answer {
                        if (folder == nullptr)
                          return wrong_call("gacc_session_checkpoint: the folder is null");
                        CheckpointFolder place;
                        GACC_TRY(place.open(folder));
                        Checkpoint checkpoint;
                        checkpoint.settings = settings_of_session(run);
                        checkpoint.settings.insert(checkpoint.settings.begin(), kNoPosition);
                        checkpoint.rate = {run.plan.lr, run.plan.lr};
                        const bool opens_again = run.plan.lanes > 1;  // read_for_checkpoint
                        checkpoint.train.window_launches = opens_again ? 0 : run.session->window().launches();
                        checkpoint.train.window_samples = opens_again ? 0 : run.session->window().samples();
                        checkpoint.data = to_metadata(run.facts);
                        return write_checkpoint(place.file(), checkpoint, run.plan, *run.session);
                      });
}

gacc_error gacc_session_resume(gacc_session* session, const char* folder) {
  return with_session(session, "gacc_session_resume", Needs::open, [&](gacc_session& run) -> Answer {
    if (folder == nullptr) return wrong_call("gacc_session_resume: the folder is null");
    CheckpointReader reader;
    GACC_TRY(reader.open(checkpoint_files(folder)[0]));
    Settings settings = settings_of_session(run);
    keep_to_model(settings, reader.content().settings);
    const auto& saved = reader.content().settings;
    if (std::ranges::find(saved, kNoPosition) != saved.end()) settings.insert(settings.begin(), kNoPosition);
    DataFacts facts;
    GACC_TRY(reader.check(run.plan, settings));
    GACC_TRY(read_facts(reader.content().data, folder, run.plan, facts));
    const Status status = begin(*run.session, run.plan,
                                {.seed = static_cast<uint64_t>(run.plan.seed),
                                 .lr = reader.content().rate.used,
                                 .checkpoint = &reader});
    run.start.reset();
    run.feed.emplace(*run.session, run.plan);
    run.facts = std::move(facts);
    run.ready = status.ok();
    run.lacks_length = status && run.plan.find(state::run_total) != nullptr &&
                       GACC_TRY(after(run, run.session->read_state<int32_t>(state::run_total))) == 0;
    return after(run, status);
  });
}

gacc_error gacc_session_close(gacc_session* session) {
  return guarded({}, "", [&]() -> Answer {
    if (session == nullptr) return {};
    const std::shared_ptr<gacc_session> held = open_sessions().remove(session);
    if (!held) return wrong_call("gacc_session_close: the session is closed");
    const std::lock_guard lock(held->mutex);
    held->closed = true;
    std::string reports;
    const Status status = held->device->finish(reports);
    held->text.reset();
    held->feed.reset();
    held->session.reset();
    held->device.reset();
    return status ? status : Status::error(reports + status.text());
  });
}
