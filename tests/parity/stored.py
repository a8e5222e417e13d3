#!/usr/bin/env python3
"""stored.py GROUP: trains the parity cases of a group and compares each with references/CASE.json (parity.py says what
that keeps)."""
import json
import pathlib
import sys
import tempfile

import parity
from parity import harness


def compare(case):
    reference = json.loads((parity.REFERENCES / f"{case['name']}.json").read_text())
    remake = "run tests/parity/make_references.py and say in the commit why"
    harness.expect(reference["sets"] == case["sets"] and len(reference["loss"]) == case["updates"],
                   f"the case has changed since its reference was made: {remake}")
    with tempfile.TemporaryDirectory(prefix="gacc-") as name:
        folder = pathlib.Path(name)
        spec, artifact, initial = parity.start(case, folder)
        harness.expect(parity.data_digest(folder) == reference["data"],
                       f"other samples, or harness.make_arrays gives other data than it did: {remake}")
        found = harness.tensors_digest(harness.read_safetensors(initial))
        harness.expect(found == reference["initial"],
                       f"gacc's initial values are not those the reference started from; if that was meant, {remake}")
        losses, norms, final = parity.train(case, folder, spec, artifact, initial)
        tensors = harness.read_safetensors(final)
    harness.expect(list(tensors) == list(reference["tensors"]),
                   f"parameters {list(tensors)}, expected {list(reference['tensors'])}")
    worst = (0.0, "-")
    for key, kept in reference["tensors"].items():
        harness.expect(tensors[key][0] == kept["shape"], f"shape of {key}: {tensors[key][0]}, expected {kept['shape']}")
        difference = harness.norm([a - b for a, b in zip(parity.sketch(tensors[key][1]), kept["sketch"], strict=True)])
        worst = max(worst, (difference / max(kept["norm"], 1e-6), key))
    parity.judge(case, parity.far(losses, reference["loss"]), parity.far(norms, reference["grad_norm"]), *worst)


def main():
    cases = [c for c in parity.CASES.values() if c["group"] == sys.argv[1]]
    harness.expect(cases, f"no case is in the group {sys.argv[1]}")
    for case in cases:
        compare(case)


if __name__ == "__main__":
    main()
