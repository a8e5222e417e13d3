"""On a CPU the process takes what the plan says, and a part that does not depend on the plan."""
import re

import harness
from harness import expect, layer, run

SLACK = 8 << 20  # bytes: pages that the allocator keeps, and what is touched of a library in one run and not in another

MODEL = harness.classifier("wide", [16], 4, (
    layer("linear", features=2048, activation="gelu"), layer("linear", features=1024, activation="gelu"),
    layer("linear", features=4)), train="micro_batch = 64")


def measured(model, folder, spec, **settings):
    """The plan's peak, and what the run says of the process, in bytes; the code comes from the cache."""
    artifact = harness.compile_model(model, folder / "step.ptx", **settings)
    peak = harness.plan_of(model, **settings)["bytes"]["peak"]
    for _ in range(2):
        done = run("gacc-exec", artifact, "--data", spec, "--updates", 2, "--threads", 1)
    found = re.search(r"memory: ([\d.]+) MiB at most: the arena's ([\d.]+) MiB as planned, and ([\d.]+) MiB",
                      done.stdout)
    if not found:
        harness.skip("the system does not say how much memory a process takes")
    process, arena = float(found[1]) * 2**20, float(found[2]) * 2**20
    expect(abs(arena - peak) <= 2**17, f"arena {arena}, plan {peak}")
    return peak, process


def test_it_grows_by_what_the_plan_grows_by(folder):
    """In f32 and in half precision; and what does not depend on the plan is the same for all of them."""
    model = folder / "model.toml"
    model.write_text(MODEL)
    spec, besides = harness.make_data(model, 4096, folder), {}
    for compute in ("f32", "f16", "bf16"):
        small, large = (measured(model, folder, spec, train__micro_batch=m, precision__compute=compute)
                        for m in (64, 4096))
        planned, grown = large[0] - small[0], large[1] - small[1]
        print(f"{compute}: plan {small[0]} -> {large[0]}, process {small[1]:.0f} -> {large[1]:.0f}: grew by "
              f"{grown - planned:+.0f} bytes besides")
        expect(planned > 48 << 20, f"{compute}: the two plans differ by {planned} bytes only")
        expect(abs(grown - planned) <= SLACK,
               f"{compute}: the plan grew by {planned} bytes, the process by {grown:.0f}")
        besides[compute] = large[1] - large[0]
    expect(max(besides.values()) - min(besides.values()) <= SLACK, f"besides the plan: {besides}")


def test_half_precision_takes_half_the_bytes(folder):
    """Returns the bytes of activations, of the copies of weights, and of the input, in half in the arena alone."""
    model = folder / "model.toml"
    model.write_text(MODEL)
    for micro_batch in (64, 4096):
        full = harness.plan_of(model, train__micro_batch=micro_batch)["bytes"]
        for compute in ("f16", "bf16"):
            half = harness.plan_of(model, train__micro_batch=micro_batch, precision__compute=compute)["bytes"]
            print(f"{compute}, micro_batch {micro_batch}: {half} against {full}")
            for halved in ("activations", "inputs"):
                expect(half[halved] == full[halved] // 2, f"{halved}: {half} against {full}")
            expect((half["half_weights"], full["half_weights"]) == (full["weights"] // 2, 0), f"{half} against {full}")
            for kept in ("weights", "gradients"):
                expect(half[kept] == full[kept], f"{kept}: {half} against {full}")


harness.main(globals())
