#!/usr/bin/env python3
"""make_references.py [CASE...]: writes references/CASE.json with ../shared/oracle/oracle.py, from gacc's own initial
values.

Needs numpy and PyTorch and built tools (GACC_BIN). To be run when a case, the data or gacc's initial values change,
never to make a failing comparison pass: the commit says why. """
import json
import pathlib
import sys
import tempfile

import live
import parity
from parity import harness


def number(value):
    return float(f"{value:.9g}")


def main():
    python = live.find_python()
    parity.REFERENCES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or parity.CASES:
        case = parity.CASES[name]
        with tempfile.TemporaryDirectory(prefix="gacc-") as folder_name:
            folder = pathlib.Path(folder_name)
            spec, _, initial = parity.start(case, folder)
            live.oracle_run(python, case, spec, initial, folder / "oracle")
            ref = json.loads((folder / "oracle/losses.json").read_text())
            tensors = {}
            for key, (shape, values) in harness.read_safetensors(folder / "oracle/final.safetensors").items():
                tensors[key] = {"shape": shape, "norm": number(harness.norm(values)),
                                "sketch": [number(v) for v in parity.sketch(values)]}
            kept = {"sets": case["sets"], "data": parity.data_digest(folder),
                    "initial": harness.tensors_digest(harness.read_safetensors(initial)),
                    "loss": [number(v) for v in ref["loss"]], "grad_norm": [number(v) for v in ref["grad_norm"]],
                    "tensors": tensors}
        text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in kept.items())
        (parity.REFERENCES / f"{name}.json").write_text("{\n" + text + "\n}\n")
        print(f"{name}: loss {ref['loss'][0]:.6f} -> {ref['loss'][-1]:.6f}")
    for path in parity.REFERENCES.glob("*.json"):
        if path.stem not in parity.CASES:
            print(f"removing {path.name}: no such case")
            path.unlink()


if __name__ == "__main__":
    main()
