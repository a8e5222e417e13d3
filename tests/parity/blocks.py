"""ggml's blocks beside the package gguf (gguf.quants): random rows and edges, to the byte both ways.

    GACC_PEERS_PYTHON=venv/bin/python tests/parity/blocks.py [--rows 1000]

Needs a Python with gguf, and pack_blocks in GACC_TESTS (build/tests).
"""
import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys

PEERS = os.environ.get("GACC_PEERS_PYTHON")
if importlib.util.find_spec("gguf") is None:
    if PEERS is None or os.path.abspath(PEERS) == os.path.abspath(sys.executable):
        print("SKIPPED: no package gguf here")
        sys.exit(77)
    os.execv(PEERS, [PEERS, *sys.argv])

import gguf
import numpy
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

TESTS = pathlib.Path(os.environ.get("GACC_TESTS", pathlib.Path(__file__).resolve().parents[2] / "build/tests"))
PACKED, READ = ("Q8_0", "Q4_0", "Q4_1"), ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")
WIDTH = 256


def ours(way, form, data):
    return subprocess.run([TESTS / "pack_blocks", way, form], input=data.tobytes(), capture_output=True)


def rows_of(count, seed):
    rng = numpy.random.default_rng(seed)
    rows = rng.standard_normal((count, WIDTH)) * 10.0 ** rng.uniform(-9, 3, (count, 1))
    yield "random rows", rows.astype("<f4")
    one = numpy.zeros((WIDTH, WIDTH), "<f4")
    numpy.fill_diagonal(one, numpy.where(numpy.arange(WIDTH) % 2, 0.7, -1.3))
    yield "zeros", numpy.zeros((2, WIDTH), "<f4")
    yield "one number that is not zero", one
    yield "equal numbers", numpy.full((2, WIDTH), -0.3, "<f4")
    yield "subnormal numbers", (rng.standard_normal((64, WIDTH)) * 10.0 ** rng.uniform(-45, -37, (64, 1))).astype("<f4")
    yield "subnormal halves", (rng.standard_normal((64, WIDTH)) * 10.0 ** rng.uniform(-9, -3, (64, 1))).astype("<f4")
    yield "the largest", (rng.uniform(-1, 1, (64, WIDTH)) * 65504 * 7).astype("<f4")
    ties = rng.integers(-255, 256, (64, WIDTH)) / 2
    ties[:, ::32] = 127
    yield "ties", ties.astype("<f4")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    wrong = 0
    for form in PACKED:
        for what, rows in rows_of(args.rows, args.seed):
            with numpy.errstate(all="ignore"):
                if what == "the largest" and form == "Q4_1":
                    rows = rows / 8
                want = quantize(rows, Type[form])
            got = ours("pack", form, rows)
            same = got.returncode == 0 and got.stdout == want.tobytes()
            wrong += not same
            print(f"{form} {what}: {len(rows)} rows {'equal' if same else 'DIFFER ' + got.stderr.decode()}")
        for what, value in dict(nan=numpy.nan, inf=-numpy.inf, overflow=3e38).items():
            row = numpy.zeros(WIDTH, "<f4")
            row[40] = value
            got = ours("pack", form, row)
            refused = got.returncode == 1 and b'"w"' in got.stderr
            wrong += not refused
            print(f"{form} {what}: {got.stderr.decode().strip() if refused else 'NOT REFUSED'}")
    rng = numpy.random.default_rng(args.seed)
    for form in READ:
        numbers, size = gguf.GGML_QUANT_SIZES[Type[form]]
        blocks = rng.integers(0, 256, (args.rows, WIDTH // numbers * size), "uint8")
        with numpy.errstate(all="ignore"):
            want = dequantize(blocks, Type[form])
        got = numpy.frombuffer(ours("unpack", form, blocks).stdout, "<f4").reshape(want.shape)
        same = ((got.view("<u4") == want.view("<u4")) | (numpy.isnan(got) & numpy.isnan(want))).all()
        wrong += not same
        print(f"{form} read: {args.rows} rows of random bytes {'equal' if same else 'DIFFER'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
