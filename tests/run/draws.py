"""Initial values: the distribution that a model file asks for, and the same bits on every device."""
import math

import harness
from harness import expect, layer, model_text, run

COLUMNS = 1000


def drawn(folder, rows, init, device="cpu", seed=0):
    """The first weight of a model of one matrix [rows, COLUMNS]."""
    (folder / "model.toml").write_text(model_text(
        layer("linear", name="fc", features=rows, bias=False, init=init), model={"name": "one", "seed": seed},
        inputs={"x": {"shape": [COLUMNS]}, "y": {"shape": [rows]}}, loss={"type": "mse", "target": "y"},
        train={"micro_batch": 1}, optimizer={"type": "sgd", "lr": 0.1}))
    run("gaccc", folder / "model.toml", "-o", folder / "step.ptx")
    run("gacc-exec", folder / "step.ptx", "--init-only", "--save", folder / "w.safetensors", "--device", device)
    return harness.read_safetensors(folder / "w.safetensors")["fc.weight"][1]


def distance(values, cumulative):
    """Kolmogorov's and Smirnov's statistic, times the square root of the number of values."""
    values, n = sorted(values), len(values)
    return math.sqrt(n) * max(max(abs(cumulative(x) - i / n), abs(cumulative(x) - (i + 1) / n)) for i,
                              x in enumerate(values))


def test_normal_numbers(folder):
    values = drawn(folder, 200, {"normal": 1.0})
    n = len(values)
    means = [sum(x ** k for x in values) / n for k in range(1, 5)]
    # Four deviations of each mean: those of x, x^2, x^3 and x^4 are 1, sqrt(2), sqrt(15) and sqrt(96).
    for k, (mean, right, deviation) in enumerate(zip(means, (0, 1, 0, 3), (1, 2 ** 0.5, 15 ** 0.5, 96 ** 0.5)), 1):
        expect(abs(mean - right) < 4 * deviation / n ** 0.5, f"the mean of x^{k} is {mean}")
    cumulative = lambda x: (1 + math.erf(x / 2 ** 0.5)) / 2
    expect(distance(values, cumulative) < 1.95, "not normal: less than one in a thousand is so far off")
    for bound in (2, 3, 4):  # the tails on both sides
        share = 1 - cumulative(bound)
        for count in (sum(x > bound for x in values), sum(x < -bound for x in values)):
            expect(abs(count - n * share) < 4 * (n * share) ** 0.5 + 1,
                   f"{count} beyond {bound}, {n * share:.1f} expected")


def test_uniform_numbers(folder):
    values = drawn(folder, 200, {"uniform": 0.5}, seed=3)
    expect(max(map(abs, values)) < 0.5, "beyond the bound")
    expect(distance(values, lambda x: x + 0.5) < 1.95, "not uniform")


def test_devices_draw_the_same_bits(folder):
    for init in ({"normal": 0.02}, {"uniform": 0.5}):
        expect(drawn(folder, 5, init) == drawn(folder, 5, init, "emulate"), f"{init}: CPU and emulator differ")


harness.main(globals())
