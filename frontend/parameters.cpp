// Initial values follow torch.nn.init: bounds and deviations from the fan of the weight, gain sqrt(2) for
// kaiming.
#include "frontend/parameters.h"

#include <cmath>

namespace gacc::frontend {

namespace {

constexpr int64_t kMaxElements = int64_t{1} << 40;  // of all parameters together: 4 TiB, beyond any machine

}  // namespace

int64_t Parameters::stream(std::string_view name) {
  uint32_t hash = 2166136261U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return static_cast<int32_t>(hash);
}

Parameters::Parameters(ir::Module& module, Diag& diag)
    : module_(module),
      diag_(diag),
      seed_low_(module.named(ir::Named::seed_low)),
      seed_high_(module.named(ir::Named::seed_high)) {}

std::vector<ir::Operand> Parameters::sample_words() {
  return {seed_low_, seed_high_, module_.named(ir::Named::samples_low),
          module_.named(ir::Named::samples_high)};
}

std::optional<ir::BufferId> Parameters::get(const std::string& name, ir::Shape shape, const InitSpec& init,
                                            Standard standard, Fan fan, bool trainable, const Location& at) {
  if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
  const int64_t count = ir::fits(shape, 1) ? ir::elements(shape, 1) : kMaxElements;
  if (count > kMaxElements - elements_ || count >= kMaxElements) {
    diag_.error(Kind::out_of_range, at, "parameter `{}` {} makes the model larger than {} parameters", name,
                ir::shape_text(shape), kMaxElements);
    return std::nullopt;
  }
  using Form = InitSpec::Form;
  const bool needs_matrix = init.form == Form::kaiming_normal || init.form == Form::kaiming_uniform ||
                            init.form == Form::xavier_normal || init.form == Form::xavier_uniform;
  if (needs_matrix && shape.size() < 2) {
    diag_.error(Kind::conflict, init.at, "`{}` has one axis; kaiming and xavier starts need two", name);
    return std::nullopt;
  }
  elements_ += count;
  const ir::BufferId buffer = module_.add_buffer({.name = name,
                                                  .kind = ir::BufferKind::param,
                                                  .role = ir::BufferRole::weight,
                                                  .type = {ir::DType::f32, std::move(shape)},
                                                  .trainable = trainable,
                                                  .offset = {},
                                                  .at = at});
  by_name_.emplace(name, buffer);
  start(buffer, init, standard, fan, at);
  return buffer;
}

ir::BufferId Parameters::statistic(const std::string& name, int64_t size, double value, const Location& at) {
  if (const auto found = module_.find_buffer(name)) return *found;
  const ir::BufferId buffer = module_.add_buffer({.name = name,
                                                  .role = ir::BufferRole::statistic,
                                                  .type = {ir::DType::f32, {size}},
                                                  .offset = {},
                                                  .at = at});
  ir::Builder b(module_, module_.init, diag_);
  b.location = at;
  b.effect("fill", {buffer}, {{"value", value}});
  return buffer;
}

ir::BufferId Parameters::change_of(ir::BufferId statistic) {
  return module_.belonging(statistic, ir::BufferRole::change);
}

void Parameters::start(ir::BufferId buffer, const InitSpec& init, Standard standard, Fan fan,
                       const Location& at) {
  ir::Builder b(module_, module_.init, diag_);
  b.location = at;
  const auto fill = [&](double value) { b.effect("fill", {buffer}, {{"value", value}}); };
  const auto uniform = [&](double bound) {
    b.effect("random.uniform", {buffer, seed_low_, seed_high_},
             {{"bound", bound}, {"stream", stream(module_[buffer].name)}});
  };
  const auto normal = [&](double deviation) {
    b.effect("random.normal", {buffer, seed_low_, seed_high_},
             {{"std", deviation}, {"stream", stream(module_[buffer].name)}});
  };
  const double in = static_cast<double>(fan.in),
               both = static_cast<double>(fan.in) + static_cast<double>(fan.out);
  using Form = InitSpec::Form;
  switch (init.form) {
    case Form::standard:
      if (standard == Standard::spread)
        uniform(1 / std::sqrt(in));
      else if (standard == Standard::normal)
        normal(1);
      else
        fill(standard == Standard::ones ? 1 : 0);
      break;
    case Form::zeros:
      fill(0);
      break;
    case Form::ones:
      fill(1);
      break;
    case Form::normal:
      normal(init.amount);
      break;
    case Form::uniform:
      uniform(init.amount);
      break;
    case Form::kaiming_normal:
      normal(std::sqrt(2 / in));
      break;
    case Form::kaiming_uniform:
      uniform(std::sqrt(6 / in));
      break;
    case Form::xavier_normal:
      normal(std::sqrt(2 / both));
      break;
    case Form::xavier_uniform:
      uniform(std::sqrt(6 / both));
      break;
  }
}

}  // namespace gacc::frontend
