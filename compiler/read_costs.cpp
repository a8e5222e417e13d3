// Two forms: {"name", "rates": {...}, "micro_batch", "step": [seconds, ...]}, and the Chrome trace that
// gacc-exec --profile writes, whose kernel events carry the program and the launch's number in it.
#include "compiler/read_costs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/atomic_file.h"

namespace gacc {

namespace {

using json = nlohmann::json;

constexpr int64_t kLimit = int64_t{1} << 30;  // bytes of a file
constexpr int64_t kMostLaunches = 1000000;    // of a step: far beyond any, and a list of as many still fits

bool positive(const json& value) {
  return value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0;
}

Status read_rates(const json& rates, passes::CostModel& costs) {
  if (!rates.is_object()) return Status::error("`rates` is not an object");
  const std::map<std::string, double*> keys = {{"flops_f32", &costs.flops_f32},
                                               {"flops_half", &costs.flops_half},
                                               {"functions_per_second", &costs.functions},
                                               {"bytes_per_second", &costs.bytes},
                                               {"launch_seconds", &costs.launch}};
  for (const auto& [key, value] : rates.items()) {
    if (!keys.contains(key)) return Status::error("`rates` has no key `{}`", key);
    if (!positive(value)) return Status::error("`rates.{}` is not a positive number", key);
    *keys.at(key) = value.get<double>();
  }
  return {};
}

// Means over all launches of the step; microseconds in the file.
Status read_trace(const json& file, passes::CostModel& costs) {
  const json& events = file["traceEvents"];
  if (!events.is_array()) return Status::error("`traceEvents` is not an array");
  std::vector<double> sums;
  std::vector<int64_t> counts;
  for (const json& event : events) {
    if (!event.is_object() || event.value("cat", json()) != "kernel") continue;
    const json arguments = event.value("args", json());
    if (!arguments.is_object() || arguments.value("program", json()) != "step") continue;
    const json launch = arguments.value("launch", json()), duration = event.value("dur", json());
    if (!launch.is_number_integer() || !duration.is_number() || launch.get<int64_t>() < 0 ||
        launch.get<int64_t>() > kMostLaunches)
      return Status::error("a kernel's event has no `args.launch` or no `dur`");
    const size_t at = launch.get<size_t>();
    if (at >= sums.size()) sums.resize(at + 1, 0), counts.resize(at + 1, 0);
    sums[at] += duration.get<double>();
    ++counts[at];
    const json samples = arguments.value("samples", json());
    if (samples.is_number_integer())
      costs.measured_batch = std::max(costs.measured_batch, samples.get<int64_t>());
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] == 0) return Status::error("launch {} of the step was never measured", i);
    costs.measured.push_back(std::max(1e-9, sums[i] * 1e-6 / static_cast<double>(counts[i])));
  }
  if (sums.empty()) return Status::error("no event is a kernel of the step");
  return costs.measured_batch > 0 ? Status() : Status::error("no event says its `args.samples`");
}

Status read_file_of_costs(const json& file, passes::CostModel& costs) {
  if (!file.is_object()) return Status::error("not a JSON object");
  costs.name = "measured costs";
  if (file.contains("traceEvents")) return read_trace(file, costs);
  for (const auto& [key, value] : file.items())
    if (key != "name" && key != "rates" && key != "micro_batch" && key != "step")
      return Status::error("there is no key `{}`", key);
  if (const auto name = file.find("name"); name != file.end()) {
    if (!name->is_string()) return Status::error("`name` is not a text");
    costs.name = name->get<std::string>();
  }
  if (const auto rates = file.find("rates"); rates != file.end()) GACC_TRY(read_rates(*rates, costs));
  if (const auto step = file.find("step"); step != file.end()) {
    if (!step->is_array()) return Status::error("`step` is not an array of seconds");
    for (const json& seconds : *step) {
      if (!positive(seconds)) return Status::error("`step` holds something else than positive seconds");
      costs.measured.push_back(seconds.get<double>());
    }
    const json batch = file.value("micro_batch", json());
    if (!batch.is_number_integer() || batch.get<int64_t>() < 1)
      return Status::error("measured times need `micro_batch`, the samples of a launch");
    costs.measured_batch = batch.get<int64_t>();
  }
  return {};
}

}  // namespace

Status read_costs(const std::string& path, passes::CostModel& costs) {
  const std::string text = GACC_TRY(read_file(path, kLimit));
  const json file = json::parse(text, nullptr, false);
  if (file.is_discarded()) return Status::error("{}: not JSON", path);
  if (const Status status = read_file_of_costs(file, costs); !status)
    return Status::error("{}: {}", path, status.text());
  return {};
}

}  // namespace gacc
