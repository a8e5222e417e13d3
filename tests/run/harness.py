"""The common part of tests/run and tests/parity: running the tools, skipping aloud, small files, data.

Standard library only. A test file ends in `harness.main(globals())` and is called with the name of one of its
test_* functions, which gets an empty folder. CMake registers each function as a ctest (tests/run/CMakeLists.txt).
GACC_BIN names the binaries' folder.
"""
import array
import hashlib
import importlib.util
import inspect
import json
import math
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import tomllib
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))
from artifact_ir import BYTES, ArtifactIr, function_of  # noqa: E402,F401
BIN = pathlib.Path(os.environ.get("GACC_BIN", ROOT / "build/bin")).resolve()
EXAMPLES = ROOT / "examples"
EXAMPLE_NAMES = ["mnist_mlp", "mnist_mlp_plain", "regression", "residual_mlp"]
# Examples whose plan takes long: settings of a model with the same kernels and fewer layers.
SHORTER = {"llama_lora": ["--set", "layers.layers.repeat=8"]}
DISAGREES = r"(?<![\d.,-])1 (bytes|elements|epochs|evaluations|files|kernels|launches|samples|tensors|tokens|updates|windows)\b(?!/s)"
SKIPPED = 77  # ctest's SKIP_RETURN_CODE


def skip(reason):
    print(f"SKIPPED: {reason}", flush=True)
    sys.exit(SKIPPED)


def main(namespace):
    tests = {n: f for n, f in namespace.items() if n.startswith("test_") and inspect.isfunction(f)}
    names = sys.argv[1:] or list(tests)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
            tests[name](pathlib.Path(folder))


# ---------------------------------------------------------------- Pythons that have more
# Writes tokenizer.json, of bytes and <|end|>, into the folder that is the first argument.
MAKE_TOKENIZER = r"""
import json, pathlib, sys
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
folder = pathlib.Path(sys.argv[1])
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
made = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.add_special_tokens(["<|end|>"])
made.save(str(folder / "tokenizer.json"))
"""


# Of PyTorch the least that gacc.from_torch takes (python/gacc/torch/version.py): Debian 12 has an older one.
NEW_TORCH = {"also": "import torch; assert tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 4)",
             "of": ", of PyTorch 2.4 or later"}


def has_modules(python, *modules, also="pass"):
    """Whether a Python has the modules, and runs one more line."""
    try:
        code = "".join(f"import {name}\n" for name in modules) + also
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
    except OSError:
        return False


def peer(*modules):
    """A Python that has the modules; skips where none has."""
    for python in filter(None, (os.environ.get("GACC_PEERS_PYTHON"), sys.executable, "/usr/bin/python3")):
        if has_modules(python, *modules):
            return python
    return skip(f"no Python with {' and '.join(modules)} here (GACC_PEERS_PYTHON)")


def begin_with(*modules, also="pass", of=""):
    """Begins the test again in a Python that has these modules, and for which `also` runs, where this one does not;
    skips where none does."""
    if not all(map(importlib.util.find_spec, modules)) or also != "pass" and not has_modules(sys.executable, also=also):
        others = [os.environ.get(name) for name in ("GACC_PYTHON", "GACC_PEERS_PYTHON")]
        for other in filter(None, (*others, "/usr/bin/python3")):
            if has_modules(other, *modules, also=also):
                os.execv(other, [other, *sys.argv])
        skip(f"no Python here has {' and '.join(modules)}{of} (GACC_PYTHON names another one)")


def begin_package(*modules):
    """Makes `import gacc` the package of this tree, over the library in BIN, in a Python that has these modules; with
    PyTorch one that from_torch takes."""
    if "torch" in modules:
        begin_with(*modules, **NEW_TORCH)
    else:
        begin_with(*modules)
    if sanitized():
        skip("a sanitized library does not load into a Python without a sanitizer")
    os.environ["GACC_LIBRARY"] = str(BIN / "libgacc.so.0")
    os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
    sys.path.insert(0, str(ROOT / "python"))


def package_environment():
    """The environment of another Python that is to `import gacc`, after begin_package."""
    return os.environ | {"PYTHONPATH": str(ROOT / "python")}


# ---------------------------------------------------------------- running the tools
class Failed(Exception):
    pass


def run(tool, *arguments, code=0, **options):
    """Runs a gacc tool and wants the exit status `code` (or one of a tuple). Returns the finished process."""
    command = [str(BIN / tool), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=options.pop("timeout", 300),
                          stdin=options.pop("stdin", subprocess.DEVNULL), **options)
    done.stdout, done.stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if wrong := re.search(DISAGREES, done.stdout + done.stderr):
        raise Failed(f"number and noun do not agree: {wrong[0]!r} of {' '.join(command)}")
    if done.returncode not in (code if isinstance(code, tuple) else (code,)):
        raise Failed(f"exit {done.returncode}, expected {code}: {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


def activations():
    """The ops that model files name as activations, in the order of the op table."""
    tables = {table["table"]: table for table in json.loads(run("gaccc", "--schema", "--json").stdout)}
    layer = next(one for one in tables["[[layers]]"]["types"] if one["type"] == "activation")
    return next(key["words"] for key in layer["keys"] if key["key"] == "fn")


def sanitized():
    """Returns whether the binaries are of a sanitized build."""
    cache = BIN.parent / "CMakeCache.txt"
    return cache.exists() and "GACC_SANITIZE:BOOL=ON" in cache.read_text()


def expect(condition, message):
    if not condition:
        raise Failed(message)


def says(done, *words):
    """Standard error holds `words`."""
    for word in words:
        expect(str(word) in done.stderr, f"the error does not name {word!r}:\n{done.stderr}")


def raises(kind, *words):
    """Runs the decorated function, which must raise `kind` with a text of these words; gives the exception."""
    def check(function):
        try:
            function()
        except kind as error:
            for word in words:
                expect(word in str(error), f"{error}\nlacks {word}")
            return error
        raise Failed(f"nothing was raised: {words}")
    return check


def one_error(done, *words):
    """Exit 1 with exactly one clear error on standard error, which holds `words`."""
    lines = [line for line in done.stderr.splitlines() if "error:" in line or re.match(r"gacc(c|-opt|-exec): ", line)]
    expect(done.returncode == 1, f"exit {done.returncode}, expected 1\n{done.stderr}")
    expect(len(lines) == 1, f"expected one error line, got {len(lines)}:\n{done.stderr}")
    expect("internal error" not in done.stderr, done.stderr)
    says(done, *words)


def sets_of(settings):
    """Options of gaccc: dotted keys with "__" for the dot."""
    return [w for k, v in settings.items() for w in ("--set", f"{k.replace('__', '.')}={v}")]


def compile_model(model, artifact, target="sm_80", **settings):
    """gaccc MODEL -o ARTIFACT."""
    run("gaccc", model, "--target", target, *sets_of(settings), "-o", artifact)
    return artifact


def plan_of(model, *options, **settings):
    return json.loads(run("gaccc", model, "--plan", "--json", *options, *sets_of(settings)).stdout)


def sealed(path, change):
    """Rewrites an artifact by `change`, a function of its body, and gives it a fitting checksum."""
    head, body = path.read_bytes().split(b"\n", 1)
    changed = change(body)
    expect(changed != body, "the artifact was altered")
    version = head.split(b" bytes=")[0]
    path.write_bytes(version + f" bytes={len(changed)} crc32={zlib.crc32(changed):08x}\n".encode() + changed)


def compile_text(folder, text, name="m", **settings):
    """Writes a model file and compiles it: NAME.toml and NAME.ptx."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    return compile_model(path, path.with_suffix(".ptx"), **settings)


def example(name):
    path = EXAMPLES / f"{name}.toml"
    expect(path.exists(), f"{path} is missing")
    return path


def read_log(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def updates_of(path):
    return [e for e in read_log(path) if e["event"] == "update"]


def toml(value):
    """A value as a model file writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + " }"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, (list, tuple)) else json.dumps(value)


def section(head, keys):
    return "\n".join([head, *(f"{key} = {toml(value)}" for key, value in keys.items())]) + "\n"


def layer(type, *inner, **keys):
    """A layer of a model file as text; `inner`: the layers of a block, as text."""
    return section("[[layers]]", {"type": type, **keys}) + "".join(inner).replace("[[layers", "[[layers.layers")


def model_text(*layers, inputs, **tables):
    """A model file as text: tables of keys, an input's by its name."""
    sections = {f"inputs.{name}": keys for name, keys in inputs.items()} | tables
    return "".join(section(f"[{name}]", keys) for name, keys in sections.items()) + "".join(layers)


def tokens_and_next(length, vocabulary):
    """The inputs of a model of text: `next` has a range, that of tokens follows from it."""
    shape = {"shape": [length], "dtype": "i32"}
    return {"tokens": shape, "next": shape | {"range": vocabulary}}


def classifier(name, shape, classes, layers, train="micro_batch = 8", optimizer='type = "sgd"', seed=0):
    """A model file as text: the input x of `shape`, `layers` and the cross-entropy with the labels y. The last layer
    gives `classes` numbers; `layers`, one text or several, `train` and `optimizer` are TOML."""
    layers = "".join(layers)
    return f"""
[model]
name = "{name}"
seed = {seed}
[inputs.x]
shape = {shape}
[inputs.y]
dtype = "i32"
range = {classes}
{layers.strip()}
[loss]
type = "cross_entropy"
target = "y"
[train]
{train}
[optimizer]
{optimizer}
"""


# ---------------------------------------------------------------- tensors
def read_safetensors(path):
    """name -> (shape, array of f32)."""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    head, body, tensors = json.loads(raw[8:8 + size]), memoryview(raw)[8 + size:], {}
    for name, entry in sorted(head.items()):
        if name != "__metadata__":
            expect(entry["dtype"] == "F32", f"{path}: {name} is {entry['dtype']}")
            begin, end = entry["data_offsets"]
            values = array.array("f")
            values.frombytes(body[begin:end])
            expect(len(values) == math.prod(entry["shape"]), f"{path}: size of {name}")
            tensors[name] = (entry["shape"], values)
    return tensors


def tensors_digest(tensors):
    """SHA-256 of names, shapes and bytes: which initial values these are."""
    digest = hashlib.sha256()
    for name, (shape, values) in tensors.items():
        digest.update(f"{name}{shape}".encode() + values.tobytes())
    return digest.hexdigest()


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


def far_apart(got, reference, least=0.0):
    """Largest norm-wise relative difference over the tensors, and the tensor it is in. Norms of a tensor are at least
    that part of the norm of all."""
    floor = max(least * math.hypot(*(norm(values) for _, values in reference.values())), 1e-6)
    expect(list(got) == list(reference), f"the tensors' names differ: {list(got)} and {list(reference)}")
    worst = (0.0, "-")
    for name, (shape, values) in reference.items():
        expect(got[name][0] == shape, f"shape of {name}: {got[name][0]} and {shape}")
        difference = norm([a - b for a, b in zip(got[name][1], values)]) / max(norm(values), floor)
        worst = max(worst, (difference if math.isfinite(difference) else math.inf, name))
    return worst


# ---------------------------------------------------------------- data
def write_safetensors(path, tensors):
    """tensors: name -> (shape, numbers), written as f32."""
    header, body = {}, b""
    for name, (shape, values) in tensors.items():
        data = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


def write_npy(path, values, shape):
    """values: bytes (u8) or an array of "f" or "i"."""
    kind = {"f": "<f4", "i": "<i4"}[values.typecode] if isinstance(values, array.array) else "|u1"
    sizes = "".join(f"{s}, " for s in shape)
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({sizes}), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + bytes(values))


def read_npy(path):
    """The shape and the numbers of a file of f32, whose header is as numpy writes it."""
    raw = path.read_bytes()
    size = struct.unpack("<H", raw[8:10])[0]
    expect(raw[:8] == b"\x93NUMPY\x01\x00" and (10 + size) % 64 == 0, raw[:10])
    head = raw[10:10 + size].decode()
    found = re.fullmatch(r"\{'descr': '<f4', 'fortran_order': False, 'shape': \(([\d, ]+)\), \} *\n", head)
    expect(found, head)
    shape, values = [int(n) for n in found[1].split(",") if n.strip()], array.array("f")
    values.frombytes(raw[10 + size:])
    expect(len(values) == math.prod(shape), f"{shape}, {len(values)} values")
    return shape, values


def with_settings(cfg, sets):
    """The model file's tables after `--set KEY=VALUE`, as far as data depend on them: the inputs' tables."""
    for key, value in (s.split("=", 1) for s in sets if s.startswith("inputs.")):
        _, name, leaf = key.split(".")
        cfg["inputs"][name][leaf] = tomllib.loads(f"v = {value}")["v"]
    return cfg


def make_arrays(model, samples, seed=1, sets=()):
    """Learnable data for every input of a model file: name -> (values, shape). The same on every machine: only exact
    arithmetic on Python's own generator, no libm. Images (64 elements and more) are u8, smaller f32 inputs f32;
    classes are told apart by a prototype each; a real-valued target is a smooth function of the inputs before it."""
    cfg = with_settings(tomllib.loads(pathlib.Path(model).read_text()), sets)
    chance, loss, arrays = random.Random(seed), cfg["loss"], {}
    classes = [n for n, i in cfg["inputs"].items() if i.get("dtype", "f32") == "i32"]
    labels = []
    for name in classes:
        shape, size = [samples, *cfg["inputs"][name].get("shape", [])], math.prod(cfg["inputs"][name].get("shape", []))
        limit = cfg["inputs"][name].get("range", 10)
        labels = [int(chance.random() * limit) for _ in range(samples * size)]
        values = list(labels)
        if name == loss["target"] and "ignore_index" in loss:
            values[::7] = [loss["ignore_index"]] * len(values[::7])
        arrays[name] = (array.array("i", values), shape)
    for name, entry in cfg["inputs"].items():
        if name in arrays:
            continue
        size, shape = math.prod(entry.get("shape", [])), [samples, *entry.get("shape", [])]
        if name == loss["target"]:
            known = [(v, len(v) // samples) for v, _ in arrays.values() if not labels]
            width = sum(w for _, w in known)
            weights = [[chance.random() - 0.5 for _ in range(width)] for _ in range(size)]
            values = array.array("f")
            for i in range(samples):
                x = [a for v, w in known for a in v[i * w:(i + 1) * w]]
                for row in weights:
                    t = math.fsum(a * b for a, b in zip(x, row))
                    t = t / (1 + abs(t))
                    values.append(float(t > 0) if loss["type"] == "bce_with_logits" else t)
            arrays[name] = (values, shape)
        elif size >= 64:  # mostly dark, as drawings are
            dark = bytes(max(0, v - 160) * 255 // 95 for v in range(256))
            prototypes = [chance.randbytes(size).translate(dark) for _ in range(1 + max(labels, default=0))]
            noise = bytes(v // 3 for v in dark)
            image = lambda i: map(max, prototypes[labels[i] if labels else 0], chance.randbytes(size).translate(noise))
            arrays[name] = (b"".join(bytes(image(i)) for i in range(samples)), shape)
        else:
            spread = lambda: chance.random() + chance.random() + chance.random() - 1.5
            shift = [[spread() for _ in range(size)] for _ in range(1 + max(labels, default=0))]
            values = array.array("f")
            for i in range(samples):
                values.extend(spread() + s for s in shift[labels[i] if labels else 0])
            arrays[name] = (values, shape)
    return arrays


def write_arrays(folder, arrays, without=()):
    """Writes arrays, name -> (values, shape), but for the rows `without` as .npy files; returns the SPEC for --data."""
    folder.mkdir(exist_ok=True)
    for name, (values, shape) in arrays.items():
        width = math.prod(shape[1:])
        for row in sorted(without, reverse=True):
            values = values[:row * width] + values[(row + 1) * width:]
        write_npy(folder / f"{name}.npy", values, [shape[0] - len(without), *shape[1:]])
    return "npy:" + ",".join(f"{name}={folder / name}.npy" for name in arrays)


def make_data(model, samples, folder, seed=1, sets=()):
    """Writes make_arrays; returns the SPEC for --data."""
    return write_arrays(folder, make_arrays(model, samples, seed, sets))
