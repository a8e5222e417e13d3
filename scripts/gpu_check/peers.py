"""What gacc is compared with on a GPU: updates of the MNIST network, of a large model and of GPTs by PyTorch, and of
the MNIST network by JAX. `gpu-check --peer NAME` prints a contender's JSON line; one that is not installed says so.

T is the time of a whole window: K micro-batches, fresh data copied from pinned memory for each, then unscaling, the
finite test, clipping (of GPTs) and Adam; first windows that warm up, then the median over the rest. The GPTs are in f16
with a dynamic loss scale, and get what is best for them: the vocabulary padded to 64, cuDNN's attention where there is
one (PyTorch's own choice is slower in f16), fused AdamW. Their tokens are as frequent as a text's (files.py, Zipf and
Mandelbrot), or uniform where the name says so: the gradient of an embedding depends on it.
"""
import contextlib
import itertools
import json
import statistics
import time

from . import files

BATCH, K, SIZES = 32, 4, (784, 512, 256, 128, 10)
SHAPES = {  # of GPTs: layers, width, heads, positions, vocabulary, micro-batch, accumulate
    "gpt2 B=4": (12, 768, 12, 1024, 50257, 4, 16),
    "gpt2 B=16": (12, 768, 12, 1024, 50257, 16, 4),
    "gpt2 B=64": (12, 768, 12, 1024, 50257, 64, 4),
    "char-GPT": (6, 384, 6, 256, 256, 64, 4),
}
WARM_SECONDS, SECONDS = 3.0, 4.0


def summary(times, at_once=1, **more):
    quarters = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return {"median_us": statistics.median(times), "iqr_us": quarters[2] - quarters[0],
            "windows": len(times) * at_once, **more}


def measured(window, sync, warm=15, least=30, at_once=10, **more):
    """The summary of `window()`, in microseconds; each time ends in a wait, so that T is a latency and a rate."""
    begin, count = time.perf_counter(), 0
    while count < warm or time.perf_counter() - begin < WARM_SECONDS:
        window()
        count += 1
    sync()
    times, begin = [], time.perf_counter()
    while len(times) < least or time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        for _ in range(at_once):  # the host may run ahead within them, as in training
            window()
        sync()
        times.append((time.perf_counter() - start) / at_once * 1e6)
    return summary(times, at_once, **more)


# ---- PyTorch

def torch_on_gpu():
    import torch
    if not torch.cuda.is_available():
        raise ImportError("torch sees no GPU")
    torch.manual_seed(0)
    return torch


def torch_graph(torch, work):
    """`work` as a CUDA graph, to be replayed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def torch_step(torch, optimizer, scaler, clipped, keep):
    """An update that clips the gradients of `clipped`; with `keep` gradients are zeroed where they are."""
    def update():
        if clipped:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(clipped, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=not keep)
    return update


def torch_windows(torch, kind, model, loss_of, optimizer, batches, accumulate, half=True, clipped=(),
                  attention=contextlib.nullcontext, **how):
    """Windows over `batches`, pairs in pinned memory. kind: compile, graph or eager. loss_of(model, x, y): the model
    may be compiled."""
    captured = kind == "graph"
    scaler = torch.amp.GradScaler("cuda", init_scale=65536, growth_interval=2000, enabled=half)
    forward = torch.compile(model) if kind == "compile" else model
    x, y = (one.cuda() for one in batches[0])
    fresh = itertools.cycle(batches)
    update = torch_step(torch, optimizer, scaler, clipped, captured)

    def micro():
        with torch.autocast("cuda", torch.float16, enabled=half), attention():
            loss = loss_of(forward, x, y) / accumulate
        scaler.scale(loss).backward()

    if captured:
        # After some updates on a stream of their own, as PyTorch asks, and with gradients that stay where they are, so
        # that the graph adds to them.
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                micro()
                update()
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
        torch.cuda.synchronize()
        micro = torch_graph(torch, micro)
        if not half:  # GradScaler reads back whether to step, which no graph can hold
            update = torch_graph(torch, update)

    def window():
        for _ in range(accumulate):
            for to, source in zip((x, y), next(fresh)):
                to.copy_(source, non_blocking=True)
            micro()
        update()

    return measured(window, torch.cuda.synchronize, library=f"torch {torch.__version__}", **how)


def torch_mlp(kind, half):
    torch = torch_on_gpu()
    torch.set_float32_matmul_precision("high" if half else "highest")  # in f32 gacc uses no TF32 either
    layers = []
    for a, b in zip(SIZES, SIZES[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).cuda()
    batches = [(torch.randn(BATCH, SIZES[0]).pin_memory(), torch.randint(0, SIZES[-1], (BATCH,)).pin_memory())
               for _ in range(64)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=kind == "graph")
    loss_of = lambda forward, x, y: torch.nn.functional.cross_entropy(forward(x), y)
    return torch_windows(torch, kind, model, loss_of, optimizer, batches, K, half)


def torch_update():
    """GradScaler's unscale and test, clipping, fused AdamW and zeroing, over the parameters of the large model."""
    torch = torch_on_gpu()
    shapes = [s for _ in range(6) for s in ((4096, 4096), (4096,))]
    parameters = [torch.nn.Parameter(torch.randn(s, device="cuda") * 0.01) for s in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.zeros((), device="cuda"))
    update = torch_step(torch, optimizer, scaler, parameters, keep=True)
    return measured(update, torch.cuda.synchronize, parameters=sum(p.numel() for p in parameters))


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


def torch_gpt(kind, shape, frequencies):
    torch = torch_on_gpu()
    layers, width, heads, positions, vocabulary, batch, accumulate = SHAPES[shape]
    model = torch_model(torch, layers, width, heads, positions, -(-vocabulary // 64) * 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    drawn = torch.tensor(files.tokens(8 * batch * positions, vocabulary, frequencies), dtype=torch.int64)
    batches = [list(pair) for pair in drawn.view(4, 2, batch, positions).pin_memory()]
    found = torch_windows(torch, kind, model, lambda forward, x, y: forward(x, y), optimizer, batches, accumulate,
                          clipped=list(model.parameters()), attention=attention_of(torch), warm=4, least=8, at_once=1)
    return found | {"peak_bytes": torch.cuda.max_memory_allocated()}


def attention_of(torch):
    """cuDNN's attention, or what else there is where it refuses."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return contextlib.nullcontext
    return lambda: sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION],
                               set_priority=True)


# ---- JAX

def jax_contender():
    import jax
    import jax.numpy as jnp
    import numpy as np
    if jax.default_backend() != "gpu":
        raise ImportError("jax sees no GPU")
    jax.config.update("jax_default_matmul_precision", "highest")
    keys = jax.random.split(jax.random.PRNGKey(0), len(SIZES))
    weights = [(jax.random.normal(k, (a, b)) * 0.05, jnp.zeros(b)) for k, a, b in zip(keys, SIZES, SIZES[1:])]

    def loss(weights, x, y):
        for i, (w, b) in enumerate(weights):
            x = x @ w + b
            if i + 1 < len(weights):
                x = jax.nn.relu(x)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1))

    add = lambda a, b: jax.tree_util.tree_map(jnp.add, a, b)
    zeros = lambda w: jax.tree_util.tree_map(jnp.zeros_like, w)

    @jax.jit
    def micro(weights, sums, x, y):
        return add(sums, jax.grad(loss)(weights, x, y))

    def one_adam(w, m, v, g, t):
        g = g / K
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return w - 1e-3 * (m / (1 - 0.9 ** t)) / (jnp.sqrt(v / (1 - 0.999 ** t)) + 1e-8), m, v

    @jax.jit
    def update(weights, m, v, sums, t):
        flat, tree = jax.tree_util.tree_flatten(weights)
        done = [one_adam(*leaf, t) for leaf in zip(flat, *(jax.tree_util.tree_leaves(x) for x in (m, v, sums)))]
        return (*(tree.unflatten(part) for part in zip(*done)), zeros(sums), t + 1)

    images = [np.random.randn(BATCH, SIZES[0]).astype("f") for _ in range(64)]
    labels = [np.random.randint(0, SIZES[-1], BATCH).astype("i") for _ in range(64)]
    state = [weights, zeros(weights), zeros(weights), zeros(weights), jnp.float32(1), 0]

    def window():
        for _ in range(K):
            state[5] += 1
            state[3] = micro(state[0], state[3], images[state[5] % 64], labels[state[5] % 64])
        state[0], state[1], state[2], state[3], state[4] = update(*state[:5])

    return measured(window, lambda: jax.block_until_ready(state[0]), library=f"jax {jax.__version__}")


# ---- all of them

def contender(name):
    if name == "torch update":
        return torch_update()
    if name.startswith("jax"):
        return jax_contender()
    how, _, shape = name.partition(", ")
    kind = "compile" if "compile" in how else "graph" if "graph" in how else "eager"
    return torch_gpt(kind, shape, "uniform" if "uniform" in how else "zipf") if shape else torch_mlp(kind, "AMP" in how)


def command(name):
    try:
        result = contender(name)
    except Exception as error:  # whatever keeps a peer from running is one line of the table
        result = {"skipped": f"{type(error).__name__}: {error}".replace("\n", " ")[:200]}
    print(json.dumps(result))
