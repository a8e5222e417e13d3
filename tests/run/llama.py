"""Models of Llama's kind: rotary positions, grouped queries, gated products, norms and projections without biases."""
import json
import subprocess

import harness
from harness import expect, layer, model_text, run

LENGTH, VOCABULARY = 20, 61
VARIANTS = {
    # SmolLM2 in small
    "llama": dict(width=72, heads=9, kv_heads=3, rope={"theta": 1e5}, norm="rms_norm", bias=False),
    "turned_side_by_side": dict(width=48, heads=3, kv_heads=1, rope={"partial": 0.5, "layout": "interleaved"},
                                norm="layer_norm", bias="qkv"),
    "own_keys": dict(width=32, heads=2, kv_heads=2, rope={}, norm="rms_norm", bias=True),
    # heads that tensor cores take
    "wide_heads": dict(width=96, heads=6, kv_heads=2, rope={}, norm="rms_norm", bias=False),
    "partial": dict(width=64, heads=4, kv_heads=1, rope={"partial": 0.5}, norm="rms_norm", bias=False),
    # as Mistral: a position sees some before it, fewer than there are
    "windowed": dict(width=64, heads=4, kv_heads=2, rope={}, norm="rms_norm", bias=False, window=7),
}


def text_of(width, heads, kv_heads, rope, norm, bias, window=LENGTH):
    def norm_of(name):
        return layer(norm, name=name, **({"bias": False} if norm == "layer_norm" else {}))

    def up(name, **keys):
        return layer("linear", name=name, input="ln", features=2 * width, bias=False, **keys)
    start = {"normal": 0.2}
    attention = layer("attention", name="attn", heads=heads, kv_heads=kv_heads, causal=True, bias=bias, rope=rope,
                      window=window, init=start)
    mlp = (norm_of("ln"), up("gate", activation="silu"), up("up"), layer("mul", name="gated", inputs=["gate", "up"]),
           layer("linear", name="down", features=width, bias=False))
    return model_text(
        layer("embedding", name="embed", vocab=VOCABULARY, features=width, init=start),
        layer("sequential", layer("residual", norm_of("ln"), attention, name="mix"),
              layer("residual", *mlp, name="mlp"), name="layers", repeat=2),
        norm_of("norm"), layer("linear", name="head", features=VOCABULARY, tied="embed", bias=False),
        model={"name": "small-llama", "seed": 5}, inputs=harness.tokens_and_next(LENGTH, VOCABULARY),
        loss={"type": "cross_entropy", "target": "next"}, train={"micro_batch": 4, "accumulate": 2, "epochs": 9},
        optimizer={"type": "adamw", "lr": 3e-3, "eps": 1e-6})  # a gradient of rounding's size makes no full step


def compiled(folder, variant, name="m", **settings):
    artifact = harness.compile_text(folder, text_of(**VARIANTS[variant]), name, **settings)
    return artifact.with_suffix(".toml"), artifact


def trained(folder, artifact, data, name, updates, *more, device="cpu"):
    """(losses, weights) of some updates in file order."""
    log, weights = folder / f"{name}.jsonl", folder / f"{name}.safetensors"
    run("gacc-exec", artifact, "--data", data, "--no-shuffle", "--updates", updates, "--log", log, "--save", weights,
        "--device", device, *more)
    return [e["loss"] for e in harness.updates_of(log)], weights


# The formulas in PyTorch, in double: losses of as many updates as there are losses, the logits before them, the
# likeliest tokens after.
REFERENCE = """
import json, pathlib, sys, tomllib
import numpy, torch
from torch.nn import functional
sys.path.insert(0, sys.argv[1])
import harness
model, initial, folder, updates = sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4]), int(sys.argv[5])
cfg = tomllib.loads(pathlib.Path(model).read_text())
block = cfg["layers"][1]
attn, normal = block["layers"][0]["layers"][1], block["layers"][0]["layers"][0]["type"]
heads, keys, rope = attn["heads"], attn["kv_heads"], attn["rope"]
w = {name: torch.tensor(numpy.array(values), dtype=torch.double).reshape(shape).requires_grad_()
     for name, (shape, values) in harness.read_safetensors(initial).items()}

def norm(x, name):
    if normal == "layer_norm":
        x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[name + ".weight"]

def linear(x, name):
    return functional.linear(x, w[name + ".weight"], w.get(name + ".bias"))

def turn(x):  # [B, heads, T, D]
    channels, length = x.shape[-1], x.shape[-2]
    turned = round(channels * rope.get("partial", 1.0))
    angle = torch.arange(length).double()[:, None] * rope.get("theta", 10000.0) ** (-torch.arange(0, turned, 2).double() / turned)
    part, rest = x[..., :turned], x[..., turned:]
    if rope.get("layout", "half") == "half":
        pairs = torch.complex(part[..., :turned // 2], part[..., turned // 2:])
    else:
        pairs = torch.complex(part[..., ::2], part[..., 1::2])
    pairs = pairs * torch.polar(torch.ones_like(angle), angle)
    if rope.get("layout", "half") == "half":
        part = torch.cat([pairs.real, pairs.imag], -1)
    else:
        part = torch.stack([pairs.real, pairs.imag], -1).flatten(-2)
    return torch.cat([part, rest], -1)

def attention(x, name):
    batch, length, width = x.shape
    q, k, v = linear(x, name + ".qkv").split([width, keys * width // heads, keys * width // heads], -1)
    q, k, v = (t.reshape(batch, length, -1, width // heads).transpose(1, 2) for t in (q, k, v))
    q, k = turn(q), turn(k)
    k, v = (t.repeat_interleave(heads // keys, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / (width // heads) ** 0.5
    hidden = torch.ones(length, length).triu(1) + torch.ones(length, length).tril(-attn["window"])
    scores = scores.masked_fill(hidden.bool(), float("-inf"))
    return linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape), name + ".proj")

def logits(tokens):
    x = w["embed.weight"][tokens]
    for i in range(block["repeat"]):
        at = f"layers.{i}."
        x = x + attention(norm(x, at + "mix.ln"), at + "mix.attn")
        y = norm(x, at + "mlp.ln")
        x = x + linear(functional.silu(linear(y, at + "mlp.gate")) * linear(y, at + "mlp.up"), at + "mlp.down")
    return norm(x, "norm") @ w["embed.weight"].T

tokens, targets = (torch.tensor(numpy.load(folder / f"{name}.npy")).long() for name in ("tokens", "next"))
with torch.no_grad():
    numpy.save(folder / "logits.npy", logits(tokens).numpy())
optimizer = torch.optim.AdamW(list(w.values()), lr=cfg["optimizer"]["lr"], eps=cfg["optimizer"]["eps"])
size, losses = cfg["train"]["micro_batch"] * cfg["train"]["accumulate"], []
for t in range(updates):
    first = t * size % len(tokens)
    loss = functional.cross_entropy(logits(tokens[first:first + size]).flatten(0, 1), targets[first:first + size].flatten())
    optimizer.zero_grad(), loss.backward(), optimizer.step()
    losses.append(loss.item())
window = [3, 1, 4]
with torch.no_grad():
    while len(window) < 26:
        window.append(logits(torch.tensor([window[-tokens.shape[1]:]]))[0, -1].argmax().item())
print(json.dumps([losses, window[3:]]))
"""


def test_pytorch_agrees(folder):
    """Logits, losses of 20 updates and the likeliest tokens after them, beside the formulas in double."""
    python = harness.peer("torch", "numpy")
    for variant in VARIANTS:
        model, artifact = compiled(folder, variant)
        data = harness.make_data(model, 40, folder)
        run("gacc-exec", artifact, "--data", data, "--init-only", "--save", folder / "initial", "--device", "cpu")
        done = subprocess.run([python, "-c", REFERENCE, harness.ROOT / "tests/run", model, folder / "initial", folder,
                               "20"],
                              capture_output=True, text=True)
        expect(done.returncode == 0, done.stderr)
        wanted, text = json.loads(done.stdout)
        losses, weights = trained(folder, artifact, data, "run", 20, "--load", folder / "initial")
        far = max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True))
        run("gacc-exec", artifact, "--data", data, "--load", folder / "initial", "--predict", folder / "out.npy",
            "--device", "cpu")
        compare = "import numpy, sys; a, b = map(numpy.load, sys.argv[1:]); print(abs(a - b).max())"
        done = subprocess.run([python, "-c", compare, folder / "out.npy", folder / "logits.npy"], capture_output=True,
                              text=True, check=True)
        print(f"{variant}: losses {far:.1e} apart (to {losses[-1]:.4f}), logits {float(done.stdout):.1e}")
        expect(far <= 1e-5, f"{variant}: losses {losses}, PyTorch {wanted}")
        expect(float(done.stdout) <= 1e-4, f"{variant}: logits {done.stdout}")
        # Beyond the model's length positions begin anew with the window, as they do there.
        said = run("gacc-exec", artifact, "--load", weights, "--generate", 23, "--prompt", "\x03\x01\x04",
                   "--temperature", 0, "--device", "cpu")
        expect(list(said.stdout.encode()) == text, f"{variant}: {list(said.stdout.encode())}, PyTorch {text}")


def test_devices_agree(folder):
    """The emulator runs what the CPU does, in f32 and in half types, by tensor cores where heads fit; a half is near
    f32."""
    for variant, *halves in (("llama", "f16"), ("turned_side_by_side", "f16", "bf16"), ("partial",),
                             ("windowed", "f16")):
        whole = None
        for compute in ("f32", *halves):
            model, artifact = compiled(folder, variant, precision__compute=compute, launch__mode="graph",
                                       train__accumulate=1)
            data = harness.make_data(model, 8, folder)
            runs = {}
            for device in ("cpu", "emulate"):
                losses, _ = trained(folder, artifact, data, "run", 2, "--dump-grads", folder / device, device=device)
                runs[device] = losses, harness.read_safetensors(folder / device)
            (losses, gradients), (others, emulated) = runs.values()
            far, (worst, who) = max(abs(a - b) / b for a, b in zip(others, losses,
                                                                   strict=True)), harness.far_apart(emulated, gradients)
            whole = whole or losses
            off = max(abs(a - b) / b for a, b in zip(losses, whole, strict=True))
            print(f"{variant} {compute}: the emulator's losses {far:.1e} from the CPU's, gradients {worst:.1e} "
                  f"({who}); {off:.1e} from f32")
            expect(far <= (1e-6 if compute == "f32" else 1e-3), f"{variant} {compute}: {others}, CPU {losses}")
            # The second update is compared: Adam's first step enlarges small gradients' rounding, which is 1e-6
            # before it.
            expect(compute != "f32" or worst <= 3e-5, f"{variant}: gradients of {who} are {worst:.1e} apart")
            expect(off <= {"f32": 0, "f16": 2e-3, "bf16": 1e-2}[compute], f"{variant} {compute}: {losses}, f32 {whole}")


def test_ragged_micro_batches_are_one_batch(folder):
    """7 samples as 2 2 2 1, and as one micro-batch: the same gradients, with every norm, bias and window."""
    for variant in ("llama", "turned_side_by_side", "own_keys", "windowed"):
        dumps = []
        for micro_batch, accumulate in ((7, 1), (2, 4)):
            model, artifact = compiled(folder, variant, train__micro_batch=micro_batch, train__accumulate=accumulate)
            data = harness.make_data(model, 7, folder)
            run("gacc-exec", artifact, "--data", data, "--no-shuffle", "--updates", 1, "--dump-grads", folder / "grads",
                "--device", "cpu")
            dumps.append(harness.read_safetensors(folder / "grads"))
        worst, who = harness.far_apart(*dumps)
        print(f"{variant}: {worst:.1e} ({who})")
        expect(worst <= 1e-6, f"{variant}: the gradient of {who} is {worst:.1e} from the big batch's")


def test_recompute_and_threads_change_no_bit(folder):
    for variant, compute, device in (("llama", "f32", "cpu"), ("turned_side_by_side", "f16", "cpu"),
                                     ("wide_heads", "f16", "emulate"), ("windowed", "f32", "cpu"),
                                     ("windowed", "f16", "emulate")):
        kept = {}
        for policy in ("none", "all"):
            model, artifact = compiled(folder, variant, recompute__policy=policy, precision__compute=compute,
                                       launch__mode="graph", train__accumulate=1)
            data = harness.make_data(model, 8, folder)
            for threads in (1, 2) if device == "cpu" else (1,):
                _, weights = trained(folder, artifact, data, "run", 2, "--threads", threads, device=device)
                kept[policy, threads] = weights.read_bytes()
        expect(len(set(kept.values())) == 1, f"{variant} {compute} on {device}: other bits")


harness.main(globals())
