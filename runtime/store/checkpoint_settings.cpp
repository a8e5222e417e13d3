// Facts in which a checkpoint and the run that goes on from it must agree: the compiled model's settings, and what
// they do not tell (another layer with the same shapes), the digest of its operations (Plan::operations).
#include <algorithm>
#include <array>
#include <iterator>

#include "runtime/atomic_file.h"
#include "runtime/byte_order.h"
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

// Returns a checksum of some blocks of the column, evenly spread, of a big one: reading gigabytes at every start
// would be felt. Of a column on disk it takes 64; the number of samples says their size.
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
    crc = crc32_of(bytes_of(some), crc);
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
  add("train.tail", tail_text(plan.tail));
  add("train.shuffle", order.shuffle);
  add("the seed", order.seed);
  add("the number of training samples", data.samples);
  std::ranges::copy_if(plan.settings, std::back_inserter(settings),
                       [](const auto& setting) { return !may_differ(setting.first); });
  add("what the model computes (digest)", fmt::format("{:08x}", plan.operations));
  for (size_t i = 0; i < data.columns.size(); ++i)
    add("the training data's column " + data.columns[i].name + " (digest)",
        fmt::format("{:08x}", fingerprint(data, i)));
  return settings;
}

}  // namespace gacc
