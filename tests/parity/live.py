#!/usr/bin/env python3
"""live.py PREFIX: trains every live parity case whose name starts so and compares losses, gradient norms and all
weights with ../shared/oracle/oracle.py, run here and now. Skipped aloud without the oracle or without numpy and
PyTorch."""
import pathlib
import subprocess
import sys
import tempfile

import parity
from parity import harness

ORACLE = harness.ROOT.parent / "shared/oracle/oracle.py"


def find_python():
    """A Python for the oracle."""
    return harness.peer("torch", "numpy") if ORACLE.exists() else harness.skip("no ../shared/oracle/oracle.py here")


def oracle_run(python, case, spec, initial, folder):
    """Trains the case with the oracle; leaves losses.json and final.safetensors in `folder`."""
    sets = [word for s in case["sets"] for word in ("--set", s)]
    subprocess.run([python, ORACLE, "run", harness.ROOT / case["model"], "--init", initial, "--data", spec,
                    "--updates", str(case["updates"]), "--out", folder, *sets], check=True, stdout=subprocess.DEVNULL)


def main():
    python, failed = find_python(), False
    cases = [c for name, c in parity.CASES.items() if name.startswith(sys.argv[1]) and c["live"]]
    harness.expect(cases, f"no case starts with {sys.argv[1]}")
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="gacc-") as name:
            folder = pathlib.Path(name)
            started = parity.start(case, folder)
            oracle_run(python, case, started[0], started[2], folder / "oracle")
            final = parity.train(case, folder, *started)[2]
            print(f"{case['name']}: ", end="", flush=True)
            loss, norm, weights = case["bounds"]
            harness.expect(norm == weights, "the oracle has one bound for gradient norms and weights")
            compare = [python, ORACLE, "compare", folder / "oracle", "--log", folder / "log.jsonl", "--weights", final,
                       "--rtol", str(weights), "--loss-rtol", str(loss)]
            failed |= subprocess.run(compare).returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
