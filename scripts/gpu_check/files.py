"""Data and tensors as files, and how far tensors are apart. No numpy."""
import array
import hashlib
import json
import math
import pathlib
import random
import struct

MOST = 1 << 15  # elements of a tensor that are compared: every so many of a larger one
KINDS = {"f": "<f4", "i": "<i4"}
TABLES = ("weights", "gradients")  # files of a run


# ---- data

def npy(path, values, shape):
    """A file of numpy's; `values` is an array of "f" or "i"."""
    head = f"{{'descr': '{KINDS[values.typecode]}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + values.tobytes())


def tokens(count, vocabulary, kind, seed=1):
    """Token ids, uniform or as frequent as a text's: the id of rank r, from 0, has the weight 1 / (r + 2.7) (Zipf and
    Mandelbrot), so that nearly 4 % of GPT-2's are one token."""
    chance = random.Random(seed)
    if kind == "uniform":
        return array.array("i", (int(chance.random() * vocabulary) for _ in range(count)))
    sums, total = [], 0.0
    for rank in range(vocabulary):
        total += 1 / (rank + 2.7)
        sums.append(total)
    return array.array("i", chance.choices(range(vocabulary), cum_weights=sums, k=count))


def make_data(name, inputs, samples, folder, kind="uniform"):
    """Numbers that vary for each input of a plan, the same ones wherever this runs; the file of each input."""
    parts = {}
    for number, one in enumerate(inputs):
        shape = [samples, *one["shape"]]
        if one["dtype"] == "i32":
            values = tokens(math.prod(shape), one["range"] or 10, kind, seed=number)
        else:
            chance = random.Random(number)
            values = array.array("f", (2 * chance.random() - 1 for _ in range(math.prod(shape))))
        file = f"{name}.{one['name']}.npy"
        npy(pathlib.Path(folder) / file, values, shape)
        parts[one["name"]] = file
    return parts


def spec(parts, folder):
    """Returns the value of --data for make_data's files, which lie in a folder now."""
    return "npy:" + ",".join(f"{name}={pathlib.Path(folder) / file}" for name, file in parts.items())


# ---- tensors

def read_tensors(path):
    """A safetensors file of f32: name -> array. Of a large tensor only every so many elements."""
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack("<Q", data[:8])
    found = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = array.array("f", data[8 + size + begin:8 + size + end])
            found[name] = values[::len(values) // MOST + 1 | 1]  # odd: it meets every column
    return found


def write_tensors(path, tensors):
    head, body = {}, b""
    for name, values in tensors.items():
        head[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(body), len(body) + 4 * len(values)]}
        body += values.tobytes()
    text = json.dumps(head).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


def norm(values):
    return math.sqrt(math.fsum(x * x for x in values))


def distances(found, expected):
    """name -> |found - expected| / |expected|; infinite where a tensor is missing, cut, or not finite."""
    far = {}
    for name, values in expected.items():
        other = found.get(name, ())
        scale = max(norm(values), 1e-30)
        distance = norm([x - y for x, y in zip(values, other)]) / scale if len(other) == len(values) else math.inf
        far[name] = distance if math.isfinite(distance) else math.inf
    return far


# ---- logs

def read_log(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def figures(events, name):
    """Returns the figures of updates and evaluations, in order; a number that is not finite is null there."""
    return array.array("f", (math.nan if e[name] is None else e[name] for e in events
                             if e["event"] in ("update", "eval") and name in e))


def run_options(spec, samples, out):
    """A run that leaves OUT.jsonl, OUT.weights and OUT.gradients."""
    return ["--data", spec, "--eval", f"{spec},limit={max(1, samples // 2)}", "--epochs", 1, "--no-shuffle", "--log",
            f"{out}.jsonl", "--save", f"{out}.weights", "--dump-grads", f"{out}.gradients"]


def outcome(out):
    """All that such a run came to, as tensors: weights/NAME, gradients/NAME, and figures of the log as log/NAME; and a
    digest of its bits."""
    found, digest = {}, hashlib.sha256()
    for table in TABLES:
        path = pathlib.Path(f"{out}.{table}")
        digest.update(path.read_bytes())
        found |= {f"{table}/{name}": values for name, values in read_tensors(path).items()}
        path.unlink()
    events = read_log(f"{out}.jsonl")
    for name in ("loss", "grad_norm", "loss_scale", "skipped"):
        found[f"log/{name}"] = figures(events, name)
    digest.update(found["log/loss"].tobytes() + found["log/grad_norm"].tobytes())
    pathlib.Path(f"{out}.jsonl").unlink()
    return found, digest.hexdigest()
