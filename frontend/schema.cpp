#include "frontend/schema.h"

#include "frontend/layer_types.h"
#include "frontend/warnings.h"
#include "ir/schema/optimizer.h"
#include "ir/schema/rate_schedule.h"

namespace gacc::frontend {

namespace {

const ir::Settings defaults;
const Words automatic = {"auto"};
const std::vector<Key> names_of_files = {
    {"rename", Form::table, no_default, "our name = the file's"},
    {"concat", Form::table, no_default,
     "our name = a list of the file's, which lie behind each other along the first axis"},
    {"split", Form::table, no_default, "our name = which parts of one of the file's it is, as below"},
    {"ignore", Form::texts, no_default, "the file's names that are no parameters"}};
const std::vector<Key> of_adapters = {
    {"rank", Form::integer, required, "the columns of B and the rows of A", extent},
    {"alpha", Form::real, no_default, "the product is multiplied by alpha / rank; default: rank", above(0)},
    Key{"on", Form::words, no_default,
        "of attention: which of its products; \"qkv\" is the three as one. Default: [\"qkv\"]"}
        .or_one_of({"qkv", "q", "k", "v", "proj"})};

Key word(std::string_view name, Default fallback, Words words, std::string_view says) {
  return {name, Form::word, std::move(fallback), says, any_number, std::move(words)};
}

}  // namespace

const Table tables::file{
    .name = "a model file",
    .path = "",
    .says = "TOML 1.0. Unknown keys are errors.",
    .keys = {Key{"model", Form::table, required, "name, seed and metrics"}.of(model),
             {"inputs", Form::table, required, "one table `[inputs.NAME]` for each input"},
             {"layers", Form::tables, required, "the layers, in order"},
             Key{"loss", Form::table, required, "what is minimised"}.of(loss),
             Key{"predict", Form::table, no_default, "what predictions are"}.of(predict),
             Key{"train", Form::table, no_default, "batches, epochs and clipping"}.of(train),
             Key{"optimizer", Form::table, required, "how parameters move"}.of(optimizer),
             Key{"schedule", Form::table, no_default, "how the rate changes"}.of(schedule),
             Key{"precision", Form::table, no_default, "half precision, loss scaling"}.of(precision),
             Key{"recompute", Form::table, no_default, "what is computed twice"}.of(recompute),
             Key{"launch", Form::table, no_default, "how a GPU runs the step"}.of(launch),
             Key{"memory", Form::table, no_default, "how large the step may be"}.of(memory),
             Key{"load", Form::table, no_default, "what weights from elsewhere are called"}.of(load),
             Key{"gguf", Form::table, no_default, "what weights of a GGUF are called"}.of(gguf),
             Key{"lora", Form::table, no_default, "low-rank adapters of many layers"}.of(adapters)}};

const Table tables::model{
    .path = "model",
    .says = "What the model is called, how it starts, and what evaluations measure.",
    .keys = {{"name", Form::text, required, "the model's name, 1 to 100 characters"},
             {"seed", Form::integer, defaults.model.seed,
              "of initial values, dropout and the order of samples", at_least(0)},
             {"metrics", Form::metrics, no_default, "what evaluations measure besides the loss"},
             Key{"allow", Form::words, no_default, "warnings of the compiler that are not wanted"}.or_one_of(
                 warning_names())},
    .example = "name = \"digits\"\nmetrics = [\"accuracy\"]"};

const Table tables::input{
    .path = "inputs.NAME",
    .says = "An array of the data, one row a sample. The first one feeds the first layer.",
    .keys = {{"shape", Form::integers, no_default,
              "of one sample; without it a sample is one number. Images are [channels, height, width]",
              extent, Words(), kMaxRank},
             word("dtype", "f32", {"f32", "i32"}, "what the step reads; u8 data is scaled by 1/255"),
             {"range", Form::integer, no_default,
              "i32: the data's values are 0 to range - 1; other data is an error", extent},
             Key{"normalize", Form::table, no_default,
                 "f32: subtract a mean and divide by a deviation; \"data\" takes those of the training data"}
                 .or_one_of({"data"})
                 .of(normalize),
             {"values", Form::texts, no_default,
              "i32: texts that stand for 0, 1, 2 ... in data, such as the names of classes"},
             Key{"columns", Form::tables, no_default, "f32: columns of texts in a csv file"}.of(column)},
    .example = "shape = [784]\nnormalize = { mean = 0.5, std = 0.5 }"};

const Table tables::normalize{
    .name = "`normalize`",
    .path = "inputs.NAME.normalize",
    .says = "Numbers, or one for each index of the sample's first axis.",
    .keys = {{"mean", Form::real_or_reals, required, "what is subtracted"},
             {"std", Form::real_or_reals, required, "what it is then divided by; not 0"}}};

const Table tables::column{
    .name = "`columns`",
    .path = "inputs.NAME.columns",
    .says =
        "A column of texts: each of its values is an element of the input, one where it stands and else "
        "zero.",
    .keys = {{"name", Form::text, required, "what the file's header calls it"},
             {"values", Form::texts, required, "its texts, in the order of the elements"}}};

const Table tables::layer{
    .name = "a layer",
    .path = "layers",
    .says =
        "In order: a layer takes the output of the one before, unless it names inputs. The first one takes "
        "the first input.",
    .keys =
        {{"name", Form::text, no_default,
          "1 to 100 characters, no dots; default: TYPE_N, N counting the unnamed layers of that type"},
         {"input", Form::text, no_default, "the layer or input whose output it takes"},
         {"inputs", Form::texts, no_default, "the same as a list; layers of several inputs need it"},
         Key{"init", Form::table, "default", "how the weight starts; default: as in PyTorch"}
             .or_one_of(starts)
             .of(init),
         Key{"bias_init", Form::table, "default", "how the bias starts"}.or_one_of(starts).of(init),
         {"trainable", Form::flags, true,
          "false: its parameters stay as they are; of a block with `repeat` also a list, one for each copy"},
         {"recompute", Form::flag, false, "under recompute.policy \"marked\": compute it again"},
         word("precision", no_default, {"f32"}, "\"f32\": keep it out of half precision")},
    .types = schemas_of(all_layers())};

const Table tables::init{
    .name = "an initialiser",
    .path = "layers.init",
    .says = "A distribution. One of the two keys.",
    .keys = {{"normal", Form::real, no_default, "normal numbers of this deviation", at_least(0)},
             {"uniform", Form::real, no_default, "uniform numbers from -x to x", at_least(0)}}};

const Table tables::rope{
    .name = "`rope`",
    .path = "layers.rope",
    .says =
        "Of `attention`: the rotary positions of queries and keys. Channel pair i of a head is turned by t "
        "theta^(-2 i / n) at position t, n = partial * head_dim.",
    .keys = {
        {"theta", Form::real, 10000.0, "the base", at_least(1)},
        {"partial", Form::real, 1.0, "the part of a head's channels that is turned, from the first one on",
         upper_fraction},
        word("layout", "half", {"half", "interleaved"},
             "what a pair is: channels i and i + n / 2, or 2 i and 2 i + 1"),
        Key{"scaling", Form::table, no_default, "longer windows than it was trained on"}.of(rope_scaling)}};

const Table tables::qk_norm{
    .name = "`qk_norm`",
    .path = "layers.qk_norm",
    .says =
        "Of `attention`: each head of queries and of keys by the root of its mean square, before rotary "
        "positions; q_norm.weight and k_norm.weight [head_dim].",
    .keys = {
        norm_eps_key, norm_offset_key,
        word("over", "head", {"head", "all"},
             "\"all\": queries of all heads together, and keys; weights [heads * head_dim] and [kv_heads "
             "* head_dim]")}};

const Table tables::lora{
    .name = "`lora`",
    .path = "layers.lora",
    .says =
        "Of `linear` and `attention`: y += alpha / rank * B A x, with trained `NAME.lora_A.weight` [rank, "
        "in], which starts as PyTorch's linear, and `NAME.lora_B.weight` [out, rank], zeros. With any of it "
        "all other parameters are frozen unless they say `trainable = true`.",
    .keys = of_adapters};

const Table tables::loss{
    .path = "loss",
    .says =
        "The loss of an update is the mean over all counted elements of its window, whatever the sizes of "
        "its micro-batches.",
    .keys = {{"target", Form::text, required, "the input that the output is compared with"},
             {"input", Form::text, no_default, "the layer whose output it takes; default: the last one"},
             {"chunks", Form::integer, no_default,
              "into how many parts the last layer and the loss are cut; default: chosen", extent}},
    .types = schemas_of(all_losses())};

const Table tables::predict{
    .path = "predict",
    .says = "What `gacc-exec --predict` and `--generate` ask the model for.",
    .keys = {{"layer", Form::text, no_default, "default: the layer that the loss takes"},
             word("form", defaults.predict.form,
                  {ir::kOutputForms[0], ir::kOutputForms[1], ir::kOutputForms[2]},
                  "what is made of the loss's logits: nothing, probabilities, or the number of the class")
                 .unsaid()},
    .example = "layer = \"head\""};

const Table tables::train{
    .path = "train",
    .says = "How samples make an update: `accumulate` micro-batches of `micro_batch` samples.",
    .keys =
        {{"micro_batch", Form::integer, defaults.train.micro_batch, "samples in a launch; \"auto\" chooses",
          extent, automatic},
         {"accumulate", Form::integer, defaults.train.accumulate, "launches in an update; \"auto\" chooses",
          extent, automatic},
         Key{"lanes", Form::integer, defaults.train.lanes,
             "into how many sums, which a tree adds, the launches of an update are dealt; a power of two, at "
             "most `accumulate`. As many ranks can share an update; docs/ranks.md",
             extent}
             .unsaid(),
         Key{"ranks", Form::integer, defaults.train.ranks,
             "the fewest ranks that run it: more of them need less memory for the lanes; at most `lanes`; "
             "\"auto\": the fewest that fit memory.budget",
             extent, automatic}
             .unsaid(),
         {"effective_batch", Form::integer, no_default,
          "samples in an update; needed when one of the two is \"auto\"", extent},
         word("tail", defaults.train.tail, {"flush", "drop", "carry"},
              "the rest of an epoch: update with it, leave it out, or go on with it in the next epoch"),
         {"epochs", Form::integer, defaults.train.epochs, "how often the data is gone through", extent},
         {"shuffle", Form::flag, defaults.train.shuffle, "another order of samples in each epoch"},
         {"clip_norm", Form::real, no_default, "the largest norm of the whole gradient", above(0)},
         {"documents", Form::integer, no_default,
          "for estimates: the positions of a document (attention.documents), on average; default: the "
          "window's",
          extent},
         word("require", no_default, {"exact", "bits"},
              "\"exact\": an update that is not the one big batch's is an error; \"bits\": also, weights "
              "have the "
              "same bits for every micro_batch x accumulate of one effective batch (docs/training.md)")},
    .example = "micro_batch = 32\naccumulate = 4\nepochs = 2"};

const Table tables::optimizer{
    .path = "optimizer",
    .says = "With w a parameter, g its mean gradient of the update, clipped, and lr the rate.",
    .keys = {{"lr", Form::real, defaults.optimizer.lr, "the rate", at_least(0)},
             word("decay", defaults.optimizer.decay, {"all", "matrices"},
                  "what weight_decay is for; \"matrices\": parameters of two axes or more")
                 .unsaid(),
             word("lr_scaling", defaults.optimizer.lr_scaling, {"none", "linear", "sqrt"},
                  "multiply lr by effective batch / reference_batch, or its root")
                 .unsaid(),
             {"reference_batch", Form::integer, no_default,
              "the batch that lr is meant for; needed by lr_scaling", extent},
             Key{"groups", Form::tables, no_default, "other settings for some parameters"}.of(group)},
    .types = schemas_of(ir::all_optimizers())};

const Table tables::group{
    .name = "[[optimizer.groups]]",
    .path = "optimizer.groups",
    .says = "Other settings for some parameters. The first group that matches a parameter has it.",
    .keys = {{"match", Form::texts, required, "patterns of parameters' names: `*` is any text"},
             {"weight_decay", Form::real, no_default, "theirs", at_least(0)},
             {"lr_factor", Form::real, 1.0, "what the rate is multiplied by", at_least(0)},
             {"lr", Form::real, no_default, "the same, as the rate that it makes of optimizer.lr",
              at_least(0)}},
    .example = "match = [\"*.bias\"]\nweight_decay = 0.0"};

const Table tables::schedule{
    .path = "schedule",
    .says = "The rate after t updates, u of them since the warm-up. Skipped updates do not count.",
    .keys = {{"warmup", Form::integer_or_share, defaults.schedule.warmup,
              "while t < warmup the rate is lr (t + 1) / warmup; a share is of total, rounded up",
              count_from_zero},
             word("unit", defaults.schedule.unit, {"updates", "epochs"}, "what t counts").unsaid()},
    .types = ir::all_rate_schedules()};

const Table tables::precision{
    .path = "precision",
    .says = "Half precision between ops; weights, sums of gradients and optimizer state stay f32.",
    .keys = {word("compute", defaults.precision.compute, {"f32", "f16", "bf16"},
                  "the type of what lies between ops"),
             word("frozen", defaults.precision.frozen, {"compute", "q8_0", "q4_0", "q4_1"},
                  "the type of frozen matrices of linear and attention in memory: that of `compute`, "
                  "or ggml's blocks of 32 along the last axis. Frozen embeddings, and heads tied to "
                  "them, are then in q8_0, vectors in f32. What is trained is the function of the "
                  "quantised numbers"),
             Key{"loss_scale", Form::real, no_default, "default: \"dynamic\" with f16, else \"none\"",
                 between(0x1p-100, 0x1p100)}
                 .or_one_of({"dynamic", "none"}),
             {"scale_initial", Form::real, defaults.precision.scale_initial, "dynamic: the first scale",
              between(0x1p-14, 0x1p24)},
             {"scale_growth", Form::real, defaults.precision.scale_growth,
              "dynamic: what good updates multiply it by", above(1)},
             {"scale_backoff", Form::real, defaults.precision.scale_backoff,
              "dynamic: what a skipped update multiplies it by", inner_fraction},
             {"scale_interval", Form::integer, defaults.precision.scale_interval,
              "dynamic: good updates in a row before it grows", extent},
             word("on_nonfinite", no_default, {"error", "skip"},
                  "what a gradient that is not finite does; default: \"skip\" with dynamic scaling, else "
                  "\"error\""),
             {"max_skips", Form::integer, defaults.precision.max_skips,
              "skipped updates in a row that end the run", extent}},
    .example = "compute = \"f16\""};

const Table tables::recompute{
    .path = "recompute",
    .says = "What of the forward pass is dropped and computed again in the backward pass.",
    .keys = {word("policy", no_default, {"none", "all", "sqrt", "marked", "budget", "auto"},
                  "default: \"auto\" with a memory.budget, else \"none\""),
             {"budget", Form::size, no_default, "policy \"budget\": the size that the step must fit"}},
    .example = "policy = \"budget\"\nbudget = \"512MiB\""};

const Table tables::launch{.path = "launch",
                           .says = "How a GPU runs a micro-batch.",
                           .keys = {word("mode", defaults.launch.mode, {"auto", "graph", "persistent"},
                                         "one CUDA graph, one cooperative kernel, or what fits")},
                           .example = "mode = \"graph\""};

const Table tables::memory{
    .path = "memory",
    .says = "The whole step must fit; what is \"auto\" is chosen so that it does.",
    .keys = {{"budget", Form::size, no_default, "such as \"512MiB\" or \"1.5GiB\""},
             Key{"host", Form::size, no_default,
                 "how much of the host's memory optimizer state may have: moments and then f32 masters lie "
                 "there as "
                 "far as `budget` asks; docs/memory.md"}
                 .unsaid(),
             word("shard", defaults.memory.shard, {"none", "optimizer"},
                  "\"optimizer\": exactly train.ranks ranks run it, each with a slice of the moments, of f32 "
                  "masters and of the update; docs/ranks.md")
                 .unsaid()},
    .example = "budget = \"512MiB\""};

const Table tables::load{
    .path = "load",
    .says =
        "How weights from elsewhere are called and lie in their file, for --load, and for --save-as "
        "published. In patterns `{i}` is a number and `*` any text; each means the same on both sides.",
    .keys =
        {names_of_files[0],
         names_of_files[1],
         names_of_files[2],
         {"transpose", Form::texts, no_default,
          "our names of matrices whose axes are exchanged in the file; before `concat` and `split`"},
         {"prefix", Form::text, no_default, "what every name in the file begins with"},
         {"outside", Form::texts, no_default,
          "our names of parameters whose names in the file are without `prefix`"},
         names_of_files[3],
         {"family", Form::text, no_default,
          "the family that this model file is read by, as `gaccc FOLDER --emit toml` writes it: `--load` "
          "reads a folder's config.json, or a GGUF's metadata, by it, and compares. A name, or the text of "
          "one that is not built in"},
         {"modules", Form::table, no_default,
          "the file's name of a module = PEFT's, where its model calls it otherwise: of adapters' files"},
         {"config", Form::table, no_default,
          "keys of a folder's config.json that this model file answers for, and their values: `--load` of "
          "the folder compares them"},
         {"part", Form::flag, defaults.load.part, "true: parameters that the file lacks keep their start"}},
    .example = "rename = { \"fc{i}.weight\" = \"layers.{i}.weight\" }\ntranspose = [\"fc1.weight\"]"};

const Table tables::gguf{.path = "gguf",
                         .says =
                             "How weights are called and lie in a GGUF, for --load, --save and "
                             "--save-adapter of such a file; patterns as "
                             "those of `[load]`.",
                         .keys = {names_of_files[0],
                                  names_of_files[1],
                                  names_of_files[2],
                                  {"interleave", Form::table, no_default,
                                   "the file's name = the rows of a head, in which row i of the second half "
                                   "of ours follows row i of the "
                                   "first"},
                                  {"shift", Form::table, no_default,
                                   "our name = what the file's numbers have more than ours: 1 of norms whose "
                                   "`offset` the file has added to the weight"},
                                  names_of_files[3]},
                         .example =
                             "rename = { \"fc{i}.weight\" = \"blk.{i}.ffn_up.weight\" }\n"
                             "interleave = { \"blk.{i}.attn_q.weight\" = 64 }"};

const Table tables::split{
    .path = "load.split.NAME",
    .says =
        "Our parameter is some rows of a tensor of the file. The tensor's rows are `groups` times "
        "those of all `sizes`. Ours are those of `parts`, one part after the other, each of all groups.",
    .keys = {{"tensor", Form::text, required, "the file's name"},
             {"sizes", Form::integers, required, "the rows of each part of the tensor, within a group",
              extent},
             {"parts", Form::integers, required, "which of them are ours, from 0", count_from_zero},
             {"groups", Form::integer, 1, "how often the parts follow each other", extent}},
    .example = "tensor = \"layers.{i}.gate_up.weight\"\nsizes = [64, 64]\nparts = [0]"};

const Table tables::adapters{
    .path = "lora",
    .says = "`lora` for all layers that a pattern names; what a layer says itself counts more.",
    .keys = {{"match", Form::texts, required,
              "patterns of layers' whole names, `*` is any text; those of other types are left out"},
             of_adapters[0],
             of_adapters[1],
             of_adapters[2]},
    .example = "match = [\"h.*\"]\nrank = 8\nalpha = 16\non = [\"q\", \"v\"]"};

const std::vector<const Table*>& all_tables() {
  using namespace tables;
  static const std::vector<const Table*> all = {
      &file,      &model,  &input,  &normalize, &column, &layer,     &init,    &rope,     &rope_scaling,
      &qk_norm,   &lora,   &loss,   &predict,   &train,  &optimizer, &group,   &schedule, &precision,
      &recompute, &launch, &memory, &load,      &gguf,   &split,     &adapters};
  return all;
}

}  // namespace gacc::frontend
