"""The peers of gacc on a GPU: PyTorch's best way to train the same models.

`python3 -m gpu_check.peers NAME`, one of CONTENDERS, prints a JSON line: {"median_us", "iqr_us", "windows",
"peak_bytes", "library"}, or "skipped" with the reason.

A window is K micro-batches, each with data copied from pinned memory, then unscaling, the finite test, clipping (GPTs)
and fused Adam. In f16 there is a dynamic loss scale. GPTs get what is best for them: a vocabulary padded to 64 and
cuDNN's attention where there is one. Their tokens are as frequent as a text's (files.tokens)."""
import contextlib
import itertools
import json
import statistics
import sys
import time

from . import files

MLP_SIZES, MLP_BATCH = (784, 512, 256, 128, 10), 32
SHAPES = {  # of GPTs: layers, width, heads, positions, vocabulary, micro-batch, accumulate
    "gpt2_b4": (12, 768, 12, 1024, 50257, 4, 16),
    "gpt2_b16": (12, 768, 12, 1024, 50257, 16, 4),
    "gpt2_b64": (12, 768, 12, 1024, 50257, 64, 4),
    "char": (6, 384, 6, 256, 256, 64, 4),
}
# A benchmark of cases.py, and how PyTorch runs it: eager, compile, or graph, which is compiled and captured by hand.
CONTENDERS = ("gpt2_b16 compile", "char graph", "mlp_f16 graph", "mlp_f32 graph", "gpt2_b16 graph", "gpt2_b4 graph",
              "mlp_f16 compile", "gpt2_b16 eager", "gpt2_b4 compile", "gpt2_b64 compile")
WARM_SECONDS, SECONDS = 3.0, 4.0


def measured(torch, window, at_once):
    """Times of `window()`, `at_once` of them between two waits, so that the host may run ahead as in training."""
    begin, count, times = time.perf_counter(), 0, []
    while count < 4 or time.perf_counter() - begin < WARM_SECONDS:
        window()
        count += 1
    torch.cuda.synchronize()
    begin = time.perf_counter()
    while len(times) < 8 or time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        for _ in range(at_once):
            window()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / at_once * 1e6)
    quarters = statistics.quantiles(times, n=4)
    return {"median_us": statistics.median(times), "iqr_us": quarters[2] - quarters[0], "windows": len(times) * at_once,
            "peak_bytes": torch.cuda.max_memory_allocated(), "library": f"torch {torch.__version__}"}


def windows(torch, kind, model, loss_of, optimizer, batches, accumulate, half, clipped, attention, at_once):
    """Measures windows of one of CONTENDERS. A graph has the whole window: all micro-batches and the update. Fused Adam
    takes the loss scale and the finite test as tensors, so that nothing is read back."""
    captured = kind == "graph"
    scaler = torch.amp.GradScaler("cuda", init_scale=65536, growth_interval=2000, enabled=half)
    loss_in = lambda x, y: loss_of(model(x), y)
    if kind != "eager":  # with the loss, so that it is fused as well
        loss_in = torch.compile(loss_in)
    inputs = [[one.cuda() for one in batches[i % len(batches)]] for i in range(accumulate if captured else 1)]
    fresh = itertools.cycle(batches)

    def copy(to):
        for target, source in zip(to, next(fresh)):
            target.copy_(source, non_blocking=True)

    def micro(x, y):
        with torch.autocast("cuda", torch.float16, enabled=half), attention():
            loss = loss_in(x, y) / accumulate
        scaler.scale(loss).backward()

    def update():
        if clipped:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(clipped, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=not captured)

    def whole_window():
        for pair in inputs:
            micro(*pair)
        update()

    if not captured:
        def window():
            for _ in range(accumulate):
                copy(inputs[0])
                micro(*inputs[0])
            update()

        return measured(torch, window, at_once)

    # After some windows on a stream of their own, and with gradients that stay, so that the graph adds to them.
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            whole_window()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        whole_window()

    def replayed():
        for pair in inputs:
            copy(pair)
        graph.replay()

    return measured(torch, replayed, at_once)


def mlp(torch, kind, half):
    torch.set_float32_matmul_precision("high" if half else "highest")  # in f32 gacc uses no TF32 either
    layers = []
    for a, b in zip(MLP_SIZES, MLP_SIZES[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).cuda()
    batches = [(torch.randn(MLP_BATCH, MLP_SIZES[0]).pin_memory(),
                torch.randint(0, MLP_SIZES[-1], (MLP_BATCH,)).pin_memory()) for _ in range(64)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=kind == "graph")
    return windows(torch, kind, model, torch.nn.functional.cross_entropy, optimizer, batches, 4, half, (),
                   contextlib.nullcontext, 10)


def gpt_model(torch, layers, width, heads, positions, vocabulary):
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

        def forward(self, x):
            h = self.tokens(x) + self.positions.weight
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h))

    return Model().cuda()


def gpt(torch, kind, shape):
    layers, width, heads, positions, vocabulary, batch, accumulate = shape
    model = gpt_model(torch, layers, width, heads, positions, -(-vocabulary // 64) * 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True,
                                  capturable=kind == "graph")
    drawn = torch.tensor(files.tokens(8 * batch * positions, vocabulary, "zipf"), dtype=torch.int64)
    batches = [list(pair) for pair in drawn.view(4, 2, batch, positions).pin_memory()]
    loss_of = lambda logits, y: torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())
    from torch.nn.attention import SDPBackend, sdpa_kernel
    attention = lambda: sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION,
                                     SDPBackend.EFFICIENT_ATTENTION], set_priority=True)
    return windows(torch, kind, model, loss_of, optimizer, batches, accumulate, True, list(model.parameters()),
                   attention, 1)


def contender(name):
    import torch
    if not torch.cuda.is_available():
        raise ImportError("torch sees no GPU")
    torch.manual_seed(0)
    model, kind = name.split()
    return gpt(torch, kind, SHAPES[model]) if model in SHAPES else mlp(torch, kind, model == "mlp_f16")


if __name__ == "__main__":
    try:
        result = contender(sys.argv[1])
    except Exception as error:  # whatever keeps a peer from running is one line of the table
        result = {"skipped": f"{type(error).__name__}: {error}".replace("\n", " ")[:200]}
    print(json.dumps(result))
