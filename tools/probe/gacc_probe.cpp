// gacc-probe: what a GPU can do, in a minute: ceilings of bandwidth and of matrix products, latencies, and
// what launches, barriers and copies cost. One JSON object a line: {"probe", "what", "value", "unit"}, or
// "error" in the value's place. A measurement that fails does not end the others.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/command_line.h"
#include "tools/probe/probed_gpu.h"
#include "tools/probe/products.h"

namespace {

using namespace gacc;
using namespace gacc::probe;
using cuda::Element;

constexpr int kThreads = 256;
constexpr double kGiga = 1e9, kTera = 1e12, kMicro = 1e6, kNano = 1e9;

struct Sizes {
  size_t copied = size_t{1} << 30;  // bytes of a buffer
  size_t in_l2 = size_t{16} << 20;  // bytes that the second-level cache holds twice
  size_t chain = size_t{1} << 30;   // bytes of which it holds a few percent; it holds all of a 128th
  int64_t product = 8192, product_f32 = 4096;
  int64_t head_rows = 2048, head_width = 768;
  // Columns of the logits, and elements from one row to the next.
  std::vector<std::pair<int64_t, int64_t>> heads = {
      {50257, 50257}, {50257, 50264}, {50257, 50304}, {50304, 50304}};
  uint64_t turns = 2000;
  int nodes = 200, times = 10;
  double sustained = 5;  // seconds

  // For the emulator, whose times mean nothing: everything runs once.
  static Sizes small() {
    Sizes s;
    s.copied = s.in_l2 = size_t{1} << 16;
    s.chain = size_t{1} << 14;
    s.product = s.product_f32 = 32;
    s.head_rows = 8, s.head_width = 16, s.heads = {{57, 57}, {57, 64}, {64, 64}};
    s.turns = 3, s.nodes = 4, s.times = 1, s.sustained = 0;
    return s;
  }
};

struct Settings {
  std::string driver = cuda::kDriverLibrary;
  std::vector<std::string> cublas{std::begin(cuda::kCublasLibraries), std::end(cuda::kCublasLibraries)};
  std::vector<std::string> only{};
  bool small = false;

  std::vector<const char*> libraries() const {
    std::vector<const char*> names;
    for (const std::string& name : cublas) names.push_back(name.c_str());
    return names;
  }
};

class Probe {
 public:
  Probe(const Settings& settings, const Sizes& sizes) : settings_(settings), sizes_(sizes) {}

  // Whether there is a machine to measure.
  bool run() {
    try {
      machine_ = std::make_unique<Machine>(settings_.driver);
    } catch (const Failed& failed) {
      print("machine", "", {{"error", failed.text}});
      return false;
    }
    const std::pair<const char*, void (Probe::*)()> all[] = {
        {"machine", &Probe::describe},  {"bandwidth", &Probe::bandwidth}, {"check", &Probe::check},
        {"products", &Probe::products}, {"head", &Probe::head},           {"barrier", &Probe::barrier},
        {"launches", &Probe::launches}, {"latency", &Probe::latency},     {"copy-in", &Probe::copy_in}};
    for (const auto& [name, measure] : all) {
      if (!settings_.only.empty() && std::ranges::find(settings_.only, name) == settings_.only.end())
        continue;
      probe_ = name;
      try {
        machine_->release_all();
        (this->*measure)();
      } catch (const Failed& failed) {
        print(name, "", {{"error", failed.text}});
      }
    }
    return true;
  }

 private:
  static void print(const std::string& probe, const std::string& what, const nlohmann::ordered_json& more) {
    nlohmann::ordered_json line = {{"probe", probe}, {"what", what}};
    line.update(more);
    std::puts(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    std::fflush(stdout);
  }
  void found(const std::string& what, double value, const char* unit) const {
    print(probe_, what, {{"value", value}, {"unit", unit}});
  }
  // What `work` takes on the GPU as one of `times` in a row, and on the host that waits for each.
  void found_in_a_row(const std::string& what, const std::function<void()>& work, int times) const {
    found(what, machine_->seconds(work, times) * kMicro, "us");
  }
  void found_waiting(const std::string& what, const std::function<void()>& work) const {
    std::vector<double> times;
    for (int i = 0; i <= 5 * sizes_.times; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      work(), machine_->wait();
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    times.erase(times.begin());  // for warming up
    std::ranges::sort(times);
    found(what, times[times.size() / 2] * kMicro, "us");
  }

  void describe() {
    std::unique_ptr<cuda::GemmEngine> engine;
    const Status status = cuda::open_cublas_lt(settings_.libraries(), machine_->capability(), engine);
    print(probe_, machine_->name(),
          {{"capability", machine_->capability()},
           {"multiprocessors", machine_->multiprocessors()},
           {"cuda", cuda::version_text(machine_->cuda_version())},
           {"driver", machine_->library()},
           {"free_bytes", machine_->free_bytes()},
           {"cublas", status ? engine->name() : ""},
           {"cublas_error", status.text()}});
  }

  void bandwidth() {
    bandwidth_of("", sizes_.copied);
    bandwidth_of(" in L2", sizes_.in_l2);
  }
  // Reads and writes of 16 bytes by the best of some grids; a copy counts both.
  void bandwidth_of(const char* where, size_t bytes) {
    machine_->release_all();
    const Pointer from = machine_->allocate(bytes), to = machine_->allocate(bytes);
    machine_->fill(from, bytes, Element::f16, 1);
    machine_->fill(to, bytes, Element::f16, 2);
    const auto rate = [&](const char* kernel) {
      double best = 0;
      for (const int each : {2, 4, 8}) {
        const auto blocks = std::min<int64_t>(int64_t{each} * machine_->multiprocessors(),
                                              static_cast<int64_t>(bytes / (64 * kThreads)));
        const double one = machine_->seconds(kernel, blocks, kThreads, {from, to, bytes / 16}, sizes_.times);
        best = std::max(best, static_cast<double>(bytes) / one / kGiga);
      }
      return best;
    };
    found(fmt::format("copy{}", where), 2 * rate("probe_copy"), "GB/s");
    uint64_t last[2][2] = {};
    machine_->read(last[0], from + bytes - sizeof last[0], sizeof last[0]);
    machine_->read(last[1], to + bytes - sizeof last[1], sizeof last[1]);
    if (last[0][0] != last[1][0] || last[0][1] != last[1][1]) throw Failed{"the copy does not reach its end"};
    found(fmt::format("read{}", where), rate("probe_read"), "GB/s");
    const double clear = machine_->seconds([&] { machine_->clear(to, bytes); }, sizes_.times);
    found(fmt::format("clear{}", where), static_cast<double>(bytes) / clear / kGiga, "GB/s");
  }

  Products& library() {
    if (!products_) products_ = std::make_unique<Products>(*machine_, settings_.libraries(), sizes_.times);
    return *products_;
  }
  static double tera(int64_t m, int64_t n, int64_t k, double seconds) {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / seconds / kTera;
  }

  // Small products of every kind, right in every element, or nothing that follows means anything.
  void check() {
    int right = 0;
    for (const Element type : {Element::f16, Element::bf16, Element::f32})
      for (const bool a_transposed : {false, true})
        for (const bool b_transposed : {false, true}) {
          Matrix a{9, 24, 24, type, a_transposed}, b{24, 57, 64, type, b_transposed};
          if (a_transposed) a = {24, 9, 16, type, true};
          if (b_transposed) b = {57, 24, 32, type, true};
          library().check(a, b, {9, 57, 57, type}, false);
          library().check(a, b, {9, 57, 64, Element::f32}, true);
          right += 2;
        }
    found("small products that are right", right, "");
  }

  // Large and aligned: what no product of a step will exceed.
  void products() {
    for (const auto& [type, name] :
         {std::pair(Element::f16, "f16"), std::pair(Element::bf16, "bf16"), std::pair(Element::f32, "f32")}) {
      const int64_t n = type == Element::f32 ? sizes_.product_f32 : sizes_.product;
      const Matrix a{n, n, n, type, false}, b{n, n, n, type, true};
      const Rates rates = library().measure(a, b, a);
      found(fmt::format("{} {}^3", name, n), tera(n, n, n, rates.best), "TFLOP/s");
      if (type != Element::f16) continue;
      found(fmt::format("{} {}^3, the first proposal", name, n), tera(n, n, n, rates.first), "TFLOP/s");
      const double last = library().sustained(a, b, a, sizes_.sustained);
      found(fmt::format("{} {}^3 after {} s", name, n, sizes_.sustained), tera(n, n, n, last), "TFLOP/s");
    }
  }

  // The head of GPT-2, forward and both gradients, with the rows of logits at several pitches.
  void head() {
    const int64_t rows = sizes_.head_rows, width = sizes_.head_width;
    for (const auto& [columns, pitch] : sizes_.heads) {
      const Matrix hidden{rows, width, width}, weight{columns, width, width}, logits{rows, columns, pitch};
      Matrix weight_t = weight, logits_t = logits, gradient = weight;
      weight_t.transposed = logits_t.transposed = true;
      gradient.type = Element::f32;
      const auto show = [&, columns = columns, pitch = pitch](const char* what, const Rates& rates) {
        for (const auto& [which, seconds] : {std::pair("first", rates.first), std::pair("best", rates.best)})
          found(fmt::format("{}, {} columns at {}, {}", what, columns, pitch, which),
                tera(rows, columns, width, seconds), "TFLOP/s");
      };
      show("forward", library().measure(hidden, weight_t, logits));
      show("input gradient", library().measure(logits, weight, hidden));
      show("weight gradient", library().measure(logits_t, hidden, gradient, true));
    }
  }

  // Of the whole grid, in a cooperative kernel, by blocks.
  void barrier() {
    const Pointer counter = machine_->allocate(256);
    machine_->clear(counter, 256);
    const int most = machine_->blocks_at_once("probe_barrier", kThreads);
    for (int each = 1; each <= most; each *= 2) {
      const int64_t blocks = settings_.small ? each : int64_t{each} * machine_->multiprocessors();
      const auto time = [&](uint64_t turns) {
        return machine_->seconds("probe_barrier", blocks, kThreads, {counter, turns}, 1, true);
      };
      const double few = time(sizes_.turns), many = time(3 * sizes_.turns);
      found(fmt::format("{} blocks of {}", blocks, kThreads),
            (many - few) / static_cast<double>(2 * sizes_.turns) * kMicro, "us");
    }
  }

  // From one launch to the next.
  void launches() {
    const size_t megabyte = settings_.small ? size_t{1} << 14 : size_t{1} << 20;
    const Pointer from = machine_->allocate(megabyte), to = machine_->allocate(megabyte);
    machine_->fill(from, megabyte, Element::f16, 1);
    const std::pair<const char*, std::function<void()>> works[] = {
        {"an empty kernel", [&] { machine_->launch("probe_empty", 1, 32, {}); }},
        {"an empty kernel, a block an SM",
         [&] { machine_->launch("probe_empty", machine_->multiprocessors(), kThreads, {}); }},
        {"a copy of 1 MiB within L2", [&] {
           machine_->launch("probe_copy", static_cast<int64_t>(megabyte / 64 / kThreads), kThreads,
                            {from, to, megabyte / 16});
         }}};
    for (const auto& [what, work] : works) {
      const cuda::GraphExec graph = machine_->capture([&, &work = work] {
        for (int i = 0; i < sizes_.nodes; ++i) work();
      });
      const double node = machine_->seconds([&] { machine_->launch(graph); }, sizes_.times) / sizes_.nodes;
      found(fmt::format("{}, node of a graph", what), node * kMicro, "us");
      found_in_a_row(fmt::format("{}, launched", what), work, sizes_.nodes);
    }
    const cuda::GraphExec one = machine_->capture(works[0].second);
    found_waiting("a graph of one empty kernel, launched and waited for", [&] { machine_->launch(one); });
  }

  // A chain of loads, each of which needs the one before.
  void latency() {
    constexpr uint64_t kTimes = 1664525, kPlus = 1013904223;
    for (const auto& [where, bytes] :
         {std::pair("L2", sizes_.chain / 128), std::pair("DRAM", sizes_.chain)}) {
      machine_->release_all();
      const size_t stride = 128, count = bytes / stride;  // a line of the cache each; both powers of two
      const Pointer table = machine_->allocate(bytes), place = machine_->allocate(256);
      machine_->launch("probe_links", static_cast<int64_t>((count + kThreads - 1) / kThreads), kThreads,
                       {table, count, stride, kTimes, kPlus});
      machine_->copy_in(place, &table, sizeof table);
      machine_->wait();
      const uint64_t steps = std::min<size_t>(count, size_t{1} << 16);
      const double all = machine_->seconds("probe_chain", 1, 1, {place, steps}, 1);
      Pointer end = 0;
      machine_->read(&end, place, sizeof end);
      uint64_t entry = 0;
      for (uint64_t i = 0; i < 6 * steps; ++i) entry = (entry * kTimes + kPlus) & (count - 1);
      if (end != table + entry * stride) throw Failed{"the chain of loads does not end where it should"};
      found(where, all / static_cast<double>(steps) * kNano, "ns");
    }
  }

  // From page-locked memory: labels, images and tokens of a micro-batch.
  void copy_in() {
    const size_t images = size_t{32} * 784 * 4, labels = 128,
                 large = settings_.small ? images : size_t{64} << 20;
    const Pointer to = machine_->allocate(large), other = machine_->allocate(256);
    void* from = machine_->allocate_on_host(large);
    const int many = 5 * sizes_.times;
    for (const size_t bytes : {labels, images}) {
      const auto copy = [&, bytes] { machine_->copy_in(to, from, bytes); };
      found_waiting(fmt::format("{} bytes, copied and waited for", bytes), copy);
      found_in_a_row(fmt::format("{} bytes, one of many in a row", bytes), copy, many);
    }
    const auto kernel = [&] { machine_->launch("probe_empty", 1, 32, {}); };
    const auto one_copy = [&] { machine_->copy_in(to, from, images), kernel(); };
    const auto two_copies = [&] { machine_->copy_in(other, from, labels), one_copy(); };
    found_in_a_row("a kernel alone, one of many", kernel, many);
    found_in_a_row("one copy and a kernel, one of many", one_copy, many);
    found_in_a_row("two copies and a kernel, one of many", two_copies, many);
    found("to the GPU",
          static_cast<double>(large) / machine_->seconds([&] { machine_->copy_in(to, from, large); }, 2) /
              kGiga,
          "GB/s");
  }

  const Settings& settings_;
  const Sizes& sizes_;
  std::string probe_;
  std::unique_ptr<Machine> machine_;
  std::unique_ptr<Products> products_;  // after the machine: it goes first
};

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Measures what a GPU can do.", "gacc-probe");
  app.add_option("--driver", settings.driver, "the library with the driver's functions")->type_name("FILE");
  app.add_option("--cublas", settings.cublas, "libraries to look for cuBLASLt in, the first that is there")
      ->type_name("FILE");
  app.add_option("--only", settings.only,
                 "some of machine, bandwidth, check, products, head,\nbarrier, launches, latency, copy-in")
      ->type_name("NAME,...")
      ->delimiter(',');
  app.add_flag("--small", settings.small, "tiny sizes, for the emulator: the figures mean nothing");
  app.set_version_flag("--version", "gacc-probe " GACC_VERSION);
  app.footer(R"(Examples:
    gacc-probe --only machine,bandwidth >probes.jsonl    one JSON object a line

Exit status:
    0 done   1 there is no GPU to measure   2 the command line is wrong
)");
  if (const std::optional<int> ended = parse_command_line(app, argc, argv)) return *ended;
  return Probe(settings, settings.small ? Sizes::small() : Sizes()).run() ? 0 : 1;
}
