"""Means to find a machine that computes wrong: --recheck, --log-hash and scripts/compare-logs. GACC_FLIPS sets the
number of bits that are flipped on the CPU (40)."""
import hashlib
import json
import math
import os
import random
import re
import struct
import subprocess
import zlib

import harness
import ranks
from harness import ArtifactIr, expect, run

FLIPS = int(os.environ.get("GACC_FLIPS", "40"))


def small(folder, example="mnist_mlp", samples=96, **settings):
    """A small model's artifact and data."""
    model = harness.example(example)
    settings = {"train__micro_batch": 8, "train__accumulate": 2, **settings}
    return harness.compile_model(model, folder / f"{example}.ptx",
                                 **settings), harness.make_data(model, samples, folder)


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
    command = [artifact, "--data", data, "--device", "cpu", "--log-hash", "--save", folder / "w", "--save-type", "f16"]
    run("gacc-exec", *command, "--updates", 45, "--log", folder / "a.jsonl")
    other = [*command, "--log", folder / "b.jsonl", "--checkpoint", folder / "b"]
    run("gacc-exec", *other, "--updates", 37)
    change_a_weight(folder / "b/checkpoint", "fc1.weight", 5 * 784 + 3)
    (folder / "b/after-37").write_bytes((folder / "b/checkpoint").read_bytes())
    (folder / "b/cut").write_bytes((folder / "b/checkpoint").read_bytes()[:-1])
    run("gacc-exec", *other, "--updates", 45, "--resume")
    said = compare_logs(folder / "a.jsonl", folder / "b.jsonl", code=1)
    expect("the hashes differ from update 38 on" in said, said)
    expect(re.search(
        r"^update 37: fc1\.weight\[\d+, \d+\] is \S+ \(0x[0-9a-f]{8}\) in A and \S+ \(0x[0-9a-f]{8}\) in B "
                     r"\(1 of its \d+ elements differ\)", said, re.M), said)
    a, b = (int(bits, 16) for bits in re.findall(r"0x([0-9a-f]{8})", said))
    expect(b == a + 1, said)


def test_an_update_that_another_device_makes_otherwise_is_found(folder):
    artifact, data = small(folder, samples=32, launch__mode="graph")
    for device in ("cpu", "emulate"):
        run("gacc-exec", artifact, "--data", data, "--device", device, "--updates", 2, "--log",
            folder / f"{device}.jsonl",
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
    expect("c.jsonl has no hashes" in compare_logs(folder / "a.jsonl", folder / "c.jsonl", code=2),
           "a log without hashes")
    for text in "{}", "[1]":
        (folder / "c.jsonl").write_text(text)
        expect("c.jsonl is no log of gacc-exec" in compare_logs(folder / "a.jsonl", folder / "c.jsonl", code=2), text)


# ---------------------------------------------------------------- --recheck
def test_a_rechecked_run_is_the_run(folder):
    """The same weights and log, and no alarm: dropout, running statistics, lanes, a loss scale that moves, tails."""
    cases = {"mnist_mlp": {}, "mnist_resnet": {"train__micro_batch": 4}, "shakespeare_gpt": {"train__micro_batch": 2},
             "small_gradients_f16": {}, "mnist_mlp_f16": {"train__lanes": 2}, "regression": {"train__micro_batch": 5}}
    for example, settings in cases.items():
        artifact, data = small(folder, example, 22 if "res" in example or "gpt" in example else 90, **settings)
        logs = []
        for recheck in ([], ["--recheck", 1], ["--recheck", 2]):
            log = folder / "log.jsonl"
            for limit in ("--launches", 5), ("--updates", 6):  # the second goes on, within a window
                run("gacc-exec", artifact, "--data", data, "--device", "cpu", *limit, "--log", log, "--log-hash",
                    *recheck,
                    "--checkpoint", folder / f"{example}{recheck}", "--resume")
            logs.append(harness.read_log(log))
        hashes = [[e["hash"] for e in log if e["event"] == "update"] for log in logs]
        expect(hashes[0] == hashes[1] == hashes[2], f"{example}: a rechecked run has other weights")
        counts = [log[-1].get("recheck") for log in logs]
        launches = sum(e["launches"] for e in logs[0] if e["event"] == "update")
        expect(counts[0] is None and counts[1]["every"] == 1 and counts[1]["launches"] == launches
               and counts[1]["updates"] >= 6, f"{example}: {counts}, of {launches} launches")
        expect(counts[2]["launches"] == launches // 2 and counts[2]["updates"] >= 3, f"{example}: {counts}")


def accessed(artifact, region):
    """The buffers that a program touches, as (name, begin, end)."""
    ir = ArtifactIr(artifact)
    body = re.search(rf"^  {region}.*?^  \}}", ir.text, re.M | re.S)[0]
    names = set(re.findall(r'@([\w.]+|"[^"]*")', body))
    for name, dtype, shape, at in ir.buffers:
        size = harness.BYTES[dtype] * math.prod(shape)
        if name in names:
            yield name, at, at + size


def flip_many(folder, device, flips, samples, updates, **settings):
    """Flips a bit in each of `flips` runs. In a program that is made twice every flip is found, but for those that
    leave no trace: in bytes that hold nothing, or are written before they are read; and for those in buffers that
    it does not touch."""
    artifact, data = small(folder, samples=samples, **settings)
    command = [artifact, "--data", data, "--device", device, "--updates", updates, "--log", folder / "log.jsonl",
               "--log-hash"]
    run("gacc-exec", *command)
    clean = [e["hash"] for e in harness.updates_of(folder / "log.jsonl")]
    programs = ["init"] + (["step"] * 4 + ["update"] * 2) * updates  # in the order in which they run: each twice
    chance, counts, arena = random.Random(11), {"found": 0, "no trace": 0,
                                                "out of reach": 0}, ArtifactIr(artifact).arena
    touched = {region: list(accessed(artifact, region)) for region in ("step", "update")}
    places = [span for spans in touched.values() for span in spans]
    for _ in range(flips):
        moment, part = chance.randrange(1, len(programs)), chance.randrange(1001)
        byte = chance.randrange(arena)
        if chance.random() < 0.5:  # buffers are small beside the values
            _, begin, end = chance.choice(places)
            byte = chance.randrange(begin, end)
        bit = chance.randrange(8)
        flip = f"{moment}:{part}:{byte}:{bit}"
        done = run("gacc-exec", *command, "--recheck", 1, code=(0, 1), env={**os.environ, "GACC_TEST_FLIP": flip})
        log = harness.read_log(folder / "log.jsonl")
        if done.returncode == 1:
            harness.one_error(done, "--recheck: ", "computes wrong")
            expect(log[-1]["event"] == "recheck" and log[-1]["difference"] in done.stderr, f"{flip}: {log[-1]}")
            expect(re.search(
                r"--recheck: (launch|update) \d+: \S+.* (is .* the first time and .* the second|was .* before, and "
                             r"is .* after)", done.stderr), done.stderr)
            counts["found"] += 1
            continue
        same = [e["hash"] for e in log if e["event"] == "update"] == clean
        reach = any(begin <= byte < end for _, begin, end in touched[programs[moment]])
        expect(same or not reach, f"{flip}, in {programs[moment]}: not found, and the weights differ")
        counts["no trace" if same else "out of reach"] += 1
    print(device, counts, flush=True)
    return counts


def test_flipped_bits_are_found(folder):
    counts = flip_many(folder, "cpu", FLIPS, 48, 3)
    expect(counts["found"] >= FLIPS // 3, f"too few: {counts}")


def test_flipped_bits_are_found_in_the_emulator(folder):
    counts = flip_many(folder, "emulate", max(4, FLIPS // 8), 8, 1, train__micro_batch=2, layers__fc1__features=64,
                       layers__fc2__features=32,
                       layers__fc3__features=16)
    expect(counts["found"] >= 1, f"too few: {counts}")


def test_the_faulty_rank_is_named(folder):
    """And weights have one hash on any number of ranks, rechecked or not, with shared optimizer states, too."""
    ranks.need_mpi()
    lanes = {"train__accumulate": 4, "train__lanes": 4}
    artifact, data = small(folder, **lanes)
    (folder / "shard").mkdir()
    shard, _ = small(folder / "shard", **lanes, train__ranks=2, memory__shard="optimizer")
    log = folder / "log.jsonl"
    command = lambda step, *more: [harness.BIN / "gacc-exec", step, "--data", data, "--device", "cpu", "--epochs", 1,
                                   "--log", log,
                                   "--log-hash", *more]
    hashes = lambda: [event["hash"] for event in harness.updates_of(log)]
    run("gacc-exec", *command(artifact)[1:])
    alone = hashes()
    for step in (artifact, shard):
        ranks.mpirun(2, command(step, "--recheck", 1))
        expect(hashes() == alone, f"{step}: other weights than on one rank")
    # On rank 1: init, its first launch twice, its lane's close twice, then its second launch.
    faulty = ["env", f"GACC_TEST_FLIP=5:0:{ArtifactIr(artifact).place('fc1.weight')}:1",
              *command(artifact, "--recheck", 1)]
    done = ranks.mpirun(2, command(artifact, "--recheck", 1), faulty, code=1)
    ranks.one_error(done, "rank 1", "--recheck: launch 4: fc1.weight[0, 0], which it only reads")


harness.main(globals())
