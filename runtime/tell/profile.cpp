#include "runtime/tell/profile.h"

#include <map>
#include <nlohmann/json.hpp>

namespace gacc {

namespace {

using json = nlohmann::ordered_json;

std::string name_of(Program program) { return std::string(kProgramNames[static_cast<size_t>(program)]); }

json event(const std::string& name, const char* category, double begin, double duration, json arguments) {
  return {{"name", name},    {"cat", category}, {"ph", "X"}, {"ts", begin},
          {"dur", duration}, {"pid", 1},        {"tid", 1},  {"args", std::move(arguments)}};
}

// The runs of programs: a launch whose number does not follow the one before begins another.
void add_programs(const std::vector<Timing>& timings, json& events) {
  for (size_t first = 0; first < timings.size();) {
    size_t last = first;
    while (last + 1 < timings.size() && timings[last + 1].program == timings[first].program &&
           timings[last + 1].launch > timings[last].launch)
      ++last;
    const Timing &from = timings[first], &to = timings[last];
    events.push_back(event(name_of(from.program), "program", from.begin, to.begin + to.duration - from.begin,
                           {{"samples", from.batch}}));
    first = last + 1;
  }
}

}  // namespace

std::string profile_text(const Plan& plan, const Device& device, const std::vector<Timing>& timings) {
  json events = json::array();
  add_programs(timings, events);
  struct Sum {
    std::string name;
    int64_t calls = 0;
    double duration = 0;
  };
  std::map<std::pair<Program, int64_t>, Sum> sums;
  for (const Timing& timing : timings) {
    events.push_back(
        event(timing.name, "kernel", timing.begin, timing.duration,
              {{"program", name_of(timing.program)}, {"launch", timing.launch}, {"samples", timing.batch}}));
    if (timing.batch != plan.micro_batch) continue;
    Sum& sum = sums[{timing.program, timing.launch}];
    sum.name = timing.name;
    ++sum.calls;
    sum.duration += timing.duration;
  }
  json kernels = json::array();
  for (const auto& [where, sum] : sums) {
    kernels.push_back({{"name", sum.name},
                       {"program", name_of(where.first)},
                       {"launch", where.second},
                       {"calls", sum.calls},
                       {"microseconds", sum.duration / static_cast<double>(sum.calls)}});
  }
  const json trace = {{"displayTimeUnit", "ns"},
                      {"otherData",
                       {{"model", plan.model},
                        {"device", device.name()},
                        {"micro_batch", plan.micro_batch},
                        {"unit", device.profile_unit()}}},
                      {"kernels", std::move(kernels)},
                      {"traceEvents", std::move(events)}};
  return trace.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace gacc
