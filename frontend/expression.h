// Expressions over the keys of a config.json, as families have them (docs/adding-a-family.md).
//
//   a ? b : c     a ?? b (a, but b where a is absent or null)     || && !     == != < <= > >=     + - * / %
//   1  2.5  "text"  'text'  true  false  null  none  unknown      NAME  OBJECT.NAME  FUNCTION(...)
//
// `null` and `none` are nothing: a key of that value is left out. `unknown` is an error that names what was
// read. sqrt(x), activation(x): the name of transformers' activation here, every(list, x): whether all are x,
// one_of(x, a, b): x where that is one of the others, else unknown, missing(NAME): whether the file does not have the
// key, not even as null.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "frontend/config_json.h"

namespace gacc::frontend {

struct Evaluated {
  ConfigValue value{};
  std::set<std::string> read{};        // the names that decided it
  std::string problem{};               // "": none
  bool missing = false;                // the problem is a name that is not there
  bool of_values = false;              // the problem is of what was read, which it does not name
  bool broken = false;                 // a name that it uses has a problem of its own
  std::vector<std::string> objects{};  // of a name that stands for the first of these that is there
};

// Returns the value of a name; nothing when it is absent.
using Lookup = std::function<std::optional<ConfigValue>(const std::string& name)>;
// Returns the names with their values, of those that have one: "`a` = 1, `b` = "x""; "this" where none has.
std::string said_of(const std::set<std::string>& names, const Lookup& lookup);
// Evaluates an expression. `named`: expressions that have names of their own; what they read is read with them. Of a
// name that stands for objects, "name.key" reads the key of all of them.
Evaluated evaluate(std::string_view expression, const Lookup& lookup,
                   const std::map<std::string, Evaluated>& named = {});

}  // namespace gacc::frontend
