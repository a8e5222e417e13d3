"""What finds a machine that computes wrong: --log-hash and scripts/compare-logs."""
import hashlib
import json
import os
import re
import struct
import subprocess
import zlib

import harness
from harness import ArtifactIr, expect, run


def small(folder, example="mnist_mlp", samples=96, **settings):
    """A small model's artifact and data."""
    model = harness.example(example)
    settings = {"train__micro_batch": 8, "train__accumulate": 2, **settings}
    return harness.compile_model(model, folder / f"{example}.ptx", **settings), harness.make_data(model, samples, folder)


def hash_of(weights):
    digest = hashlib.sha256()
    for name, (_, values) in sorted(harness.read_safetensors(weights).items()):
        digest.update(name.encode() + values.tobytes())
    return digest.hexdigest()


def compare_logs(*arguments, code):
    done = subprocess.run([harness.ROOT / "scripts/compare-logs", *map(str, arguments)], capture_output=True, text=True)
    expect(done.returncode == code, f"exit {done.returncode}, expected {code}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def test_the_hash_is_that_of_the_saved_weights(folder):
    artifact, data = small(folder)
    logs = []
    for threads, updates in ((1, 5), (2, 5)):
        log, weights = folder / f"{threads}.jsonl", folder / "w.safetensors"
        run("gacc-exec", artifact, "--data", data, "--device", "cpu", "--threads", threads, "--updates", updates,
            "--log", log, "--log-hash", "--save", weights)
        logs.append([event["hash"] for event in harness.updates_of(log)])
        expect(logs[-1][-1] == hash_of(weights), "the hash of the last update is not that of the weights")
    expect(logs[0] == logs[1] and len(set(logs[0])) == 5, f"one hash an update, whatever the threads: {logs}")


def change_a_weight(checkpoint, tensor, element):
    """Moves an f32 of a checkpoint by one ulp."""
    raw = bytearray(checkpoint.read_bytes())
    size, = struct.unpack("<Q", raw[-24:-16])
    table, at = json.loads(raw[-24 - size:-24]), 24
    for entry in table["tensors"]:
        if entry["name"] == tensor:
            place = at + 4 * element
            raw[place:place + 4] = struct.pack("<I", struct.unpack("<I", raw[place:place + 4])[0] + 1)
            entry["crc32"] = zlib.crc32(raw[at:at + entry["bytes"]])
        at += entry["bytes"]
    text = json.dumps(table).encode()
    foot = struct.pack("<QQI", len(text), at + len(text) + 24, zlib.crc32(text))
    if best := table["best"]["bytes"]:
        raise harness.Failed(f"{best} bytes of best parameters")
    checkpoint.write_bytes(bytes(raw[:at]) + text + foot + struct.pack("<I", zlib.crc32(foot)))


def test_a_weight_changed_by_one_ulp_is_found(folder):
    """After update 37 of 45, in a copy of the checkpoint that the run then goes on from."""
    artifact, data = small(folder)
    command = [artifact, "--data", data, "--device", "cpu", "--log-hash"]
    run("gacc-exec", *command, "--updates", 45, "--log", folder / "a.jsonl")
    other = [*command, "--log", folder / "b.jsonl", "--checkpoint", folder / "b"]
    run("gacc-exec", *other, "--updates", 37)
    change_a_weight(folder / "b/checkpoint", "fc1.weight", 5 * 784 + 3)
    (folder / "b/after-37").write_bytes((folder / "b/checkpoint").read_bytes())
    run("gacc-exec", *other, "--updates", 45, "--resume")
    said = compare_logs(folder / "a.jsonl", folder / "b.jsonl", code=1)
    expect("the hashes differ from update 38 on" in said, said)
    expect(re.search(r"^update 37: fc1\.weight\[\d+, \d+\] is \S+ \(0x[0-9a-f]{8}\) in A and \S+ \(0x[0-9a-f]{8}\) in B "
                     r"\(1 of its \d+ elements differ\)", said, re.M), said)
    a, b = (int(bits, 16) for bits in re.findall(r"0x([0-9a-f]{8})", said))
    expect(b == a + 1, said)


def test_an_update_that_another_device_makes_otherwise_is_found(folder):
    artifact, data = small(folder, samples=32)
    for device in ("cpu", "emulate"):
        run("gacc-exec", artifact, "--data", data, "--device", device, "--updates", 2, "--log", folder / f"{device}.jsonl",
            "--log-hash")
    same = compare_logs(folder / "cpu.jsonl", folder / "cpu.jsonl", code=0)
    expect("no difference in the 2 updates" in same, same)
    said = compare_logs(folder / "cpu.jsonl", folder / "emulate.jsonl", code=1)
    expect(re.search(r"^update 1: \S+ is .* before it the weights were the same", said, re.M), said)


def test_a_run_that_cannot_be_made_again_is_called_so(folder):
    """A bit of a weight changes by itself, between two updates."""
    artifact, data = small(folder)
    command = [artifact, "--data", data, "--device", "cpu", "--updates", 6, "--log-hash"]
    run("gacc-exec", *command, "--log", folder / "a.jsonl")
    place = ArtifactIr(artifact).place("fc2.weight")
    run("gacc-exec", *command, "--log", folder / "b.jsonl", env={**os.environ, "GACC_TEST_FLIP": f"7:0:{place + 2}:1"})
    said = compare_logs(folder / "a.jsonl", folder / "b.jsonl", code=1)
    expect("update 3: run B, made again here from the beginning, has other weights than its log says" in said, said)
    run("gacc-exec", *command[:-1], "--log", folder / "c.jsonl")
    expect("c.jsonl has no hashes" in compare_logs(folder / "a.jsonl", folder / "c.jsonl", code=2), "a log without hashes")


if __name__ == "__main__":
    harness.main(globals())
