"""The stages: each gives steps, which leave rows."""
import dataclasses
import glob
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import sys
import threading
import time

from artifact_ir import ArtifactIr

from . import cases, files, launch_costs, machine, peers

SANITIZERS = ("memcheck", "racecheck", "synccheck", "initcheck")
SIDE_BY_SIDE = ("first", "parity", "sanitize")  # stages that measure no time
SANITIZER_LIMIT, RUN_LIMIT, PROBE_LIMIT, PEER_LIMIT = 120, 120, 150, 150  # seconds


@dataclasses.dataclass
class Step:
    stage: str
    what: str
    run: object         # gives a verdict and a detail for its row, or nothing where it has left rows itself
    arguments: tuple = ()


class Check:
    """The common part of the stages: the machine, the pack's manifest, the rows, and the time that is left."""

    def __init__(self, here, manifest, results, arguments, end):
        self.machine, self.manifest, self.results, self.end = here, manifest, results, end
        self.sanitizer, self.extra = arguments.sanitizer, arguments.extra
        self.small = manifest["small"]
        self.target = None     # of the artifacts that this GPU runs
        self.ceilings = {}     # (probe, what) -> value
        self.bits = {}         # case -> digest of a run with built-in products that waits for the other mode's
        self.lock = threading.Lock()

    # ---- running

    def stopped(self):
        """Why nothing more is started, or nothing."""
        return "interrupted" if machine.ending else "out of time" if time.time() > self.end else None

    def left(self, wanted):
        return max(1.0, min(wanted, self.end - time.time()))

    def run(self, name, command, seconds=RUN_LIMIT, **environment):
        code, text = machine.run(command, self.left(seconds), self.machine.environment(**environment))
        self.results.keep(f"{name}.log", " ".join(map(str, command)) + "\n" + text)
        return code, text

    def artifact(self, entry, mode):
        return self.machine.work / entry["artifacts"][self.target][mode]["file"]

    def data(self, entry):
        return files.spec(entry["data"], self.machine.work)

    def exec(self, name, artifact, *options, seconds=RUN_LIMIT, prefix=(), **environment):
        command = [*prefix, self.machine.program("gacc-exec"), artifact, "--device", "cuda", *options]
        return self.run(name, command, seconds, **environment)

    def obstacle(self, entry, products):
        """Why a run is not possible here, or nothing."""
        if self.machine.emulated and not entry["emulated"]:
            return "too large for the emulator"
        return "cuBLAS is not installed" if products == "cublas" and not self.machine.cublas else None

    # ---- machine

    def find_machine(self):
        """Finds the GPU, and the artifacts that run on it."""
        text, found = self.probes("bandwidth")
        found = next((line for line in found if line["probe"] == "machine"), {})
        if "capability" not in found:  # no excuse where NVIDIA's own tool finds one
            self.results.row("machine", "GPU", "FAILED" if nvidia_smi() else "SKIPPED",
                             found.get("error") or machine.last_line(text))
            return False
        self.machine.driver = self.machine.driver or found["driver"]
        capability = found["capability"]
        fits = [target for target in self.manifest["targets"] if runs_on(target, capability)]
        self.target = fits[-1] if fits else None
        self.results.head += [f"{found['what']}, compute capability {capability / 10}, "
                              f"{found['multiprocessors']} multiprocessors, CUDA {found['cuda'] / 1000:.1f}; "
                              f"{self.machine.driver}; artifacts for {self.target}", *nvidia_smi()]
        if not fits:
            self.results.row("machine", "GPU", "SKIPPED", f"no artifact runs on compute capability {capability / 10}")
        return bool(fits)

    def machine_steps(self):
        if self.machine.cublas:
            yield Step("machine", "cuBLASLt", self.cublas)
        yield Step("machine", "cuda_gpu_test", self.gtest)
        yield Step("machine", "the packed gaccc", self.compiles)
        name = "mlp_f16" if self.machine.emulated else "gpt2_b16"
        yield Step("machine", f"start of {name}", self.starts, (name,))

    def cublas(self):
        """A library that is there must work."""
        entry = next(entry for entry in self.manifest["cases"].values() if "cublas" in entry["products"])
        code, text = self.exec("cublas", self.artifact(entry, "graph"), "--init-only", "--gemm", "cublas")
        return ("FAILED", f"it is in {self.machine.cublas}: {machine.last_line(text)}") if code else (
            "passed", machine.engine(text)[1])

    def gtest(self):
        code, text = self.run("cuda_gpu_test", [self.machine.program("cuda_gpu_test")], 90)
        ran = re.search(r"\[  PASSED  \] (\d+) tests", text)
        good = not code and ran and ran[1] != "0"
        return "passed" if good else "FAILED", f"{ran[1]} tests passed" if good else machine.last_line(text)

    def compiles(self):
        """The compiler in the pack makes the artifact that is in the pack."""
        out = self.machine.out / "compiled.ptx"
        name, entry = next((n, e) for n, e in self.manifest["cases"].items() if "\n" not in case_of(e).model)
        settings = case_of(entry).settings | {"precision.compute": entry["precision"], "launch.mode": "graph"}
        source = self.machine.folder / f"examples/{case_of(entry).model}.toml"
        command = [self.machine.compiler, source, "-o", out, "--target", self.target, *cases.sets(settings)]
        code, text = self.run("gaccc", command, 60)
        same = not code and code_of(out) == code_of(self.artifact(entry, "graph"))
        return ("passed", f"compiles {name} as it was packed") if same else ("FAILED", machine.last_line(text))

    def starts(self, name):
        """Loading the largest step: with nothing in the driver's cache of compiled PTX, and again."""
        artifact = self.artifact(self.manifest["benchmarks"][name], "graph")
        cache, seconds = self.machine.work / "cache", []
        for _ in range(2):
            begin = time.time()
            env = self.machine.environment() | {"CUDA_CACHE_PATH": str(cache)}
            command = [self.machine.program("gacc-exec"), artifact, "--device", "cuda", "--init-only"]
            code, text = machine.run(command, self.left(RUN_LIMIT), env)
            seconds.append(time.time() - begin)
            if code:
                return "FAILED", machine.last_line(text)
        return "done", f"{seconds[0]:.2f} s cold, {seconds[1]:.2f} s warm; {machine.last_line(text)}"

    # ---- probes

    def probes_steps(self):
        yield Step("probes", "all", self.probe)

    def probes(self, *only):
        """Returns what probe.py printed, and its lines."""
        command = [sys.executable, self.machine.folder / "gpu_check/probe.py", self.machine.driver or "libcuda.so.1",
                   "small" if self.machine.emulated or self.small else "full", *only]
        _, text = self.run(".".join(("probe", *only)), command, PROBE_LIMIT)
        found = [json.loads(line) for line in text.splitlines() if line.startswith('{"probe"')]
        self.ceilings |= {(line["probe"], line["what"]): line["value"] for line in found if "value" in line}
        return text, found

    def probe(self):
        text, found = self.probes()
        lines = [f"{line['probe']:<10} {line['what']:<52} {line['value']:10.4g} {line['unit']}" for line in found
                 if "value" in line]
        self.results.section("probes", lines)
        wrong = "; ".join(f"{line['probe']}: {line['error']}" for line in found if "error" in line)
        return ("FAILED", wrong or machine.last_line(text)) if wrong or not lines else ("done", f"{len(lines)} figures")

    # ---- parity

    def first_steps(self):
        known = self.manifest["cases"]
        return [Step("first", " ".join(one), self.parity, (one[0], known[one[0]], *one[1:]))
                for one in cases.FIRST if one[0] in known]

    def parity_steps(self):
        for name, entry in self.manifest["cases"].items():
            modes = entry["artifacts"][self.target]
            for mode, products in [("graph", "builtin"), ("graph", "cublas"), ("persistent", "builtin")]:
                if mode in modes and products in entry["products"] and (name, mode, products) not in cases.FIRST:
                    yield Step("parity", f"{name} {mode} {products}", self.parity, (name, entry, mode, products))
        for pair, compared in (("same_batch", self.same_batch), ("same_bits", self.same_bits)):
            for name in self.manifest["cases"]:
                other = name.replace(*self.manifest[pair], 1)
                if name.startswith(self.manifest[pair][0] + ".") and other in self.manifest["cases"]:
                    yield Step("parity", f"{name} as {other}", compared, (name, other))
        for name, text in self.manifest["texts"].items():
            yield Step("parity", f"{name}: a text", self.writes, (name, text))
        for name, entry in self.manifest["cases"].items():
            if entry["case"] in self.manifest["counted"] and entry["precision"] != "bf16":
                for mode in entry["artifacts"][self.target]:
                    yield Step("parity", f"{name} {mode}: launches", self.launches, (name, entry, mode))

    def train(self, label, entry, mode, products):
        """A run's outcome, a digest of all its bits, and what is wrong with it."""
        out = self.machine.out / label
        options = files.run_options(self.data(entry), entry["samples"], out)
        code, text = self.exec(label, self.artifact(entry, mode), *options, "--gemm", products)
        if code:
            return None, None, machine.last_line(text)
        log = pathlib.Path(f"{out}.jsonl").read_text()
        self.results.keep(f"{label}.jsonl", log)
        start = json.loads(log.splitlines()[0])
        kind, ran = machine.engine(text)
        wanted = {"builtin": "built-in", "cublas": "cuBLASLt"}[products]
        wrong = []
        if kind != {"graph": "graph", "persistent": "kernel"}[mode] or not ran.startswith(wanted):
            wrong.append(f"it ran as one {kind} with {ran}")
        peak = entry["artifacts"][self.target][mode]["peak"]
        if start["arena_bytes"] != peak:
            wrong.append(f"the arena has {start['arena_bytes']} bytes, the plan {peak}")
        outcome, digest = files.outcome(out)
        return outcome, (digest, ran), "; ".join(wrong)

    def parity(self, name, entry, mode, products):
        if obstacle := self.obstacle(entry, products):
            return "SKIPPED", obstacle
        file = f"{name}.{mode}.{products}"
        outcome, bits, wrong = self.train(file, entry, mode, products)
        if outcome is None or wrong:
            return "FAILED", wrong
        worst, text = compare(outcome, files.read_tensors(self.machine.work / f"{name}.reference"), entry["bounds"])
        details, good = [text, bits[1]], worst <= 1
        # The emulator runs blocks one after the other: there it is tried where it costs least.
        if not self.machine.emulated or self.small and (mode, products) == ("graph", "builtin"):
            again = self.train(file + ".again", entry, mode, products)[1]
            good = good and again == bits
            details.append("twice the same bits" if again == bits else "OTHER BITS the second time")
        if products == "builtin":
            self.one_kernel(name, bits[0])
            if entry["bits"]:
                good = good and bits[0] == entry["bits"]
                details.append("the emulator's bits" if bits[0] == entry["bits"] else "OTHER BITS than the emulator's")
        return "passed" if good else "FAILED", "; ".join(details)

    def one_kernel(self, name, bits):
        """Graph with built-in products against one kernel, once both have run."""
        with self.lock:
            first = self.bits.pop(name, None)
            if first is None:
                self.bits[name] = bits
                return
        verdict = ("passed", "the same bits") if first == bits else ("FAILED", "OTHER BITS")
        self.results.row("parity", f"{name}: graph and one kernel", *verdict)

    def same_batch(self, name, other):
        """The same batches of 32, each as one micro-batch and as four."""
        found = []
        for one in (name, other):
            outcome, _, wrong = self.train(f"{one}.split", self.manifest["cases"][one], "graph", "builtin")
            if outcome is None or wrong:
                return "FAILED", wrong
            found.append(outcome)
        found = [{k: v for k, v in one.items() if not k.startswith("log/loss_scale")} for one in found]
        worst, text = compare(*found, self.manifest["cases"][name]["bounds"])
        return "passed" if worst <= 1 else "FAILED", text

    def same_bits(self, name, other):
        """The same batches of 8, as one micro-batch and as four, by an artifact that promises the same bits."""
        digests = []
        for one in (name, other):
            _, bits, wrong = self.train(f"{one}.bits", self.manifest["cases"][one], "graph", "builtin")
            if bits is None or wrong:
                return "FAILED", wrong
            digests.append(bits[0])
        return ("passed", "the same bits") if digests[0] == digests[1] else ("FAILED", "OTHER BITS")

    def writes(self, name, expected):
        """The text that the model goes on with, where the most likely byte is always taken."""
        artifact = self.artifact(self.manifest["cases"][name], "graph")
        options = ["--load", self.machine.work / f"{name}.weights", *cases.TEXT, "--gemm", "builtin", "--quiet"]
        code, text = self.exec(f"{name}.text", artifact, *options)
        if code:
            return "FAILED", machine.last_line(text)
        return ("passed", "the CPU's text") if expected in text else (
            "FAILED", f"{expected!r} on the CPU, {text[-200:]!r} here")

    def launches(self, name, entry, mode):
        """Counts what more updates cost at the driver: launches alone."""
        one, calls = entry["artifacts"][self.target][mode], []
        full = entry["samples"] // one["window"] * one["window"]  # or a ragged micro-batch is launched kernel by kernel
        options = ["--data", f"{self.data(entry)},limit={full}", "--no-shuffle", "--quiet", "--gemm", "builtin",
                   "--epochs", 9]
        for updates in (1, 3):
            counts = self.machine.out / f"{name}.{mode}.{updates}.counts"
            code, text = self.exec(counts.name, self.artifact(entry, mode), *options, "--updates", updates,
                                   counts=counts)
            if code or not counts.exists():
                return "FAILED", machine.last_line(text) if code else "calls were not counted"
            calls.append({n: int(c) for n, c in (line.split() for line in counts.read_text().splitlines())})
        more = {n: calls[1][n] - calls[0][n] for n in calls[0]}
        k = one["accumulate"]
        wanted = dict.fromkeys(("cuGraphLaunch", "cuLaunchCooperativeKernel", "cuLaunchKernel", "cuMemAlloc_v2",
                                "cuMemHostAlloc", "cuGraphInstantiateWithFlags", "cuModuleLoadDataEx"), 0)
        wanted["cuGraphLaunch" if mode == "graph" else "cuLaunchCooperativeKernel"] = 2 * (k + 1)
        wrong = {n: more[n] for n, count in wanted.items() if more[n] != count}
        if wrong:
            return "FAILED", f"{wrong} where {wanted} was expected"
        return "passed", f"a window is {k} launches of the step and 1 of the update; nothing is allocated"

    # ---- sanitize

    def sanitize_steps(self):
        for case, precision, mode in self.manifest["sanitized"]:
            name = f"{case}.{precision}"
            for tool in SANITIZERS:
                yield Step("sanitize", f"{tool} {name} {mode}", self.sanitize, (name, mode, tool))
        thorough = [f"{case}.{precision}" for case, precision, _ in self.manifest["sanitized"]]
        for name, entry in self.manifest["cases"].items():
            if entry["precision"] != "f32" and entry["emulated"] and not self.small and name not in thorough:
                yield Step("sanitize", f"racecheck {name} graph", self.sanitize, (name, "graph", "racecheck"))

    def sanitize(self, name, mode, tool):
        found = self.sanitizer or shutil.which("compute-sanitizer") or min(
            glob.glob("/usr/local/cuda*/bin/compute-sanitizer"), default=None)
        if not found:
            return "SKIPPED", "there is no compute-sanitizer here"
        if self.machine.emulated and not self.sanitizer:
            return "SKIPPED", "not a GPU"
        entry = self.manifest["cases"][name]
        options = ["--data", self.data(entry), "--no-shuffle", "--gemm", "builtin", "--updates", 1]
        code, text = self.exec(f"sanitize.{tool}.{name}.{mode}", self.artifact(entry, mode), *options,
                               seconds=SANITIZER_LIMIT, prefix=(found, "--tool", tool, "--error-exitcode", "9"))
        if "Device not supported" in text:
            return "SKIPPED", "compute-sanitizer does not support this device"
        summary = re.findall(r"SUMMARY: (\d+) \w+", text)
        good = not code and summary and not any(map(int, summary))
        return "passed" if good else "FAILED", machine.last_line(text)

    # ---- profile

    def profile_steps(self):
        yield Step("profile", "products", self.profile, ("products", "cublas"))  # the ceiling of those that follow
        for name in self.manifest["profiled"]:
            for products in ("cublas", "builtin"):
                yield Step("profile", f"{name} {products}", self.profile, (name, products))

    def profile(self, name, products):
        """Each launch of a step, next to what it must do."""
        entry = self.manifest["benchmarks"][name]
        if obstacle := self.obstacle(entry, products):
            return "SKIPPED", obstacle
        trace = self.machine.out / f"profile.{name}.{products}.json"
        updates = 1 if self.machine.emulated else 3
        options = ["--epochs", 100, "--updates", updates, "--gemm", products, "--profile", trace]
        code, text = self.exec(f"profile.{name}.{products}", self.artifact(entry, "graph"), "--data",
                               self.fresh_data(entry, "graph"), *options)
        if code:
            return "FAILED", machine.last_line(text)
        profile = json.loads(trace.read_text())
        if name == "products":
            self.ceilings["products", "f16"] = launch_costs.fastest(profile, entry["costs"]) / 1e12
        copy, rate = self.ceiling("bandwidth", "copy", 3000), self.ceiling("products", "f16", 700)
        lines, total, lost, missing = launch_costs.table(
            profile, entry["costs"], copy[0] * 1e9, rate[0] * 1e12, products)
        lines.insert(0, f"ceilings: {copy[0]:.4g} GB/s copied ({copy[1]}), {rate[0]:.4g} TFLOP/s in f16 ({rate[1]})")
        self.results.keep(trace.name, json.dumps({k: v for k, v in profile.items() if k != "traceEvents"}, indent=1))
        self.results.section(f"launches of {name}, {machine.engine(text)[1]}", lines)
        update, steps = (launch_costs.programs(profile, program) for program in ("update", "step"))
        accumulate = entry["artifacts"][self.target]["graph"]["accumulate"]
        first, further = steps[::accumulate], [s for i, s in enumerate(steps) if i % accumulate]
        if missing:
            return "FAILED", missing
        mean = lambda values: statistics.fmean(values or [math.nan])
        return "done", (f"{total:.1f} us a micro-batch launch by launch, {lost:.1f} of them above the ceilings; "
                        f"a first one {mean(first):.1f}, a further one {mean(further):.1f}; "
                        f"the update {mean(update):.1f} us")

    def ceiling(self, probe, what, assumed):
        """Returns what was measured here, or else a guess; and says which of the two."""
        found = self.ceilings.get((probe, what))
        return (found, "measured") if found else (assumed, "ASSUMED")

    def fresh_data(self, entry, mode, kind="zipf", windows=2):
        """Data for a benchmark, a whole number of windows of it."""
        one = entry["artifacts"][self.target][mode]
        with self.lock:
            work, samples = self.machine.work, windows * one["window"]
            return files.spec(files.make_data(f"{one['file']}.{kind}", one["inputs"], samples, work, kind), work)

    # ---- speed

    def speed_steps(self, stage):
        for name in cases.SPEED[stage]:
            entry = self.manifest["benchmarks"][name]
            modes = entry["artifacts"][self.target]
            ways = [("graph", "cublas"), ("graph", "cublas, tuned"), ("graph", "builtin"), ("persistent", "builtin")]
            kinds = ("zipf", "uniform") if name.startswith("gpt2") else ("zipf",)
            yield from (Step(stage, f"{name} {mode} {products} {kind}", self.speed, (name, mode, products, kind))
                        for mode, products in ways if mode in modes and products.split(",")[0] in entry["products"]
                        for kind in kinds)
            yield from (Step(stage, f"{name} {mode} host alone", self.host_alone, (name, mode)) for mode in modes)

    def speed(self, name, mode, products, kind):
        """The time of whole windows, K micro-batches of fresh data and the update, beside the estimate."""
        entry = self.manifest["benchmarks"][name]
        products, _, tuned = products.partition(", ")
        if obstacle := self.obstacle(entry, products):
            return "SKIPPED", obstacle
        one, label = entry["artifacts"][self.target][mode], f"{name}.{mode}.{products}{tuned}.{kind}"
        warm, windows = (1, 2) if self.machine.emulated else (15, 2000) if name.startswith("mlp") else (4, 8)
        log, algorithms = self.machine.out / f"{label}.jsonl", self.machine.out / f"{name}.algorithms"
        options = ["--data", self.fresh_data(entry, mode, kind), "--epochs", 100000, "--updates", warm + windows,
                   "--gemm", products, "--log", log, *(("--tune-gemm", algorithms) if tuned else ())]
        code, text = self.exec(label, self.artifact(entry, mode), *options, seconds=200)
        ran = machine.engine(text)[1]
        if code or products == "cublas" and not ran.startswith("cuBLASLt"):
            return "FAILED", machine.last_line(text) if code else f"it ran with {ran}"
        events = files.read_log(log)
        self.results.keep(log.name, log.read_text())
        if tuned and algorithms.exists():
            self.results.keep(algorithms.name, algorithms.read_text())
        times = [event["seconds"] for event in events if event["event"] == "update"][warm:]
        median, estimate = statistics.median(times), one["estimate"]
        quarters = statistics.quantiles(times, n=4)
        spread = 1e6 * (quarters[2] - quarters[0])
        beside = f"estimate {1e6 * estimate:.1f}, off by {median / estimate:.2f}x; " if estimate else ""
        return "done", (
            f"{1e6 * median:.1f} us a window of {one['window']} samples (iqr {spread:.1f}, {len(times)} windows), "
            f"{1e6 * median / one['window']:.2f} us a sample; {beside}{ran}; "
            f"{events[-1]['peak_bytes'] / (1 << 30):.2f} GiB")
    def host_alone(self, name, mode):
        """The time of the same windows with a driver that does nothing."""
        one = self.manifest["benchmarks"][name]["artifacts"][self.target][mode]
        log, warm, windows = self.machine.out / f"{name}.{mode}.host.jsonl", 4, 8 if self.machine.emulated else 200
        code, text = self.exec(log.stem, self.artifact(self.manifest["benchmarks"][name], mode), "--data",
                               self.fresh_data(self.manifest["benchmarks"][name], mode), "--epochs", 100000,
                               "--updates", warm + windows, "--gemm", "builtin", "--log", log, idle=True)
        if code:
            return "FAILED", machine.last_line(text)
        times = [event["seconds"] for event in files.read_log(log) if event["event"] == "update"][warm:]
        return "done", f"{1e6 * statistics.median(times):.1f} us a window of {one['window']} samples"

    # ---- extra

    def extra_steps(self):
        """Artifacts that are not of this pack, so that variants of kernels need no code of their own."""
        for path in sorted(self.extra.glob("*.ptx")) if self.extra else ():
            for what in (self.extra_speed, self.extra_profile):
                yield Step("extra", f"{path.stem} {what.__name__.removeprefix('extra_')}", what, (path,))

    def add_extra(self, path):
        """Makes the artifact a benchmark without an estimate."""
        ir = ArtifactIr(path)
        one = {"file": str(path.resolve()), "accumulate": ir.accumulate, "window": ir.micro_batch * ir.accumulate,
               "inputs": ir.inputs(), "estimate": None}
        self.manifest["benchmarks"][path.stem] = {"artifacts": {self.target: {"graph": one}}, "costs": None,
                                                  "emulated": True}
        return path.stem

    def extra_speed(self, path):
        """The time of windows, and a digest of the weights after two: variants that keep every bit have the same."""
        name, saved = self.add_extra(path), self.machine.out / f"{path.stem}.weights"
        verdict, detail = self.speed(name, "graph", "cublas" if self.machine.cublas else "builtin", "zipf")
        if verdict != "done":
            return verdict, detail
        code, text = self.exec(f"{name}.digest", path, "--data", self.fresh_data(
            self.manifest["benchmarks"][name], "graph"), "--updates", 2, "--gemm", "builtin", "--save", saved)
        if code:
            return "FAILED", machine.last_line(text)
        return verdict, f"{detail}; weights {hashlib.sha256(saved.read_bytes()).hexdigest()[:12]}"

    def extra_profile(self, path):
        return self.profile(self.add_extra(path), "cublas" if self.machine.cublas else "builtin")

    # ---- peers

    def peers_steps(self):
        return [Step("peers", f"torch {name}", self.peer, (name,)) for name in peers.CONTENDERS]

    def peer(self, name):
        """The time of whole windows in PyTorch. Nothing of our programs' environment is given to it."""
        if self.machine.emulated:
            return "SKIPPED", "not a GPU"
        env = dict(os.environ, PYTHONPATH=str(self.machine.folder))
        code, text = machine.run([sys.executable, "-m", "gpu_check.peers", name], self.left(PEER_LIMIT), env)
        self.results.keep(f"peer.{name}.log".replace(" ", "."), text)
        if code:
            return "SKIPPED", machine.last_line(text)
        found = json.loads(text.strip().splitlines()[-1])
        if "skipped" in found:
            return "SKIPPED", found["skipped"]
        samples = next(iter(self.manifest["benchmarks"][name.split()[0]]["artifacts"][self.target].values()))["window"]
        return "done", (f"{found['median_us']:.1f} us a window of {samples} samples (iqr {found['iqr_us']:.1f}, "
                        f"{found['windows']} windows), {found['median_us'] / samples:.2f} us a sample; "
                        f"{found['library']}; {found['peak_bytes'] / (1 << 30):.2f} GiB")


def compare(found, expected, bounds):
    """The largest distance in units of its bound, and a sentence."""
    far = files.distances(found, expected)
    share = {name: distance / bounds[name] if bounds.get(name) else (0 if distance == 0 else math.inf)
             for name, distance in far.items()}
    worst = max(share, key=share.get)
    return share[worst], f"{share[worst]:.2f} of the bound in {worst}, {far[worst]:.1e} apart"


def case_of(entry):
    return next(case for case in cases.CASES if case.name == entry["case"])


def code_of(artifact):
    """Its PTX, without what it says about where it was compiled."""
    return pathlib.Path(artifact).read_text().partition("\n.version")[2]


def runs_on(target, capability):
    number = re.match(r"sm_(\d+)(a?)$", target)
    return bool(number) and (capability == int(number[1]) if number[2] else capability >= int(number[1]))


def nvidia_smi():
    what = "name,driver_version,clocks.sm,clocks.mem,power.limit,memory.total,memory.used"
    code, text = machine.run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"], 20)
    return [f"nvidia-smi: {text.strip().splitlines()[0]}"] if not code and text.strip() else []
