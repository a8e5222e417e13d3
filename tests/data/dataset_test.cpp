// From SPEC to columns: every kind, and every mismatch with the model in one sentence.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/data/philox.h"
#include "runtime/data/spec.h"
#include "tests/data/make_files.h"

namespace gacc::test {
namespace {

std::string error(const std::string& spec, const Plan& plan = image_label_plan()) {
  Dataset data;
  return load_dataset(spec, plan, data).text();
}

void expect_images_and_labels(const std::string& spec, int64_t samples = 3) {
  Dataset data;
  ASSERT_EQ(load_dataset(spec, image_label_plan(), data).text(), "") << spec;
  EXPECT_EQ(data.samples, samples);
  ASSERT_EQ(data.columns.size(), 2u);
  EXPECT_EQ(data.columns[0].name, "image");
  std::vector<int64_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  Plan plan = image_label_plan();
  std::vector<std::byte> images(order.size() * 16), labels(order.size() * 4);
  EXPECT_TRUE(data.gather(0, plan.inputs[0], order, images));
  EXPECT_TRUE(data.gather(1, plan.inputs[1], order, labels));
  std::vector<float> pixels = values<float>(images);
  for (size_t i = 0; i < pixels.size(); ++i) EXPECT_EQ(pixels[i], static_cast<float>(i) / 255.0f) << spec;
  std::vector<int32_t> expected = {2, 0, 1};
  expected.resize(order.size());
  EXPECT_EQ(values<int32_t>(labels), expected) << spec;
}

class DatasetTest : public testing::Test {
 protected:
  Folder folder_;
  std::string pixels_ = std::string("\0\1\2\3\4\5\6\7\10\11\12\13", 12);
  std::string images_ = idx_header(0x08, {3, 2, 2}) + pixels_;
  std::string labels_ = idx_header(0x08, {3}) + std::string("\2\0\1", 3);
};

TEST_F(DatasetTest, ReadsMnistPlainAndZipped) {
  folder_.put("train-images-idx3-ubyte", images_);
  folder_.put("train-labels-idx1-ubyte.gz", gzip(labels_));
  std::string spec = "mnist:" + folder_.path("");
  expect_images_and_labels(spec);
  expect_images_and_labels(spec + ",split=train,limit=2", 2);
  expect_images_and_labels(spec + ",limit=9");
  EXPECT_EQ(error(spec + ",split=test"),
            "mnist: the folder " + folder_.path("") + " holds no t10k-images-idx3-ubyte, also not as .gz");
  EXPECT_EQ(error("mnist:/no/such"), "mnist: there is no folder /no/such");
}

TEST_F(DatasetTest, ReadsIdxNpyNpzByName) {
  std::string image = folder_.put("i=m:age.idx", images_), label = folder_.put("l.gz", gzip(labels_));
  expect_images_and_labels("idx:image=" + image + ",label=" + label);
  expect_images_and_labels("idx:limit=2,label=" + label + ",image=" + image, 2);
  std::string image_npy = npy("|u1", "(3, 4)", pixels_),
              label_npy = npy("<i8", "(3, 1)", raw<int64_t>({2, 0, 1}));
  expect_images_and_labels("npy:label=" + folder_.put("l.npy", label_npy) +
                           ",image=" + folder_.put("i.npy", gzip(image_npy)));
  std::string both = zip({{"other.npy", "damaged, but not asked for"},
                          {"label.npy", label_npy},
                          {"image.npy", image_npy, true}});
  expect_images_and_labels("npz:" + folder_.put("b.npz", both));
}

TEST_F(DatasetTest, ReadsCsv) {
  std::string file = folder_.put("f.csv", "a,b,class,c,d\n0.5,1,2,2,3\n4,5,0,6,7\n");
  Dataset data;
  for (std::string label : {"class", "2"}) {
    ASSERT_EQ(load_dataset("csv:" + file + ",label=" + label, image_label_plan(), data).text(), "");
    EXPECT_EQ(values<double>(data.columns[0].bytes), (std::vector<double>{.5, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(values<double>(data.columns[1].bytes), (std::vector<double>{2, 0}));
  }
  Plan regression = image_label_plan();
  regression.inputs[1].dtype = DType::f32;
  regression.inputs[1].range.reset();
  ASSERT_EQ(load_dataset("csv:" + file + ",label=a", regression, data).text(), "");
  EXPECT_EQ(values<double>(data.columns[1].bytes), (std::vector<double>{.5, 4}));
  // The column of the target's name is the target.
  const std::string own = folder_.put("own.csv", "a,b,c,d,label\n1,2,3,4,5\n");
  ASSERT_EQ(load_dataset("csv:" + own, regression, data).text(), "");
  EXPECT_EQ(values<double>(data.columns[1].bytes), (std::vector<double>{5}));
  EXPECT_EQ(error("csv:" + file), file + ": say which column is the input \"label\": csv:" + file +
                                      ",label=COLUMN (it has \"a\", \"b\", \"class\", \"c\" and \"d\")");
  EXPECT_EQ(error("csv:" + file + ",label=clas"), file +
                                                      ": has no column \"clas\"; did you mean \"class\"? (it "
                                                      "has \"a\", \"b\", \"class\", \"c\" and \"d\")");
  EXPECT_EQ(error("csv:" + file + ",label=a"),
            file + ":2: 0.5 is no whole number, which the input \"label\" needs");
  EXPECT_EQ(error("csv:" + file + ",label=d"),
            file + ":2: the value 3 is not valid for the input \"label\": it takes 0 to 2");
  Plan alone = image_label_plan();
  alone.inputs.pop_back();
  EXPECT_EQ(error("csv:" + file + ",label=a", alone),
            file + ": label=a is given, but the model has no second input to take it");
  EXPECT_EQ(
      error("csv:" + file, alone),
      file +
          ": 5 columns are left for the input \"image\", which takes 4: \"a\", \"b\", \"class\", \"c\" and "
          "\"d\". drop=COLUMN leaves one out (by its name or its number, from 0), and `inputs.image.shape = "
          "[5]` takes "
          "them all");
}

// table: f32 [2]; city: i32 [] of range 5; label: i32 [] of range 3.
Plan table_plan() {
  Plan plan = image_label_plan();
  plan.inputs[0].name = "table";
  plan.inputs[0].shape = {2};
  PlanInput city = plan.inputs[1];
  city.name = "city";
  city.range = 5;
  plan.inputs.insert(plan.inputs.begin() + 1, city);
  return plan;
}

struct Loaded {
  std::string error;
  std::vector<std::string> remarks;
  std::vector<double> features;
};

Loaded load(const std::string& spec, DataFacts& facts, DataUse use = DataUse::evaluation,
            const Plan& plan = table_plan()) {
  Dataset data;
  Loaded result;
  result.error = load_dataset(spec, plan, use, facts, data).text();
  result.remarks = data.remarks;
  if (result.error.empty()) result.features = values<double>(data.columns[0].bytes);
  return result;
}

TEST_F(DatasetTest, CsvColumnsGoByName) {
  DataFacts facts;
  const std::string first = folder_.put("first.csv", "a,city,kind,b\n1,4,2,2\n3,0,1,4\n");
  Loaded train = load("csv:" + first + ",label=kind", facts, DataUse::training);
  EXPECT_EQ(train.error, "");
  EXPECT_EQ(train.features, (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(facts["table"].columns, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(facts["table"].fill, (std::vector<double>{2, 3}));
  const std::string turned = folder_.put("turned.csv", "b,kind,a,city\n2,2,1,4\n4,1,3,0\n");
  Loaded eval = load("csv:" + turned + ",label=kind", facts);
  EXPECT_EQ(eval.error, "");
  EXPECT_EQ(eval.features, train.features);
  EXPECT_EQ(eval.remarks,
            (std::vector<std::string>{
                "note: " + turned +
                ": its columns stand in another order than in training, and are taken by name"}));
  const auto error = [&](const std::string& text, const std::string& label = "kind") {
    return load("csv:" + folder_.put("f.csv", text) + ",label=" + label, facts).error;
  };
  const std::string is =
      folder_.path("f.csv") + ": its columns are not those that the model was trained on: ";
  EXPECT_EQ(error("a,city,kind,c\n1,4,2,2\n"), is + "it has no \"b\"; \"c\" was not there");
  EXPECT_EQ(error("a,city,kind\n1,4,2\n"), is + "it has no \"b\"");
  EXPECT_EQ(error("a,city,kind,b,c,d\n1,4,2,2,2,2\n"), is + "\"c\" and \"d\" were not there");
  EXPECT_EQ(error("a,town,kind,b\n1,4,2,2\n"), is + "\"town\" was not there");
  EXPECT_EQ(error("a,city,label,b,kind\n1,4,2,2,1\n"),
            folder_.path("f.csv") +
                ": label=kind is given, but the input \"city\" takes the column of its own name");
  EXPECT_EQ(error("a,city,label,b\n1,4,2,2\n", "label"), "") << "the input of that name takes it anyway";
}

TEST_F(DatasetTest, CsvIsSplitByRows) {
  std::string text = "a,city,label,b\n";
  for (int i = 0; i < 25; ++i) text += fmt::format("{},0,0,0\n", i);
  const std::string spec = "csv:" + folder_.put("f.csv", text);
  const auto rows = [&](const std::string& options) {
    DataFacts facts;
    std::vector<double> all = load(spec + options, facts, DataUse::training).features, rows;
    for (size_t i = 0; i < all.size(); i += 2) rows.push_back(all[i]);
    return rows;
  };
  EXPECT_EQ(rows("").size(), 25u);
  EXPECT_EQ(rows(",split=test"), (std::vector<double>{9, 19}));
  EXPECT_EQ(rows(",split=test,limit=1"), (std::vector<double>{9}));
  const std::vector<double> train = rows(",split=train");
  EXPECT_EQ(train.size(), 23u);
  EXPECT_EQ(std::count(train.begin(), train.end(), 19.0), 0);
}

TEST_F(DatasetTest, CsvGapsAreFilledOrLeftOut) {
  const std::string path = folder_.put("f.csv", "a,city,label,b\n1,0,0,NA\n3,0,1,\n8,0,2,6\n,0,2,9\n");
  const std::string spec = "csv:" + path;
  DataFacts facts;
  EXPECT_EQ(
      load(spec, facts, DataUse::training).error,
      path +
          ":2: column 4 (\"b\"): \"NA\" is no number; missing=mean fills it in, missing=drop leaves the "
          "line out");
  Loaded dropped = load(spec + ",missing=drop", facts = {}, DataUse::training);
  EXPECT_EQ(dropped.features, (std::vector<double>{8, 6}));
  EXPECT_EQ(dropped.remarks[0], "note: " + path + ": 3 of 4 lines have a missing field and are left out");
  Loaded filled = load(spec + ",missing=mean", facts = {}, DataUse::training);
  EXPECT_EQ(filled.features, (std::vector<double>{1, 7.5, 3, 7.5, 8, 6, 4, 9}));
  EXPECT_EQ(filled.remarks[0], "note: " + path + ": 3 missing fields have their column's mean of training");
  const std::string later = folder_.put("g.csv", "a,city,label,b\n,0,0,\n");
  EXPECT_EQ(load("csv:" + later + ",missing=mean", facts).features, (std::vector<double>{4, 7.5}));
  EXPECT_EQ(load("csv:" + later + ",missing=mean", facts = {}).error,
            later + ": column 1 (\"a\"): a field is missing, and no training data have given a mean for it");
  const std::string label = folder_.put("h.csv", "a,city,label,b\n1,0,,2\n");
  EXPECT_EQ(load("csv:" + label + ",missing=mean", facts = {}, DataUse::training).error,
            label +
                ":2: column 3 (\"label\"): the field is missing, and no mean stands for the input \"label\"; "
                "missing=drop leaves the line out");
  EXPECT_EQ(load("csv:" + later + ",missing=mean", facts = {}, DataUse::training).error,
            later + ": column 1 (\"a\"): every field is missing, so there is no mean for missing=mean");
  EXPECT_EQ(load("csv:" + folder_.put("i.csv", "a,city,label,b\n1,0,0,inf\n") + ",missing=mean", facts = {},
                 DataUse::training)
                .error,
            folder_.path("i.csv") + ":2: column 4 (\"b\"): inf is not finite");
}

// Only axes of extent 1 may differ: another order of axes has as many elements, and means something else.
TEST_F(DatasetTest, ShapesMustAgree) {
  Plan plan = image_label_plan();
  plan.inputs.pop_back();
  plan.inputs[0].shape = {3, 2, 4};
  const auto with = [&](const std::string& shape) {
    return error("npy:image=" + folder_.put("i.npy", npy("|u1", shape, std::string(24, '\1'))), plan);
  };
  const std::string is = folder_.path("i.npy") + ": a sample is ";
  for (const char* shape : {"(1, 3, 2, 4)", "(1, 24)", "(1, 3, 1, 2, 4)", "(1, 24, 1)"})
    EXPECT_EQ(with(shape), "") << shape;
  EXPECT_EQ(with("(1, 2, 4, 3)"),
            is + "[2, 4, 3], but the input \"image\" takes [3, 2, 4]: HWC? permute to CHW (in numpy: "
                 "x.transpose(0, 3, 1, 2))");
  EXPECT_EQ(
      with("(1, 3, 4, 2)"),
      is + "[3, 4, 2], but the input \"image\" takes [3, 2, 4]; only axes of extent 1 may differ, or one of "
           "them be flat");
  EXPECT_EQ(with("(1, 6, 4)"),
            is + "[6, 4], but the input \"image\" takes [3, 2, 4]; only axes of extent 1 may "
                 "differ, or one of them be flat");
  plan.inputs[0].shape = {24};
  EXPECT_EQ(with("(1, 2, 4, 3)"), "");
}

TEST_F(DatasetTest, PixelsThatAreNotScaledAreSaid) {
  Plan plan = image_label_plan();
  plan.inputs.pop_back();
  const std::string u8 = "npy:image=" + folder_.put("u.npy", npy("|u1", "(1, 2, 2)", "abcd"));
  const std::string i32 = folder_.put("i.npy", npy("<i4", "(1, 2, 2)", raw<int32_t>({0, 9, 255, 1})));
  const std::string f32 = folder_.put("f.npy", npy("<f4", "(1, 2, 2)", raw<float>({0, 9, 255, 1})));
  const std::string low = folder_.put("l.npy", npy("<i4", "(1, 2, 2)", raw<int32_t>({0, 1, 1, 1})));
  const auto remarks = [&](const std::string& first, const std::string& second) {
    DataFacts facts;
    std::vector<std::string> all = load(first, facts, DataUse::training, plan).remarks;
    for (std::string& remark : load(second, facts, DataUse::evaluation, plan).remarks)
      all.push_back(std::move(remark));
    return all;
  };
  const std::string spec = "npy:image=";
  const std::string scaled =
      "note: " + folder_.path("u.npy") + ": u8 is scaled by 1/255 for the input \"image\"";
  EXPECT_EQ(remarks(u8, u8), std::vector<std::string>{scaled});
  EXPECT_EQ(remarks(spec + low, spec + low), std::vector<std::string>());
  EXPECT_EQ(remarks(spec + f32, u8), std::vector<std::string>());
  EXPECT_EQ(remarks(u8, spec + i32),
            (std::vector<std::string>{
                scaled, "warning: " + i32 +
                            ": i32 up to 255 for the input \"image\" is taken as it is, and the u8 that "
                            "it was trained on is scaled by 1/255"}));
  EXPECT_EQ(remarks(u8, spec + f32).size(), 2u);
  EXPECT_EQ(
      remarks(spec + i32, u8),
      (std::vector<std::string>{
          "warning: " + i32 +
              ": i32 up to 255 for the input \"image\" is taken as it is, where u8 would be scaled by 1/255",
          "warning: " + folder_.path("u.npy") +
              ": u8 is scaled by 1/255, and the i32 that the input \"image\" was trained on is not"}));
}

TEST_F(DatasetTest, ProbabilitiesAreFromZeroToOne) {
  Plan plan = image_label_plan();
  plan.inputs.pop_back();
  plan.inputs[0].shape = {2};
  plan.inputs[0].probability = true;
  const auto with = [&](const std::string& array) {
    return error("npy:image=" + folder_.put("t.npy", array), plan);
  };
  EXPECT_EQ(with(npy("<f4", "(2, 2)", raw<float>({0, 1, 0.25, 1}))), "");
  EXPECT_EQ(with(npy("|u1", "(2, 2)", "abcd")), "");  // scaled
  EXPECT_EQ(with(npy("<i4", "(2, 2)", raw<int32_t>({0, 1, 1, 9}))),
            folder_.path("t.npy") +
                ": sample 1 at [1]: 9 is no target of bce_with_logits: the input \"image\" takes 0 to 1. "
                "Classes by "
                "number are cross_entropy's");
  EXPECT_NE(with(npy("<f4", "(2, 2)", raw<float>({0, -0.5, 0, 0}))).find("sample 0"), std::string::npos);
}

// Mean and population deviation along the first axis, in double.
TEST_F(DatasetTest, StatisticsOfTheData) {
  Plan plan = image_label_plan();
  plan.inputs.pop_back();
  plan.inputs[0].normalize_data = true;
  DataFacts facts;
  const std::string u8 = "npy:image=" + folder_.put("u.npy", npy("|u1", "(2, 2, 2)", "\1\2\7\7\3\5\7\7"));
  Dataset data;
  ASSERT_EQ(load_dataset(u8, plan, DataUse::training, facts, data).text(), "");
  const InputFacts& known = facts["image"];
  EXPECT_NEAR(known.mean[0], 2.75 / 255, 1e-17);
  EXPECT_NEAR(known.std[0], std::sqrt(8.75 / 4) / 255, 1e-17);
  EXPECT_EQ(known.mean[1], 7.0 / 255);
  EXPECT_EQ(known.std[1], 1);
  std::vector<std::byte> batch(32);
  EXPECT_TRUE(data.gather(0, plan.inputs[0], std::vector<int64_t>{0, 1}, batch));
  const std::vector<float> got = values<float>(batch);
  EXPECT_EQ(got[0], (1 / 255.0f - static_cast<float>(known.mean[0])) / static_cast<float>(known.std[0]));
  EXPECT_EQ(got[2], 0);
  // Kept as text, and used for what comes later.
  DataFacts back;
  ASSERT_EQ(read_facts(to_metadata(facts), "w", plan, back).text(), "");
  EXPECT_EQ(back["image"].mean, known.mean);
  EXPECT_EQ(back["image"].std, known.std);
  const std::string other = "npy:image=" + folder_.put("v.npy", npy("|u1", "(1, 2, 2)", "abcd"));
  ASSERT_EQ(load_dataset(other, plan, DataUse::evaluation, back, data).text(), "");
  EXPECT_EQ(data.columns[0].mean, known.mean);
  ASSERT_EQ(load_dataset(other, plan, DataUse::training, back, data).text(), "");
  EXPECT_EQ(data.columns[0].mean, known.mean);
  DataFacts none;
  plan.inputs[0].predict_offset = 0;
  for (const auto& [use, first] :
       {std::pair(DataUse::evaluation, "give --data, "), {DataUse::prediction, ""}})
    EXPECT_EQ(
        load_dataset(other, plan, use, none, data).text(),
        fmt::format(
            "{}: the input \"image\" is normalised by its training data, and nothing says how: {}--load "
            "a file that gacc-exec has saved after training, or state normalize = {{ mean = [...], std "
            "= [...] }} of the input in the model file",
            folder_.path("v.npy"), first));
}

TEST(Facts, MetadataMustFit) {
  Plan plan = table_plan();
  const auto error = [&](const std::string& what, const std::string& value) {
    DataFacts facts;
    return read_facts({{"gacc.inputs.table." + what, value}}, "w", plan, facts).text();
  };
  EXPECT_EQ(error("columns", R"(["a","b"])"), "");
  EXPECT_EQ(error("others", "]"), "") << "not ours";
  const auto refused = [](const std::string& what) {
    return "w: its metadata \"gacc.inputs.table." + what + "\" does not fit the input \"table\" [2]";
  };
  for (const char* text : {R"(["a"])", R"(["a",1])", "[", "{}", R"("ab")", "", "[[]]"})
    EXPECT_EQ(error("columns", text), refused("columns")) << text;
  for (const char* text : {"[1]", "[1,2,3]", R"(["1","2"])", "[1,1e39]", "[1,null]", "7"})
    EXPECT_EQ(error("mean", text), refused("mean")) << text;
  EXPECT_EQ(error("mean", "[1,2]"), refused("std"));
  EXPECT_EQ(error("fill", "[1,2]"), refused("fill"));
}

TEST_F(DatasetTest, MismatchesAreNamed) {
  std::string image = folder_.put("i", images_), label = folder_.put("l", labels_);
  EXPECT_EQ(error("idx:image=" + image),
            "data \"idx:image=" + image + "\": nothing is given for the input \"label\", only for \"image\"");
  EXPECT_EQ(
      error("idx:imgae=" + image),
      image + ": the model has no input \"imgae\"; did you mean \"image\"? (it has \"image\" and \"label\")");
  EXPECT_EQ(error("idx:image=" + label + ",label=" + label),
            label + ": a sample is [], 1 element, but the input \"image\" takes [2, 2], 4 elements");
  std::string four = folder_.put("four", idx_header(0x08, {4}) + "\1\1\1\1");
  EXPECT_EQ(error("idx:image=" + image + ",label=" + four), four + " has 4 samples, but " + image + " has 3");
  std::string none = folder_.put("none", idx_header(0x08, {0}));
  EXPECT_EQ(error("idx:image=" + none + ",label=" + none), none + ": holds no samples");
  EXPECT_EQ(
      error("npz:" + folder_.put("z", zip({{"images.npy", ""}, {"label.npy", npy("|u1", "(1,)", "x")}}))),
      folder_.path("z") +
          ": holds no array \"image\"; did you mean \"images\"? (it has \"images\" and \"label\")");
}

TEST_F(DatasetTest, IntegersMustFit) {
  Plan plan = image_label_plan();
  plan.inputs.erase(plan.inputs.begin());
  auto with = [&](const std::string& descr, const std::string& data) {
    return error("npy:label=" + folder_.put("l.npy", npy(descr, "(3,)", data)), plan);
  };
  std::string at = folder_.path("l.npy") + ": sample ";
  EXPECT_EQ(with("|u1", std::string("\1\2\3", 3)),
            at + "2: the value 3 is not valid for the input \"label\": it takes 0 to 2");
  EXPECT_EQ(with("<f4", raw<float>({0, 1, 2})), "");
  EXPECT_EQ(with("<f4", raw<float>({0, .5f, 2})),
            at + "1: 0.5 is no whole number, which the input \"label\" needs");
  EXPECT_EQ(with("<f8", raw<double>({0, NAN, 2})),
            at + "1: nan is no whole number, which the input \"label\" needs");
  EXPECT_EQ(with("<i4", raw<int32_t>({0, -1, 5})),
            at + "1: the value -1 is not valid for the input \"label\": it takes 0 to 2");
  plan.inputs[0].ignore_index = -1;
  EXPECT_EQ(
      with("<i4", raw<int32_t>({0, -1, 5})),
      at + "2: the value 5 is not valid for the input \"label\": it takes 0 to 2, and -1 to be ignored");
  plan.inputs[0].range.reset();
  EXPECT_EQ(with("<i8", raw<int64_t>({0, 1, int64_t{1} << 31})),
            at + "2: 2147483648 does not fit into 32 bits, which the input \"label\" has");
  EXPECT_EQ(with("<i8", raw<int64_t>({0, 1, -(int64_t{1} << 31)})), "");
}

// Nothing that is not finite as f32 reaches a model: an error names the file, the sample and the element.
TEST_F(DatasetTest, FloatsMustBeFinite) {
  Plan plan = image_label_plan();
  plan.inputs.pop_back();  // image [2, 2] alone
  const std::string takes = ", and the input \"image\" takes finite f32";
  auto with = [&](const std::string& descr, const std::string& data) {
    return error("npy:image=" + folder_.put("i.npy", npy(descr, "(2, 4)", data)), plan);
  };
  const std::string at = folder_.path("i.npy") + ": sample ";
  EXPECT_EQ(with("<f4", raw<float>({0, 1, 2, 3, 4, NAN, 6, 7})), at + "1 at [1]: nan is not finite" + takes);
  EXPECT_EQ(with("<f8", raw<double>({0, 1, 1e39, 3, 4, 5, 6, 7})),
            at + "0 at [2]: 1e+39 is beyond the largest f32" + takes);
  EXPECT_EQ(with(">f8", raw<double>({0, 1, 2, 3, 4, 5, 6, 7})), "") << "denormal in the other byte order";
  EXPECT_EQ(with("<f8", raw<double>({3.4028235e38, -3.4028235e38, 1e-300, 3, 4, 5, 6, 7})), "");
  EXPECT_EQ(with("<f2", raw<uint16_t>({0, 0, 0, 0, 0, 0, 0, 0xfc00})),
            at + "1 at [3]: -inf is not finite" + takes);
  EXPECT_EQ(with("<i8", raw<int64_t>({0, 1, 2, 3, 4, 5, 6, INT64_MAX})), "");
  const std::string deep = npy("<f4", "(2, 2, 2)", raw<float>({0, 1, 2, 3, 4, INFINITY, 6, 7}));
  EXPECT_EQ(error("npz:" + folder_.put("i.npz", zip({{"image.npy", deep, true}})), plan),
            folder_.path("i.npz") + ":\"image\": sample 1 at [0, 1]: inf is not finite" + takes);
  const std::string idx =
      idx_header(0x0d, {1, 2, 2}) + std::string("\0\0\0\0\0\0\0\0\0\0\0\0\x7f\xc0\0\0", 16);
  EXPECT_EQ(error("idx:image=" + folder_.put("i.idx", idx), plan),
            folder_.path("i.idx") + ": sample 0 at [1, 1]: nan is not finite" + takes);
  // What the limit leaves out is not looked at.
  const std::string late = folder_.put("i.npy", npy("<f4", "(2, 4)", raw<float>({0, 1, 2, 3, 4, NAN, 6, 7})));
  EXPECT_EQ(error("npy:image=" + late + ",limit=1", plan), "");
}

TEST_F(DatasetTest, CsvFieldsMustBeFinite) {
  Plan plan = image_label_plan();
  plan.inputs[1].dtype = DType::f32;
  plan.inputs[1].range.reset();
  const auto with = [&](const std::string& row) {
    return "csv:" + folder_.put("f.csv", "a,b,y,c,d\n0,1,2,3,4\n\n" + row + "\n") + ",label=y";
  };
  const std::string at = folder_.path("f.csv") + ":4: column ";
  EXPECT_EQ(error(with("0,nan,2,3,4"), plan), at + "2 (\"b\"): nan is not finite");
  EXPECT_EQ(error(with("0,1,2,-1e39,4"), plan), at + "4 (\"c\"): -1e+39 is beyond the largest f32");
  EXPECT_EQ(error(with("0,1,inf,3,4"), plan), at + "3 (\"y\"): inf is not finite");
  EXPECT_EQ(error(with("0,1,1e999,3,4"), plan), at + "3 (\"y\"): inf is not finite");
  EXPECT_EQ(error(with("0,1,3.4e38,1e-999,4"), plan), "");
  EXPECT_EQ(error(with("0,nan,2,3,4") + ",limit=1", plan), "");
}

TEST(Spec, ErrorsTellWhatIsKnown) {
  EXPECT_EQ(
      error("mnits:/x"),
      "data \"mnits:/x\": unknown kind \"mnits\"; did you mean \"mnist\"? (known are mnist:, idx:, npy:, "
      "npz:, csv:, tokens:, text:, synthetic:; gacc-exec --list-data says their forms)");
  EXPECT_EQ(error("some.csv"),
            "data \"some.csv\": a SPEC says what the file is: did you mean csv:some.csv,label=COLUMN?");
  EXPECT_EQ(error("mnist"), "data \"mnist\": mnist: needs more; its form is mnist:DIR[,split=train|test]");
  EXPECT_EQ(error("mnist:x,spilt=test"),
            "data \"mnist:x,spilt=test\": unknown option \"spilt\"; did you mean \"split\"? (mnist takes "
            "\"split\" and \"limit\")");
  EXPECT_EQ(error("mnist:x,split=tset"),
            "data \"mnist:x,split=tset\": split is train or test, not \"tset\"; did you mean \"test\"?");
  EXPECT_EQ(error("npz:x,limit=0"),
            "data \"npz:x,limit=0\": limit must be a whole number from 1 on, not \"0\"");
  EXPECT_EQ(error("npz:x,limit=2,limit=3"), "data \"npz:x,limit=2,limit=3\": \"limit\" is given twice");
  EXPECT_EQ(error("npy:a=x,a=y"), "data \"npy:a=x,a=y\": \"a\" is given twice");
  EXPECT_EQ(error("npy:x"),
            "data \"npy:x\": \"x\" is not of the form NAME=FILE (a path cannot hold a comma)");
  EXPECT_EQ(error("npy:limit=3"),
            "data \"npy:limit=3\": names no file; the form is npy:NAME=FILE,...[,split=train|test]");
  EXPECT_EQ(error("npz:x,"), "data \"npz:x,\": part 2 is empty; the form is npz:FILE[,split=train|test]");
  EXPECT_EQ(error("synthetic:digit"),
            "data \"synthetic:digit\": synthetic is digits or tokens, not \"digit\"; did you mean "
            "\"digits\"?");
  EXPECT_EQ(error("csv:x,sep=ab"),
            "data \"csv:x,sep=ab\": sep is one character such as ; or |, or tab (a comma needs no sep), not "
            "\"ab\"");
  EXPECT_EQ(error("csv:x,missing=men"),
            "data \"csv:x,missing=men\": missing is error, mean or drop, not \"men\"; did you mean "
            "\"mean\"?");
}

TEST(Spec, APathMayHoldCommasWhereThereIsTheFile) {
  Folder folder;
  const std::string path = folder.put("a,limit=2,b.csv", "x\n1\n");
  const Result<Spec> spec = parse_spec("csv:" + path + ",limit=3");
  ASSERT_TRUE(spec) << spec.status().text();
  EXPECT_EQ(spec->path, path);
  EXPECT_EQ(spec->limit, 3);
  EXPECT_EQ(error("csv:a,b.csv"),
            "data \"csv:a,b.csv\": \"b.csv\" is not of the form OPTION=VALUE; a comma ends the path, unless "
            "there is "
            "a file of the whole name");
}

TEST(Digits, ArePureBalancedAndDisjoint) {
  Plan plan = image_label_plan();
  plan.inputs[0].shape = {1, 28, 28};
  plan.inputs[1].range = 10;
  plan.seed = 3;
  Dataset data, again, test, other;
  ASSERT_EQ(load_dataset("synthetic:digits,limit=500", plan, data).text(), "");
  ASSERT_TRUE(load_dataset("synthetic:digits,limit=200", plan, again));
  ASSERT_TRUE(load_dataset("synthetic:digits,split=test,limit=500", plan, test));
  plan.seed = 4;
  ASSERT_TRUE(load_dataset("synthetic:digits,limit=500", plan, other));
  EXPECT_EQ(data.samples, 500);
  EXPECT_TRUE(std::equal(again.columns[0].bytes.begin(), again.columns[0].bytes.end(),
                         data.columns[0].bytes.begin()));
  EXPECT_NE(data.columns[0].bytes, test.columns[0].bytes);
  EXPECT_NE(data.columns[0].bytes, other.columns[0].bytes);
  std::vector<int> count(10);
  for (uint8_t label : values<uint8_t>(data.columns[1].bytes)) ++count[label];
  for (int n : count) EXPECT_GT(n, 20);
}

// Known answers of the Random123 distribution.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, ~uint64_t{0}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

}  // namespace
}  // namespace gacc::test
