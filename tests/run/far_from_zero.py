"""Rows and logits far from zero, where a mean or a logarithm is rounded by more than they vary: norms of constant
rows are 0, and gradients keep their digits. On the CPU and in the emulator, against Python's doubles."""
import array
import json
import math
import random
import struct

import harness
from harness import expect, run

WIDTHS = (3, 7, 49, 100, 768)
EPS = 1e-5


def model(text, folder, **settings):
    return harness.compile_text(folder, f'[model]\nname = "far"\n{text}\n[optimizer]\ntype = "sgd"\n', **settings)


def normalised(kind, width):
    """x [width] and a target of the same shape around a norm over all of it."""
    shape, groups = (f"[{width}, 1, 1]", "groups = 1") if kind == "group_norm" else (f"[{width}]", "")
    return (f'[inputs.x]\nshape = {shape}\n[inputs.y]\nshape = {shape}\n[[layers]]\ntype = "{kind}"\nname = "norm"\n'
            f'{groups}\n'
            '[loss]\ntype = "mse"\ntarget = "y"\n')


def rows_data(folder, rows, width, kind, targets=None):
    shape = [len(rows), width, 1, 1] if kind == "group_norm" else [len(rows), width]
    arrays = {"x": rows, "y": targets or [[0.0] * width] * len(rows)}
    return harness.write_arrays(folder, {name: (array.array("f", [v for row in values for v in row]), shape)
                                         for name, values in arrays.items()})


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def constants():
    pick = random.Random(5)
    return [f32(pick.choice((-1, 1)) * 10 ** pick.uniform(2, 6)) for _ in range(200)]


def test_constant_rows_are_zero(folder):
    for kind in ("layer_norm", "group_norm"):
        for width in WIDTHS:
            artifact = model(normalised(kind, width) + "[train]\nmicro_batch = 100\naccumulate = 2", folder)
            data = rows_data(folder, [[c] * width for c in constants()], width, kind)
            for device in ("cpu", "emulate") if width < 768 else ("cpu",):
                log = folder / "log.jsonl"
                run("gacc-exec", artifact, "--data", data, "--no-shuffle", "--device", device, "--log", log)
                loss = harness.updates_of(log)[0]["loss"]  # the mean over all elements of y^2
                worst = math.sqrt(loss * 200)  # no row's rms is larger
                expect(worst < 1e-3, f"{kind} of width {width} on {device}: rms up to {worst}")


def test_channels_that_are_constant_are_zero(folder):
    """batch_norm: every channel holds one number."""
    text = ('[inputs.x]\nshape = [7, 5, 5]\n[inputs.y]\nshape = [7, 5, 5]\n[[layers]]\ntype = "batch_norm"\n'
            '[loss]\ntype = "mse"\ntarget = "y"\n[train]\nmicro_batch = 8')
    artifact = model(text, folder)
    values = constants()[:7]
    samples = {"x": [c for c in values for _ in range(25)], "y": [0.0] * 175}
    data = harness.write_arrays(folder, {name: (array.array("f", sample * 8), [8, 7, 5, 5]) for name,
                                         sample in samples.items()})
    for device in ("cpu", "emulate"):
        run("gacc-exec", artifact, "--data", data, "--device", device, "--log", folder / "log.jsonl")
        loss = harness.updates_of(folder / "log.jsonl")[0]["loss"]
        expect(math.sqrt(loss * 7) < 1e-3, f"batch_norm of constant channels on {device}: mean square {loss}")


def normal_row(row):
    mean = math.fsum(row) / len(row)
    variance = math.fsum((x - mean) ** 2 for x in row) / len(row)
    return [(x - mean) / math.sqrt(variance + EPS) for x in row], 1 / math.sqrt(variance + EPS)


def test_noise_far_from_zero(folder):
    """A row c + noise: off by no more than the mean's rounding to f32, which PyTorch has as well."""
    noise = random.Random(8)
    for kind in ("layer_norm", "group_norm"):
        for width in (7, 100):
            artifact = model(normalised(kind, width) + "[train]\nmicro_batch = 1", folder)
            for centre in (0.0, 300.0, -1e4, 1e5):
                row = [f32(centre + noise.gauss(0, 1)) for _ in range(width)]
                data = rows_data(folder, [row], width, kind)
                wanted, rstd = normal_row(row)
                for device in ("cpu", "emulate"):
                    grads = folder / "grads.safetensors"
                    run("gacc-exec", artifact, "--data", data, "--device", device, "--dump-grads", grads)
                    bias = harness.read_safetensors(grads)["norm.bias"][1]  # of the mean of y^2: 2 y / width
                    worst = max(abs(g * width / 2 - w) for g, w in zip(bias, wanted))
                    allowed = abs(centre) * 2 ** -24 * rstd + 2e-6
                    expect(worst <= allowed,
                           f"{kind}, width {width}, {centre} + noise on {device}: {worst} off, {allowed} allowed")


def table_data(folder, rows, y=None):
    y = y or (array.array("i", [7 * i % 10 for i in range(rows)]), [rows])
    return harness.write_arrays(folder, {"token": (array.array("i", range(rows)), [rows]), "y": y})


def table_gradient(folder, artifact, table, data, device, **others):
    """The gradient of table.weight, by rows; the other parameters are `others`, "__" for the dot."""
    width, header, body = len(table[0]), {}, b""
    for name, rows in {"table.weight": table, **{k.replace("__", "."): v for k, v in others.items()}}.items():
        values = array.array("f", [v for row in rows for v in row] if name == "table.weight" else rows).tobytes()
        shape = [len(rows), width] if name == "table.weight" else [len(rows)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(values)]}
        body += values
    head = json.dumps(header).encode()
    (folder / "w.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body)
    run("gacc-exec", artifact, "--data", data, "--no-shuffle", "--load", folder / "w.safetensors", "--device", device,
        "--dump-grads", folder / "grads.safetensors")
    found = harness.read_safetensors(folder / "grads.safetensors")["table.weight"][1]
    return [list(found[width * i:width * (i + 1)]) for i in range(len(table))]


def test_cross_entropy_far_from_zero(folder):
    rows, classes = 8, 10
    draw = random.Random(3)
    text = (f'[inputs.token]\ndtype = "i32"\n[inputs.y]\ndtype = "i32"\n[[layers]]\ntype = "embedding"\nname = '
            f'"table"\n'
            f'vocab = {rows}\nfeatures = {classes}\n')
    loss = '[loss]\ntype = "cross_entropy"\ntarget = "y"\n[train]\nmicro_batch = 8'
    plain = [draw.gauss(0, 1) for _ in range(rows * classes)]
    data = table_data(folder, rows)
    for between in ("", '[[layers]]\ntype = "log_softmax"\n'):
        artifact = model(text + between + loss, folder)
        for offset in (0, 30, 100, 1e3, 1e4, 1e5, 1e6, 1e7, -1e7, -1e30):
            table = [[f32(offset + v) for v in plain[classes * i:classes * (i + 1)]] for i in range(rows)]
            wanted = []
            for i, row in enumerate(table):
                powers = [math.exp(x - max(row)) for x in row]
                wanted.append([(p / math.fsum(powers) - (c == 7 * i % 10)) / rows for c, p in enumerate(powers)])
            for device in ("cpu", "emulate"):
                found = table_gradient(folder, artifact, table, data, device)
                distance = math.sqrt(sum((a - b) ** 2 for f, w in zip(found, wanted) for a, b in zip(f, w)))
                relative = distance / math.sqrt(sum(b * b for w in wanted for b in w))
                expect(relative < 5e-7,
                       f"{between or 'logits'} at {offset} on {device}: the gradient is {relative} off")


def test_gradient_through_a_norm_of_constants(folder):
    """The gradient leaves a constant row times 1 / sqrt(eps)."""
    width, rows = 12, 8
    text = (f'[inputs.token]\ndtype = "i32"\n[inputs.y]\nshape = [{width}]\n[[layers]]\ntype = "embedding"\nname = '
            f'"table"\n'
            f'vocab = {rows}\nfeatures = {width}\n[[layers]]\ntype = "layer_norm"\nname = "norm"\n[loss]\ntype = '
            f'"mse"\ntarget = "y"\n'
            '[train]\nmicro_batch = 8')
    artifact = model(text, folder)
    draw = random.Random(4)
    targets = [[f32(draw.gauss(0, 1)) for _ in range(width)] for _ in range(rows)]
    data = table_data(folder, rows, (array.array("f", [v for row in targets for v in row]), [rows, width]))
    for device in ("cpu", "emulate"):
        found = table_gradient(folder, artifact, [[c] * width for c in constants()[:rows]], data, device,
                               norm__weight=[1.0] * width, norm__bias=[0.0] * width)
        for row, target in zip(found, targets):
            dy = [-2 * t / (rows * width) for t in target]
            wanted = [(d - math.fsum(dy) / width) / math.sqrt(EPS) for d in dy]
            scale = max(abs(w) for w in wanted)
            worst = max(abs(f - w) for f, w in zip(row, wanted)) / scale
            expect(worst < 1e-5, f"on {device} the gradient is {worst} off: {row[:3]}, {wanted[:3]}")


harness.main(globals())
