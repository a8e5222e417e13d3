"""The same command twice gives the same bytes; the number of threads changes no weight, nor does the cache of
compiled kernels."""
import json
import os

import harness
from harness import expect, run


def without_seconds(log):
    return [{k: v for k, v in e.items() if k != "seconds"} for e in harness.read_log(log)]


def train(folder, name, artifact, spec, *options, **environment):
    log, weights = folder / f"{name}.jsonl", folder / f"{name}.safetensors"
    run("gacc-exec", artifact, "--data", spec, "--eval", spec, "--epochs", 2, "--log", log, "--save", weights, *options,
        env={**os.environ, **environment})
    return without_seconds(log), weights.read_bytes()


def test_same_command_twice(folder):
    for name in harness.EXAMPLE_NAMES:
        model = harness.example(name)
        spec = harness.make_data(model, 333, folder)
        first = harness.compile_model(model, folder / "first.ptx").read_bytes()
        second = harness.compile_model(model, folder / "second.ptx").read_bytes()
        expect(first == second, f"{name}: two artifacts of one model differ")
        a = train(folder, "a", folder / "first.ptx", spec)
        b = train(folder, "b", folder / "first.ptx", spec)
        expect(a[0] == b[0], f"{name}: the logs of two runs differ")
        expect(a[1] == b[1], f"{name}: the weights of two runs differ")


def test_shuffle_depends_on_seed_and_epoch_only(folder):
    model = harness.example("mnist_mlp")
    spec = harness.make_data(model, 333, folder)
    artifact = harness.compile_model(model, folder / "step.ptx")
    a, b, c = (train(folder, n, artifact, spec, *o) for n, o in
               (("a", ["--seed", "1"]), ("b", ["--seed", "2"]), ("c", ["--no-shuffle", "--seed", "1"])))
    expect(a[1] != b[1], "another seed gives other weights")
    expect(a[1] != c[1], "shuffling matters")


def test_threads(folder):
    """--threads 1, 2 and 3 give the same log and weights, to the bit."""
    for name in harness.EXAMPLE_NAMES:
        model = harness.example(name)
        spec = harness.make_data(model, 333, folder)
        artifact = harness.compile_model(model, folder / "step.ptx")
        one = train(folder, "one", artifact, spec, "--threads", 1)
        for threads in (2, 3):
            other = train(folder, "other", artifact, spec, "--threads", threads)
            expect(one == other, f"{name}: --threads {threads} changes the result")


def test_cache(folder):
    """Compiled anew, from the cache, and without a usable cache: the same weights."""
    model = harness.example("residual_mlp")
    spec = harness.make_data(model, 200, folder)
    artifact = harness.compile_model(model, folder / "step.ptx")
    cache = str(folder / "cache")
    cold = train(folder, "cold", artifact, spec, XDG_CACHE_HOME=cache)
    expect(any((folder / "cache").rglob("*")), "nothing was cached under XDG_CACHE_HOME")
    warm = train(folder, "warm", artifact, spec, XDG_CACHE_HOME=cache)
    (folder / "file").write_text("not a folder")
    without = train(folder, "without", artifact, spec, XDG_CACHE_HOME=str(folder / "file"))
    for entry in (folder / "cache").rglob("*"):
        if entry.is_file():
            entry.write_bytes(entry.read_bytes()[:100])
    damaged = train(folder, "damaged", artifact, spec, XDG_CACHE_HOME=cache)
    expect(cold == warm == without == damaged, "the cache changes the result")


def test_plan_json_is_stable(folder):
    model = harness.example("mnist_mlp")
    plans = [run("gaccc", model, "--plan", "--json", cwd=folder).stdout for _ in range(2)]
    expect(plans[0] == plans[1] and json.loads(plans[0])["model"], "two plans of one model differ")
    expect(not list(folder.iterdir()), "--plan writes no artifact without -o")


harness.main(globals())
