"""scripts/gpu-check --pack: programs, artifacts for several targets, data and the CPU's results in one folder.

What is large travels compressed: work.tar has artifacts, data, references and gaccc."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

from artifact_ir import ArtifactIr, function_of

from . import cases, files

LIMIT = 60 << 20  # bytes of a pack
PROGRAMS = ("bin/gacc-exec", "tests/cuda_gpu_test")
DRIVERS = ("count", "idle")  # that count calls, and that do nothing
COSTS = ("name", "bytes", "flops", "seconds", "builtin_seconds")  # of a launch
LIBRARIES = ("libfmt", "libstdc++", "libgcc_s", "libz.so", "libzstd", "libnettle")
# Bounds on relative distances, norm by norm. f32: as tests/cuda/commands.py has them.
F32 = {"log": 1e-5, "gradients": 1e-4, "weights": 1e-4}
# Half types: what rounding does on the CPU, its distance to f32 there, or one unit roundoff where that is less; times
# this, because sums are rounded from another order (the emulator, whose orders are a GPU's, comes to 1.3).
HALF_FACTOR = 3
ROUNDOFF = {"f16": 2.0 ** -11, "bf16": 2.0 ** -8}


class Packer:
    def __init__(self, root, folder, small):
        self.root, self.folder, self.small = root, folder, small
        self.bin = root / "build/bin"
        self.targets = cases.TARGETS[-1:] if small else cases.TARGETS
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.manifest = {"small": small, "targets": self.targets, "cases": {}, "benchmarks": {},
                         "same_batch": cases.SAME_BATCH, "same_bits": cases.SAME_BITS, "texts": {},
                         "counted": cases.COUNTED, "profiled": cases.PROFILED,
                         "sanitized": cases.SANITIZED_SMALL if small else cases.SANITIZED}

    def pack(self):
        try:
            self.make()
        finally:
            shutil.rmtree(self.work)
        size = sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file())
        print(f"gpu-check: {self.folder} is {size / (1 << 20):.1f} MiB; "
              f"on the GPU machine: {self.folder.name}/gpu-check")
        if size > LIMIT:
            raise SystemExit(f"gpu-check: {self.folder} is larger than {LIMIT >> 20} MiB")

    def make(self):
        for name in ("bin", "lib", *DRIVERS):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.programs()
        # One thread a core: compiler and CPU runs are processes.
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [pool.submit(self.case, case, precision) for case in cases.CASES
                    for precision in (case.small if self.small else case.precisions)]
            jobs += [pool.submit(self.benchmark, one) for one in cases.BENCHMARKS]
            for job in jobs:
                job.result()
        mode, how = ("w:gz", {"compresslevel": 1}) if self.small else ("w:xz", {"preset": 6})
        with tarfile.open(self.folder / "work.tar", mode, **how) as archive:
            for path in sorted(self.work.iterdir()):
                archive.add(path, path.name)
        self.manifest["cases"] = dict(sorted(self.manifest["cases"].items()))
        (self.folder / "manifest.json").write_text(json.dumps(self.manifest, indent=1))

    def programs(self):
        build = self.root / "build"
        programs = [build / name for name in PROGRAMS]
        drivers = [build / f"tests/{name}/libcuda.so.1" for name in DRIVERS]
        for program in [*programs, self.bin / "gaccc", *drivers]:
            if not program.exists():
                raise SystemExit(f"gpu-check: {program} is missing: build it first")
            for line in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines():
                library = line.split("=>")[-1].split()[0] if "=>" in line else ""
                if any(part in library for part in LIBRARIES):
                    shutil.copy2(os.path.realpath(library), self.folder / "lib" / pathlib.Path(library).name)
        for program in programs:
            subprocess.run(["strip", "-o", self.folder / "bin" / program.name, program], check=True)
        # The compiler, so that other variants can be made there.
        (self.work / "bin").mkdir()
        subprocess.run(["strip", "-o", self.work / "bin/gaccc", self.bin / "gaccc"], check=True)
        for driver in drivers:
            shutil.copy2(driver, self.folder / driver.parent.name)
        for script in ("gpu-check", "artifact_ir.py"):
            shutil.copy2(self.root / "scripts" / script, self.folder)
        shutil.copytree(self.root / "scripts/gpu_check", self.folder / "gpu_check", dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__", "packing.py"))
        shutil.copytree(self.root / "examples", self.folder / "examples", dirs_exist_ok=True)

    def source(self, name, model):
        """The path of a model's file."""
        if "\n" not in model:
            return self.root / f"examples/{model}.toml"
        path = self.work / f"{name}.toml"
        path.write_text(model)
        return path

    def compile(self, source, out, settings, target):
        """Returns the plan with the estimates of kernels."""
        command = [self.bin / "gaccc", source, "-o", out, "--target", target, "--plan", "--kernels", "--json",
                   *cases.sets(settings)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"gpu-check: {source}: {done.stderr}")
        return json.loads(done.stdout)

    def artifacts(self, name, source, settings, modes):
        """By target and mode: the file, what the plan says of it, and what launches of the graph cost."""
        found, costs = {}, None
        for target in self.targets:
            for mode in modes:
                out = self.work / f"{name}.{mode}.{target}.ptx"
                plan = self.compile(source, out, {**settings, "launch.mode": mode}, target)
                ir = ArtifactIr(out)
                update = sum(kernel["seconds"] for kernel in plan["kernels"] if kernel["program"] == "update")
                found.setdefault(target, {})[mode] = {
                    "file": out.name, "peak": plan["bytes"]["peak"], "accumulate": plan["accumulate"],
                    "window": plan["effective_batch"], "parameters": plan["parameters"],
                    "inputs": ir.inputs(), "flops": plan["flops_per_launch"],
                    "estimate": plan["accumulate"] * plan["step_seconds"] + update}
                if target == self.targets[-1] and mode == "graph":
                    costs = launch_costs([function_of(launch) for launch in ir.launches()], plan)
        return found, costs

    def case(self, case, precision):
        name, source = f"{case.name}.{precision}", self.source(f"{case.name}.{precision}", case.model)
        settings = {**case.settings, "precision.compute": precision}
        found, _ = self.artifacts(name, source, settings, case.modes)
        chosen = found[self.targets[0]][case.modes[0]]
        artifact = self.work / chosen["file"]
        samples = min(case.samples, 32) if self.small else case.samples
        data = files.make_data(name, chosen["inputs"], samples, self.work)
        reference, _ = self.train(name, artifact, data, samples)
        bounds = {tensor: F32[tensor.split("/")[0]] for tensor in reference}
        if precision != "f32":
            plain = self.work / f"{name}.f32.ptx"
            settings = {**case.settings, "precision.compute": "f32", "launch.mode": "graph"}
            self.compile(source, plain, settings, self.targets[0])
            apart = files.distances(self.train(f"{name}.f32", plain, data, samples)[0], reference)
            plain.unlink()
            bounds = {tensor: HALF_FACTOR * max(apart.get(tensor, 0), ROUNDOFF[precision]) for tensor in reference}
        bounds |= {tensor: 0 for tensor in reference if tensor in ("log/skipped", "log/loss_scale")}
        files.write_tensors(self.work / f"{name}.reference", reference)
        # f32 has no approximate functions: a GPU's kernels give the emulator's bits.
        exact = precision == "f32" and case.emulated
        bits = self.train(f"{name}.bits", artifact, data, samples, "emulate")[1] if exact else None
        self.manifest["cases"][name] = {
            "case": case.name, "precision": precision, "artifacts": found, "data": data, "samples": samples,
            "emulated": case.emulated, "bounds": bounds, "bits": bits, "products": case.products}
        if name in (cases.WRITTEN_SMALL if self.small else cases.WRITTEN):
            self.manifest["texts"][name] = self.text(artifact, self.work / f"{name}.weights")

    def train(self, name, artifact, data, samples, device="cpu"):
        """Returns the outcome of a run without a GPU; see files.outcome."""
        out = self.work / name
        options = files.run_options(files.spec(data, self.work), samples, out)
        options += ["--device", device, "--threads", "1", "--quiet"]
        options += ["--gemm", "builtin"] if device == "emulate" else []
        subprocess.run([str(word) for word in (self.bin / "gacc-exec", artifact, *options)], check=True)
        return files.outcome(out)

    def text(self, artifact, weights):
        """The text that it goes on with on the CPU, from its first weights, which are packed."""
        command = [self.bin / "gacc-exec", artifact, "--device", "cpu", "--threads", "1", "--quiet"]
        subprocess.run([*command, "--init-only", "--save", weights], check=True, stdout=subprocess.DEVNULL)
        return subprocess.run([*command, "--load", weights, *cases.TEXT], capture_output=True, text=True, check=True,
                              errors="backslashreplace").stdout

    def benchmark(self, one):
        source = self.source(one.name, one.model)
        found, costs = self.artifacts(one.name, source, one.small if self.small else one.settings, one.modes)
        self.manifest["benchmarks"][one.name] = {"artifacts": found, "costs": costs,
                                                 "emulated": one.emulated or self.small, "products": one.products}


def launch_costs(launches, plan):
    """COSTS of each launch of the step; None where the plan is of another one. `launches` has the names of kernels, and
    None for a product."""
    planned = [kernel for kernel in plan["kernels"] if kernel["program"] == "step"]
    if [None if one["name"].startswith("product ") else one["name"] for one in planned] != launches:
        return None
    return [{key: one[key] for key in COSTS} for one in planned]
