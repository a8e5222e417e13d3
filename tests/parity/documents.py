#!/usr/bin/env python3
"""Documents in a window beside PyTorch's attention under an explicit mask: random models, random documents, the loss
and all gradients.

    GACC_PEERS_PYTHON=venv/bin/python tests/parity/documents.py [--count 12] [--seed 0] [--device cpu]

Needs a Python with PyTorch 2.4 or later, and gaccc and gacc-exec in GACC_BIN.
"""
import argparse
import array
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

harness.begin_with("torch", **harness.NEW_TORCH)
import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

VOCABULARY, BOUND = 29, 5e-6

MODEL = """
model = {{ name = "documents", seed = {seed}, allow = ["not-causal"] }}
inputs.tokens = {{ shape = [{length}], dtype = "i32", range = {vocabulary} }}
inputs.next = {{ shape = [{length}], dtype = "i32" }}
inputs.numbers = {{ shape = [{length}], dtype = "i32" }}
loss = {{ type = "cross_entropy", target = "next" }}
optimizer = {{ type = "sgd" }}
train = {{ micro_batch = {batch} }}
[[layers]]
type = "embedding"
name = "embed"
vocab = {vocabulary}
features = {width}
{learned}
[[layers]]
type = "attention"
name = "a"
heads = {heads}
kv_heads = {kv_heads}
head_dim = {channels}
causal = {causal}
{rope}
{norm}
{window}
documents = "numbers"
[[layers]]
type = "linear"
name = "head"
features = {vocabulary}
"""


def draw(chance):
    kv_heads = chance.choice((1, 2, 3))
    case = dict(seed=chance.randrange(1000), length=chance.choice((1, 7, 33, 64, 65, 130, 200)),
                batch=chance.choice((1, 3)), width=24,
                kv_heads=kv_heads, heads=kv_heads * chance.choice((1, 2)), channels=chance.choice((4, 8, 20)),
                causal=chance.random() < .7,
                learned=chance.random() < .5, rope=chance.choice((None, "half", "interleaved")),
                norm=chance.random() < .3)
    case["window"] = chance.randrange(1, case["length"]) if case["causal"] and case[
        "length"] > 1 and chance.random() < .4 else 0
    return case


def model_text(c):
    return MODEL.format(**c | dict(
        vocabulary=VOCABULARY, causal=str(c["causal"]).lower(), norm="qk_norm = { eps = 1e-6 }" if c["norm"] else "",
        rope=f'rope = {{ theta = 50.0, layout = "{c["rope"]}" }}' if c["rope"] else "",
        window=f"window = {c['window']}" if c["window"] else "",
        learned='[[layers]]\ntype = "position_embedding"\nname = "positions"' if c["learned"] else ""))


def draw_documents(chance, length):
    """Runs, with positions of none between and behind them; or numbers in any order."""
    if chance.random() < .3:
        return [chance.randrange(-1, 4) for _ in range(length)]
    numbers = []
    while len(numbers) < length:
        numbers += [chance.choice((-1, -7, *range(9)))] * chance.randrange(1, max(2, length // 2))
    return numbers[:length]


def turned(x, positions, layout):
    """Rotary positions; x [B, H, T, D], positions [B, T]."""
    pairs = x.shape[-1] // 2
    angle = positions[:, None, :, None] * 50.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    a, b = (x[..., :pairs], x[..., pairs:]) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    c, s = angle.cos(), angle.sin()
    y = (a * c - b * s, b * c + a * s)
    return torch.cat(y, -1) if layout == "half" else torch.stack(y, -1).flatten(-2)


def forward(c, w, tokens, numbers):
    length, groups = c["length"], c["heads"] // c["kv_heads"]
    same = (numbers[:, :, None] == numbers[:, None,
                                           :]) & (numbers >= 0)[:, :, None] | torch.eye(length, dtype=torch.bool)
    before = torch.ones(length, length, dtype=torch.bool).tril(-1)
    positions = (same & before).sum(-1)
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    mask = same & (j <= i if c["causal"] else True) & (i - j < c["window"] if c["window"] else True)
    x = w["embed.weight"][tokens]
    if c["learned"]:
        x = x + w["positions.weight"][positions]
    qkv = (x @ w["a.qkv.weight"].T + w["a.qkv.bias"]).unflatten(-1, (-1, c["channels"])).transpose(1, 2)
    q, k, v = qkv.split((c["heads"], c["kv_heads"], c["kv_heads"]), 1)
    if c["norm"]:
        q, k = (part * (part.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w[f"a.{name}_norm.weight"] for part,
                name in ((q, "q"), (k, "k")))
    if c["rope"]:
        q, k = turned(q, positions, c["rope"]), turned(k, positions, c["rope"])
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None]).transpose(1, 2).flatten(2)
    return (y @ w["a.proj.weight"].T + w["a.proj.bias"]) @ w["head.weight"].T + w["head.bias"]


def compare(c, chance, folder, device):
    (folder / "m.toml").write_text(model_text(c))
    artifact = harness.compile_model(folder / "m.toml", folder / "m.ptx")
    shape = [c["batch"], c["length"]]
    count = shape[0] * shape[1]
    values = {"tokens": [chance.randrange(VOCABULARY) for _ in range(count)],
              "next": [-100 if chance.random() < .2 else chance.randrange(VOCABULARY) for _ in range(count)],
              "numbers": [number for _ in range(shape[0]) for number in draw_documents(chance, shape[1])]}
    if not any(t != -100 and n >= 0 for t, n in zip(values["next"], values["numbers"])):
        values["next"][0], values["numbers"][0] = 3, 2
    for name, numbers in values.items():
        harness.write_npy(folder / f"{name}.npy", array.array("i", numbers), shape)
    harness.run("gacc-exec", artifact, "--init-only", "--save", folder / "w", "--device", "cpu")
    harness.run("gacc-exec", artifact, "--data", "npy:" + ",".join(f"{n}={folder / n}.npy" for n in values), "--load",
                folder / "w",
                "--launches", 1, "--no-shuffle", "--dump-grads", folder / "g", "--log", folder / "log", "--device",
                device)
    tokens, target, numbers = (torch.tensor(values[name]).reshape(shape) for name in values)
    w = {name: torch.tensor(data, dtype=torch.float64).reshape(size).requires_grad_()
         for name, (size, data) in harness.read_safetensors(folder / "w").items()}
    loss = functional.cross_entropy(forward(c, w, tokens, numbers).flatten(0, 1),
                                    target.masked_fill(numbers < 0, -100).flatten())
    loss.backward()
    reference = {name: (list(value.shape), value.grad.flatten().tolist()) for name, value in w.items()}
    worst, who = harness.far_apart(harness.read_safetensors(folder / "g"), reference, least=0.01)
    found = harness.updates_of(folder / "log")[0]["loss"]
    return max((worst, who), (abs(found - loss.item()) / loss.item(), "the loss"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    for number in range(given.count):
        c = draw(chance)
        with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
            worst, who = compare(c, chance, pathlib.Path(folder), given.device)
        print(f"{number}: {worst:.1e} ({who})  {c}", flush=True)
        harness.expect(worst <= BOUND, f"{who} is {worst:.2e} away from PyTorch's")


main()
