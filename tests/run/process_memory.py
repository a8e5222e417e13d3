"""On a CPU the process takes what the plan says, and a part that does not depend on the plan."""
import json
import re

import harness
from harness import expect, run

SLACK = 8 << 20  # bytes: pages that the allocator keeps, and what is touched of a library in one run and not in another

MODEL = """
[model]
name = "wide"
[inputs.x]
shape = [16]
[inputs.y]
dtype = "i32"
range = 4
[[layers]]
type = "linear"
features = 2048
activation = "gelu"
[[layers]]
type = "linear"
features = 1024
activation = "gelu"
[[layers]]
type = "linear"
features = 4
[loss]
type = "cross_entropy"
target = "y"
[train]
micro_batch = 64
[optimizer]
type = "sgd"
lr = 0.01
"""


def measured(model, folder, spec, micro_batch):
    """The plan's peak, and what the run says of the process, in bytes; the code comes from the cache."""
    artifact = harness.compile_model(model, folder / "step.ptx", train__micro_batch=micro_batch)
    plan = json.loads(run("gaccc", model, "--plan", "--json", "--set", f"train.micro_batch={micro_batch}").stdout)
    for _ in range(2):
        done = run("gacc-exec", artifact, "--data", spec, "--updates", 2, "--threads", 1)
    found = re.search(r"memory: ([\d.]+) MiB at most: the arena's ([\d.]+) MiB as planned, and ([\d.]+) MiB", done.stdout)
    if not found:
        harness.skip("the system does not say how much memory a process takes")
    process, arena = float(found[1]) * 2**20, float(found[2]) * 2**20
    expect(abs(arena - plan["bytes"]["peak"]) <= 2**17, f"arena {arena}, plan {plan['bytes']['peak']}")
    return plan["bytes"]["peak"], process


def test_it_grows_by_what_the_plan_grows_by(folder):
    model = folder / "model.toml"
    model.write_text(MODEL)
    spec = harness.make_data(model, 4096, folder)
    small, large = (measured(model, folder, spec, m) for m in (64, 4096))
    planned, grown = large[0] - small[0], large[1] - small[1]
    print(f"plan {small[0]} -> {large[0]}, process {small[1]:.0f} -> {large[1]:.0f}: grew by {grown - planned:+.0f} bytes besides")
    expect(planned > 64 << 20, f"the two plans differ by {planned} bytes only")
    expect(abs(grown - planned) <= SLACK, f"the plan grew by {planned} bytes, the process by {grown:.0f}")


harness.main(globals())
