// Rules of buffers: names, shapes, types and roles.
#include <algorithm>
#include <set>

#include "ir/kernel.h"
#include "ir/verify/rules.h"

namespace gacc::ir {

namespace {

int64_t block_of(const Buffer& buffer) { return dtype_info(buffer.type.dtype).block; }

// R11: a buffer is what its role says
void verify_role(const Module& module, const Buffer& buffer, const Broken& broken) {
  const RoleInfo& role = role_info(buffer.role);
  const auto wrong = [&]<class... A>(fmt::format_string<A...> format, A&&... args) {
    broken("R11", buffer.at, "`@{}` has the role `{}`{}", buffer.name, role.text,
           fmt::format(format, std::forward<A>(args)...));
  };
  if (role.kind != buffer.kind) wrong(", which is of another kind of buffer");
  if (const NamedInfo* known = find_named(buffer.name);
      known != nullptr && (known->role != buffer.role || buffer.type != Type{known->dtype, {}}))
    broken("R11", buffer.at, "`@{}` must have the role `{}` and the type {}[]", buffer.name,
           role_info(known->role).text, dtype_text(known->dtype));
  if (role.belongs() && !buffer.of) return wrong(" and must name the buffer that it belongs to");
  if (!role.belongs() && buffer.of) return wrong(", which belongs to no other buffer");
  if (!buffer.of) return;
  const Buffer& owner = module[*buffer.of];
  const bool inner = owner.role == BufferRole::slot || owner.role == BufferRole::part;
  if (inner) wrong(", and `@{}` is a piece itself", owner.name);
  if (buffer.role == BufferRole::slot || buffer.role == BufferRole::part) return;  // R33
  if (buffer.role == BufferRole::node) {
    if (owner.kind != BufferKind::accum || !role_info(owner.role).combines())
      wrong(", and `@{}` is no sum of a window", owner.name);
    if (owner.type != buffer.type) wrong(" and not the type of `@{}`", owner.name);
    return;
  }
  const auto within = [](const Shape& part, const Shape& whole) {
    return part.size() == 2 && rows(part, 1) <= rows(whole, 1) && columns(part) == columns(whole);
  };
  if (buffer.role == BufferRole::slice) {
    const bool line = buffer.type.shape.size() == 1 && owner.type.shape.size() == 1 &&
                      buffer.type.shape[0] <= owner.type.shape[0];
    if (owner.role == BufferRole::slice || !(line || within(buffer.type.shape, owner.type.shape)) ||
        owner.type.dtype != buffer.type.dtype)
      wrong(" and is not the first rows of `@{}`", owner.name);
    if (buffer.name != owner.name + std::string(role.suffix))
      wrong(" of `@{0}`, and not the name `@{0}{1}`", owner.name, role.suffix);
    return;
  }
  const bool parts = buffer.role == BufferRole::norm_parts || buffer.role == BufferRole::ratio_parts;
  const bool master = buffer.role == BufferRole::master;
  if (master && !within(buffer.type.shape, owner.type.shape)) wrong(" and is not rows of `@{}`", owner.name);
  if (master && !module.find_belonging(*buffer.of, BufferRole::gradient))
    wrong(", and `@{}` has no gradient, in whose place it lies", owner.name);
  const bool of_statistic = buffer.role == BufferRole::change;
  if (owner.role != (of_statistic ? BufferRole::statistic : BufferRole::weight))
    wrong(", and `@{}` the role `{}`", owner.name, role_info(owner.role).text);
  if (buffer.role == BufferRole::gradient && !owner.trainable) wrong(", and `@{}` is frozen", owner.name);
  if (owner.type.shape != buffer.type.shape && buffer.role != BufferRole::moment && !parts && !master)
    wrong(" and not the shape of `@{}`", owner.name);
  if (role.suffix != "*" && buffer.name != owner.name + std::string(role.suffix))
    wrong(" of `@{0}`, and not the name `@{0}{1}`", owner.name, role.suffix);
  const bool frozen = buffer.role == BufferRole::weight && !buffer.trainable;  // of either type
  const bool half = is_narrow(buffer.type.dtype);
  if ((half != (buffer.role == BufferRole::half) && !(half && frozen)) || !is_float(buffer.type.dtype))
    wrong(" and cannot be {}", dtype_text(buffer.type.dtype));
}

}  // namespace

void verify_name(const Location& at, const std::string& name, const Broken& broken) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (name.empty() || std::ranges::any_of(name, control))
    broken("R1", at, "a name is empty or has a control character");
}

void verify_buffers(const Module& module, const Broken& broken) {
  std::set<std::string_view> names;
  for (const Buffer& buffer : module.buffers) {
    verify_name(buffer.at, buffer.name, broken);
    if (!names.insert(buffer.name).second)
      broken("R1", buffer.at, "buffer `@{}` is defined twice", buffer.name);
    if (has_batch(buffer.type.shape) || !fits(buffer.type.shape, 1)) {
      broken("R9", buffer.at, "buffer `@{}` has the shape {}", buffer.name, shape_text(buffer.type.shape));
      continue;
    }
    if (buffer.type.pitch != 0) broken("R25", buffer.at, "buffer `@{}` has a pitch", buffer.name);
    const bool frozen = buffer.kind == BufferKind::param && !buffer.trainable;
    if (is_narrow(buffer.type.dtype) && buffer.kind != BufferKind::state && !frozen)
      broken("R13", buffer.at, "`@{}` is {}; trained parameters and accumulators are f32", buffer.name,
             dtype_text(buffer.type.dtype));
    // A slot is as what it is a slot of; R33 compares the types.
    const bool weight = buffer.role == BufferRole::weight && frozen;
    if (is_blocks(buffer.type.dtype) &&
        ((!weight && buffer.role != BufferRole::slot) || columns(buffer.type.shape) % block_of(buffer) != 0))
      broken("R31", buffer.at, "`@{}` is {}; a frozen parameter of rows of whole blocks may be", buffer.name,
             type_text(buffer.type));
    verify_role(module, buffer, broken);
  }
}

}  // namespace gacc::ir
