// Calls of .func disappear before decoding: the callee's statements are copied in, with registers and labels
// renumbered and its .param variables replaced by the caller's. The interpreter then needs no call stack, and
// a report still names the line where the callee's instruction was written.
#include <algorithm>
#include <map>

#include "emulator/ptx.h"

namespace gacc::emulator {
namespace {

constexpr size_t kMaxStatements = 1 << 20;
constexpr int kMaxDepth = 64;

struct Inliner {
  const PtxFile& file;
  Function& out;
  int copies = 0;
  Status status = {};

  void fail(int line, std::string text) {
    if (status.ok()) status = Status::error("line {}: {}", line, text);
  }

  // Copies `from`'s statements to `out`; names maps its variables, registers are shifted by `registers`.
  void copy(const Function& from, int registers, const std::map<std::string, std::string>& names, int depth) {
    std::vector<int> position(from.statements.size() + 1);
    std::vector<size_t> branches;
    std::vector<size_t> returns;
    auto rename = [&](Operand& operand, auto&& self) -> void {
      if (operand.reg >= 0) operand.reg += registers;
      if (auto found = names.find(operand.name); found != names.end()) operand.name = found->second;
      for (Operand& element : operand.elements) self(element, self);
    };
    for (size_t i = 0; i < from.statements.size() && status.ok(); ++i) {
      position[i] = static_cast<int>(out.statements.size());
      Statement statement = from.statements[i];
      if (out.statements.size() > kMaxStatements)
        return fail(statement.line, "the kernel is too long after inlining");
      if (statement.guard >= 0) statement.guard += registers;
      for (Operand& operand : statement.operands)
        if (operand.kind != Operand::Kind::label) rename(operand, rename);
      if (statement.opcode.starts_with("call")) {
        call(statement, depth);
        continue;
      }
      bool is_return = depth > 0 && statement.opcode.starts_with("ret");
      if (is_return) {
        statement.opcode = "bra";
        statement.operands.resize(1);
        statement.operands[0].kind = Operand::Kind::label;
        returns.push_back(out.statements.size());
      } else if (!statement.operands.empty() && statement.operands[0].kind == Operand::Kind::label) {
        branches.push_back(out.statements.size());
      }
      out.statements.push_back(std::move(statement));
    }
    position.back() = static_cast<int>(out.statements.size());
    for (size_t at : branches)
      for (Operand& operand : out.statements[at].operands)
        operand.target = position[static_cast<size_t>(operand.target)];
    for (size_t at : returns) out.statements[at].operands[0].target = position.back();
  }

  void call(const Statement& statement, int depth) {
    const std::string& name = statement.operands[1].name;
    auto callee = std::find_if(file.functions.begin(), file.functions.end(), [&](const Function& f) {
      return f.name == name && !f.entry && !f.declared_only;
    });
    if (callee == file.functions.end())
      return fail(statement.line, fmt::format("call of `{}`, which is not defined here", name));
    if (depth >= kMaxDepth)
      return fail(statement.line, fmt::format("call of `{}`: recursion is not supported", name));
    const auto& results = statement.operands[0].elements;
    const auto& arguments = statement.operands[2].elements;
    if (results.size() != callee->results.size() || arguments.size() != callee->params.size())
      return fail(statement.line, fmt::format("call of `{}` with another number of parameters", name));
    std::map<std::string, std::string> names;
    auto bind = [&](const std::vector<Variable>& formal, const std::vector<Operand>& actual) {
      for (size_t i = 0; i < formal.size(); ++i) {
        if (actual[i].kind != Operand::Kind::symbol)
          return fail(statement.line, fmt::format("call of `{}`: parameters must be .param variables", name));
        names[formal[i].name] = actual[i].name;
      }
    };
    bind(callee->results, results);
    bind(callee->params, arguments);
    int copy_number = ++copies;
    for (Variable variable : callee->variables) {
      std::string unique = fmt::format("{}#{}.{}", variable.name, callee->name, copy_number);
      // Shared and global variables of a function exist once, however often it is called.
      if (variable.space == Space::shared || variable.space == Space::global ||
          variable.space == Space::constant)
        unique = fmt::format("{}#{}", variable.name, callee->name);
      names[variable.name] = unique;
      variable.name = unique;
      bool known = std::any_of(out.variables.begin(), out.variables.end(),
                               [&](const Variable& v) { return v.name == unique; });
      if (!known) out.variables.push_back(std::move(variable));
    }
    int registers = static_cast<int>(out.registers.size());
    out.registers.insert(out.registers.end(), callee->registers.begin(), callee->registers.end());
    if (out.registers.size() > kMaxStatements)
      return fail(statement.line, "the kernel has too many registers after inlining");
    if (statement.guard >= 0) {  // a guarded call: the other lanes branch over it
      Statement skip;
      skip.line = statement.line;
      skip.opcode = "bra";
      skip.guard = statement.guard;
      skip.guard_negated = !statement.guard_negated;
      skip.operands.resize(1);
      skip.operands[0].kind = Operand::Kind::label;
      size_t at = out.statements.size();
      out.statements.push_back(skip);
      copy(*callee, registers, names, depth + 1);
      out.statements[at].operands[0].target = static_cast<int>(out.statements.size());
    } else {
      copy(*callee, registers, names, depth + 1);
    }
  }
};

}  // namespace

Status inline_calls(const PtxFile& file, Function& function) {
  Function original = function;
  function.statements.clear();
  Inliner inliner{file, function};
  inliner.copy(original, 0, {}, 0);
  return inliner.status;
}

}  // namespace gacc::emulator
