"""The common part of the benchmarks. Those of gacc against PyTorch on the CPU are a call of `main` or `images`:
contenders that are timed in turns, an FMA probe before each turn, and the verdict. cpu_mlp says what makes it fair."""
import argparse
import array
import contextlib
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/run"))
import harness  # noqa: E402


def parser(doc, **defaults):
    """Takes --bin, the folder of the programs that harness.run starts, and an option for each default, of its type. A
    list takes words or, where it is empty, is an option to repeat. A type stands for no default."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--bin", type=lambda folder: setattr(harness, "BIN", pathlib.Path(folder).resolve()))
    for name, default in defaults.items():
        how = {"type": type(default), "default": default}
        if isinstance(default, type):
            how = {"type": default}
        elif isinstance(default, bool):
            how = {"action": "store_true"}
        elif isinstance(default, list):
            how |= {"type": type(default[0]), "nargs": "*"} if default else {"type": str, "action": "append"}
        made.add_argument(f"--{name.replace('_', '-')}", **how)
    return made


@contextlib.contextmanager
def scratch():
    with tempfile.TemporaryDirectory(prefix="gacc-bench-") as name:
        yield pathlib.Path(name)


def sets(*settings):
    return [word for setting in settings for word in ("--set", setting)]


def plan(model, *options):
    """Returns the plan, as --plan --json prints it."""
    return json.loads(harness.run("gaccc", model, "--plan", "--json", *options).stdout)


def logged(artifact, data, *options, **more):
    """The log of a run of gacc-exec on the CPU."""
    log = artifact.with_suffix(".jsonl")
    harness.run("gacc-exec", artifact, "--data", data, "--device", "cpu", "--log", log, "--quiet", *options, **more)
    return harness.read_log(log)


def random_tokens(path, count, vocabulary):
    """Writes so many tokens of two bytes."""
    chance = random.Random(1)
    path.write_bytes(b"".join(chance.randrange(vocabulary).to_bytes(2, "little") for _ in range(count)))


def update_seconds(events):
    return [event["seconds"] for event in events if event["event"] == "update"]


def timed(call, *arguments, **options):
    """Returns the call's result, and the processor's seconds of the processes that ended in it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = call(*arguments, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_turns(rounds, measure, contenders, warm_up=0):
    """Returns measure(one) of each round, by contender. They take turns: what else the machine does meets all."""
    turns = [[measure(one) for one in contenders] for _ in range(warm_up + rounds)]
    return dict(zip(contenders, map(list, zip(*turns[warm_up:]))))


# ---- against PyTorch

PROBE = r"""
#include <chrono>
#include <cstdio>
typedef float vec __attribute__((vector_size(64)));
int main() {  // multiply-adds of 12 independent chains for 0.1 s on one core
  vec a[12] = {}, b = {}, c = {};
  for (int i = 0; i < 16; ++i) b[i] = 0.999f, c[i] = 0.001f;
  long rounds = 0;
  const auto start = std::chrono::steady_clock::now();
  double seconds = 0;
  while (seconds < 0.1) {
    for (int r = 0; r < 20000; ++r)
#pragma GCC unroll 12
      for (int i = 0; i < 12; ++i) a[i] = a[i] * b + c;
    rounds += 20000;
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  vec sum = {};
  for (auto& x : a) sum += x;
  std::printf("%.1f %g\n", rounds * 12.0 * 16 * 2 / seconds * 1e-9, sum[0]);
}
"""

# Before a PyTorch worker's own code, which defines update(i), the i-th update.
TORCH_HEAD = r"""
import json, sys, time
import numpy as np, torch
threads, warm_up, updates, compiled, half = map(int, sys.argv[1:6])
arguments = sys.argv[6:]
torch.set_num_threads(threads)
torch.manual_seed(0)
way = {"fused": True} if compiled else {"foreach": True}
def as_run(loss):
    loss = torch.compile(loss) if compiled else loss
    def run(*inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(half)):
            return loss(*inputs)
    return run
"""
TORCH_TAIL = r"""
print(json.dumps([torch.__version__, torch.__config__.show()]), flush=True)
"""
# The same of JAX, whose one jit is the whole update.
JAX_HEAD = r"""
import json, os, sys, time
threads, warm_up, updates = map(int, sys.argv[1:4])
arguments = sys.argv[6:]
os.sched_setaffinity(0, range(threads))  # JAX has as many threads as the process has cores when it is imported
import jax, jax.numpy as jnp, numpy as np
"""
JAX_TAIL = r"""
print(json.dumps([jax.__version__, ""]), flush=True)
"""
TURNS = r"""
done = 0
for line in sys.stdin:
    times = []
    for _ in range(warm_up + updates):
        start = time.perf_counter()
        update(done)
        times.append(time.perf_counter() - start)
        done += 1
    print(json.dumps(times[warm_up:]), flush=True)
"""


class Peer:
    """A worker process that stays; `turn` trains `updates` updates and returns their seconds."""

    def __init__(self, name, threads, flags, code, arguments, turns, python, environment):
        self.name = name
        command = [python, "-c", code + TURNS, *map(str, [threads, *turns, *flags, *arguments])]
        environment = {**os.environ, **environment, "OMP_NUM_THREADS": str(threads)}
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, env=environment)
        self.version, built = json.loads(self.child.stdout.readline() or sys.exit(f"error: {name} does not start"))
        maps = pathlib.Path(f"/proc/{self.child.pid}/maps").read_text() + built
        self.fast_blas = any(word in maps for word in ("openblas", "mkl", "blis"))

    def turn(self):
        self.child.stdin.write("go\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())


class Gacc:
    def __init__(self, threads, artifact, data, turns):
        self.name, self.warm_up = f"gacc, {threads} thread{'s' * (threads > 1)}", turns[0]
        self.run = (artifact, data, "--threads", threads, "--epochs", 100000, "--updates", sum(turns))

    def turn(self):
        events = logged(*self.run)
        seconds = update_seconds(events)
        total = next(e["seconds"] for e in events if e["event"] == "end")
        share = max(1.0, total / sum(seconds))  # what passes between two windows is work too
        return [t * share for t in seconds[self.warm_up:]]


# Around a network `net` and its `adam` on images: data, and the window of k micro-batches; x and y as the net has them.
IMAGES_HEAD = r"""
samples, micro, k = map(int, arguments[:3])
X, Y = (torch.from_numpy(np.load(f)) for f in arguments[3:])
Y = Y.long()
order = torch.randperm(samples)
X, Y = X[order].contiguous(), Y[order].contiguous()
x, y = torch.empty(micro, *X.shape[1:]), torch.empty(micro, dtype=torch.long)
"""
IMAGES_TAIL = r"""
loss = as_run(lambda x, y: torch.nn.functional.cross_entropy(net(x), y) / k)
def update(number):
    adam.zero_grad(set_to_none=True)
    for i in range(k):
        at = (number * k + i) * micro % samples
        x.copy_(X[at:at + micro]); y.copy_(Y[at:at + micro])
        loss(x, y).backward()
    adam.step()
"""


def images(doc, example, shape, micro_batch, accumulate, torch_code, **more):
    """`main` for a network on random f32 images of 784 elements in 0..1, with that shape, and labels of 0..9: 25 MB."""
    def prepare(folder):
        samples, chance = 8192, random.Random(1)
        bright = [v / 255 for v in range(256)]
        image, label = folder / "image.npy", folder / "label.npy"
        pixels = array.array("f", map(bright.__getitem__, chance.randbytes(samples * 784)))
        harness.write_npy(image, pixels, [samples, *shape])
        harness.write_npy(label, array.array("i", [v % 10 for v in chance.randbytes(samples)]), [samples])
        return f"npy:image={image},label={label}", [samples, micro_batch, accumulate, image, label]
    main(doc, example, {"train__micro_batch": micro_batch, "train__accumulate": accumulate},
         torch_code=IMAGES_HEAD + torch_code + IMAGES_TAIL, prepare=prepare, **more)


def build_probe(folder):
    (folder / "probe.cpp").write_text(PROBE)
    subprocess.run(["c++", "-O2", "-march=native", "-o", folder / "probe", folder / "probe.cpp"], check=True)
    return lambda: float(subprocess.check_output([folder / "probe"], text=True).split()[0])


def main(doc, example, settings, goal, turns, torch_code, prepare, jax_code=""):
    """turns: (updates of warm-up, timed updates) of each turn. prepare(folder) gives gacc's --data and the arguments of
    torch_code and jax_code."""
    options = parser(doc, rounds=5, python="/usr/bin/python3", bf16=False).parse_args()
    load = os.getloadavg()[0]
    compiles = subprocess.run([options.python, "-c", "import torch, numpy; print(hasattr(torch, 'compile'))"],
                              capture_output=True, text=True).stdout.strip()
    if not compiles:
        sys.exit(f"error: {options.python} has no PyTorch: nothing to compare with")
    if options.bf16:
        settings = {**settings, "precision__compute": "bf16"}
    wide = "avx512f" in pathlib.Path("/proc/cpuinfo").read_text().split()
    forced = {"ATEN_CPU_CAPABILITY": "avx512"} if wide else {}
    with scratch() as folder:
        artifact = harness.compile_model(harness.example(example), folder / "step.ptx", **settings)
        data, arguments = prepare(folder)
        probe = build_probe(folder)
        quiet = {**forced, "GOMP_SPINCOUNT": "0"}
        started = lambda name, threads, environment, flags, code: Peer(
            name, threads, flags, code, arguments, turns, options.python, environment)
        peer = lambda name, threads, environment, compiled=False: started(
            f"PyTorch{' compiled' * compiled}, {name}", threads, environment, [int(compiled), int(options.bf16)],
            TORCH_HEAD + torch_code + TORCH_TAIL)
        contenders = [Gacc(threads, artifact, data, turns) for threads in (1, 2)]
        contenders += [peer("1 thread", 1, quiet), peer("2 threads", 2, quiet), peer("2 threads, spinning", 2, forced)]
        if compiles == "True":
            contenders += [peer("1 thread", 1, quiet, True), peer("2 threads", 2, forced, True)]
        torch = contenders[-1]
        if jax_code and not options.bf16 and subprocess.run([options.python, "-c", "import jax"]).returncode == 0:
            code = JAX_HEAD + jax_code + JAX_TAIL
            contenders += [started(f"JAX, {n} thread{'s' * (n > 1)}", n, {}, [0, 0], code) for n in (1, 2)]
        taken = by_turns(options.rounds, lambda one: (probe(), one.turn()), contenders)
    best = max(speed for results in taken.values() for speed, _ in results)
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, AVX-512 {'forced' if wide else 'absent'}, "
          f"load {load:.2f} at the start, PyTorch {torch.version}, "
          f"probe {best:.0f} GFLOP/s on one core at best")
    print(f"{'one update, ms':<30} {'min':>7} {'median':>7}  turns kept of {options.rounds}")
    figures = {}
    for contender, results in taken.items():
        name = contender.name
        kept = [seconds for speed, seconds in results if speed >= 0.9 * best]
        if kept:
            every = [t for seconds in kept for t in seconds]
            least, median = figures[name] = (1000 * min(every), 1000 * statistics.median(every))
            print(f"{name:<30} {least:7.2f} {median:7.2f}  {len(kept)}")
        else:
            print(f"{name:<30} {'-':>7} {'-':>7}  0: the machine was never quiet")
    if not torch.fast_blas:
        print("no verdict: PyTorch runs on the reference BLAS here; install libopenblas0-openmp and run again")
        return
    side = lambda word, i: min((f[i] for name, f in figures.items() if name.startswith(word)), default=None)
    if load > 1.5 or None in (side("gacc", 0), side("PyTorch", 0)):
        print(f"no verdict: the machine is busy (load {load:.2f})")
        return
    if side("JAX", 1):
        print(f"gacc is {side('JAX', 1) / side('gacc', 1):.2f} times as fast as JAX by the medians")
    ratio = [side("PyTorch", i) / side("gacc", i) for i in (0, 1)]
    print(f"gacc is {ratio[1]:.2f} times as fast by the medians, {ratio[0]:.2f} by the minima (goal {goal}): "
          f"{'reached' if min(ratio) >= goal else 'not reached'}")
