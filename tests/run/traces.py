"""gacc-exec --profile: a Chrome trace of every launch, on the CPU and in the emulator; measuring changes no bit."""
import json

import harness
from harness import expect, run


def profiled(folder, device, *options, **settings):
    model = harness.example("regression")
    artifact = harness.compile_model(model, folder / "step.ptx", **settings)
    data = ("--data", harness.make_data(model, 70, folder), "--epochs", 1, "--no-shuffle", "--device", device)
    trace, plain, measured = folder / "trace.json", folder / "plain.safetensors", folder / "measured.safetensors"
    run("gacc-exec", artifact, *data, "--save", plain, *options, timeout=300)
    run("gacc-exec", artifact, *data, "--save", measured, "--profile", trace, *options, timeout=300)
    expect(plain.read_bytes() == measured.read_bytes(), "measuring changed the weights")
    return json.loads(trace.read_text()), harness.ArtifactIr(artifact)


def check(trace, ir, runs_of_step, launches_of_step):
    events = [e for e in trace["traceEvents"] if e["cat"] == "kernel"]
    expect(all(e["ph"] == "X" and e["ts"] >= 0 and e["dur"] >= 0 and e["name"] for e in events),
           "an event is not whole")
    steps = [e for e in events if e["args"]["program"] == "step"]
    expect([e["args"]["launch"] for e in steps] == list(range(launches_of_step)) * runs_of_step,
           f"launches of the step: {[e['args']['launch'] for e in steps]}")
    programs = [e["name"] for e in trace["traceEvents"] if e["cat"] == "program"]
    expect(programs.count("step") == runs_of_step and programs.count("init") == 1 and programs.count("update") >= 1,
           programs)
    expect(trace["otherData"]["micro_batch"] == ir.micro_batch, "otherData.micro_batch")
    means = [k for k in trace["kernels"] if k["program"] == "step"]
    expect(len(means) == launches_of_step, means)
    # The kernel that a product runs along with itself is listed, and takes no time of its own.
    expect(all((k["microseconds"] > 0) != k["name"].endswith("(in its product)") for k in means), means)
    begins = [e["ts"] for e in events]
    expect(begins == sorted(begins), "launches overlap or go back in time")


def runs(ir):
    return -(-70 // ir.micro_batch)


def test_profile_on_the_cpu(folder):
    trace, ir = profiled(folder, "cpu")
    check(trace, ir, runs(ir), len(ir.launches()))
    expect(trace["otherData"]["unit"] == "microseconds", trace["otherData"])


def test_profile_in_the_emulator_counts_instructions(folder):
    for mode in ("graph", "persistent"):
        trace, ir = profiled(folder, "emulate", launch__mode=mode)
        check(trace, ir, runs(ir), 1 if mode == "persistent" else len(ir.launches()))
        expect("instructions" in trace["otherData"]["unit"], trace["otherData"])
        expect(all(e["dur"] == int(e["dur"]) for e in trace["traceEvents"]), "instructions are not whole numbers")


def test_profile_needs_launches_and_a_place(folder):
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    done = run("gacc-exec", artifact, "--init-only", "--profile", folder / "t.json", code=2)
    expect("--profile does not go with it" in done.stderr, done.stderr)
    done = run("gacc-exec", artifact, "--data", harness.make_data(harness.example("regression"), 64, folder),
               "--device",
               "cpu", "--profile", folder / "nowhere/t.json", code=1)
    harness.one_error(done, "nowhere")


harness.main(globals())
