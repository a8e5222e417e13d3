"""LAMB, which PyTorch does not have, by hand: the whole training of the small model of tests/parity (linear, tanh,
linear, cross-entropy) in Python's doubles, from the formulas alone, against 10 updates of 4 seeds with a short window
among them."""
import math

import harness
from harness import expect, run

MODEL = harness.ROOT / "tests/parity/models/update.toml"
LR, BETA1, BETA2, EPS, DECAY, SAMPLES, WINDOW = 0.05, 0.8, 0.95, 1e-6, 0.1, 94, 20


def gradients(p, rows):
    """The mean loss of `rows`, pairs of x and label, and its gradient."""
    w1, b1, w2, b2 = p["fc1.weight"], p["fc1.bias"], p["fc2.weight"], p["fc2.bias"]
    grads, total = {name: [0.0] * len(values) for name, values in p.items()}, 0.0
    for x, label in rows:
        hidden = [math.tanh(sum(w1[6 * j + i] * x[i] for i in range(6)) + b1[j]) for j in range(10)]
        powers = [math.exp(sum(w2[10 * c + j] * hidden[j] for j in range(10)) + b2[c]) for c in range(4)]
        total -= math.log(powers[label] / sum(powers))
        out = [(power / sum(powers) - (c == label)) / len(rows) for c, power in enumerate(powers)]
        back = [sum(out[c] * w2[10 * c + j] for c in range(4)) * (1 - hidden[j] ** 2) for j in range(10)]
        for c in range(4):
            grads["fc2.bias"][c] += out[c]
            for j in range(10):
                grads["fc2.weight"][10 * c + j] += out[c] * hidden[j]
        for j in range(10):
            grads["fc1.bias"][j] += back[j]
            for i in range(6):
                grads["fc1.weight"][6 * j + i] += back[j] * x[i]
    return total / len(rows), grads


def by_hand(p, windows):
    """Trains `p` in place; returns losses and gradient norms."""
    m, v = ({name: [0.0] * len(values) for name, values in p.items()} for _ in range(2))
    losses, norms = [], []
    for t, rows in enumerate(windows, 1):
        loss, grads = gradients(p, rows)
        losses.append(loss)
        norms.append(math.sqrt(sum(g * g for values in grads.values() for g in values)))
        for name, w in p.items():
            m[name] = [BETA1 * a + (1 - BETA1) * g for a, g in zip(m[name], grads[name])]
            v[name] = [BETA2 * a + (1 - BETA2) * g * g for a, g in zip(v[name], grads[name])]
            r = [a / (1 - BETA1 ** t) / (math.sqrt(b / (1 - BETA2 ** t)) + EPS) + DECAY * c
                 for a, b, c in zip(m[name], v[name], w)]
            ratio = harness.norm(w) / harness.norm(r) if any(w) and any(r) else 1.0
            p[name] = [c - LR * ratio * d for c, d in zip(w, r)]
    return losses, norms


def test_ten_updates_of_four_seeds(folder):
    artifact = harness.compile_model(MODEL, folder / "m.ptx", train__micro_batch=5, train__accumulate=4,
                                     optimizer__type="lamb",
                                     optimizer__lr=LR, optimizer__betas=f"[{BETA1}, {BETA2}]", optimizer__eps=EPS,
                                     optimizer__weight_decay=DECAY)
    for seed in (1, 2, 3, 4):
        arrays = harness.make_arrays(MODEL, SAMPLES, seed)
        x, y = arrays["x"][0], arrays["y"][0]
        samples = [(x[6 * i:6 * i + 6], y[i]) for i in range(SAMPLES)]
        windows = [samples[i:i + WINDOW] for i in range(0, SAMPLES, WINDOW)] * 2
        (folder / f"{seed}").mkdir()
        words = ("--data", harness.make_data(MODEL, SAMPLES, folder / f"{seed}", seed), "--no-shuffle", "--seed", seed)
        initial, final, log = (folder / f"{seed}" / name for name in ("initial.safetensors", "final.safetensors",
                                                                      "log.jsonl"))
        run("gacc-exec", artifact, *words, "--init-only", "--save", initial)
        run("gacc-exec", artifact, *words, "--load", initial, "--updates", 10, "--save", final, "--log", log)
        shapes = {name: shape for name, (shape, _) in harness.read_safetensors(initial).items()}
        weights = {name: list(values) for name, (_, values) in harness.read_safetensors(initial).items()}
        losses, norms = by_hand(weights, windows)
        events = harness.updates_of(log)
        expect([e["samples"] for e in events] == [20, 20, 20, 20, 14] * 2, f"{events}")
        for key, wanted, bound in (("loss", losses, 1e-5), ("grad_norm", norms, 1e-4)):
            far = max(abs(e[key] / want - 1) for e, want in zip(events, wanted, strict=True))
            print(f"seed {seed}:" if key == "loss" else "", f"{key} {far:.1e}", end=",")
            expect(far <= bound, f"seed {seed}: {key} is {[e[key] for e in events]}, by hand {wanted}")
        far, name = harness.far_apart(harness.read_safetensors(final), {n: (shapes[n], w) for n, w in weights.items()})
        print(f" weights {far:.1e} ({name})")
        expect(far <= 1e-4, f"seed {seed}: {name} is {far:.1e} away from the calculation by hand")


harness.main(globals())
