// Writing and reading checkpoint files; the folder and its lock. Buffers are copied one at a time, so a
// checkpoint takes no more memory than the largest of them.
#include "runtime/store/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/atomic_file.h"
#include "runtime/byte_order.h"
#include "runtime/json_text.h"
#include "runtime/long_work.h"
#include "runtime/temporaries.h"
#include "runtime/text.h"

namespace gacc {

namespace {

using Json = nlohmann::json;

constexpr int64_t kHeadBytes = 24, kFootBytes = 24;
constexpr int64_t kMostTable = int64_t{1} << 30;

// Fails where a number of parameters or moments is not finite: no file takes the place of a good one then. Sums of an
// open window may be infinite, where a loss scale is too large; so may what follows from them.
Status check_numbers(const PlanBuffer& buffer, std::string_view bytes, const std::string& path) {
  if ((!is_saved(buffer) && buffer.role != BufferRole::moment) || buffer.dtype == DType::i32) return {};
  return check_finite({buffer.name, stored_dtype(dtype_text(buffer.dtype)), whole_shape(buffer), bytes},
                      path + " is not written");
}

std::string tensor_text(std::string_view dtype, const std::vector<int64_t>& shape) {
  return std::string(dtype) + shape_text(shape);
}

// The loop's state as JSON, in one list of fields for both directions. Real numbers are written as text that reads
// back exactly, since JSON has no NaN and no infinity.
class Writer {
 public:
  explicit Writer(Json& to) : to_(to) {}
  void operator()(const char* name, int64_t value) { to_[name] = value; }
  void operator()(const char* name, bool value) { to_[name] = value; }
  void operator()(const char* name, double value) { to_[name] = fmt::format("{}", value); }
  void operator()(const char* name, const std::string& value) { to_[name] = value; }
  void operator()(const char* name, const std::vector<double>& values) {
    to_[name] = Json::array();
    for (double value : values) to_[name].push_back(fmt::format("{}", value));
  }
  template <class T>
  void later(const char* name, const T& value) {
    (*this)(name, value);
  }

 private:
  Json& to_;
};

// Throws what nlohmann throws, and std::invalid_argument; read_table catches both.
class Reader {
 public:
  explicit Reader(const Json& from) : from_(from) {}
  void operator()(const char* name, int64_t& value) {
    value = from_.at(name).get<int64_t>();
    if (value < -1) throw std::invalid_argument(name);  // -1: EvaluationReport's "none"
  }
  void operator()(const char* name, bool& value) { value = from_.at(name).get<bool>(); }
  void operator()(const char* name, double& value) { value = real(from_.at(name), name); }
  void operator()(const char* name, std::string& value) { value = from_.at(name).get<std::string>(); }
  void operator()(const char* name, std::vector<double>& values) {
    values.clear();
    for (const Json& item : from_.at(name)) values.push_back(real(item, name));
  }
  // A field that files of older versions do not have.
  template <class T>
  void later(const char* name, T& value) {
    if (from_.contains(name)) (*this)(name, value);
  }

 private:
  static double real(const Json& json, const char* name) {
    if (json.is_number()) return json.get<double>();  // a count, in files of older versions
    auto text = json.get<std::string>();
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != 0) throw std::invalid_argument(name);
    return value;
  }
  const Json& from_;
};

template <class State, class Visit>
void each_field(State& state, Visit visit) {
  visit("epochs", state.epochs);
  visit("updates", state.updates);
  visit("skipped", state.skipped);
  visit("launches", state.launches);
  visit("samples", state.samples);
  visit("position", state.position);
  visit("window.launches", state.window_launches);
  visit("window.samples", state.window_samples);
  visit("evaluation_due", state.evaluation_due);
  visit("epoch.epoch", state.epoch.epoch);
  visit("epoch.updates", state.epoch.updates);
  visit("epoch.skipped", state.epoch.skipped);
  visit("epoch.samples", state.epoch.samples);
  visit("epoch.loss", state.epoch_sums.loss);
  visit("epoch.count", state.epoch_sums.count);
  visit("counted.loss", state.counted.loss);
  visit("counted.count", state.counted.count);
  visit("evaluation.epoch", state.evaluation.epoch);
  visit("evaluation.updates", state.evaluation.updates);
  visit("evaluation.samples", state.evaluation.result.samples);
  visit("evaluation.count", state.evaluation.result.count);
  visit("evaluation.loss", state.evaluation.result.loss);
  visit("evaluation.metrics", state.evaluation.result.metrics);
  visit("seconds", state.seconds);
  visit("seconds.evaluation", state.evaluation_seconds);
  visit("seconds.window_start", state.window_start);
  visit("seconds.epoch_start", state.epoch_start);
  visit.later("first_loss", state.first_loss);
  visit.later("best.metric", state.best.metric);
  visit.later("best.value", state.best.value);
  visit.later("best.updates", state.best.updates);
  visit.later("best.worse", state.best.worse);
  visit.later("recheck.launches", state.recheck.launches);
  visit.later("recheck.updates", state.recheck.updates);
}

std::string checkpoint_in(const std::string& folder) { return file_in(folder, "checkpoint"); }

std::string old_of(std::string checkpoint) {
  follow_links(checkpoint);
  return checkpoint + ".old";
}

}  // namespace

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointEntry, name, kind, dtype, shape, bytes, crc32)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LogPosition, bytes, crc32)

bool is_kept(const PlanBuffer& buffer) {
  return buffer_roles[static_cast<size_t>(buffer.role)].combine != CopiesOfRanks::per_rank;
}

std::vector<std::string> checkpoint_files(const std::string& folder) {
  if (folder.empty()) return {};
  return {checkpoint_in(folder), old_of(checkpoint_in(folder))};
}

CheckpointFolder::~CheckpointFolder() {
  if (fd_ >= 0) close(fd_);
}

Status CheckpointFolder::open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  fd_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0 || access(path.c_str(), W_OK | X_OK) != 0)
    return Status::error("cannot use the checkpoint folder {}: {}", path,
                         fd_ < 0 && error ? error.message() : system_reason(errno));
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)  // other errors: no locks there
    return Status::error("another run uses the checkpoint folder {}", path);
  file_ = checkpoint_in(path);
  sweep_temporaries(path);
  return {};
}

std::string CheckpointFolder::name_for_old() const {
  struct stat info {};
  return stat(file_.c_str(), &info) == 0 && S_ISREG(info.st_mode) ? old_of(file_) : "";
}

Status write_checkpoint(const std::string& path, const Checkpoint& checkpoint, const Plan& plan,
                        Session& session, const std::string& keep) {
  AtomicFile file;
  GACC_TRY(file.open(path));
  int64_t all = 0;
  for (const PlanBuffer& buffer : plan.buffers) all += is_kept(buffer) ? whole_bytes(buffer) : 0;
  LongWork work(fmt::format("writing {}", path), all);
  std::string head(kCheckpointMagic);
  head += bytes_of(kCheckpointVersion);
  head += bytes_of(crc32_of(head));
  GACC_TRY(file.write(head));

  Json tensors = Json::array();
  auto size = static_cast<int64_t>(head.size());
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_kept(buffer)) continue;
    const std::vector<std::byte> read = GACC_TRY(session.read_for_checkpoint(buffer));
    const std::string_view bytes = bytes_of(std::span(read));
    GACC_TRY(check_numbers(buffer, bytes, path));
    GACC_TRY(file.write(bytes));
    tensors.push_back(CheckpointEntry{buffer.name, std::string(kind_text(buffer.kind())),
                                      std::string(dtype_text(buffer.dtype)), whole_shape(buffer),
                                      whole_bytes(buffer), crc32_of(bytes)});
    size += whole_bytes(buffer);
    work.done(whole_bytes(buffer));
  }

  Json train = Json::object(), rate = Json::object();
  each_field(checkpoint.train, Writer(train));
  GACC_TRY(file.write(checkpoint.best));
  size += static_cast<int64_t>(checkpoint.best.size());
  Writer to_rate(rate);
  to_rate("of_model", checkpoint.rate.of_model);
  to_rate("used", checkpoint.rate.used);
  const std::string table =
      json_text(Json{{"settings", checkpoint.settings},
                     {"rate", rate},
                     {"train", train},
                     {"log", checkpoint.log},
                     {"gemm_choices", checkpoint.gemm_choices},
                     {"data", checkpoint.data},
                     {"best", {{"bytes", checkpoint.best.size()}, {"crc32", crc32_of(checkpoint.best)}}},
                     {"tensors", tensors}});
  std::string foot(bytes_of(uint64_t{table.size()}));
  foot += bytes_of(size + static_cast<int64_t>(table.size()) + kFootBytes);
  foot += bytes_of(crc32_of(table));
  foot += bytes_of(crc32_of(foot));
  GACC_TRY(file.write(table));
  GACC_TRY(file.write(foot));
  return file.commit(keep);
}

Status share_for_checkpoint(const Plan& plan, Session& session) {
  for (const PlanBuffer& buffer : plan.buffers)
    if (is_kept(buffer)) GACC_TRY(session.read_for_checkpoint(buffer));
  return {};
}

Status CheckpointReader::damaged(std::string_view what) const {
  return Status::error(
      "{} is damaged: {}; remove it to start from the beginning, or put an older copy in its place", path_,
      what);
}

Result<int64_t> CheckpointReader::read_table(std::string_view text) {
  Json table = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (table.is_discarded()) return damaged("its table is no JSON");
  try {
    content_.settings = table.at("settings").get<Settings>();
    // Before artifact format 9 it depended on the memory plan.
    std::erase_if(content_.settings,
                  [](const auto& setting) { return setting.first == "the model's operations (digest)"; });
    Reader rate(table.at("rate"));
    rate("of_model", content_.rate.of_model);
    rate("used", content_.rate.used);
    each_field(content_.train, Reader(table.at("train")));
    if (table.contains("best")) {
      best_bytes_ = table.at("best").at("bytes").get<int64_t>();
      best_crc_ = table.at("best").at("crc32").get<uint32_t>();
    }
    content_.log = table.at("log").get<LogPosition>();
    content_.gemm_choices = table.value("gemm_choices", "");  // files of older versions have none of these
    content_.data = table.value("data", Metadata());
    entries_ = table.at("tensors").get<std::vector<CheckpointEntry>>();
    int64_t end = kHeadBytes;
    for (const CheckpointEntry& entry : entries_)
      if (entry.bytes < 0 || __builtin_add_overflow(end, entry.bytes, &end))
        return damaged(fmt::format("the size of {}", entry.name));
    return end;
  } catch (const std::exception& error) {
    return damaged(fmt::format("its table lacks a field, or has a wrong one ({})", error.what()));
  }
}

Status CheckpointReader::open(const std::string& path) {
  path_ = path;
  content_ = {};
  best_bytes_ = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return cannot_read(path, errno);
  int64_t size = file.tellg();
  auto read = [&](int64_t offset, int64_t bytes) {
    std::string text(static_cast<size_t>(bytes), '\0');
    file.seekg(offset);
    file.read(text.data(), bytes);
    if (file.gcount() != bytes) text.clear();
    return text;
  };

  // 1. The head, then the foot and the table before it.
  std::string head = size >= kHeadBytes ? read(0, kHeadBytes) : "";
  if (!head.starts_with(kCheckpointMagic))
    return size < kHeadBytes
               ? damaged(fmt::format("it has only {}", counted(std::max<int64_t>(size, 0), "byte")))
               : Status::error("{} is no checkpoint of gacc", path);
  if (read_little<uint32_t>(head.data() + 20) != crc32_of(std::string_view(head).substr(0, 20)))
    return damaged("its first bytes");
  if (auto version = read_little<uint32_t>(head.data() + 16); version != kCheckpointVersion)
    return Status::error("{} has format version {}; this gacc-exec reads {}", path, version,
                         kCheckpointVersion);
  std::string foot = size >= kHeadBytes + kFootBytes ? read(size - kFootBytes, kFootBytes) : "";
  if (foot.empty() ||
      read_little<uint32_t>(foot.data() + 20) != crc32_of(std::string_view(foot).substr(0, 20)))
    return damaged(fmt::format("it is cut off after {} bytes, or its end was altered", size));
  auto table_bytes = static_cast<int64_t>(read_little<uint64_t>(foot.data()));
  if (static_cast<int64_t>(read_little<uint64_t>(foot.data() + 8)) != size)
    return damaged(fmt::format("it has {} bytes, and should have another number", size));
  if (table_bytes < 0 || table_bytes > std::min(size - kHeadBytes - kFootBytes, kMostTable))
    return damaged("the size of its table");
  const std::string table = read(size - kFootBytes - table_bytes, table_bytes);
  if (read_little<uint32_t>(foot.data() + 16) != crc32_of(table)) return damaged("the checksum of its table");
  const int64_t end = GACC_TRY(read_table(table));

  // 2. The buffers.
  const int64_t best_bytes = size - kFootBytes - table_bytes - end;
  if (best_bytes < 0 || best_bytes != best_bytes_) return damaged("its tensors do not fill it");
  constexpr int64_t kBlock = int64_t{1} << 20;
  int64_t begin = kHeadBytes;
  for (const CheckpointEntry& entry : entries_) {
    uint32_t crc = 0;
    for (int64_t done = 0; done < entry.bytes; done += kBlock)
      crc = crc32_of(read(begin + done, std::min(kBlock, entry.bytes - done)), crc);
    begin += entry.bytes;
    if (crc != entry.crc32) return damaged(fmt::format("the checksum of tensor {}", entry.name));
  }

  // 3. The best parameters.
  content_.best = read(end, best_bytes);
  if (best_bytes > 0 && crc32_of(content_.best) != best_crc_)
    return damaged("the checksum of the best parameters");
  return {};
}

Status CheckpointReader::check(const Plan& plan, const Settings& settings) const {
  auto differs = [&](std::string_view name, std::string_view saved, std::string_view now,
                     std::string_view hint = "") {
    return Status::error("cannot resume from {}: {} was {}, and is {} now{}", path_, name, saved, now, hint);
  };
  auto value_of = [](const Settings& list, std::string_view name) {
    const auto it = std::ranges::find(list, name, &Settings::value_type::first);
    return it == list.end() ? std::string("not set") : it->second;
  };
  // 1. The model's name first, so that another model is called that, and the optimizer and the precision,
  // which have tensors of their own; then the settings of either side.
  auto compare = [&](const std::string& name) {
    const std::string saved = value_of(content_.settings, name), now = value_of(settings, name);
    return saved == now ? Status() : differs(name, saved, now);
  };
  for (const char* name : {"model.name", "optimizer.type", "precision.compute"}) GACC_TRY(compare(name));
  // 2. The tensors, which tell of a changed layer more clearly than the operations do.
  for (const PlanBuffer& buffer : plan.buffers) {
    if (!is_kept(buffer)) continue;
    const auto it = std::ranges::find(entries_, buffer.name, &CheckpointEntry::name);
    const std::string_view kind = kind_text(buffer.kind());
    const std::string now = tensor_text(dtype_text(buffer.dtype), whole_shape(buffer));
    if (it == entries_.end()) {
      const auto renamed = std::ranges::find_if(entries_, [&](const CheckpointEntry& entry) {
        return entry.kind == kind && tensor_text(entry.dtype, entry.shape) == now &&
               plan.find(entry.name) == nullptr;
      });
      const std::string hint = renamed == entries_.end()
                                   ? std::string()
                                   : fmt::format("; it had {} instead: is a layer renamed?", renamed->name);
      return differs("tensor " + buffer.name, "not there", now, hint);
    }
    const std::string saved = tensor_text(it->dtype, it->shape);
    if (saved != now) return differs("tensor " + buffer.name, saved, now);
    if (it->kind != kind) return differs("the kind of tensor " + buffer.name, it->kind, kind);
    if (it->bytes != whole_bytes(buffer))
      return differs("the size of tensor " + buffer.name, fmt::format("{} bytes", it->bytes),
                     fmt::format("{} bytes", whole_bytes(buffer)));
  }
  for (const CheckpointEntry& entry : entries_)
    if (!plan.find(entry.name))
      return differs("tensor " + entry.name, tensor_text(entry.dtype, entry.shape), "not there");
  const auto kept = std::ranges::count_if(plan.buffers, is_kept);
  if (entries_.size() != static_cast<size_t>(kept)) return damaged("it has a tensor twice");
  // 3. Everything else.
  for (const Settings* list : {&content_.settings, &settings})
    for (const auto& [name, value] : *list) GACC_TRY(compare(name));
  const auto& metrics = content_.train.evaluation.result.metrics;
  if (!metrics.empty() && metrics.size() != plan.metrics.size()) return damaged("its evaluation");
  return {};
}

Status CheckpointReader::restore(const Plan& plan, Session& session) const {
  std::ifstream file(path_, std::ios::binary);
  file.seekg(kHeadBytes);
  int64_t all = 0;
  for (const CheckpointEntry& entry : entries_) all += entry.bytes;
  LongWork work(fmt::format("loading {}", path_), all);
  std::vector<std::byte> bytes;
  for (const CheckpointEntry& entry : entries_) {
    const PlanBuffer* buffer = plan.find(entry.name);
    if (!buffer || whole_bytes(*buffer) != entry.bytes) return damaged(entry.name);
    bytes.resize(static_cast<size_t>(entry.bytes));
    file.read(reinterpret_cast<char*>(bytes.data()), entry.bytes);
    if (!file || crc32_of(bytes_of(std::span(bytes))) != entry.crc32)
      return damaged(fmt::format("tensor {} has changed since it was checked", entry.name));
    GACC_TRY(session.write_buffer(*buffer, bytes));
    work.done(entry.bytes);
  }
  return {};
}

}  // namespace gacc
