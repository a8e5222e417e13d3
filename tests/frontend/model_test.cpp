// Whole models: the examples compile to valid modules that print and parse back, limits hold, and the tables
// of layers, activations and losses are complete.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "frontend/frontend.h"
#include "ir/text/text.h"
#include "ir/verify/verify.h"

namespace gacc {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::filesystem::path kRoot = GACC_SOURCE_DIR;

constexpr std::string_view kHead =
    "[model]\nname = \"m\"\n[inputs.x]\nshape = [4]\n[inputs.y]\ndtype = \"i32\"\n"
    "[loss]\ntype = \"cross_entropy\"\ntarget = \"y\"\n[optimizer]\ntype = \"adam\"\n";

std::optional<ir::Module> compile(const std::string& text, Diag& diag,
                                  const std::vector<Override>& overrides = {}) {
  diag = Diag("m.toml", text);
  return compile_model(text, "m.toml", overrides, diag);
}

TEST(Examples, CompileToValidModulesThatRoundTrip) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "examples")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    Diag diag;
    const auto module = compile(read(entry.path()), diag);
    ASSERT_TRUE(module.has_value()) << diag.render();
    EXPECT_TRUE(ir::verify(*module, diag)) << diag.render();
    EXPECT_EQ(module->phase, ir::Phase::model);
    const std::string text = ir::print(*module);
    Diag parsed("m.gir", text);
    const auto again = ir::parse(text, parsed);
    ASSERT_TRUE(again.has_value()) << parsed.render();
    EXPECT_EQ(ir::print(*again), text);
  }
  EXPECT_GE(count, 4);
}

TEST(Examples, HaveTheSizesOfTheExperiment) {
  Diag diag;
  const auto module = compile(read(kRoot / "examples/mnist_mlp.toml"), diag);
  ASSERT_TRUE(module.has_value());
  EXPECT_EQ(module->micro_batch(), 32);
  EXPECT_EQ(module->accumulate(), 4);
  int64_t parameters = 0;
  for (const ir::Buffer& buffer : module->buffers) {
    if (buffer.kind == ir::BufferKind::param) parameters += ir::elements(buffer.type.shape, 1);
  }
  EXPECT_EQ(parameters, 784 * 512 + 512 + 512 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10);
}

TEST(Model, TheStartOfALayerDependsOnItsNameAlone) {
  const std::string fc = "[[layers]]\ntype = \"linear\"\nname = \"fc\"\nfeatures = 4\n";
  const std::string other = "[[layers]]\ntype = \"linear\"\nname = \"other\"\nfeatures = 4\n";
  Diag diag;
  const auto one = compile(std::string(kHead) + fc, diag),
             two = compile(std::string(kHead) + other + fc, diag);
  ASSERT_TRUE(one && two);
  const auto stream = [](const ir::Module& module, std::string_view parameter) {
    for (const ir::Op& op : module.init.ops) {
      if (module[*ir::as_buffer(op.operands[0])].name == parameter)
        return std::get<int64_t>(op.attrs.at("stream"));
    }
    return int64_t{0};
  };
  EXPECT_NE(stream(*one, "fc.weight"), 0);
  EXPECT_EQ(stream(*one, "fc.weight"), stream(*two, "fc.weight"));
  EXPECT_NE(stream(*two, "fc.weight"), stream(*two, "other.weight"));
  EXPECT_NE(stream(*one, "fc.weight"), stream(*one, "fc.bias"));
}

// Types of the contract's table: each is either lowered or refused as not supported yet, never unknown.
TEST(Model, KnowsEveryLayerTypeOfTheContract) {
  for (const char* type :
       {"linear",     "activation", "softmax",  "log_softmax", "flatten",    "reshape",
        "permute",    "dropout",    "conv2d",   "max_pool2d",  "avg_pool2d", "global_avg_pool2d",
        "batch_norm", "layer_norm", "rms_norm", "group_norm",  "embedding",  "position_embedding",
        "attention",  "add",        "mul",      "concat",      "sequential", "residual"}) {
    Diag diag;
    compile(std::string(kHead) + "[[layers]]\ntype = \"" + type + "\"\n", diag);
    for (const Report& report : diag.reports())
      EXPECT_NE(report.kind, Kind::unknown_value) << type << "\n" << diag.render();
  }
}

TEST(Model, ChecksTheKeysOfImageLayers) {
  struct Case {
    const char *layer, *expected;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"type='conv2d'\nchannels=8\nkernel=[3,3,3]", "one number or two"},
           {"type='conv2d'\nchannels=8\nkernel=3\npadding='full'", "unknown padding"},
           {"type='conv2d'\nchannels=8\nkernel=3\ngroups=3", "do not divide"},
           {"type='conv2d'\nchannels=8\nkernel=3\nstride=2\npadding='same'", "a stride of 1"},
           {"type='avg_pool2d'", "needs `kernel`"},
           {"type='attention'\nrope={scaling={type='dynamic'}}", "unknown type of `scaling` \"dynamic\"; it"},
           {"type='max_pool2d'\nkernel=2\npadding=2", "at most half"},
           {"type='batch_norm'\nmomentum=2", "`momentum` must be"},
           {"type='group_norm'", "needs `groups`"},
       }) {
    Diag diag;
    compile(std::string(kHead) + "[[layers]]\n" + c.layer + "\n", diag);
    const std::string found = diag.render();
    EXPECT_NE(found.find(c.expected), std::string::npos) << found;
  }
}

TEST(Model, ChecksTheKeysOfSequenceLayers) {
  struct Case {
    const char *layer, *expected;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"type='rms_norm'\neps=0", "`eps` must be above 0"},
           {"type='embedding'\nvocab=10", "needs `features`"},
           {"type='embedding'\nvocab=0\nfeatures=4", "`vocab` must be at least 1"},
           {"type='embedding'\nvocab=10\nfeatures=4", "takes i32"},
           {"type='position_embedding'\ninit={ normal = 0.01 }", "two axes"},
           {"type='permute'\naxes=[1,0]", "permutes 2 axes"},
           {"type='permute'\naxes=[1,1]", "each axis"},
           {"type='concat'\ninputs=['x','x']", "needs `axis`"},
           {"type='concat'\naxis=1\ninputs=['x','x']", "along axis 1"},
       }) {
    Diag diag;
    compile(std::string(kHead) + "[[layers]]\n" + c.layer + "\n", diag);
    const std::string found = diag.render();
    EXPECT_NE(found.find(c.expected), std::string::npos) << found;
    EXPECT_EQ(diag.reports().size(), 1U) << found;
  }
}

TEST(Model, ChecksSchedules) {
  struct Case {
    const char *schedule, *expected;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"type='step'\nstep_size=10\ngamma=0.5", ""},
           {"type='step'\ngamma=0.5", "needs `step_size`"},
           {"type='multistep'\nmilestones=[10,20]\ngamma=0.5", ""},
           {"type='multistep'\nmilestones=[20,10]\ngamma=0.5", "ascending"},
           {"type='multistep'\nmilestones=[]\ngamma=0.5", "is empty"},
           {"type='exponential'\ngamma=0.99\nunit='epochs'", ""},
           {"type='exponential'\ngamma=0", "must be above 0"},
           {"type='linear'\ntotal=100\nmin_lr=1e-5", ""},
           {"type='cosine'\ntotal=100\nwarmup=10", ""},
           {"type='cosine'\ntotal=10\nwarmup=10", "not more than the warmup"},
           {"type='cosine'\ntotal=10\nstep_size=3", "is for \"step\""},
           {"type='plateau'\nmetric='loss'\nfactor=0.1\npatience=3\nthreshold=1e-4\nmin_lr=0", ""},
           {"type='plateau'\nfactor=1.0", "below 1"},
           {"type='plateau'\nunit='days'", "unknown unit"},
       }) {
    Diag diag;
    compile(std::string(kHead) + "[[layers]]\ntype='linear'\nfeatures=3\n[schedule]\n" + c.schedule + "\n",
            diag);
    const std::string found = diag.render();
    EXPECT_EQ(diag.failed(), *c.expected != 0) << found;
    EXPECT_NE(found.find(c.expected), std::string::npos) << found;
  }
}

TEST(Limits, HugeModelsAreErrors) {
  std::string nested = std::string(kHead);
  for (std::string table = "layers"; table.size() < 7 * 60; table += ".layers") {
    nested += "[[" + table + "]]\ntype = \"sequential\"\nname = \"s\"\nrepeat = 1000\n";
  }
  for (const std::string& layers :
       {std::string("[[layers]]\ntype='sequential'\nrepeat=1000000000\n[[layers.layers]]\ntype='flatten'\n"),
        std::string("[[layers]]\ntype='linear'\nfeatures=2147483647\n[[layers]]\ntype='linear'\nfeatures="
                    "2147483647\n"),
        std::string("[[layers]]\ntype='reshape'\nshape=[2147483647,2147483647,2147483647,2147483647]\n")}) {
    Diag diag;
    EXPECT_FALSE(compile(std::string(kHead) + layers, diag).has_value());
    EXPECT_TRUE(diag.failed());
  }
  Diag diag;
  EXPECT_FALSE(compile(nested, diag).has_value());
}

// Every way to an extent that no product takes is an error at a place in the file; one less compiles.
TEST(Limits, MatrixProductsHaveALargestExtent) {
  const auto model = [](const std::string& inputs, const std::string& layers, const std::string& train) {
    return "[model]\nname = \"m\"\n[inputs.x]\n" + inputs + "[inputs.y]\ndtype = \"i32\"\n" + layers +
           "[loss]\ntype = \"cross_entropy\"\ntarget = \"y\"\n[optimizer]\ntype = \"sgd\"\n[train]\n" + train;
  };
  const std::string linear = "[[layers]]\ntype = \"linear\"\nfeatures = ",
                    flatten = "[[layers]]\ntype = \"flatten\"\n", batch = "micro_batch = ";
  const auto number = [](int64_t value) { return std::to_string(value) + "\n"; };
  struct Case {
    std::function<std::string(int64_t)> text;
    int64_t most;
    std::string place;
  };
  const int64_t most = ir::kMostMatrixExtent;
  const Case cases[] = {
      {[&](int64_t n) { return model("shape = [2]\n", linear + number(n), ""); }, most, "m.toml:9:12: "},
      {[&](int64_t n) { return model("shape = [" + std::to_string(n) + "]\n", linear + "2\n", ""); }, most,
       "m.toml:8:8: "},
      {[&](int64_t n) { return model("shape = [2]\n", linear + "2\n", batch + number(n)); }, most,
       "m.toml:8:8: "},
      {[&](int64_t n) {
         return model("shape = [" + std::to_string(n) + ", 2]\n", flatten + linear + "2\n", "");
       },
       most / 2, "m.toml:10:8: "},
      {[&](int64_t n) {
         return model("shape = []\ndtype = \"i32\"\n",
                      "[[layers]]\ntype = \"embedding\"\nname = \"e\"\nvocab = " + number(n) +
                          "features = 1\n" + linear + number(n) + "tied = \"e\"\n",
                      "");
       },
       most, "m.toml:15:12: "}};
  for (const Case& c : cases) {
    Diag diag;
    EXPECT_TRUE(compile(c.text(c.most), diag).has_value()) << diag.render();
    EXPECT_FALSE(compile(c.text(c.most + 1), diag).has_value()) << c.text(c.most + 1);
    EXPECT_EQ(diag.reports().size(), 1U) << diag.render();
    EXPECT_EQ(diag.render().find(c.place), 0U) << diag.render();
    EXPECT_NE(diag.render().find("at most 1073741568"), std::string::npos) << diag.render();
  }
}

TEST(Limits, TheCountOfAWindowFitsAnI32) {
  const std::string text = std::string(kHead) + "[[layers]]\ntype = \"linear\"\nfeatures = 3\n";
  Diag diag;
  EXPECT_TRUE(
      compile(text, diag, {{"train.micro_batch", "2"}, {"train.accumulate", "1073741823"}}).has_value())
      << diag.render();
  EXPECT_FALSE(
      compile(text, diag, {{"train.micro_batch", "2"}, {"train.accumulate", "1073741824"}}).has_value());
  EXPECT_NE(diag.render().find("2^31"), std::string::npos) << diag.render();
}

}  // namespace
}  // namespace gacc
