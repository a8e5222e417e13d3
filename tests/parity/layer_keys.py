#!/usr/bin/env python3
"""Keys of layers beside PyTorch in double: scales and caps of scores, logits, embeddings and branches, norms that add
to their weights, norms of all heads, and blocks that differ by a pattern. The loss and all gradients, again under
recompute, and in half precision.

    GACC_PEERS_PYTHON=venv/bin/python tests/parity/layer_keys.py [--count 6] [--seed 0] [--device cpu]

Needs a Python with PyTorch, and gaccc and gacc-exec in GACC_BIN.
"""
import argparse
import array
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

harness.begin_with("torch")
import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

VOCABULARY = 31
# Norm-wise of each tensor: gradients in f32, and of halves, where a weight is rounded before all else.
BOUNDS = {"f32": 2e-5, "f16": 3e-2, "bf16": 2e-1}

MODEL = """
model = {{ name = "keys", seed = {seed} }}
inputs.tokens = {{ shape = [{length}], dtype = "i32", range = {vocabulary} }}
inputs.next = {{ shape = [{length}], dtype = "i32" }}
loss = {{ type = "cross_entropy", target = "next" }}
optimizer = {{ type = "sgd" }}
train = {{ micro_batch = {batch} }}
[[layers]]
type = "embedding"
name = "embed"
vocab = {vocabulary}
features = {width}
scale = {embedding_scale}
[[layers]]
type = "sequential"
name = "h"
repeat = {repeat}
pattern = [{pattern}]
[[layers.layers]]
type = "residual"
name = "mix"
scale = {residual_scale}
[[layers.layers.layers]]
type = "rms_norm"
name = "ln"
offset = {offset}
[[layers.layers.layers]]
type = "attention"
name = "attn"
heads = {heads}
kv_heads = {kv_heads}
head_dim = {channels}
causal = true
bias = false
{scale}
{softcap}
{norm}
dropout = 0.0
[[layers.layers.layers]]
type = "layer_norm"
name = "after"
offset = {offset}
[[layers.layers]]
type = "residual"
name = "mlp"
[[layers.layers.layers]]
type = "linear"
name = "fc"
features = {width}
activation = "gelu_tanh"
scale = 1.5
[[layers]]
type = "rms_norm"
name = "norm"
offset = {offset}
[[layers]]
type = "linear"
name = "head"
features = {vocabulary}
bias = false
tied = "embed"
scale = {head_scale}
{head_softcap}
"""


def draw(chance):
    kv_heads = chance.choice((1, 2))
    case = dict(seed=chance.randrange(1000), length=chance.choice((1, 9, 40, 65)), batch=chance.choice((1, 3)),
                width=24,
                kv_heads=kv_heads, heads=kv_heads * chance.choice((1, 3)), channels=chance.choice((4, 6, 16)),
                vocabulary=VOCABULARY, embedding_scale=chance.choice((1.0, 4.5)), repeat=chance.choice((1, 3, 4)),
                residual_scale=chance.choice((1.0, 0.3)), offset=chance.choice((0, 1)),
                scale=chance.choice((None, 0.7)),
                softcap=chance.choice((None, 0.8, 30.0)), norm=chance.choice((None, "head", "all")),
                head_scale=chance.choice((1.0, 0.25)), head_softcap=chance.choice((None, 1.5)))
    windows = [chance.choice((None, 3)) for _ in range(chance.choice((1, 2, 3)))]
    return case | dict(copies=[dict(window=window, theta=chance.choice((None, 50.0, 1000.0))) for window in windows])


def model_text(c):
    def key(name, value):
        return "" if value is None else f"{name} = {value}"

    def table(n, copy):
        rope = key("rope", copy["theta"] and f"{{ theta = {copy['theta']} }}")
        said = [part for part in (key("window", copy["window"]), rope) if part]
        # The three ways to say which layer a key is of.
        if n == 0:
            return f"{{ mix = {{ attn = {{ {', '.join(said)} }} }} }}"
        return "{ " + ", ".join(part if n == 1 else f'"mix.attn.{part.split(" ")[0]}" ={part.split("=", 1)[1]}'
                                for part in said) + " }"
    more = dict(scale=key("scale", c["scale"]), softcap=key("softcap", c["softcap"]),
                head_softcap=key("softcap", c["head_softcap"]),
                norm=c["norm"] and f'qk_norm = {{ over = "{c["norm"]}", offset = {c["offset"]} }}' or "",
                pattern=", ".join(table(n, copy) for n, copy in enumerate(c["copies"])))
    return MODEL.format(**c | more)


def turned(x, theta):
    pairs = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * theta ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    a, b = x[..., :pairs], x[..., pairs:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def rms(x, w):
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w


def capped(x, cap):
    return x if cap is None else cap * torch.tanh(x / cap)


def attention(c, w, x, copy):
    q, k, v = (x @ w["attn.qkv.weight"].T).split([n * c["channels"] for n in (c["heads"], *[c["kv_heads"]] * 2)], -1)
    heads = [part.unflatten(-1, (-1, c["channels"])).transpose(1, 2) for part in (q, k, v)]
    if c["norm"] is not None:
        for i, name in enumerate("qk"):
            weight = c["offset"] + w[f"attn.{name}_norm.weight"]
            heads[i] = (rms(heads[i], weight) if c["norm"] == "head" else
                        rms((q, k)[i], weight).unflatten(-1, (-1, c["channels"])).transpose(1, 2))
    q, k, v = heads
    if copy["theta"] is not None:
        q, k = turned(q, copy["theta"]), turned(k, copy["theta"])
    k, v = (part.repeat_interleave(c["heads"] // c["kv_heads"], 1) for part in (k, v))
    scores = capped(q @ k.transpose(-1, -2) * (c["scale"] or c["channels"] ** -0.5), c["softcap"])
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if copy["window"] is not None:
        seen = seen.triu(1 - copy["window"])
    y = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
    return y.transpose(1, 2).flatten(-2) @ w["attn.proj.weight"].T


def loss_of(c, w, tokens, following):
    x = w["embed.weight"][tokens] * c["embedding_scale"]
    for i in range(c["repeat"]):
        copy = c["copies"][i % len(c["copies"])]
        own = {name[len(f"h.{i}."):]: value for name, value in w.items() if name.startswith(f"h.{i}.")}
        mix = {name[len("mix."):]: value for name, value in own.items() if name.startswith("mix.")}
        y = attention(c, mix, rms(x, c["offset"] + mix["ln.weight"]), copy)
        y = functional.layer_norm(y, (c["width"],), c["offset"] + mix["after.weight"], mix["after.bias"])
        x = x + c["residual_scale"] * y
        x = x + functional.gelu(1.5 * (x @ own["mlp.fc.weight"].T + own["mlp.fc.bias"]), approximate="tanh")
    x = rms(x, c["offset"] + w["norm.weight"])
    logits = capped(c["head_scale"] * (x @ w["embed.weight"].T), c["head_softcap"])
    return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def tensors_of(path):
    return {name: torch.tensor(list(values), dtype=torch.float64).reshape(shape)
            for name, (shape, values) in harness.read_safetensors(path).items()}


def check(c, folder, device):
    """What is wrong with a case, in words; and the farthest gradient in f32."""
    chance = random.Random(c["seed"])
    (folder / "m.toml").write_text(model_text(c))
    rows = [[chance.randrange(VOCABULARY) for _ in range(c["length"] + 1)] for _ in range(c["batch"])]
    for name, part in (("tokens", slice(0, -1)), ("next", slice(1, None))):
        harness.write_npy(folder / f"{name}.npy", array.array("i", [n for row in rows for n in row[part]]),
                          [c["batch"], c["length"]])
    data = f"npy:tokens={folder}/tokens.npy,next={folder}/next.npy"
    weights = folder / "w.safetensors"
    wanted, wrong, first, bits = None, [], None, b""
    for precision, recompute in (("f32", "none"), ("f32", "all"), ("f16", "none"), ("bf16", "all")):
        step = folder / f"{precision}-{recompute}.ptx"
        more = ["--set", "precision.loss_scale=128"] if precision == "f16" else []
        harness.run("gaccc", folder / "m.toml", "-o", step, "--set", f"precision.compute={precision}", "--set",
                    f"recompute.policy={recompute}", *more)
        if wanted is None:
            harness.run("gacc-exec", step, "--data", data, "--init-only", "--save", weights, "--device", "cpu")
            start = tensors_of(weights)
            for name, value in start.items():  # so that every weight matters
                if value.dim() == 1:
                    value += 0.3 * torch.randn(value.shape, dtype=torch.float64,
                                               generator=torch.Generator().manual_seed(len(name)))
            harness.write_safetensors(weights, {name: (list(value.shape), array.array("f", value.flatten().tolist()))
                                                for name, value in start.items()})
            w = {name: value.requires_grad_() for name, value in tensors_of(weights).items()}
            ids = torch.tensor(rows)
            loss = loss_of(c, w, ids[:, :-1], ids[:, 1:])
            loss.backward()
            wanted = {name: (list(value.shape), value.grad.flatten().tolist()) for name, value in sorted(w.items())}
        grads, log = folder / "grads.safetensors", folder / "log.jsonl"
        harness.run("gacc-exec", step, "--data", data, "--load", weights, "--launches", 1, "--no-shuffle",
                    "--dump-grads", grads, "--log", log, "--device", device)
        far, name = harness.far_apart(harness.read_safetensors(grads), wanted, least=0.01)
        if first is None:
            first, bits = far, grads.read_bytes()
        elif precision == "f32" and grads.read_bytes() != bits:
            wrong.append("recompute changes bits")
        if not far <= BOUNDS[precision]:
            wrong.append(f"{precision}, recompute {recompute}: {name} is {far:.1e} off")
    return wrong, first


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for number in range(given.count):
        c = draw(random.Random(given.seed + number))
        with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
            try:
                wrong, far = check(c, pathlib.Path(folder), given.device)
            except harness.Failed as error:
                wrong, far = [str(error)], float("nan")
        print(f"{given.seed + number}: gradients {far:.1e}{''.join('; WRONG ' + text for text in wrong)}", flush=True)
        if wrong:
            print(c, flush=True)
        failed += bool(wrong)
    print(f"{failed} of {given.count} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
