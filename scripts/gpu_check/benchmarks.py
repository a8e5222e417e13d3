"""Benchmarks: gacc's contenders here, those of PyTorch and JAX in peers.py, a process for each.

T is the time of a whole window: K micro-batches of fresh data, then the update. A contender's figure is the median over
its windows; where there is time a second turn runs them in reverse, and the better median counts (A/A: how far the two
are apart)."""
import dataclasses
import json
import os
import sys
import time

from artifact_ir import ArtifactIr

from . import files, launch_costs, machine, peers
from .stages import Step

WARM_MLP, WINDOWS_MLP = 15, 2000
WARM, WINDOWS = 4, 8
PEAK_FLOPS = 989e12
SECOND_TURN = 60  # seconds that a first turn may take for there to be a second


@dataclasses.dataclass
class Ours:
    name: str
    benchmark: str
    mode: str = "graph"
    products: str = "cublas"
    tuned: bool = False
    tokens: str = "zipf"


@dataclasses.dataclass
class Contest:
    """Contenders for one figure. The names of `peers` are those of peers.py."""
    title: str
    ours: tuple
    peers: tuple
    tokens: int = 0           # of a window; 0: none
    flops_per_token: int = 0
    update_bytes: int = 0     # that an update of all parameters must move


def language(name, shape):
    layers, width, _, positions, vocabulary, micro_batch, accumulate = peers.SHAPES[shape]
    parameters = vocabulary * width + positions * width + layers * (12 * width * width + 13 * width) + 2 * width
    ours = (Ours("gacc", name), Ours("gacc, tuned", name, tuned=True),
            Ours("gacc, built-in products", name, products="builtin"),
            Ours("gacc, uniform tokens", name, tokens="uniform"))
    others = ("torch.compile AMP", "torch graph AMP", "torch eager AMP", "torch.compile AMP uniform")
    return Contest(f"{shape}: tokens as frequent as a text's (1 / (rank + 2.7)) but for `uniform`", ours,
                   tuple(f"{other}, {shape}" for other in others), micro_batch * accumulate * positions,
                   6 * parameters + 6 * layers * width * positions)


CONTESTS = {
    "mlp": (
        Contest("mlp f16, a window of 4 x 32", (
            Ours("gacc one kernel f16", "mlp_f16", "persistent", "auto"), Ours("gacc graph f16", "mlp_f16"),
            Ours("gacc graph f16, tuned", "mlp_f16", tuned=True),
            Ours("gacc graph f16, built-in products", "mlp_f16", products="builtin")),
            ("torch graph AMP", "torch.compile AMP", "torch eager AMP")),
        Contest("mlp f32, a window of 4 x 32", (
            Ours("gacc one kernel f32", "mlp_f32", "persistent", "auto"), Ours("gacc graph f32", "mlp_f32"),
            Ours("gacc graph f32, tuned", "mlp_f32", tuned=True)),
            ("torch graph f32", "torch eager f32", "jax f32")),
        # Each element: the gradient twice (norm; update), weight, m and v once; written: weight, m, v and the zeroed
        # gradient.
        Contest("update of 100 million parameters, AdamW with clipping", (Ours("gacc update", "update"),),
                ("torch update",), update_bytes=36)),
    "char": (language("char", "char-GPT"),),
    "gpt2:b4": (language("gpt2_b4", "gpt2 B=4"),),
    "gpt2:b16": (language("gpt2_b16", "gpt2 B=16"),),
    "gpt2:b64": (language("gpt2_b64", "gpt2 B=64"),),
}
PEERS = [peer for contests in CONTESTS.values() for contest in contests for peer in contest.peers]


class Benchmarks:
    def __init__(self, check):
        self.check, self.machine, self.results = check, check.machine, check.results
        self.found = {}  # (contest's title, contender) -> results

    def steps(self, stage):
        for contest in CONTESTS[stage]:
            title = contest.title.split(":")[0]
            yield Step(stage, f"{title}: ours", self.turns, (stage, contest, contest.ours, self.ours))
            yield Step(stage, f"{title}: peers", self.turns, (stage, contest, contest.peers, self.peer), peer=True)

    def turns(self, stage, contest, contenders, measure):
        begin = time.time()
        named = [(one if isinstance(one, str) else one.name, one) for one in contenders]
        for _ in range(2):
            for name, one in named:
                if why := self.check.stopped():
                    self.results.row(stage, name, "SKIPPED", why)
                    continue
                result = measure(contest, one)
                verdict = "FAILED" if "failed" in result else "SKIPPED" if "skipped" in result else "done"
                self.results.row(stage, name, verdict, result.get("failed") or result.get("skipped") or
                                 "median {median_us:.1f} us, iqr {iqr_us:.1f}, {windows} windows".format(**result) +
                                 (f"; {result['library']}" if "library" in result else ""))
                if verdict == "done":
                    self.found.setdefault((contest.title, name), []).append(result)
                self.results.section(contest.title, self.table(contest))
            # What did not run is not tried again; what compiles for long is not compiled twice.
            named = [(name, one) for name, one in reversed(named)
                     if (contest.title, name) in self.found and "compile" not in name and "jax" not in name]
            if time.time() - begin > SECOND_TURN or self.machine.emulated:
                return

    # ---- ours

    def ours(self, contest, one):
        entry = self.check.manifest["benchmarks"][one.benchmark]
        if obstacle := self.check.obstacle(entry, one.products):
            return {"skipped": obstacle}
        artifact = self.check.artifact(entry, one.mode)
        ir = ArtifactIr(artifact)
        quick = contest.tokens or contest.update_bytes  # a window takes milliseconds
        warm, windows = (1, 2) if self.machine.emulated else (WARM, WINDOWS) if quick else (WARM_MLP, WINDOWS_MLP)
        window = ir.micro_batch * ir.accumulate
        spec = self.check.data_for(artifact, one.tokens, window if quick or self.machine.emulated else 2048)
        label = f"{one.benchmark}.{one.name}".replace(" ", "_").replace(",", "")
        log, trace = self.machine.out / f"{label}.jsonl", self.machine.out / f"{label}.json"
        tune = ["--tune-gemm", self.machine.out / f"{one.benchmark}.algorithms"] if one.tuned else []
        profile = ["--profile", trace] if contest.update_bytes else []
        code, text = self.check.exec(label, artifact, "--data", spec, "--epochs", 100000, "--updates", warm + windows,
                                     "--gemm", one.products, "--log", log, *tune, *profile, seconds=200)
        if code:
            return {"failed": machine.last_line(text)}
        engine = machine.engine(text)[1]
        if one.products == "cublas" and not engine.startswith("cuBLASLt"):
            return {"failed": f"it ran with {engine}"}
        events = files.read_log(log)
        self.results.keep(log.name, log.read_text())
        if tune and tune[1].exists():
            self.results.keep(tune[1].name, tune[1].read_text())
        times = [e["seconds"] * 1e6 for e in events if e["event"] == "update"][warm:]
        if profile:
            times = launch_costs.programs(json.loads(trace.read_text()), "update")[warm:]
        return peers.summary(times, library=engine, peak_bytes=events[-1]["peak_bytes"], parameters=ir.parameters)

    # ---- peers

    def peer(self, contest, name):
        """In an environment without anything of ours; torch keeps what it compiled for the rest of the call."""
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.machine.work / "inductor")}
        command = [sys.executable, self.machine.folder / "gpu-check", "--peer", name]
        code, text = machine.run(command, self.check.left(200), env)
        self.results.keep(f"{name}.log".replace(" ", "_"), text)
        line = next((line for line in reversed(text.splitlines()) if line.startswith("{")), "")
        return json.loads(line) if line else {"skipped": machine.last_line(text)}

    # ---- tables

    def table(self, contest):
        best = {name: min(result["median_us"] for result in results)
                for (title, name), results in self.found.items() if title == contest.title}
        others = {name: us for name, us in best.items() if name in contest.peers}
        fastest = min(others, key=others.get, default=None)
        lines = []
        for name in sorted(best, key=best.get):
            results = self.found[contest.title, name]
            line = f"{name:<36} T {best[name]:>11.1f} us"
            if contest.tokens:
                rate = contest.tokens / best[name] * 1e6
                utilisation = rate * contest.flops_per_token / PEAK_FLOPS
                line += f" {rate / 1e3:>8.1f} k tokens/s, MFU {100 * utilisation:>4.1f} %"
            if contest.update_bytes and "parameters" in results[0]:
                line += f" {contest.update_bytes * results[0]['parameters'] / best[name] / 1e3:>7.0f} GB/s"
            if len(results) > 1:
                line += f", A/A {100 * (max(r['median_us'] for r in results) / best[name] - 1):.1f} %"
            if "peak_bytes" in results[0]:
                line += f", {results[0]['peak_bytes'] / (1 << 30):.2f} GiB"
            if fastest and name not in others:
                line += f", {others[fastest] / best[name]:.2f} x {fastest.split(',')[0]}"
            lines.append(line)
        return lines
