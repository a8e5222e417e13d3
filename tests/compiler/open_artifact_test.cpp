// An artifact is what its IR says: no edit of the text makes it run with an arena, inputs or launches that are not
// those of its operations. Each edit is refused by the rule that it breaks (docs/ir.md).
#include "compiler/open_artifact.h"

#include <fmt/format.h>

#include <random>
#include <regex>

#include "ir/text/text.h"
#include "tests/compiler/compiled.h"

namespace gacc {
namespace {

// Has a bit of everything: tokens and labels, numbers that are normalised, frozen and half weights, a loss scale,
// running statistics, a plateau, and one kernel for all of the step and of the update.
constexpr const char* kRich = R"([model]
name = "rich"
seed = 7
metrics = ["accuracy"]
[inputs.tokens]
shape = [6]
dtype = "i32"
range = 19
[inputs.x]
shape = [4]
normalize = { mean = [0.5, 0.25, 0, 1], std = [2, 0.5, 1, 4] }
[inputs.y]
dtype = "i32"
range = 5
[[layers]]
type = "embedding"
name = "wte"
vocab = 19
features = 8
[[layers]]
type = "flatten"
name = "flat"
[[layers]]
type = "linear"
name = "side"
input = "x"
features = 8
activation = "relu"
[[layers]]
type = "concat"
name = "both"
inputs = ["flat", "side"]
axis = 0
[[layers]]
type = "linear"
name = "fc"
features = 24
[[layers]]
type = "batch_norm"
name = "bn"
[[layers]]
type = "linear"
name = "fixed"
features = 16
trainable = false
activation = "tanh"
[[layers]]
type = "linear"
name = "head"
features = 5
[loss]
type = "cross_entropy"
target = "y"
ignore_index = -3
[train]
micro_batch = 4
accumulate = 2
[optimizer]
type = "adam"
lr = 1e-2
[schedule]
type = "plateau"
metric = "accuracy"
patience = 1
threshold = 1e-3
[precision]
compute = "f16"
loss_scale = "dynamic"
)";

// Has a head whose logits have no room: predictions in parts.
constexpr const char* kParts = R"(model = { name = "parts" }
inputs.tokens = { shape = [8], dtype = "i32" }
inputs.next = { shape = [8], dtype = "i32", range = 1009 }
loss = { type = "cross_entropy", target = "next", chunks = 4 }
train = { micro_batch = 1 }
optimizer = { type = "sgd" }
recompute = { policy = "all" }
[[layers]]
type = "embedding"
name = "wte"
vocab = 1009
features = 16
[[layers]]
type = "rms_norm"
name = "norm"
[[layers]]
type = "linear"
name = "head"
features = 1009
)";

Artifact artifact_of(const ir::Module& module) {
  return {.ir = ir::print(module), .ptx = fmt::format("//\n.version 7.0\n.target {}\n", module.target)};
}
Artifact artifact_of(const std::string& text, const std::vector<Override>& sets = {}) {
  return artifact_of(test::compiled(text, sets));
}

std::string opened(Artifact artifact) { return check_artifact(artifact, "f").status().text(); }

// What stands in an IR, by what, and words of the error.
struct Edit {
  std::string pattern, by, words;
};

void expect_refused(const Artifact& good, const std::vector<Edit>& edits) {
  ASSERT_EQ(opened(good), "");
  for (const Edit& edit : edits) {
    Artifact changed = good;
    changed.ir = std::regex_replace(good.ir, std::regex(edit.pattern), edit.by,
                                    std::regex_constants::format_first_only);
    EXPECT_TRUE(changed.ir != good.ir) << edit.pattern << " is not there";
    const std::string text = opened(changed);
    EXPECT_TRUE(text.starts_with("f: the artifact's IR is not sound: ")) << edit.pattern << ": " << text;
    EXPECT_NE(text.find(edit.words), std::string::npos) << edit.pattern << ": " << text;
  }
}

Edit added(const std::string& setting, const std::string& words) {
  return {"\n  set ", "\n  set " + setting + "\n  set ", words};
}

TEST(OpenArtifact, MakesThePlanOfWhatTheCompilerWrites) {
  for (const char* launch : {"graph", "persistent"})
    for (const char* target : {"sm_75", "sm_90a"}) {
      Artifact artifact = artifact_of(test::compiled(kRich, {{"launch.mode", launch}}, target));
      ASSERT_EQ(check_artifact(artifact, "f").status().text(), "") << launch << " " << target;
      EXPECT_EQ(artifact.plan.target, target);
      EXPECT_EQ(artifact.plan.programs.at(1).persistent.has_value(), launch == std::string("persistent"));
      EXPECT_EQ(artifact.plan.find("fc.weight")->shape, (std::vector<int64_t>{24, 56}));
    }
}

TEST(OpenArtifact, InputsAreThoseOfTheOperations) {
  expect_refused(
      artifact_of(kRich),
      {{"inputs.tokens.range = 19", "inputs.tokens.range = 65536", "R17: input `%tokens` has a range of"},
       {"inputs.tokens.range = 19", "inputs.tokens.range = 20", "R17: "},
       {"  set inputs.tokens.range = 19\n", "", "R17: input `%tokens` has no range"},
       added("inputs.tokens.ignore_index = 60000", "R17: input `%tokens` may be 60000"),
       added("inputs.tokens.ignore_index = -1", "R17: "),
       {"inputs.y.range = 5", "inputs.y.range = 6", "R17: "},
       {"inputs.y.ignore_index = -3", "inputs.y.ignore_index = -100", "R17: "},
       {"(\n  eval\\(%tokens : i32\\[B,6\\] at )\\d+", "$010", "R15: "},
       {"(\n  step\\([^\n]*%y : i32\\[B\\] at )\\d+", "$010", "R15: "},
       {"(\n  step\\([^\n]*%x : f16\\[B,4\\] at )\\d+", "$014", "R15: `%x` at 4 is misaligned"},
       {"(\n  predict\\([^\n]*%x : f16\\[B,4\\] at )\\d+", "$010", "R15: "},
       {"normalize.mean = [^\n]*", "normalize.mean = [0.5, 0.25]", "R28: inputs.x.normalize.mean has 2"},
       {"normalize.std = [^\n]*", "normalize.std = [2.0, 0.0, 1.0, 4.0]", "R28: "},
       added("inputs.x.range = 7", "R28: inputs.x is f16 and has a range"),
       added("inputs.tokens.normalize = \"data\"", "R28: inputs.tokens is i32 and has a normalize"),
       {"%x : f16\\[B,4\\]", "%x : i32[B,4]", "R"},
       {"%x : f16\\[B,4\\]", "%x : bf16[B,4]", "R"},
       {"%x : f16\\[B,4\\]", "%x : f16[B,2]", "the inner extents are 2 and 4"},
       {"%tokens : i32\\[B,6\\]", "%tokens : f32[B,6]", "R"},
       {"%tokens : i32\\[B,6\\]", "%tokens : i32[B,5]", "R4: "}});
}

TEST(OpenArtifact, PredictionsAreThoseOfTheOperations) {
  expect_refused(artifact_of(kRich),
                 {{"predict.batch = 4", "predict.batch = 5", "R9: predict.batch is 5"},
                  added("predict.needs = 8", "R28: predict.needs is 8"),
                  {"(\n  predict\\((?:[^\n]*\n    )+?)yield output [^\n]*\n", "$1\n", "R10: "}});
  const Artifact parts = artifact_of(kParts);
  std::smatch table;
  ASSERT_TRUE(std::regex_search(parts.ir, table, std::regex("\n  answer\\(%\\S+ : f32\\[8,16\\] at (\\d+)")));
  const std::string at = table[1];
  expect_refused(
      parts,
      {{"(\n  answer\\(%\\S+ : f32\\[8,16\\] at )\\d+", fmt::format("$01{}", std::stoll(at) + 256), "R26: "},
       {"(\n    yield output %head), rows %\\S+", "$1", "R26: answer yields the output of its rows, and"},
       {"(\n    %norm\\S*\\.part = [^\n]* at )\\d+", "$01" + at, "R15: answer, kernel 0"}});
}

TEST(OpenArtifact, BuffersAreWhatTheirRolesSay) {
  const Artifact good = artifact_of(kRich);
  std::smatch weight, gradient;
  ASSERT_TRUE(std::regex_search(good.ir, weight, std::regex("param @fc.weight : [^\n]* at (\\d+)")));
  ASSERT_TRUE(std::regex_search(good.ir, gradient, std::regex("accum @fc.weight.grad : [^\n]* at (\\d+)")));
  expect_refused(
      good,
      {{"(param @fc.weight : [^\n]* at )\\d+", "$013", "R15: `@fc.weight` at 3"},
       {"(accum @fc.weight.grad : [^\n]* at )\\d+", "$01" + weight[1].str(), "R15: buffer @"},
       {"(param @fc.weight : [^\n]* at )\\d+", "$01" + gradient[1].str(), "R15: buffer @"},
       {" arena\\(\\d+\\)", " arena(256)", "R15: "},
       {"@fc.weight.h : f16", "@fc.weight.h : bf16", "R"},
       {"@updates : i32", "@updates : f32", "R11: `@updates` must have"},
       {"@fc.weight : f32\\[24,56\\]", "@fc.weight : f32[56,24]", "R11: "},
       {"@fc.weight : f32\\[24,56\\]", "@fc.weight : f32[1344]", "R11: "},
       {"param @fc.weight :", "state @fc.weight :", "R11: "},
       {"accum @fc.weight.grad :", "state @fc.weight.grad :", "R11: "},
       {"accum @bn.running_mean.change :", "state @bn.running_mean.change :", "R11: "},
       {"(param @fixed.weight : f16[^\n]*) frozen", "$1", "R13: "},
       {"param @fc.weight :", "param @fc.other :", "@fc.weight"},
       {"@bn.running_mean :", "@bn.moving_mean :", "@bn.running_mean"},
       {"  state @skips : [^\n]*\n", "", "@skips"},
       {"(param @fc.weight : [^\n]*) at", "$1 frozen at",
        "R11: `@fc.weight.grad` has the role `gradient`, and"},
       {"  accum @fc.bias.grad : ", "  state @\"\\x0a\" : f32[] at 0\n  accum @fc.bias.grad : ", "R1: "}});
}

TEST(OpenArtifact, SettingsAreWhatTheRuntimeCanFollow) {
  expect_refused(
      artifact_of(kRich),
      {{"train.micro_batch = 4", "train.micro_batch = 3", "R9: "},
       {"train.accumulate = 2", "train.accumulate = 0", "R28: train.accumulate is 0"},
       added("train.lanes = 3", "R28: train.lanes is 3"),
       {"train.tail = \"flush\"", "train.tail = \"cary\"", "R28: train.tail is \"cary\""},
       {"precision.max_skips = 100", "precision.max_skips = 0", "R28: precision.max_skips is 0"},
       {"precision.seed_elements = 4", "precision.seed_elements = 0", "R28: precision.seed_elements is 0"},
       {"precision.seed_elements = 4", "precision.seed_elements = 1", "R28: precision.seed_elements is 1"},
       {"loss_scale = \"dynamic\"", "loss_scale = \"none\"", "R28: precision.loss_scale"},
       {"compute = \"f16\"", "compute = \"f32\"", "R28: precision.compute is f32, and `@wte.weight.h` f16"},
       {"schedule.metric = \"accuracy\"", "schedule.metric = \"mae\"", "R28: schedule.metric"},
       {"schedule.metric = \"accuracy\"", "schedule.metric = 3", "R28: schedule.metric"},
       {"schedule.patience = 1", "schedule.patience = -1", "R28: schedule.patience"},
       {"schedule.threshold = 0.001", "schedule.threshold = \"x\"", "R28: schedule.threshold"},
       added("load.parameters.0.name = \"fc.weight\"", "R28: load.parameters has no tensors"),
       added("load.parameters.0.name = \"no\"", "R28: load.parameters names `no`"),
       added("adapters.0.name = \"fc\"", "R28: the adapter `fc` does not fit")});
}

TEST(OpenArtifact, LaunchesAreThoseOfTheKernels) {
  expect_refused(artifact_of(kRich),
                 {{"\n    kernel \\w+ k", "\n    kernel other k", "R29: "},
                  {"(\n    kernel \\w+ k\\(\\d+\\) \\()", "$1@lr, ", "R19: "},
                  {"(\n    kernel [^\n]* block\\()\\d+", "$0196", "R29: "},
                  {"(\n    kernel [^\n]* grid\\([^b]* by )\\d+", "$017", "R29: "},
                  {"(\n    kernel [^\n]* grid\\()\\d+", "$0177", "R29: "},
                  {"(\n    product k\\(\\d+\\) \\()[^,]*,", "$1@lr,", "R19: "},
                  {"(\n    product [^\n]* : \\w+, \\d+, )\\w+", "$011", "R19: "},
                  {" tile\\(\\d+, \\d+\\)", " tile(8, 8)", "R"},
                  {" \\{tb\\}", "", "the inner extents are 4 and 8"},
                  {"\n    kernel [^\n]*", "", "R18: "},
                  {" level\\(1\\)", " level(0)", "R20: "},
                  {" then\\((k\\(\\d+\\)), 0", " then($1, 1", "R21: "},
                  {"( then\\(k\\(\\d+\\), \\d+)\\)", "$1, keeps)", "R21: "},
                  {"(persistent step_persistent block\\()\\d+", "$0132", "R24: "},
                  {"(persistent step_persistent block\\(\\d+\\) blocks\\()\\d+", "$0100", "R24: "},
                  {" target\\(sm_80\\)", " target(sm_90)", "it is for sm_90, the PTX for sm_80"},
                  {" phase\\(scheduled\\)", " phase(planned)", "R18: "}});
  expect_refused(artifact_of(kRich, {{"precision.compute", "f32"},
                                     {"precision.loss_scale", "none"},
                                     {"launch.mode", "graph"},
                                     {"train.micro_batch", "32"}}),
                 {{" bias\\(@[^,]*,", " bias(@lr,", "R22: "},
                  {" workspace\\(\\d+, \\d+\\)", " workspace(0, 256)", "R23: "},
                  {" workspace\\(\\d+, \\d+\\)", " workspace(4, 256)", "R23: "},
                  {"(\n    product [^\n]* level\\(\\d+\\))", "$1 stream(2)", "R27: "},
                  {"(\n    product [^\n]* level\\(\\d+\\))", "$1 after(k(0))", "R27: "}});
}

TEST(OpenArtifact, NamesWhatIsWrongWithTheRest) {
  Artifact artifact = artifact_of(kParts);
  const std::string whole = artifact.ir;
  artifact.ir.resize(whole.size() / 2);
  EXPECT_TRUE(opened(artifact).starts_with("f: the artifact's IR is not sound: \n"));
  artifact.ir = whole;
  artifact.ptx = "";
  EXPECT_EQ(opened(artifact), "f: the artifact's IR is not sound: it is for sm_80, the PTX for ");
}

// Changes some words, numbers and lines of a text.
std::string spoilt(std::string text, std::mt19937& chance) {
  for (uint32_t changes = 1 + chance() % 3; changes > 0; --changes) {
    const size_t begin = text.find('\n', chance() % text.size());
    const size_t end = text.find('\n', std::min(begin, text.size() - 1) + 1);
    if (begin == text.npos || end == text.npos) continue;
    std::string line = text.substr(begin, end - begin);
    const size_t number = line.find_first_of("0123456789", line.empty() ? 0 : chance() % line.size());
    switch (chance() % 5) {
      case 0:
        text.erase(begin, end - begin);
        break;
      case 1:
        text.insert(begin, line);
        break;
      case 2:
        text.erase(begin + chance() % line.size(), 1 + chance() % 4);
        break;
      default:
        if (number == line.npos) continue;
        const char* const numbers[] = {
            "0",     "1", "-1", "2", "3", "255", "256", "4096", "65536", "2147483648", "9223372036854775807",
            "1e300", "B"};
        const size_t past = std::min(line.find_first_not_of("0123456789", number), line.size());
        text.replace(begin + number, past - number, numbers[chance() % std::size(numbers)]);
    }
  }
  return text;
}

TEST(OpenArtifact, DoesNotCrashWhateverTheIrSays) {
  const std::vector<Artifact> all = {
      artifact_of(kRich), artifact_of(kParts),
      artifact_of(kRich, {{"train.lanes", "2"}, {"train.ranks", "2"}, {"memory.shard", "optimizer"}})};
  std::mt19937 chance(13);
  int refused = 0;
  constexpr int kCount = 400;
  for (int i = 0; i < kCount; ++i) {
    Artifact changed = all[chance() % all.size()];
    changed.ir = spoilt(changed.ir, chance);
    refused += !opened(changed).empty();
  }
  EXPECT_GT(refused, kCount / 2);
}

}  // namespace
}  // namespace gacc
