// Learning rates and what counts updates: scalars, computed once per window on the device from the good
// updates so far, t. Rates must agree with double to 1e-6, so nothing here subtracts what nearly cancels:
//
//   powers     by the digits of the exponent, with constants rounded once each
//   cosine     (1 + cos(pi f)) / 2 = sin(pi g / 2)^2, with g = 1 - f, what remains, from whole numbers
//   linear     lr (least + (1 - least) g), where least = min_lr / lr as the model file has them
//   quotients  of whole numbers, corrected to be exact
#include <algorithm>
#include <cmath>
#include <numbers>

#include "ir/ops/common.h"
#include "ir/schema/rate_schedule.h"

namespace gacc::ir {

namespace {

// The entry of `table` that the bits (lowest first) name; entries past the end repeat the last.
Scalar pick(const std::vector<double>& table, std::span<const Scalar> bits, size_t from = 0) {
  if (bits.empty()) return {table[std::min(from, table.size() - 1)]};
  const size_t half = size_t{1} << (bits.size() - 1);
  const std::span<const Scalar> lower = bits.first(bits.size() - 1);
  return select(bits.back(), pick(table, lower, from + half), pick(table, lower, from));
}

struct Power {
  Scalar value = 1.0, complement = 0.0;  // base^n and 1 - base^n
};

// n >= 0, an integer. With the digits of n to the base 16, base^n is a product of eight constants; one minus
// it follows from 1 - ab = (1 - a) + a (1 - b), where for a base below 1 nothing cancels.
Power power(double base, Scalar n) {
  constexpr int kBits = 31, kDigit = 4;
  std::vector<Scalar> bits(kBits, Scalar(0));
  for (int b = kBits - 1; b >= 0; --b) {
    const int weight = 1 << b;
    bits[b] = Scalar(weight) <= n;
    n = n - to_integer(bits[b]) * Scalar(weight);
  }
  Power result;
  for (int first = 0; first < kBits; first += kDigit) {
    const int count = std::min(kDigit, kBits - first);
    std::vector<double> values, complements;
    for (int digit = 0; digit < 1 << count; ++digit) {
      const double exponent = std::ldexp(digit, first);
      values.push_back(digit == 0 ? 1 : std::pow(base, exponent));
      complements.push_back(digit == 0 ? 0 : -std::expm1(exponent * std::log(base)));
    }
    const std::span<const Scalar> digits =
        std::span(bits).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    const Scalar value = pick(values, digits), complement = pick(complements, digits);
    result = {first == 0 ? value : result.value * value,
              first == 0 ? complement : result.complement + result.value * complement};
  }
  return result;
}

// a / b rounded down, for a >= 0 and b > 0. f32 is off by a few hundred at most, then by one, then right.
Scalar quotient(Scalar a, Scalar b) {
  Scalar q = to_integer(floor(to_real(a) / to_real(b)));
  q = q + to_integer(floor((to_real(a - q * b) + 0.5) / to_real(b)));
  const Scalar rest = a - q * b;
  return q + to_integer(b <= rest) - to_integer(rest < Scalar(0));
}

// sin(pi g / 2) for 0 <= g <= 1, by its series: the first term left out is 7e-10.
Scalar sine_of_quarter(Scalar g) {
  constexpr int kTerms = 7;
  double term[kTerms], value = std::numbers::pi / 2;
  for (int k = 0; k < kTerms; ++k) {
    term[k] = value;
    value *= -std::pow(std::numbers::pi / 2, 2) / ((2 * k + 2) * (2 * k + 3));
  }
  const Scalar square = g * g;
  Scalar sum = term[kTerms - 1];
  for (int k = kTerms - 2; k >= 0; --k) sum = sum * square + term[k];
  return g * sum;
}

Scalar integer_attr(const FormulaView& view, std::string_view name) {
  return static_cast<int>(view.op.integer(name));
}

// Returns true where operands 2 and 3 are the total and the warm-up: the length of the run decides them.
bool follows_run(const OpView& op) {
  return find_attr(op.op, "total") != nullptr && op.op.operands.size() > 2;
}

// Operand 0 is the rate lr, 1 is t. While t < warmup the rate is lr (t + 1) / warmup; then it is what `after`
// gives for the count since.
template <class After>
void schedule(const FormulaView& view, After after) {
  const Scalar lr = view.operand(0), t = view.operand(1);
  const bool by_run = follows_run(view.op);
  const int64_t warmup = view.op.integer("warmup");
  if (!by_run && warmup == 0) return view.result(after(lr, t));
  const Scalar w = by_run ? view.operand(3) : integer_attr(view, "warmup");
  const Scalar length = by_run ? to_real(w) : Scalar(static_cast<double>(warmup));
  const Scalar warm = lr * (to_real(t + Scalar(1)) / length);
  view.result(select(t < w, warm, after(lr, t - w)));
}

// lr (least + (1 - least) share(g)), where g goes from 1 to 0 as the updates after the warm-up pass.
template <class Share>
void decay(const FormulaView& view, Share share) {
  schedule(view, [&](Scalar lr, Scalar u) {
    const bool by_run = follows_run(view.op);
    const int64_t known = view.op.integer("total") - view.op.integer("warmup");
    const Scalar length =
        by_run ? max(view.operand(2) - view.operand(3), Scalar(1)) : Scalar(static_cast<int>(known));
    const Scalar rest = max(length - u, Scalar(0));
    const double least = view.op.real("least");
    const Scalar part =
        share(to_real(rest) / (by_run ? to_real(length) : Scalar(static_cast<double>(known))));
    return lr * (least + (1 - least) * part);
  });
}

constexpr int kPerhapsLength = -2;  // operands: lr and t, and perhaps total and warmup

void expect_range(const OpView& op, std::string_view name, int64_t low) {
  const int64_t value = op.integer(name);
  if (value < low || value > 0x7fffffff)
    refuse(op, Kind::out_of_range, "{} is {}; it must be {} to 2147483647", name, value, low);
}

// The rate lr, then whole numbers.
Types infer_schedule(const OpView& op) {
  expect_scalars(op, 0, 1, DType::f32);
  expect_scalars(op, 1, op.op.operands.size() - 1, DType::i32);
  expect_range(op, "warmup", 0);
  if (op.op.info->operands == kPerhapsLength && op.op.operands.size() > 2) {
    if (op.op.operands.size() != 4)
      refuse(op, Kind::type_mismatch, "it takes lr and t, and perhaps both total and warmup");
    for (const size_t i : {2, 3})
      if (as_number(op.op.operands[i]) != nullptr)
        refuse(op, Kind::type_mismatch, {i}, "numbers are attributes");
  }
  for (const std::string_view name : {"total", "step_size"}) {
    const int64_t low = name == "total" ? op.integer("warmup") + 1 : 1;
    if (find_attr(op.op, name) != nullptr) expect_range(op, name, low);
  }
  return {{DType::f32, {}}};
}

Types infer_integers(const OpView& op) {
  expect_scalars(op, 0, op.op.operands.size(), DType::i32);
  return {{op.op.info == &op_power ? DType::f32 : DType::i32, {}}};
}

// A rate: lr and t, and perhaps more, to the rate of this update. All have a warm-up.
OpInfo rate(std::string_view name, std::string_view summary, std::vector<AttrSpec> attrs,
            void (*formula)(const FormulaView& view), int operands = 2) {
  attrs.insert(attrs.begin(), {"warmup", int64_t{0}});
  return {.name = name,
          .summary = summary,
          .operands = operands,
          .attrs = std::move(attrs),
          .infer = infer_schedule,
          .formula = formula,
          .precision = Precision::f32};
}

constexpr size_t kMilestones = 1000;  // each is a comparison in the update's kernel

// Keys that several schedules have.
const Key gamma{"gamma", Form::real, required, "what the rate is multiplied by", above(0)};
const Key total = Key{"total", Form::integer, required,
                      "when the rate has come down; above warmup. \"run\": at the end of the run", extent}
                      .or_one_of({"run"});
const Key min_lr =
    Key{"min_lr", Form::real, 0.0,
        "the lowest rate, for lr as it is in this file: --lr and lr_scaling change both; at most lr",
        at_least(0)}
        .unsaid();

}  // namespace

extern const OpInfo op_quotient{
    .name = "quotient",
    .summary = "a / b rounded down, exactly; i32 scalars, a >= 0; b below 1 counts as 1",
    .operands = 2,
    .infer = infer_integers,
    .formula =
        [](const FormulaView& view) {
          view.result(quotient(view.operand(0), max(view.operand(1), Scalar(1))));
        },
    .precision = Precision::f32,
};

extern const OpInfo op_power{
    .name = "power",
    .summary = "base^n, or 1 - base^n (complement) without cancellation; n: an i32 scalar, at least 0",
    .attrs = {{"base", 0.5}, {"complement", false}},
    .infer = infer_integers,
    .formula =
        [](const FormulaView& view) {
          const Power result = power(view.op.real("base"), view.operand(0));
          view.result(view.op.flag("complement") ? result.complement : result.value);
        },
    .precision = Precision::f32,
};

extern const OpInfo op_schedule_constant = rate(
    "schedule.constant", "lr, after a warm-up: lr (t + 1) / warmup while t < warmup. Operands: lr, t (i32)",
    {}, [](const FormulaView& view) { schedule(view, [](Scalar lr, Scalar) { return lr; }); });
const TypeSchema rates::constant{
    .name = "constant",
    .says = "lr, after the warm-up.",
};

extern const OpInfo op_schedule_step =
    rate("schedule.step",
         "after the warm-up lr gamma^(u / step_size rounded down), u = t - warmup. Operands: lr, t (i32)",
         {{"step_size", int64_t{1}}, {"gamma", 0.1}}, [](const FormulaView& view) {
           schedule(view, [&](Scalar lr, Scalar u) {
             const Scalar steps = quotient(u, integer_attr(view, "step_size"));
             return lr * power(view.op.real("gamma"), steps).value;
           });
         });
const TypeSchema rates::step{
    .name = "step",
    .says = "lr gamma^(u / step_size rounded down).",
    .keys = {{"step_size", Form::integer, required, "updates between two steps", extent}, gamma},
    .example = "step_size = 1000\ngamma = 0.5",
};

extern const OpInfo op_schedule_multistep =
    rate("schedule.multistep",
         "after the warm-up lr gamma^(milestones <= u), u = t - warmup. Operands: lr, t (i32)",
         {{"milestones", std::vector<int64_t>{}}, {"gamma", 0.1}}, [](const FormulaView& view) {
           schedule(view, [&](Scalar lr, Scalar u) {
             Scalar factor = 1.0;
             double reached = 1;
             for (const int64_t milestone : view.op.integers("milestones")) {
               reached *= view.op.real("gamma");
               factor = select(Scalar(static_cast<int>(milestone)) <= u, reached, factor);
             }
             return lr * factor;
           });
         });
const TypeSchema rates::multistep{
    .name = "multistep",
    .says = "lr gamma^(milestones that u has reached).",
    .keys = {{"milestones", Form::integers, required, "in ascending order", at_least(0), {}, kMilestones},
             gamma},
    .example = "milestones = [1000, 3000]\ngamma = 0.1",
};

extern const OpInfo op_schedule_exponential =
    rate("schedule.exponential", "after the warm-up lr gamma^u, u = t - warmup. Operands: lr, t (i32)",
         {{"gamma", 0.1}}, [](const FormulaView& view) {
           schedule(view, [&](Scalar lr, Scalar u) { return lr * power(view.op.real("gamma"), u).value; });
         });
const TypeSchema rates::exponential{
    .name = "exponential",
    .says = "lr gamma^u.",
    .keys = {gamma},
    .example = "gamma = 0.999",
};

extern const OpInfo op_schedule_linear = rate(
    "schedule.linear",
    "after the warm-up lr (1 - (1 - least) f), f = min(1, (t - warmup) / (total - warmup)). Operands: lr, "
    "t (i32); and perhaps total and warmup (i32) instead of the attributes",
    {{"total", int64_t{1}}, {"least", 0.0}},
    [](const FormulaView& view) { decay(view, [](Scalar g) { return g; }); }, kPerhapsLength);
const TypeSchema rates::linear{
    .name = "linear",
    .says = "From lr to min_lr in a line: lr + (min_lr - lr) f with f = min(1, u / (total - warmup)).",
    .keys = {total, min_lr},
    .example = "total = 5000",
};

extern const OpInfo op_schedule_cosine = rate(
    "schedule.cosine",
    "after the warm-up lr (least + (1 - least) (1 + cos(pi f)) / 2), f = min(1, (t - warmup) / (total - "
    "warmup)). Operands: lr, t (i32); and perhaps total and warmup (i32) instead of the attributes",
    {{"total", int64_t{1}}, {"least", 0.0}},
    [](const FormulaView& view) {
      decay(view, [](Scalar g) {
        const Scalar s = sine_of_quarter(g);
        return s * s;
      });
    },
    kPerhapsLength);
const TypeSchema rates::cosine{
    .name = "cosine",
    .says =
        "From lr to min_lr in half a wave: min_lr + (lr - min_lr) (1 + cos(pi f)) / 2, f as for `linear`.",
    .keys = {total, min_lr},
    .example = "total = 5000\nwarmup = 100",
};

extern const OpInfo op_schedule_plateau = rate(
    "schedule.plateau",
    "after the warm-up lr max(factor^cuts, least). Operands: lr, t (i32), cuts (i32: the runtime counts one "
    "for every plateau of its evaluations)",
    {{"factor", 0.1}, {"least", 0.0}},
    [](const FormulaView& view) {
      schedule(view, [&](Scalar lr, Scalar) {
        const Scalar cut = power(view.op.real("factor"), view.operand(2)).value;
        return lr * max(cut, view.op.real("least"));
      });
    },
    3);
const TypeSchema rates::plateau{
    .name = "plateau",
    .says = "lr factor^cuts, at least min_lr: one cut when `patience` evaluations in a row were not better.",
    .keys = {{"metric", Form::metric, "loss", "what evaluations must improve"},
             Key{"factor", Form::real, 0.1, "what a cut multiplies the rate by", inner_fraction}.unsaid(),
             {"patience", Form::integer, 10, "evaluations in a row that may be no better", count_from_zero},
             {"threshold", Form::real, 1e-4, "better is better by this part of the best", at_least(0)},
             min_lr},
    .example = "patience = 3",
};

bool follows_run(const Settings& settings) {
  const Attr* total = settings.of_type("schedule.total");
  return total != nullptr && *total == Attr(std::string("run"));
}

std::vector<const TypeSchema*> all_rate_schedules() {
  return {
#define X(name) &rates::name,
#include "ir/schema/rate_schedules.def"
  };
}

}  // namespace gacc::ir
