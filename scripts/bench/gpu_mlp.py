#!/usr/bin/env python3
"""What gacc is compared with on a GPU: a full update of the MNIST network by PyTorch and JAX, and the update of a large
model. scripts/gpu-check runs it beside gacc.

    gpu_mlp.py --contender NAME    prints a JSON line

T is the time of a whole window: K = 4 micro-batches of 32 samples, fresh data copied from pinned memory for each, then
unscaling, the finite test and Adam; 15 windows (or 3 s) of warm-up, then the median over the rest. A contender that is
not installed is a line that says so.
"""
import argparse
import json
import statistics
import time

BATCH, K, SIZES = 32, 4, (784, 512, 256, 128, 10)
WARM_WINDOWS, WARM_SECONDS, SECONDS, WINDOWS = 15, 3.0, 4.0, 30
CONTENDERS = ("torch graph AMP", "torch.compile AMP", "torch eager AMP", "torch graph f32", "torch eager f32",
              "jax f32", "torch update")


def median_windows(window, sync, warm=WARM_WINDOWS, least=WINDOWS, at_once=10):
    """The times of `window()` in microseconds; each ends in a wait, so that T is a latency and a rate."""
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
    return times


def summary(times, at_once=10, **more):
    quarters = statistics.quantiles(times, n=4)
    return {"median_us": statistics.median(times), "iqr_us": quarters[2] - quarters[0],
            "windows": len(times) * at_once, **more}


# ---- PyTorch

def torch_setup():
    import torch
    if not torch.cuda.is_available():
        raise ImportError("torch sees no GPU")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    layers = []
    for a, b in zip(SIZES, SIZES[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).cuda()
    images = [torch.randn(BATCH, SIZES[0]).pin_memory() for _ in range(64)]
    labels = [torch.randint(0, SIZES[-1], (BATCH,)).pin_memory() for _ in range(64)]
    return torch, model, images, labels


def torch_graph(torch, work):
    """`work` as a CUDA graph, to be replayed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def torch_capture(torch, model, micro, update):
    """A micro-batch as a CUDA graph: after some updates on a stream of their own, as PyTorch asks, and with gradients
    that stay where they are, so that the graph adds to them."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            micro()
            update()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    torch.cuda.synchronize()
    return torch_graph(torch, micro)


def torch_contender(kind, half):
    torch, model, images, labels = torch_setup()
    captured = kind == "graph"
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=captured)
    scaler = torch.amp.GradScaler("cuda", init_scale=65536, growth_interval=2000, enabled=half)
    forward = torch.compile(model) if kind == "compile" else model
    if not half:
        torch.set_float32_matmul_precision("highest")  # gacc uses no TF32 either
    x, y = images[0].cuda(), labels[0].cuda()

    def micro():
        with torch.autocast("cuda", torch.float16, enabled=half):
            loss = torch.nn.functional.cross_entropy(forward(x), y) / K
        scaler.scale(loss).backward()

    def update():
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=not captured)

    turn = [0]

    def feed():
        turn[0] += 1
        x.copy_(images[turn[0] % 64], non_blocking=True)
        y.copy_(labels[turn[0] % 64], non_blocking=True)

    if captured:
        run_micro, run_update = torch_capture(torch, model, micro, update), update
        if not half:  # GradScaler reads back whether to step, which no graph can hold
            run_update = torch_graph(torch, update)
    else:
        run_micro, run_update = micro, update

    def window():
        for _ in range(K):
            feed()
            run_micro()
        run_update()

    return summary(median_windows(window, torch.cuda.synchronize), library=f"torch {torch.__version__}")


def torch_update():
    """GradScaler's unscale and test, clipping, fused AdamW and zeroing, over the parameters of the large model."""
    import torch
    if not torch.cuda.is_available():
        raise ImportError("torch sees no GPU")
    shapes = [s for _ in range(6) for s in ((4096, 4096), (4096,))]
    parameters = [torch.nn.Parameter(torch.randn(s, device="cuda") * 0.01) for s in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale(torch.zeros((), device="cuda"))

    def window():
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=False)

    times = median_windows(window, torch.cuda.synchronize)
    return summary(times, parameters=sum(p.numel() for p in parameters))


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

    return summary(median_windows(window, lambda: jax.block_until_ready(state[0])), library=f"jax {jax.__version__}")


# ---- all of them

def contender(name):
    if name == "torch update":
        return torch_update()
    if name.startswith("torch"):
        kind = "compile" if "compile" in name else "graph" if "graph" in name else "eager"
        return torch_contender(kind, "AMP" in name)
    return jax_contender()


def command(doc, contender, names):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contender", choices=names, metavar="NAME", required=True)
    arguments = parser.parse_args()
    try:
        result = contender(arguments.contender)
    except Exception as error:  # whatever keeps a peer from running is one line of the table
        result = {"skipped": f"{type(error).__name__}: {error}".replace("\n", " ")[:200]}
    print(json.dumps(result))


if __name__ == "__main__":
    command(__doc__, contender, CONTENDERS)
