#include "runtime/data/data_summary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/data/array.h"
#include "runtime/text.h"

namespace gacc {
namespace {

constexpr size_t kMostLooked = size_t{64} << 20;  // bytes of a column on disk
constexpr int64_t kMostClasses = 1000;            // of targets whose shares are told
constexpr double kLargeFeature = 1e4;             // beyond it a step of a usual size is far too large

// One element of a sample over all samples that were looked at.
struct Spread {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  bool constant() const { return low == high; }
};

class Look {
 public:
  Look(const Dataset& data, size_t index, const PlanInput& input)
      : column_(data.columns[index]), input_(input), all_(data.bytes(index)) {
    const auto each = static_cast<size_t>(checked_product(column_.shape));
    const size_t row = each * static_cast<size_t>(element_bytes(column_.dtype));
    if (column_.on_disk() && all_.size() > kMostLooked) all_ = all_.first(kMostLooked / row * row);
    looked_ = row > 0 ? all_.size() / row : 0;
    spreads_.resize(each);
    visit_elements(column_.dtype, all_, [&](const auto& values) {
      for (size_t at = 0; at + each <= values.size(); at += each)
        for (size_t i = 0; i < each; ++i) {
          const auto value = static_cast<double>(values[at + i]);
          spreads_[i].low = std::min(spreads_[i].low, value);
          spreads_[i].high = std::max(spreads_[i].high, value);
        }
    });
    for (const Spread& spread : spreads_) {
      whole_.low = std::min(whole_.low, spread.low);
      whole_.high = std::max(whole_.high, spread.high);
    }
  }

  // "x [4]: 0.1 to 7.9"
  std::string text() const {
    if (is_class()) return class_text();
    const double scale = column_.dtype == "u8" && input_.dtype == DType::f32 ? 255 : 1;
    std::string text = fmt::format("{}{}: {:.4g} to {:.4g}", input_.name,
                                   input_.shape.empty() ? "" : " " + shape_text(input_.shape),
                                   whole_.low / scale, whole_.high / scale);
    if (scale > 1) text += " (u8 / 255)";
    if (const size_t count = constants().size(); count > 0 && count < spreads_.size())
      text += fmt::format(", {} of {} constant", count, spreads_.size());
    return text;
  }

  void warn(std::span<const std::string> names, std::vector<std::string>& warnings) const {
    const std::string name = in_quotes(input_.name);
    if (looked_ < 2) return;
    if (input_.target && whole_.constant()) {
      warnings.push_back(
          fmt::format("all targets of the input {} are {:g}: there is nothing to learn", name, whole_.low));
      return;
    }
    if (input_.target || input_.dtype != DType::f32) return;
    const std::vector<size_t> constant = constants();
    if (constant.size() == spreads_.size() && !spreads_.empty()) {
      warnings.push_back(fmt::format("the input {} is the same in all samples", name));
    } else if (!constant.empty() && input_.shape.size() <= 1 && spreads_.size() <= kFewColumns) {
      std::vector<std::string> called;
      for (const size_t i : constant) called.push_back(i < names.size() ? names[i] : std::to_string(i));
      warnings.push_back(fmt::format("the input {}: {} {} the same in all samples", name, listed(called),
                                     called.size() == 1 ? "is" : "are"));
    }
    const double most = std::max(std::abs(whole_.low), std::abs(whole_.high));
    const bool fixed = input_.normalize_data || !input_.mean.empty() || !input_.std.empty();
    if (most > kLargeFeature && !fixed)
      warnings.push_back(
          fmt::format("the input {} reaches {:.3g}, and is not normalised: `inputs.{}.normalize = \"data\"` "
                      "in the model file "
                      "makes its numbers small",
                      name, most, input_.name));
  }

 private:
  static constexpr size_t kFewColumns = 256;  // whose names are told

  bool is_class() const {
    return input_.target && input_.dtype == DType::i32 && input_.range && *input_.range <= kMostClasses;
  }

  std::vector<size_t> constants() const {
    std::vector<size_t> found;
    for (size_t i = 0; looked_ > 1 && i < spreads_.size(); ++i)
      if (spreads_[i].constant()) found.push_back(i);
    return found;
  }

  // "label: 3 classes, 32 to 35 % each"
  std::string class_text() const {
    std::vector<int64_t> counts(static_cast<size_t>(*input_.range));
    int64_t all = 0;
    visit_elements(column_.dtype, all_, [&](const auto& values) {
      for (const auto value : values) {
        const auto number = static_cast<double>(value);
        if (number < 0 || number >= static_cast<double>(counts.size())) continue;  // ignored
        ++counts[static_cast<size_t>(number)];
        ++all;
      }
    });
    const auto there = std::ranges::count_if(counts, [](int64_t count) { return count > 0; });
    std::string text = fmt::format("{}: ", input_.name);
    text += there == std::ssize(counts) ? fmt::format("{} class{}", there, there == 1 ? "" : "es")
                                        : fmt::format("{} of {} classes", there, counts.size());
    if (all == 0) return text;
    const auto share = [&](int64_t count) {
      return 100 * static_cast<double>(count) / static_cast<double>(all);
    };
    std::vector<std::string> shares;
    constexpr int64_t kFew = 4;
    if (std::ssize(counts) <= kFew) {
      for (size_t i = 0; i < counts.size(); ++i)
        shares.push_back(fmt::format("{} {:.3g} %",
                                     i < input_.values.size() ? input_.values[i] : std::to_string(i),
                                     share(counts[i])));
      return fmt::format("{} ({})", text, fmt::join(shares, ", "));
    }
    std::vector<int64_t> present = counts;
    std::erase(present, 0);
    const auto [low, high] = std::ranges::minmax(present);
    return text + fmt::format(", {:.3g} to {:.3g} % each", share(low), share(high));
  }

  const Column& column_;
  const PlanInput& input_;
  std::span<const std::byte> all_;
  size_t looked_ = 0;  // samples
  std::vector<Spread> spreads_{};
  Spread whole_{};
};

}  // namespace

DataSummary summarise(const Dataset& data, const Plan& plan, const DataFacts& facts) {
  DataSummary summary{.text = counted(data.samples, "sample"), .warnings = {}};
  for (size_t i = 0; i < data.columns.size(); ++i) {
    if (!data.columns[i].present() || data.samples == 0) continue;
    const Look column(data, i, plan.inputs[i]);
    summary.text += "; " + column.text();
    const auto known = facts.find(plan.inputs[i].name);
    column.warn(known == facts.end() ? std::span<const std::string>() : known->second.columns,
                summary.warnings);
  }
  return summary;
}

}  // namespace gacc
