#!/usr/bin/env python3
"""nanogpt.py [--text F] [--updates N]: nanoGPT's recipe beside PyTorch. The tests make 15 updates.

Trains examples/shakespeare_gpt.toml, which is nanoGPT's model for a CPU, with its recipe in small: AdamW with betas
0.9 and 0.99, decay 0.1 on matrices alone, clipping at 1, a warm-up and a cosine down to a tenth of the rate. Then the
same in torch.nn and torch.optim with two parameter groups, from the same initial weights and in the same order, both
in f32. Prints the losses and their largest relative difference; exit 1 when that is above 1e-3. Then once more in
gacc, with the decay written as groups by name: the same bits. Needs PyTorch in this Python or the system's, and built
tools (GACC_BIN). """
import argparse
import math
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    SYSTEM = "/usr/bin/python3"
    if os.environ.get("GACC_TRIED") or not os.path.exists(SYSTEM):
        harness.skip("no Python with PyTorch here")
    os.execve(SYSTEM, [SYSTEM, *sys.argv], {**os.environ, "GACC_TRIED": SYSTEM})

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 128, 4, 4, 64, 12
RATE, LOWEST, DECAY, BETAS, CLIP = 1e-3, 1e-4, 0.1, (0.9, 0.99), 1.0
BY_NAME = dict(optimizer__decay="all", optimizer__groups='[{match=["*.bias", "*norm.weight"], weight_decay=0.0}]')


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (t.reshape(len(x), LENGTH, HEADS, -1).transpose(1, 2) for t in self.qkv(x).split(WIDTH, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()
        y = functional.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), Attention()

    def forward(self, x):
        return x + self.attn(self.norm(x))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.mlp = Mix(), Mlp()

    def forward(self, x):
        return self.mlp(self.mix(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, x):
        x = self.tok(x) + self.pos.weight
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


def warm_up(updates):
    return updates // 10


def rate(t, updates):
    first = warm_up(updates)
    if t < first:
        return RATE * (t + 1) / first
    return LOWEST + (RATE - LOWEST) * (1 + math.cos(math.pi * (t - first) / (updates - first))) / 2


def train_torch(text, initial, updates):
    model = Gpt()
    model.load_state_dict({name: torch.tensor(list(values)).reshape(shape) for name,
                           (shape, values) in initial.items()}, strict=True)
    decayed = [p for p in model.parameters() if p.dim() >= 2]  # as nanoGPT's configure_optimizers
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=DECAY), dict(params=others, weight_decay=0.0)],
                                  lr=RATE, betas=BETAS)
    tokens, losses = torch.tensor(list(text[:updates * BATCH * LENGTH + 1])), []
    for t in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = rate(t, updates)
        first, last = t * BATCH * LENGTH, (t + 1) * BATCH * LENGTH
        x, y = tokens[first:last].reshape(BATCH, LENGTH), tokens[first + 1:last + 1]
        loss = functional.cross_entropy(model(x).reshape(-1, 256), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_gacc(folder, name, text, updates, **settings):
    """The losses; the initial weights lie in `initial` then, and the final ones in `name`."""
    artifact = harness.compile_model(harness.example("shakespeare_gpt"), folder / f"{name}.ptx",
                                     schedule__warmup=warm_up(updates),
                                     schedule__total=updates, schedule__min_lr=LOWEST, optimizer__lr=RATE,
                                     optimizer__betas=list(BETAS), optimizer__weight_decay=DECAY, train__clip_norm=CLIP,
                                     train__micro_batch=BATCH // 3, train__accumulate=3, **settings)
    data = ["--data", f"text:{text}", "--device", "cpu"]
    harness.run("gacc-exec", artifact, *data, "--init-only", "--save", folder / "initial")
    harness.run("gacc-exec", artifact, *data, "--load", folder / "initial", "--no-shuffle", "--updates", updates,
                "--log", folder / "log.jsonl", "--save", folder / name)
    return [e["loss"] for e in harness.updates_of(folder / "log.jsonl")]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--text", type=pathlib.Path, help="default: the text in ../shared/data/shakespeare")
    options.add_argument("--updates", type=int, default=200)
    given = options.parse_args()
    text = given.text or max((harness.ROOT.parent / "shared/data/shakespeare").glob("*.txt"),
                             key=lambda path: path.stat().st_size)
    with tempfile.TemporaryDirectory(prefix="gacc-") as name:
        folder = pathlib.Path(name)
        ours = train_gacc(folder, "matrices", text, given.updates)
        train_gacc(folder, "by_name", text, given.updates, **BY_NAME)
        same = (folder / "matrices").read_bytes() == (folder / "by_name").read_bytes()
        theirs = train_torch(text.read_bytes(), harness.read_safetensors(folder / "initial"), given.updates)
    far = [abs(a - b) / b for a, b in zip(ours, theirs, strict=True)]
    for t in sorted({0, *range(24, given.updates, 25), given.updates - 1}):
        print(f"update {t + 1:4}: gacc {ours[t]:.6f}, PyTorch {theirs[t]:.6f}, so far at most {max(far[:t + 1]):.1e} "
              f"apart")
    print(f"decay by rank and by name: {'the same bits' if same else 'different weights'}")
    sys.exit(max(far) > 1e-3 or not same)


if __name__ == "__main__":
    main()
