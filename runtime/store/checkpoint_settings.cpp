// What must agree between a checkpoint and the run that goes on from it. The compiled model's settings are
// read off the artifact's IR, whose text has a line `set KEY = VALUE` for each; what they do not tell
// (another layer with the same shapes) the digest of its operations does.
#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>

#include "runtime/atomic_file.h"
#include "runtime/store/checkpoint.h"

namespace gacc {
namespace {

// Settings that change no bit of a run, or that the run's options decide and are compared as such.
bool may_differ(std::string_view key) {
  for (const std::string_view group : {"launch.", "memory.", "recompute.", "predict."})
    if (key.starts_with(group)) return true;
  for (const std::string_view name :
       {"train.epochs", "train.shuffle", "train.micro_batch", "train.accumulate", "train.tail", "train.ranks",
        "model.seed", "model.name", "optimizer.lr"})
    if (key == name) return true;
  return false;
}

// Removes what the memory plan decides: " at 123" from a line.
std::string without_offsets(std::string line) {
  constexpr std::string_view kAt = " at ";
  for (size_t at = 0; (at = line.find(kAt, at)) != line.npos;) {
    const size_t digits = at + kAt.size(),
                 end = std::min(line.find_first_not_of("0123456789", digits), line.size());
    if (end > digits)
      line.erase(at, end - at);
    else
      ++at;
  }
  return line;
}

// The text without the regions that change no bit of a run that goes on: `predict`, which the memory plan may
// leave out or cut, `init`, and those that follow from settings and the number of ranks.
std::string training_part(std::string ir) {
  constexpr std::string_view kEnd = "\n  }\n";
  for (const std::string_view region : {"\n  init {", "\n  predict(", "\n  update {", "\n  close {",
                                        "\n  answer(", "\n  norms {", "\n  ratios {", "\n  clear {"}) {
    const size_t begin = ir.find(region);
    const size_t end = begin == ir.npos ? ir.npos : ir.find(kEnd, begin + 1);
    if (end != ir.npos) ir.erase(begin, end + kEnd.size() - begin);
  }
  return ir;
}

void add_model(std::string_view text, Settings& settings) {
  std::istringstream lines(training_part(std::string(text)));
  std::string line;
  std::getline(lines, line);  // the module's name and the file it was compiled from
  uint32_t digest = 0;
  while (std::getline(lines, line)) {
    const std::string_view rest =
        std::string_view(line).substr(std::min(line.find_first_not_of(' '), line.size()));
    if (rest.starts_with("set ")) {
      const size_t equals = rest.find(" = ");
      if (equals == std::string_view::npos) continue;
      const std::string_view key = rest.substr(4, equals - 4);
      if (!may_differ(key)) settings.emplace_back(key, rest.substr(equals + 3));
      continue;
    }
    // Buffers are compared one by one.
    if (rest.starts_with("param ") || rest.starts_with("accum ") || rest.starts_with("state ")) continue;
    digest = crc32_of(without_offsets(std::string(rest)) + "\n", digest);
  }
  settings.emplace_back("the model's operations (digest)", fmt::format("{:08x}", digest));
}

// Of big columns only some blocks, evenly spread: reading gigabytes at every start would be felt. Of those on
// disk 64; the number of samples says their size.
uint32_t fingerprint(const Dataset& data, size_t index) {
  constexpr size_t kBlock = 4096;
  const Column& column = data.columns[index];
  const std::span<const std::byte> bytes = data.bytes(index);
  const size_t most = column.on_disk() ? 64 : 4096;
  const size_t blocks = (bytes.size() + kBlock - 1) / kBlock, step = std::max<size_t>(1, blocks / most);
  std::array<std::byte, kBlock> copy{};
  uint32_t crc = 0;
  for (size_t block = 0; block < blocks; block += step) {
    const size_t first = block * kBlock;
    std::span<const std::byte> some = bytes.subspan(first, std::min(kBlock, bytes.size() - first));
    if (column.on_disk()) {
      const std::span<std::byte> to = std::span(copy).first(some.size());
      if (!column.file->read(column.first + first, to)) return 0;  // reading samples says why
      some = to;
    }
    crc = crc32_of({reinterpret_cast<const char*>(some.data()), some.size()}, crc);
  }
  return crc;
}

// Named by settings_of.
bool is_of_model(std::string_view name) {
  return !name.starts_with("the training data's") && name != "the number of training samples" &&
         name != "the seed" && name != "train.shuffle";
}

}  // namespace

void keep_to_model(Settings& settings, const Settings& saved) {
  std::erase_if(settings, [](const auto& setting) { return !is_of_model(setting.first); });
  std::copy_if(saved.begin(), saved.end(), std::back_inserter(settings),
               [](const auto& setting) { return !is_of_model(setting.first); });
}

Settings settings_of(const Artifact& artifact, const Dataset& data, const DataOrder& order) {
  const Plan& plan = artifact.plan;
  Settings settings;
  auto add = [&](std::string name, const auto& value) {
    settings.emplace_back(std::move(name), fmt::format("{}", value));
  };
  add("model.name", plan.model);
  add("train.micro_batch", plan.micro_batch);
  add("train.accumulate", plan.accumulate);
  add("train.tail", plan.tail);
  add("train.shuffle", order.shuffle);
  add("the seed", order.seed);
  add("the number of training samples", data.samples);
  add_model(artifact.ir, settings);
  for (size_t i = 0; i < data.columns.size(); ++i)
    add("the training data's column " + data.columns[i].name + " (digest)",
        fmt::format("{:08x}", fingerprint(data, i)));
  return settings;
}

}  // namespace gacc
