#!/usr/bin/env python3
"""What gacc is compared with on a GPU: GPT-2 and a character GPT by PyTorch. scripts/gpu-check runs it beside gacc.

    gpu_gpt2.py --contender "NAME, SHAPE"    prints a JSON line

T is the time of a whole window: K micro-batches of fresh tokens copied from pinned memory, then unscaling, the finite
test, clipping and AdamW, in f16 with a dynamic loss scale. Peers get what is best for them: the vocabulary padded to
50304, cuDNN's attention where there is one (PyTorch's own choice is slower in f16), fused AdamW. Tokens are as frequent
as a text's (gpu_check/files.py, Zipf and Mandelbrot), or uniform where the name says so: the gradient of an embedding
depends on it.
"""
import pathlib
import sys

import gpu_mlp

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # scripts/; in a pack it is this file's own folder
from gpu_check import files  # noqa: E402

# name: layers, width, heads, positions, vocabulary (as padded for peers), micro-batch, accumulate
SHAPES = {
    "gpt2 B=4": (12, 768, 12, 1024, 50304, 4, 16),
    "gpt2 B=16": (12, 768, 12, 1024, 50304, 16, 4),
    "gpt2 B=64": (12, 768, 12, 1024, 50304, 64, 4),
    "char-GPT": (6, 384, 6, 256, 256, 64, 4),
}
KINDS = ("torch.compile AMP", "torch graph AMP", "torch eager AMP", "torch.compile AMP uniform")
CONTENDERS = tuple(f"{kind}, {shape}" for shape in SHAPES for kind in KINDS)
WARM, LEAST = 4, 8  # windows
TOKENS = 50257  # of GPT-2


# ---- PyTorch

def torch_model(torch, layers, width, heads, positions, vocabulary):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (y.view(b, t, heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(width, dim=2))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(b, t, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            self.head.weight = self.tokens.weight
            nn.init.normal_(self.tokens.weight, std=0.02)

        def forward(self, x, y):
            h = self.tokens(x) + self.positions.weight
            for block in self.blocks:
                h = block(h)
            logits = self.head(self.norm(h))
            return functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())

    return Model().cuda()


def torch_contender(kind, shape, frequencies):
    import torch
    if not torch.cuda.is_available():
        raise ImportError("torch sees no GPU")
    layers, width, heads, positions, vocabulary, batch, accumulate = SHAPES[shape]
    torch.manual_seed(0)
    model = torch_model(torch, layers, width, heads, positions, vocabulary)
    captured = kind == "graph"
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=65536, growth_interval=2000)
    forward = torch.compile(model) if kind == "compile" else model
    drawn = torch.tensor(files.tokens(8 * batch * positions, min(vocabulary, TOKENS), frequencies), dtype=torch.int64)
    data = [list(pair) for pair in drawn.view(4, 2, batch, positions).pin_memory()]
    x, y = (one.cuda() for one in data[0])
    attention = attention_of(torch)

    def micro():
        with torch.autocast("cuda", torch.float16), attention():
            loss = forward(x, y) / accumulate
        scaler.scale(loss).backward()

    turn = [0]

    def feed():
        turn[0] += 1
        for to, source in zip((x, y), data[turn[0] % len(data)]):
            to.copy_(source, non_blocking=True)

    def update():
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=not captured)

    run_micro = gpu_mlp.torch_capture(torch, model, micro, update) if captured else micro

    def window():
        for _ in range(accumulate):
            feed()
            run_micro()
        update()

    times = gpu_mlp.median_windows(window, torch.cuda.synchronize, warm=WARM, least=LEAST, at_once=1)
    return gpu_mlp.summary(times, at_once=1, library=f"torch {torch.__version__}",
                           peak_bytes=torch.cuda.max_memory_allocated())


def attention_of(torch):
    """cuDNN's attention, or what else there is where it refuses."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        import contextlib
        return contextlib.nullcontext
    return lambda: sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
                               set_priority=True)


# ---- all of them

def contender(name):
    kind, shape = name.split(", ")
    return torch_contender("compile" if "compile" in kind else "graph" if "graph" in kind else "eager", shape,
                           "uniform" if "uniform" in kind else "zipf")


if __name__ == "__main__":
    gpu_mlp.command(__doc__, contender, CONTENDERS)
