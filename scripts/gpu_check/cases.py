"""The contents of a pack: models with their settings, as data."""
import dataclasses

TARGETS = ("sm_80", "sm_90a")  # in the order of preference from the back: the last that runs on the GPU is taken
MODES = ("graph", "persistent")


@dataclasses.dataclass
class Case:
    """A model that must train as the CPU does. `model` is a file of examples/ or the text of one."""
    name: str
    model: str
    settings: dict
    samples: int
    precisions: tuple = ("f32", "f16", "bf16")
    modes: tuple = MODES
    emulated: bool = True  # the emulator bears it
    small: tuple = ()      # precisions in a small pack
    products: tuple = ("builtin", "cublas")


def sets(settings):
    """Returns the options of gaccc."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def train(micro_batch, accumulate):
    return {"train.micro_batch": micro_batch, "train.accumulate": accumulate}


DROPOUT = """
model.name = "dropout"
inputs.tokens = { shape = [16], dtype = "i32", range = 11 }
inputs.next = { shape = [16], dtype = "i32", range = 11 }
loss = { type = "cross_entropy", target = "next" }
optimizer.type = "adamw"
[[layers]]
type = "embedding"
vocab = 11
features = 32
[[layers]]
type = "residual"
name = "mix"
layers = [{ type = "layer_norm" }, { type = "attention", heads = 2, causal = true, dropout = 0.2 }]
[[layers]]
type = "dropout"
p = 0.3
[[layers]]
type = "linear"
features = 11
"""
# Heads of values that share those of keys, over more than one chunk of positions.
DELTA_RULE = """
module @delta phase(model) {
  set loss.type = "cross_entropy"
  set loss.target = "next"
  set optimizer.type = "adamw"
  set inputs.tokens.range = 11
  param @table : f32[11,32]
  param @inside : f32[136,32]
  param @outside : f32[11,64]
  state @seed.low : i32[] given
  state @seed.high : i32[] given
  init {
    random.normal @table, @seed.low, @seed.high {std = 0.5, stream = 1}
    random.normal @inside, @seed.low, @seed.high {std = 0.2, stream = 2}
    random.normal @outside, @seed.low, @seed.high {std = 0.2, stream = 3}
  }
  step(%tokens : i32[B,70], %next : i32[B,70]) {
    %x = embedding %tokens, @table : f32[B,70,32]
    %all = matmul %x, @inside : f32[B,70,136] {tb}
    %q = slice %all : f32[B,70,32] {axis = 1, from = 0, size = 32}
    %k = slice %all : f32[B,70,32] {axis = 1, from = 32, size = 32}
    %v = slice %all : f32[B,70,64] {axis = 1, from = 64, size = 64}
    %decay = slice %all : f32[B,70,4] {axis = 1, from = 128, size = 4}
    %beta = slice %all : f32[B,70,4] {axis = 1, from = 132, size = 4}
    %share = sigmoid %beta : f32[B,70,4]
    %soft = bce_with_logits %decay, 0.0 : f32[B,70,4]
    %forget = neg %soft : f32[B,70,4]
    %read, %lacking = delta_rule %q, %k, %v, %forget, %share : f32[B,70,64], f32[B,70,64] {heads = 4, key_heads = 2}
    %out = matmul %read, @outside : f32[B,70,11] {tb}
    yield output %out
  }
}
"""
# Heads of 64 on tensor cores, and of 24 by teams of threads; positions that count within a document, and a window.
DOCUMENTS = """
model.name = "documents"
inputs.tokens = { shape = [24], dtype = "i32", range = 11 }
inputs.next = { shape = [24], dtype = "i32", range = 11 }
inputs.packed = { shape = [24], dtype = "i32", range = 3 }
loss = { type = "cross_entropy", target = "next" }
optimizer.type = "adamw"
[[layers]]
type = "embedding"
vocab = 11
features = 128
[[layers]]
type = "residual"
name = "wide"
layers = [{ type = "layer_norm" }, { type = "attention", heads = 2, causal = true, documents = "packed", rope = {} }]
[[layers]]
type = "linear"
features = 48
[[layers]]
type = "residual"
name = "narrow"
layers = [{ type = "rms_norm" }, { type = "attention", heads = 2, causal = true, documents = "packed", window = 9 }]
[[layers]]
type = "linear"
features = 11
"""
SIN = """
module @sin phase(model) {
  set loss.type = "mse"
  set loss.target = "y"
  set optimizer.type = "adamw"
  param @inside : f32[7,24]
  param @outside : f32[24,3]
  state @seed.low : i32[] given
  state @seed.high : i32[] given
  init {
    random.normal @inside, @seed.low, @seed.high {std = 2.0, stream = 1}
    random.normal @outside, @seed.low, @seed.high {std = 0.2, stream = 2}
  }
  step(%x : f32[B,7], %y : f32[B,3]) {
    %angle = matmul %x, @inside : f32[B,24]
    %wave = sin %angle : f32[B,24]
    %out = matmul %wave, @outside : f32[B,3]
    yield output %out
  }
}
"""
SMALL_MLP = {"layers.fc1.features": 64, "layers.fc2.features": 48, "layers.fc3.features": 16}
SMALL_GPT = {"layers.h.repeat": 1, "layers.tok.features": 64, "layers.h.layers.mix.layers.attn.heads": 2,
             "layers.h.layers.mlp.layers.up.features": 128, "layers.h.layers.mlp.layers.down.features": 64}
TINY_GPT = {**SMALL_GPT, "inputs.bytes.shape": "[16]", "inputs.next.shape": "[16]"}
SMALL_LLAMA = {"layers.layers.repeat": 2, "layers.embed.vocab": 96, "layers.head.features": 96,
               "layers.embed.features": 64, "layers.layers.layers.mlp.layers.down.features": 64,
               "layers.layers.layers.mlp.layers.gate.features": 96, "layers.layers.layers.mlp.layers.up.features": 96,
               "layers.layers.layers.mix.layers.attn.heads": 4, "layers.layers.layers.mix.layers.attn.kv_heads": 2,
               "inputs.tokens.shape": "[24]", "inputs.next.shape": "[24]", "gguf.interleave": "{}"}
SMALL_CNN = {"layers.conv1.channels": 4, "layers.conv2.channels": 8, "layers.fc.features": 16}
SMALL_RESNET = {"layers.stage1.repeat": 1}
CHAR_GPT = {"layers.h.repeat": 6, "layers.tok.features": 384, "layers.h.layers.mix.layers.attn.heads": 6,
            "layers.h.layers.mlp.layers.up.features": 1536, "layers.h.layers.mlp.layers.down.features": 384,
            "inputs.bytes.shape": "[256]", "inputs.next.shape": "[256]"}
# Heads of 64, tiles of 128, a vocabulary that no vector divides.
WIDE_GPT = {**CHAR_GPT, "layers.h.repeat": 2, "layers.tok.vocab": 1001, "layers.head.features": 1001}
CHUNKED_GPT = {"layers.h.repeat": 1, "layers.wte.features": 128, "layers.h.layers.mix.layers.attn.heads": 2,
               "layers.h.layers.mlp.layers.fc.features": 256, "layers.h.layers.mlp.layers.proj.features": 128,
               "inputs.tokens.shape": "[128]", "inputs.next.shape": "[128]"}
HALVES = ("f16", "bf16")
# Adam's steps have the size of the rate even where a gradient is nothing but rounding (that of attention's key bias is
# zero in exact arithmetic): with this eps they do not.
CALM = {"optimizer.eps": 1e-3}
# Samples never fill the last window, nor its last micro-batch, but for k1 and k4: they are the same batches of 32,
# as one micro-batch and as four.
CASES = (
    Case("regression", "regression", train(8, 2), 61, precisions=("f32",), small=("f32",)),
    Case("mlp", "mnist_mlp", {**train(8, 2), **SMALL_MLP}, 27, small=("bf16",)),
    Case("residual", "residual_mlp", {**train(8, 2), **CALM}, 37),
    Case("gpt", "shakespeare_gpt", {**train(4, 2), **SMALL_GPT, **CALM}, 11),
    Case("gpt_tiny", "shakespeare_gpt", {**train(4, 2), **TINY_GPT, **CALM}, 11, precisions=(), small=("f16",)),
    Case("cnn", "mnist_cnn", {**train(4, 2), **SMALL_CNN}, 11, small=("f16",)),
    Case("resnet", "mnist_resnet", {**train(4, 2), **SMALL_RESNET, **CALM}, 11),
    Case("mixer", "mixer", {**train(4, 2), "layers.mix.repeat": 1, **CALM}, 11),
    Case("lora", "llama_lora", {**train(4, 2), **SMALL_LLAMA, **CALM}, 11),
    Case("llama", "llama_hf", {**train(4, 2), **SMALL_LLAMA, **CALM,
                               "layers.layers.layers.mix.layers.attn.window": 8}, 11),
    Case("dropout", DROPOUT, {**train(4, 2), **CALM}, 11),
    Case("delta_rule", DELTA_RULE, {**train(4, 2), **CALM}, 11),
    Case("k1", "shakespeare_gpt", {**train(32, 1), **TINY_GPT, **CALM}, 64, precisions=("f32", "f16"), modes=("graph",),
         small=("f16",)),
    Case("k4", "shakespeare_gpt", {**train(8, 4), **TINY_GPT, **CALM}, 64, precisions=("f32", "f16"), modes=("graph",),
         small=("f16",)),
    Case("documents", DOCUMENTS, {**train(4, 2), **CALM}, 11, modes=("graph",)),
    Case("sin", SIN, {**train(4, 2), **CALM}, 11),
    Case("lora_q4_0", "llama_lora", {**train(4, 2), **SMALL_LLAMA, **CALM, "precision.frozen": "q4_0"}, 11,
         precisions=("bf16",), small=("bf16",)),
    Case("lora_q8_0", "llama_lora", {**train(4, 2), **SMALL_LLAMA, **CALM, "precision.frozen": "q8_0"}, 11,
         precisions=("bf16",)),
    Case("host", "shakespeare_gpt", {**train(4, 2), **SMALL_GPT, **CALM, "memory.host": "8MiB",
                                     "memory.budget": "1200KiB"}, 11, precisions=("f32", "f16"), modes=("graph",)),
    Case("bits1", "shakespeare_gpt", {**train(8, 1), **TINY_GPT, "train.require": "bits"}, 19,
         precisions=("f32", "f16"), modes=("graph",), small=("f16",), products=("builtin",)),
    Case("bits4", "shakespeare_gpt", {**train(2, 4), **TINY_GPT, "train.require": "bits"}, 19,
         precisions=("f32", "f16"), modes=("graph",), small=("f16",), products=("builtin",)),
    Case("mlp_full", "mnist_mlp", {}, 400, emulated=False),
    Case("cnn_full", "mnist_cnn", {}, 150, emulated=False),
    Case("resnet_full", "mnist_resnet", CALM, 150, precisions=HALVES, emulated=False),
    Case("mixer_full", "mixer", CALM, 150, precisions=HALVES, emulated=False),
    Case("gpt_wide", "shakespeare_gpt", {**train(8, 2), **WIDE_GPT, **CALM}, 14, modes=("graph",), emulated=False),
    Case("gpt_chunked", "gpt2_124m", {**train(4, 2), **CHUNKED_GPT, **CALM}, 7, precisions=HALVES, modes=("graph",),
         emulated=False),
)
# The quickest test that a GPU computes what the CPU does: case, mode, products.
FIRST = (("mlp.f32", "graph", "builtin"), ("gpt.f32", "graph", "builtin"), ("mlp.f16", "persistent", "builtin"),
         ("gpt.f16", "graph", "builtin"), ("gpt_wide.f16", "graph", "cublas"), ("gpt_chunked.bf16", "graph", "cublas"))
SAME_BATCH = ("k1", "k4")
SAME_BITS = ("bits1", "bits4")  # train.require = "bits": the same batches of 8, as one micro-batch and as four
# Cases whose artifact goes on with a text as on the CPU: step by step, and by a cache of keys and values.
WRITTEN, WRITTEN_SMALL = ("gpt.f32", "llama.f32"), ("gpt_tiny.f16",)
TEXT = ["--generate", "24", "--temperature", "0", "--prompt", "A B", "--seed", "1"]
COUNTED = ("regression", "gpt_tiny", "gpt")    # cases whose launches are counted at the driver
SANITIZED = (("gpt", "f16", "graph"), ("mlp", "f16", "persistent"))  # case, precision, mode
# Of these, and of all other artifacts in half precision that the emulator bears, racecheck alone.
SANITIZED_SMALL = (("gpt_tiny", "f16", "graph"), ("mlp", "bf16", "persistent"))

# ---- what is timed

def linears(widths, more=""):
    return "".join(f"[[layers]]\ntype = 'linear'\nname = 'fc{i}'\nfeatures = {width}\n{more}"
                   for i, width in enumerate(widths))


MLP = """
model.name = "bench-mlp"
inputs.image.shape = [784]
inputs.label = { dtype = "i32", range = 10 }
loss = { type = "cross_entropy", target = "label" }
optimizer.type = "adam"
train = { micro_batch = 32, accumulate = 4 }
""" + linears((512, 256, 128), "activation = 'relu'\n") + linears((10,)).replace("fc0", "out")
BIG_UPDATE = """
model.name = "bench-update"
inputs.x.shape = [4096]
inputs.y.shape = [4096]
loss = { type = "mse", target = "y" }
optimizer.type = "adamw"
train = { micro_batch = 4, accumulate = 1, clip_norm = 1.0 }
launch.mode = "graph"
""" + linears((4096,) * 6)


# Its middle product, 8192 in each direction, is what no other product will exceed.
PRODUCTS = """
model.name = "bench-products"
inputs.x.shape = [16]
inputs.y.shape = [16]
loss = { type = "mse", target = "y" }
optimizer.type = "sgd"
train = { micro_batch = 8192, accumulate = 1 }
precision = { compute = "f16", loss_scale = "none" }
""" + linears((8192, 8192, 16))


@dataclasses.dataclass
class Benchmark:
    """A model that is timed and profiled. `small` are the settings that a small pack has instead."""
    name: str
    model: str
    settings: dict
    modes: tuple
    small: dict
    emulated: bool = False
    products: tuple = ("builtin", "cublas")


def llama(width, heads, head_dim, inner, layers, frozen="compute"):
    """LoRA on a Llama 3's shape in windows of 2,048 tokens, in what a card of 24 GB has. Its weights are drawn."""
    layer, branch = "layers.layers", "layers.layers.layers.mlp.layers"
    return {**train(1, 4), "inputs.tokens.shape": "[2048]", "inputs.next.shape": "[2048]", "gguf.interleave": "{}",
            "memory.budget": "22GiB", "precision.compute": "bf16", "precision.frozen": frozen,
            "layers.embed.vocab": 128256, "layers.head.features": 128256, "layers.embed.features": width,
            f"{layer}.repeat": layers, f"{layer}.layers.mix.layers.attn.heads": heads,
            f"{layer}.layers.mix.layers.attn.kv_heads": 8, f"{layer}.layers.mix.layers.attn.head_dim": head_dim,
            f"{branch}.gate.features": inner, f"{branch}.up.features": inner, f"{branch}.down.features": width}


HALF = {"precision.compute": "f16"}
TINY_MLP = {"inputs.image.shape": "[64]", "layers.fc0.features": 16, "layers.fc1.features": 16,
            "layers.fc2.features": 16, **train(4, 2)}
TINY_GPT2 = {"layers.h.repeat": 1, "layers.wte.features": 32, "layers.wte.vocab": 40, "layers.head.features": 40,
             "layers.h.layers.mix.layers.attn.heads": 2, "layers.h.layers.mlp.layers.fc.features": 64,
             "layers.h.layers.mlp.layers.proj.features": 32, "inputs.tokens.shape": "[16]", "inputs.next.shape": "[16]",
             **train(2, 2)}
SMALL_UPDATE = {"inputs.x.shape": "[16]", "inputs.y.shape": "[16]",
                **{f"layers.fc{i}.features": 16 for i in range(6)}}
BENCHMARKS = (
    Benchmark("mlp_f32", MLP, {}, MODES, TINY_MLP, emulated=True),
    Benchmark("mlp_f16", MLP, HALF, MODES, {**HALF, **TINY_MLP}, emulated=True),
    Benchmark("update", BIG_UPDATE, {}, ("graph",), SMALL_UPDATE),
    # Of the moments 604 MB come from the host and go back.
    Benchmark("update_host", BIG_UPDATE, {"memory.host": "1GiB", "memory.budget": "1GiB"}, ("graph",),
              {**SMALL_UPDATE, "memory.host": "1MiB", "memory.budget": "30KiB"}),
    Benchmark("products", PRODUCTS, {}, ("graph",), emulated=True,
              small={"layers.fc0.features": 16, "layers.fc1.features": 16, **train(4, 1)}),
    Benchmark("gpt2_b4", "gpt2_124m", {**HALF, **train(4, 16)}, ("graph",), {**HALF, **TINY_GPT2}),
    Benchmark("gpt2_b16", "gpt2_124m", {**HALF, **train(16, 4)}, ("graph",), {**HALF, **TINY_GPT2}),
    Benchmark("gpt2_b64", "gpt2_124m", {**HALF, **train(64, 4)}, ("graph",), {**HALF, **TINY_GPT2}),
    Benchmark("lora", "llama_lora", {**train(1, 4), "memory.budget": "20GiB"}, ("graph",),
              {**SMALL_LLAMA, **train(2, 2)}),
    *(Benchmark(name, "llama_lora", settings, ("graph",), {**SMALL_LLAMA, **train(2, 2)}, products=("cublas",))
      for name, settings in (("lora_1b", llama(2048, 32, 64, 8192, 16)), ("lora_8b", llama(4096, 32, 128, 14336, 32)),
                             ("lora_8b_q4_0", llama(4096, 32, 128, 14336, 32, "q4_0")))),
    Benchmark("char", "shakespeare_gpt", {**HALF, **train(64, 4), **CHAR_GPT}, ("graph",),
              {**HALF, **TINY_GPT, **train(2, 2)}),
)
PROFILED = ("gpt2_b16", "char", "mlp_f16")
# Stages that time whole windows: the benchmarks of each.
SPEED = {"mlp": ("mlp_f16", "mlp_f32", "update", "update_host"), "char": ("char",),
         "lora": ("lora", "lora_1b", "lora_8b", "lora_8b_q4_0"), "gpt2:b4": ("gpt2_b4",),
         "gpt2:b16": ("gpt2_b16",), "gpt2:b64": ("gpt2_b64",)}
