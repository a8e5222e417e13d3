"""The contents of an artifact, read off the IR in its comments (docs/ir.md)."""
import json
import math
import pathlib
import re

# Bytes of an element; of a quantised type, its share of a block of 32.
BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "q8_0": 34 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32}
TYPE = r"(f32|f16|bf16|i32|q8_0|q4_0|q4_1)\[([^\]]*)\]"
NAME = r'("[^"]*"|[^\s,:()]+)'


def shape_of(text):
    """The extents of a type without gaps in its rows; B is left out."""
    return [int(extent) for extent in re.split(r"\s*,\s*", text) if extent not in ("", "B")]


class ArtifactIr:
    def __init__(self, path):
        lines = pathlib.Path(path).read_bytes().split(b"\n")
        raw = b"\n".join(line[len(b"//ir "):] for line in lines if line.startswith(b"//ir "))
        self.text = re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), raw).decode()
        self.arena = int(re.search(r" arena\((\d+)\)", self.text)[1])
        # Name, element type, shape, place in bytes.
        self.buffers = [(name.strip('"'), dtype, shape_of(shape), int(at)) for name, dtype, shape, at in
                        re.findall(rf"^  (?:param|accum|state) @{NAME} : {TYPE}.* at (\d+)$", self.text, re.M)]

    def setting(self, key, fallback=None):
        found = re.search(rf"^  set {re.escape(key)} = (.*)$", self.text, re.M)
        return json.loads(found[1]) if found else fallback

    @property
    def micro_batch(self):
        return self.setting("train.micro_batch", 1)

    @property
    def accumulate(self):
        return self.setting("train.accumulate", 1)

    @property
    def parameters(self):
        names = re.findall(rf"^  param @{NAME} :", self.text, re.M)
        return sum(math.prod(shape) for name, _, shape, _ in self.buffers if name in [n.strip('"') for n in names])

    def place(self, buffer):
        return next(at for name, _, _, at in self.buffers if name == buffer)

    def region(self, name):
        """Its head, and the lines of its schedule."""
        found = re.search(rf"^  {name}(.*?) \{{\n.*?^  \}} schedule \{{\n(.*?)^  \}}$", self.text, re.M | re.S)
        return found[1], found[2].splitlines()

    def inputs(self, region="step"):
        """Name, element type as the user gives it, shape of a sample, place and range of each."""
        found = re.findall(rf"%{NAME} : {TYPE} at (\d+)", self.region(region)[0])
        return [{"name": name, "dtype": "i32" if dtype == "i32" else "f32", "shape": shape_of(shape), "place": int(at),
                 "range": self.setting(f"inputs.{name}.range")} for name, dtype, shape, at in found]

    def launches(self, region="step"):
        """The lines of what is launched: `kernel`, `product` or `merged`."""
        return [line.strip() for line in self.region(region)[1] if re.match(r"    (kernel|product|merged) ", line)]


def function_of(launch):
    """The kernel that a launch names; None of a product."""
    word, name = launch.split()[:2]
    return None if word == "product" else name
