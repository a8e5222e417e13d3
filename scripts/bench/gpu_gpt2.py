#!/usr/bin/env python3
"""GPT-2 and a character GPT on a GPU, gacc beside PyTorch, one line for each contender: goals G2, G3 and G4 of
notes/performance.md.

    gpu_gpt2.py PACK [--seconds 300] [--out F.json]     PACK: a folder made by scripts/gpu-check --pack
    gpu_gpt2.py PACK --contender "NAME, SHAPE"          one of them, in this process: prints a JSON line

T is the time of a whole window: K micro-batches of fresh tokens copied from pinned memory, then unscaling, the finite
test, clipping and AdamW, in f16 with a dynamic loss scale. `micro` is one further micro-batch of a window, `first` the
first of one: PyTorch adds to its gradients from the second on. Peers get what is best for them: the vocabulary padded to
50304, cuDNN's attention where there is one (PyTorch's own choice is slower in f16), fused AdamW. MFU counts 6 N + 6 L C T
FLOPs a token, as llm.c does, of 989 TFLOP/s.
"""
import statistics
import time

import gpu_mlp

# name: layers, width, heads, positions, vocabulary (as padded for peers), micro-batch, accumulate
SHAPES = {
    "gpt2 B=4": (12, 768, 12, 1024, 50304, 4, 16),
    "gpt2 B=16": (12, 768, 12, 1024, 50304, 16, 4),
    "gpt2 B=64": (12, 768, 12, 1024, 50304, 64, 4),
    "char-GPT": (6, 384, 6, 256, 256, 64, 4),
}
ARTIFACTS = {"gpt2 B=4": "gpt2_b4", "gpt2 B=16": "gpt2_b16", "gpt2 B=64": "gpt2_b64", "char-GPT": "char_gpt"}
CONTENDERS = ("torch eager AMP", "torch.compile AMP", "torch graph AMP", "gacc graph f16")
GROUPS = tuple((tuple(f"{name}, {shape}" for name in CONTENDERS), True) for shape in ("gpt2 B=16", "gpt2 B=4", "char-GPT", "gpt2 B=64"))
WARM, LEAST = 4, 8  # windows
PEAK_FLOPS = 989e12
TOKENS = 50257  # of GPT-2


def parameters_of(layers, width, positions, vocabulary):
    return vocabulary * width + positions * width + layers * (12 * width * width + 13 * width) + 2 * width


def flops_per_token(shape):
    layers, width, _, positions, vocabulary = SHAPES[shape][:5]
    return 6 * parameters_of(layers, width, positions, min(vocabulary, TOKENS)) + 6 * layers * width * positions


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


def torch_contender(kind, shape):
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
    data = [[torch.randint(0, min(vocabulary, TOKENS), (batch, positions)).pin_memory() for _ in range(2)] for _ in range(16)]
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

    times = measure(window, torch.cuda.synchronize)
    more = {"library": f"torch {torch.__version__}", "peak_bytes": torch.cuda.max_memory_allocated()}
    if not captured:  # a graph always adds
        first, further = [], []
        for _ in range(LEAST):
            optimizer.zero_grad(set_to_none=True)
            for times_of in (first, further, further):
                times_of.append(measure_once(run_micro, torch.cuda.synchronize))
        more |= {"first_us": statistics.median(first), "micro_us": statistics.median(further)}
    return gpu_mlp.summary(times, at_once=1, **more)


def attention_of(torch):
    """cuDNN's attention, or what else there is where it refuses."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        import contextlib
        return contextlib.nullcontext
    return lambda: sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
                               set_priority=True)


def measure(window, sync):
    return gpu_mlp.median_windows(window, sync, warm=WARM, least=LEAST, at_once=1)


def measure_once(run, sync):
    sync()
    start = time.perf_counter()
    run()
    sync()
    return (time.perf_counter() - start) * 1e6


# ---- gacc

def gacc_contender(pack, shape):
    batch, accumulate = SHAPES[shape][5:]
    artifact, _ = gpu_mlp.gacc_files(pack, ARTIFACTS[shape], "graph")
    samples = batch * accumulate  # an epoch is a window
    events, _ = gpu_mlp.gacc_run(pack, artifact, "--updates", str(WARM + LEAST), "--epochs", "1000", samples=samples)
    times = [e["seconds"] * 1e6 for e in events if e["event"] == "update"][WARM:]
    _, trace = gpu_mlp.gacc_run(pack, artifact, "--updates", "3", "--epochs", "1000", "--profile", samples=samples)
    steps = [e["dur"] for e in trace["traceEvents"] if e["cat"] == "program" and e["name"] == "step"][accumulate:]
    return gpu_mlp.summary(times, at_once=1, peak_bytes=events[0]["arena_bytes"], first_us=statistics.median(steps[::accumulate]),
                           micro_us=statistics.median(s for i, s in enumerate(steps) if i % accumulate))


# ---- all of them

def contender(name, pack):
    what, shape = name.split(", ")
    if what.startswith("gacc"):
        return gacc_contender(pack, shape)
    return torch_contender("compile" if "compile" in what else "graph" if "graph" in what else "eager", shape)


def show(found):
    for shape, (_, _, _, positions, _, batch, accumulate) in SHAPES.items():
        tokens = batch * positions * accumulate
        print(f"{shape}, K = {accumulate}: {tokens} tokens a window")
        rates = {}
        for name in CONTENDERS:
            results = found.get(f"{name}, {shape}", [{"skipped": "not run"}])
            medians = [r["median_us"] for r in results if "median_us" in r]
            if not medians:
                print(f"  {name:<20} skipped: {results[0].get('skipped')}")
                continue
            rates[name] = tokens / min(medians) * 1e6
            one = next(r for r in results if "median_us" in r)
            micro = f"  micro / first {one['micro_us'] / one['first_us']:.3f}" if "first_us" in one else ""
            print(f"  {name:<20} {rates[name] / 1e3:8.1f} k tokens/s  MFU {100 * rates[name] * flops_per_token(shape) / PEAK_FLOPS:4.1f} %"
                  f"  A/A {100 * (max(medians) / min(medians) - 1):4.1f} %  {one['peak_bytes'] / (1 << 30):6.2f} GiB{micro}")
        peers = [r for n, r in rates.items() if n.startswith("torch")]
        if peers and CONTENDERS[-1] in rates:
            print(f"  gacc / best torch {rates[CONTENDERS[-1]] / max(peers):.2f}")


if __name__ == "__main__":
    gpu_mlp.command(__doc__, contender, GROUPS, show, __file__)
