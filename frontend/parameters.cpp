// Initial values follow torch.nn.init: bounds and deviations from the fan of the weight, gain sqrt(2) for
// kaiming.
#include "frontend/parameters.h"

#include <cmath>

namespace gacc::frontend {

namespace {

constexpr int64_t kMaxElements = int64_t{1} << 40;  // of all parameters together: 4 TiB, beyond any machine

// The initial values of a parameter, as the keys `init` and `bias_init` give them. `amount` is the standard deviation
// of normal, the half-width of uniform.
struct Start {
  std::string how;
  double amount = 0;
};

Start start_of(const KeyValue& init) {
  if (init.node == nullptr || !init.node->is_table()) return {std::get<std::string>(*init.value)};
  if (init.node->entries.empty()) return {"default"};  // reported
  const auto& [key, _, value] = init.node->entries.front();
  return {key, value.number()};
}

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

ir::BufferId Parameters::text_length(int64_t window) {
  if (const auto found = module_.find(ir::Named::text_length)) return *found;
  const ir::BufferId length = module_.named(ir::Named::text_length);
  ir::Builder b(module_, module_.init, diag_);
  b.effect("fill", {length}, {{"value", static_cast<double>(window)}});
  return length;
}

ir::BufferId Parameters::get(const std::string& name, ir::Shape shape, const KeyValue& init,
                             Standard standard, Fan fan, bool trainable, const Location& at) {
  if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
  const int64_t count = ir::fits(shape, 1) ? ir::elements(shape, 1) : kMaxElements;
  if (count > kMaxElements - elements_ || count >= kMaxElements)
    throw Refused(diag_.error(Kind::out_of_range, at,
                              "parameter `{}` {} makes the model larger than {} parameters", name,
                              ir::shape_text(shape), kMaxElements));
  const std::string how = start_of(init).how;
  const bool needs_matrix = how.starts_with("kaiming") || how.starts_with("xavier");
  if (needs_matrix && shape.size() < 2)
    throw Refused(diag_.error(Kind::conflict, init.node->at,
                              "`{}` has one axis; kaiming and xavier starts need two", name));
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

void Parameters::start(ir::BufferId buffer, const KeyValue& init, Standard standard, Fan fan,
                       const Location& at) {
  ir::Builder b(module_, module_.init, diag_);
  b.location = at;
  const auto random = [&](bool is_normal, double amount) {
    b.effect(is_normal ? "random.normal" : "random.uniform", {buffer, seed_low_, seed_high_},
             {{is_normal ? "std" : "bound", amount}, {"stream", stream(module_[buffer].name)}});
  };
  const double in = static_cast<double>(fan.in),
               both = static_cast<double>(fan.in) + static_cast<double>(fan.out);
  const auto& [how, amount] = start_of(init);
  const struct {
    std::string_view how;
    bool is_normal;
    double amount;
  } starts[] = {{"normal", true, amount},
                {"uniform", false, amount},
                {"kaiming_normal", true, std::sqrt(2 / in)},
                {"kaiming_uniform", false, std::sqrt(6 / in)},
                {"xavier_normal", true, std::sqrt(2 / both)},
                {"xavier_uniform", false, std::sqrt(6 / both)}};
  for (const auto& start : starts)
    if (how == start.how) return random(start.is_normal, start.amount);
  const bool plain = how == "default";
  if (plain && standard == Standard::spread) return random(false, 1 / std::sqrt(in));
  if (plain && standard == Standard::normal) return random(true, 1);
  b.effect("fill", {buffer}, {{"value", how == "ones" || (plain && standard == Standard::ones) ? 1.0 : 0.0}});
}

}  // namespace gacc::frontend
