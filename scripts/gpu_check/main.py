"""The command: what is asked for, in which order, and how long."""
import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import signal
import time

from . import cases, machine
from .results import Results
from .stages import SIDE_BY_SIDE, Check

HERE = pathlib.Path(__file__).resolve().parents[1]  # the pack, or scripts/
# In the order of a first call: is it right, how fast is it, where does the time go, then all the rest.
STAGES = ("machine", "first", "extra", "gpt2:b16", "profile", "char", "mlp", "lora", "parity", "probes", "peers",
          "sanitize", "gpt2:b4", "gpt2:b64")


def steps_of(check, stages):
    return [step for stage in stages
            for step in (check.speed_steps(stage) if stage in cases.SPEED else getattr(check, f"{stage}_steps")())]


def carry_out(step, check):
    if why := check.stopped():
        return check.results.row(step.stage, step.what, "SKIPPED", why)
    try:
        outcome = step.run(*step.arguments)
    except Exception as error:  # a row that says so, and the next step
        outcome = "FAILED", f"{type(error).__name__}: {error}"
    if outcome:
        check.results.row(step.stage, step.what, *outcome)


def carry_all_out(steps, check):
    """In order; neighbours that measure no time run side by side."""
    for beside, group in itertools.groupby(steps, key=lambda step: step.stage in SIDE_BY_SIDE):
        with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1) if beside else 1) as pool:
            list(pool.map(lambda step: carry_out(step, check), group))


def stages_of(words):
    stages = [word for word in words.split(",") if word] or list(STAGES)
    unknown = [stage for stage in stages if stage not in STAGES]
    if unknown:
        raise SystemExit(f"gpu-check: --only {unknown[0]}: expected some of {', '.join(STAGES)}, with commas between")
    return [stage for stage in STAGES if stage in stages]


def main(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--small", action="store_true", help="with --pack: few and tiny cases, for the emulator")
    parser.add_argument("--only", default="", metavar="STAGES", help="some of the stages, with commas between")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("gpu-check-results"))
    parser.add_argument("--driver", type=pathlib.Path, metavar="LIBRARY")
    parser.add_argument("--seconds", type=float, default=520,
                        help="start nothing after so many, and end what runs (520)")
    parser.add_argument("--scratch", metavar="DIR", help="keep what is unpacked and written there, bin/gaccc with it")
    parser.add_argument("--extra", type=pathlib.Path, metavar="DIR",
                        help="artifacts (*.ptx) that are timed and profiled as well")
    parser.add_argument("--sanitizer", metavar="PROGRAM", help="instead of the compute-sanitizer that is found")
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    if arguments.pack:
        from . import packing  # stays on the machine that built gacc
        return packing.Packer(HERE.parent, arguments.pack.resolve(), arguments.small).pack()
    stages = stages_of(arguments.only)
    if not (HERE / "manifest.json").exists():
        raise SystemExit("gpu-check: there is no manifest.json beside this script: `scripts/gpu-check --pack DIR` on "
                         "the machine that built gacc makes a folder that has one")
    manifest = json.loads((HERE / "manifest.json").read_text())
    end = time.time() + arguments.seconds
    here = machine.Machine(HERE, arguments.driver, arguments.scratch)
    try:
        results = Results(arguments.out.resolve(), [f"stages: {', '.join(stages)}"])
        check = Check(here, manifest, results, arguments, end)
        if arguments.dry:
            check.target = manifest["targets"][-1]
            print("\n".join(f"{step.stage}: {step.what}" for step in steps_of(check, stages)))
            return None
        begin = time.time()
        signal.signal(signal.SIGTERM, machine.end_all)
        signal.signal(signal.SIGINT, machine.end_all)
        if check.find_machine():
            carry_all_out(steps_of(check, stages), check)
        results.head.append(f"{results.failed} failed; {time.time() - begin:.0f} s; {results.out}/report.md")
        results.save(last=True)
        print("=" * 80 + "\n" + results.summary())
        return 143 if machine.ending else 1 if results.failed else None
    finally:
        here.close()
