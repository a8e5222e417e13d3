// The way from a kernel to a part of a merged one; and the two small things that merged_kernel.h says about entries.
#include "codegen/gpu/merge_part.h"

#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/ReplaceConstant.h>
#include <llvm/Transforms/Utils/Cloning.h>

#include <algorithm>
#include <set>

#include "codegen/gpu/merged_kernel.h"

namespace gacc::codegen {

namespace {

using kernels::Unfit;
using llvm::Function;
using llvm::Value;

constexpr unsigned kShared = 3;  // address space

int64_t size_of(const llvm::GlobalVariable& variable) {
  const llvm::DataLayout& layout = variable.getParent()->getDataLayout();
  return (static_cast<int64_t>(layout.getTypeAllocSize(variable.getValueType())) + 15) / 16 * 16;
}

// All threads of a place: its barrier's number, after the block's.
void place_barrier(llvm::IRBuilderBase& at, Value* place, int64_t threads) {
  llvm::FunctionType* type = llvm::FunctionType::get(at.getVoidTy(), {at.getInt32Ty()}, false);
  const std::string text = fmt::format("bar.sync $0, {};", threads);
  at.CreateCall(type, llvm::InlineAsm::get(type, text, "r,~{memory}", /*hasSideEffects=*/true),
                {at.CreateAdd(place, at.getInt32(1))})
      ->setConvergent();
}

class PartMaker {
 public:
  PartMaker(llvm::Module& module, const std::string& name, Part& part)
      : module_(module), name_(name), part_(part) {}

  void copy() {
    Function* entry = module_.getFunction(name_);
    if (entry == nullptr) throw Unfit("there is no kernel " + name_);
    std::vector<llvm::Type*> types;
    for (const llvm::Argument& argument : entry->args()) types.push_back(argument.getType());
    types.resize(types.size() + 3, llvm::Type::getInt32Ty(module_.getContext()));
    Function* function =
        Function::Create(llvm::FunctionType::get(llvm::Type::getVoidTy(module_.getContext()), types, false),
                         llvm::GlobalValue::InternalLinkage, name_ + "_part", module_);
    part_.function = function;
    llvm::ValueToValueMapTy map;
    for (llvm::Argument& argument : entry->args()) map[&argument] = function->getArg(argument.getArgNo());
    llvm::SmallVector<llvm::ReturnInst*, 4> returns;
    llvm::CloneFunctionInto(function, entry, map, llvm::CloneFunctionChangeType::LocalChangesOnly, returns);
    const auto own = static_cast<unsigned>(entry->arg_size());
    thread_ = function->getArg(own), work_ = function->getArg(own + 1), place_ = function->getArg(own + 2);
    for (llvm::Instruction& instruction : llvm::make_early_inc_range(llvm::instructions(function)))
      if (auto* call = llvm::dyn_cast<llvm::CallInst>(&instruction)) adapt(*call);
    int64_t bytes = 0;
    // Its arrays in shared memory; their addresses are known when all functions are.
    for (llvm::GlobalVariable& variable : module_.globals()) {
      if (variable.getAddressSpace() != kShared || !used_in(variable, *function)) continue;
      if (variable.isDeclaration()) throw Unfit(name_ + " has shared memory of a size chosen at launch");
      part_.shared.push_back(&variable);
      bytes += size_of(variable);
    }
    if (bytes != part_.shared_bytes)
      throw Unfit(fmt::format("{} has {} bytes of shared memory, not {}", name_, bytes, part_.shared_bytes));
  }

 private:
  void adapt(llvm::CallInst& call) {
    const auto replace = [&](Value* with) {
      call.replaceAllUsesWith(with);
      call.eraseFromParent();
    };
    if (const Function* callee = call.getCalledFunction()) {
      const llvm::StringRef what = callee->getName();
      if (what == "llvm.nvvm.read.ptx.sreg.tid.x") return replace(thread_);
      if (what == "llvm.nvvm.read.ptx.sreg.ctaid.x") return replace(work_);
      const bool harmless = what.starts_with("llvm.nvvm.read.ptx.sreg.laneid");
      if (harmless || !(what.starts_with("llvm.nvvm.read.ptx.sreg") || what.starts_with("llvm.nvvm.barrier")))
        return;
      throw Unfit(fmt::format("{} reads {}", name_, what.str()));
    }
    const auto* assembly = llvm::dyn_cast<llvm::InlineAsm>(call.getCalledOperand());
    if (assembly == nullptr) throw Unfit(name_ + " calls through a pointer");
    const std::string text = assembly->getAsmString();
    part_.copies = part_.copies || text.find("cp.async") != std::string::npos;
    if (text.find("bar.") == std::string::npos && text.find("barrier.") == std::string::npos) return;
    if (text != "bar.sync 0;") throw Unfit(name_ + " has `" + text + "`");
    llvm::IRBuilder<> at(&call);
    place_barrier(at, place_, part_.threads);
    call.eraseFromParent();
  }

  static bool used_in(const llvm::GlobalVariable& variable, const Function& function) {
    std::vector<const llvm::User*> users(variable.user_begin(), variable.user_end());
    while (!users.empty()) {
      const llvm::User* user = users.back();
      users.pop_back();
      if (const auto* instruction = llvm::dyn_cast<llvm::Instruction>(user)) {
        if (instruction->getFunction() == &function) return true;
      } else {
        users.insert(users.end(), user->user_begin(), user->user_end());
      }
    }
    return false;
  }

  llvm::Module& module_;
  const std::string& name_;
  Part& part_;
  Value *thread_ = nullptr, *work_ = nullptr, *place_ = nullptr;
};

}  // namespace

void make_part(llvm::Module& module, const std::string& entry, Part& part) {
  PartMaker(module, entry, part).copy();
}

void finish_turn(llvm::IRBuilderBase& at, const Part& part, Value* place) {
  if (part.shared_bytes == 0) return;
  if (part.copies) {
    llvm::FunctionType* type = llvm::FunctionType::get(at.getVoidTy(), false);
    at.CreateCall(type, llvm::InlineAsm::get(type, "cp.async.wait_all;", "~{memory}", true))->setConvergent();
  }
  place_barrier(at, place, part.threads);
}

void place_shared(llvm::Module& module, const std::string& name, const std::vector<Part*>& parts) {
  int64_t bytes = 0;
  for (const Part* part : parts) bytes = std::max(bytes, part->places * part->shared_bytes);
  if (bytes == 0) return;
  llvm::Type* type =
      llvm::ArrayType::get(llvm::Type::getInt8Ty(module.getContext()), static_cast<uint64_t>(bytes));
  auto* all = new llvm::GlobalVariable(module, type, false, llvm::GlobalValue::InternalLinkage,
                                       llvm::UndefValue::get(type), name, nullptr,
                                       llvm::GlobalValue::NotThreadLocal, kShared);
  all->setAlignment(llvm::Align(128));
  for (const Part* part : parts) {
    const std::vector<llvm::Constant*> constants(part->shared.begin(), part->shared.end());
    llvm::convertUsersOfConstantsToInstructions(constants, part->function);
    llvm::IRBuilder<> at(&*part->function->getEntryBlock().getFirstInsertionPt());
    Value* place = part->function->getArg(static_cast<unsigned>(part->function->arg_size()) - 1);
    int64_t offset = 0;
    for (llvm::GlobalVariable* variable : part->shared) {
      Value* begin = at.CreateInBoundsGEP(
          at.getInt8Ty(), all,
          at.CreateAdd(at.CreateMul(place, at.getInt32(static_cast<uint32_t>(part->shared_bytes))),
                       at.getInt32(static_cast<uint32_t>(offset))));
      variable->replaceUsesWithIf(begin, [&](const llvm::Use& use) {
        const auto* user = llvm::dyn_cast<llvm::Instruction>(use.getUser());
        return user != nullptr && user->getFunction() == part->function;
      });
      offset += size_of(*variable);
    }
  }
}

void drop_unused(llvm::Module& module, const std::vector<PlanProgram>& programs) {
  std::set<std::string> used;
  const auto use = [&](const PlanLaunch& launch) {
    used.insert(launch.kernel.empty() ? launch.builtin.kernel : launch.kernel);
  };
  for (const PlanProgram& program : programs) {
    for (const PlanLaunch& launch : program.launches) use(launch);
    if (program.persistent) use(*program.persistent);
  }
  std::vector<Function*> unused;
  for (Function& function : module)
    if (!function.isDeclaration() && !used.contains(function.getName().str())) unused.push_back(&function);
  // LLVM's notes about a kernel name it: they go first.
  if (llvm::NamedMDNode* notes = module.getNamedMetadata("nvvm.annotations")) {
    std::vector<llvm::MDNode*> kept;
    for (llvm::MDNode* note : notes->operands()) {
      const auto* of = llvm::mdconst::dyn_extract_or_null<Function>(note->getOperand(0));
      if (!contains(unused, of)) kept.push_back(note);
    }
    notes->clearOperands();
    for (llvm::MDNode* note : kept) notes->addOperand(note);
  }
  for (Function* function : unused) function->eraseFromParent();
  for (llvm::GlobalVariable& variable : llvm::make_early_inc_range(module.globals())) {
    variable.removeDeadConstantUsers();
    if (variable.use_empty() && variable.hasLocalLinkage()) variable.eraseFromParent();
  }
}

void set_block(llvm::Function& function, int64_t threads, int64_t blocks) {
#if LLVM_VERSION_MAJOR >= 22
  function.addFnAttr("nvvm.maxntid", fmt::format("{},1,1", threads));
  if (blocks > 0) function.addFnAttr("nvvm.minctasm", std::to_string(blocks));
#else
  llvm::LLVMContext& context = function.getContext();
  llvm::Type* word = llvm::Type::getInt32Ty(context);
  const auto annotate = [&](const char* what, int64_t value) {
    llvm::Metadata* parts[] = {
        llvm::ValueAsMetadata::get(&function), llvm::MDString::get(context, what),
        llvm::ConstantAsMetadata::get(llvm::ConstantInt::get(word, static_cast<uint64_t>(value)))};
    function.getParent()
        ->getOrInsertNamedMetadata("nvvm.annotations")
        ->addOperand(llvm::MDNode::get(context, parts));
  };
  annotate("maxntidx", threads);
  annotate("maxntidy", 1);
  annotate("maxntidz", 1);
  if (blocks > 0) annotate("minctasm", blocks);
#endif
}

}  // namespace gacc::codegen
