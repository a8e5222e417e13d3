"""A truncated, bit-flipped or empty file of any kind gives one clear error and exit 1; never a crash or a hang."""
import gzip
import random
import re
import struct
import zipfile

import harness
from harness import expect, run

FLIPS = 12  # random flips per file, from a fixed seed; the fuzzers do the rest


def setup(folder, name="mnist_mlp"):
    model = harness.example(name)
    arrays = harness.make_arrays(model, 40)
    artifact = harness.compile_model(model, folder / "step.ptx")
    return artifact, arrays, harness.make_data(model, 40, folder)


def execute(artifact, spec, *options):
    return run("gacc-exec", artifact, "--data", spec, "--updates", 1, *options, code=(0, 1), timeout=60)


def damage(path, judge, whole, must_refuse_flips, flip_range=None, keep=None):
    """Writes damaged forms of the bytes `whole` to `path` and hands each to `judge`, which runs gacc on it.
    Truncations and emptiness must be refused; flips too where the format has a checksum, else they may pass."""
    chance = random.Random(7)
    sizes = keep or [0, 1, len(whole) // 2, len(whole) - 1]
    for size in sizes:
        path.write_bytes(whole[:size])
        try:
            harness.one_error(judge(), path.name)
        except harness.Failed as problem:
            raise harness.Failed(f"{path.name} cut to {size} of {len(whole)} bytes: {problem}")
    first, last = flip_range or (0, len(whole))
    for _ in range(FLIPS):
        at, bit = chance.randrange(first, last), chance.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1:])
        try:
            done = judge()
            if must_refuse_flips or done.returncode != 0:
                harness.one_error(done, path.name)
        except harness.Failed as problem:
            raise harness.Failed(f"{path.name} with bit {bit} of byte {at} flipped: {problem}")
    path.write_bytes(whole)
    expect(judge().returncode == 0, f"{path.name} undamaged is refused")


def test_artifact(folder):
    artifact, _, spec = setup(folder)
    damage(artifact, lambda: execute(artifact, spec), artifact.read_bytes(), must_refuse_flips=True)
    other = artifact.read_text()
    (folder / "other.ptx").write_text("// not an artifact\n" + other.partition("\n")[2])
    harness.one_error(execute(folder / "other.ptx", spec), "other.ptx")
    harness.one_error(execute(folder / "absent.ptx", spec), "absent.ptx")
    harness.one_error(execute(folder, spec), folder.name)


def test_an_artifact_whose_ir_was_changed(folder):
    """With a checksum made right: refused with its rule, on every device, and nothing is left behind."""
    whole, _, spec = setup(folder, "regression")
    changed, weights = folder / "changed.ptx", folder / "weights.safetensors"
    for pattern, by, rule in ((rb" arena\(\d+\)", b" arena(256)", "R15: "),
                              (rb"(//ir     kernel \w+ k\(\d+\) \()", rb"\1@lr, ", "R19: ")):
        changed.write_bytes(whole.read_bytes())
        harness.sealed(changed, lambda body: re.sub(pattern, by, body, count=1))
        for device in ("cpu", "emulate"):
            done = execute(changed, spec, "--device", device, "--save", weights)
            expect(done.returncode == 1 and "changed.ptx: the artifact's IR is not sound: " in done.stderr
                   and rule in done.stderr,
                   done.stderr)
            expect(not weights.exists(), f"{device}: a refused run left a file")


def test_npy(folder):
    artifact, _, spec = setup(folder)
    damage(folder / "image.npy", lambda: execute(artifact, spec), (folder / "image.npy").read_bytes(), False,
           flip_range=(0, 128))
    damage(folder / "label.npy", lambda: execute(artifact, spec), (folder / "label.npy").read_bytes(), False)


def test_npz(folder):
    artifact, _, _ = setup(folder)
    path = folder / "data.npz"
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", method) as archive:
            for name in ("image", "label"):
                archive.write(folder / f"{name}.npy", f"{name}.npy")
        whole = path.read_bytes()
        # the members' bytes are covered by their CRC; a few header fields, like the date, are not
        damage(path, lambda: execute(artifact, f"npz:{path}"), whole, False)
        damage(path, lambda: execute(artifact, f"npz:{path}"), whole, True, flip_range=(200, len(whole) // 2))


def test_idx(folder):
    artifact, arrays, _ = setup(folder)
    image, shape = arrays["image"]
    label, _ = arrays["label"]
    images = struct.pack(">IIII", 0x803, 40, 28, 28) + image
    labels = struct.pack(">II", 0x801, 40) + bytes(label.tolist())
    for end, pack in (("", bytes), (".gz", lambda raw: gzip.compress(raw, mtime=0))):
        ipath, lpath = folder / f"i.idx{end}", folder / f"l.idx{end}"
        ipath.write_bytes(pack(images))
        lpath.write_bytes(pack(labels))
        judge = lambda: execute(artifact, f"idx:image={ipath},label={lpath}")
        packed = bool(end)
        damage(ipath, judge, pack(images), packed, flip_range=(10, len(pack(images))) if packed else (0, 16))
        damage(lpath, judge, pack(labels), packed, flip_range=(10, len(pack(labels))) if packed else (0, 8))


def test_csv(folder):
    artifact, arrays, _ = setup(folder)
    (image, _), (label, _) = arrays["image"], arrays["label"]
    rows = [",".join([f"p{i}" for i in range(784)] + ["label"])]
    rows += [",".join(f"{v / 255:.3f}" for v in image[784 * i:784 * i + 784]) + f",{label[i]}" for i in range(40)]
    whole, path = ("\n".join(rows) + "\n").encode(), folder / "data.csv"
    middle = whole.index(b"\n") + 5000  # a flip there may leave a number a number
    end = whole.rindex(b",")  # the last row loses its last column
    damage(path, lambda: execute(artifact, f"csv:{path},label=label"), whole, False, flip_range=(middle, len(whole)),
           keep=[0, 1, 100, end])
    for bad in (b"abc", b"", b"0x10", b"\xff"):
        path.write_bytes(whole[:middle] + b"," + bad + b"," + whole[middle + 2 + len(bad):])
        harness.one_error(execute(artifact, f"csv:{path},label=label"), "data.csv")
    path.write_bytes(whole)
    harness.one_error(execute(artifact, f"csv:{path},label=absent"), "absent")


def test_safetensors(folder):
    artifact, _, spec = setup(folder)
    path = folder / "weights.safetensors"
    run("gacc-exec", artifact, "--data", spec, "--init-only", "--save", path)
    whole = path.read_bytes()
    head = 8 + struct.unpack("<Q", whole[:8])[0]  # the values themselves carry no checksum
    damage(path, lambda: execute(artifact, spec, "--load", path), whole, False, flip_range=(0, head),
           keep=[0, 7, 8, head // 2, head, len(whole) - 1])
    for text in (b"{}", b"[]", b"{", b"null", b'{"fc1.weight":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
                 b'{"fc1.weight":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}', b"[" * 100000):
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        harness.one_error(execute(artifact, spec, "--load", path), path.name)
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    harness.one_error(execute(artifact, spec, "--load", path), path.name)


def test_toml(folder):
    whole, path = harness.example("mnist_mlp").read_bytes(), folder / "model.toml"
    old = folder / "old.ptx"
    old.write_text("old\n")
    for size in [0, *range(1, len(whole), 97)]:  # a cut file lacks tables at least; several errors are fine
        path.write_bytes(whole[:size])
        done = run("gaccc", path, "-o", old, code=(0, 1), timeout=60)
        expect(size > len(whole) * 0.6 or done.returncode == 1, f"model.toml cut to {size} bytes is accepted")
        if done.returncode:
            expect("model.toml" in done.stderr and "error:" in done.stderr, done.stderr)
            expect(old.read_text() == "old\n", "a failed compilation touched its output")
        else:
            old.write_text("old\n")
    chance = random.Random(3)
    for _ in range(60):
        at = chance.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1:])
        done = run("gaccc", path, "-o", folder / "x.ptx", code=(0, 1), timeout=60)
        expect(done.returncode == 0 or "model.toml" in done.stderr, done.stderr)
    (folder / "loop.toml").symlink_to("loop.toml")
    harness.one_error(run("gaccc", folder / "loop.toml", code=1), "cannot read",
                      "loop.toml: Too many levels of symbolic links")
    for bad in (b"\xff", b"\x00", b"[[[[", b"a = " + b"[" * 50000, b'"' * 3, b"= 1"):
        path.write_bytes(whole + b"\n" + bad + b"\n")
        done = run("gaccc", path, "-o", folder / "x.ptx", code=1, timeout=60)
        expect("model.toml:" in done.stderr, done.stderr)


harness.main(globals())
