"""A pandas frame feeds the step: the price of a house by its columns.

    python3 frame.py [cpu|cuda]
"""
import sys

import gacc
import numpy as np
import pandas

rng = np.random.default_rng(1)
houses = pandas.DataFrame({"area": rng.uniform(40, 200, 2000), "rooms": rng.integers(1, 7, 2000),
                           "age": rng.integers(0, 90, 2000)})
houses["price"] = 3000 * houses.area + 9000 * houses.rooms - 700 * houses.age + rng.normal(0, 5000, len(houses))
features, mean, deviation = ["area", "rooms", "age"], houses.mean(), houses.std()
scaled = (houses - mean) / deviation
training, test = scaled[:1600], scaled[1600:]

step = gacc.compile({
    "model": {"name": "houses", "metrics": ["r2"]},
    "inputs": {"house": {"shape": [len(features)], "dtype": "f32"}, "price": {"shape": [1], "dtype": "f32"}},
    "layers": [{"type": "linear", "name": "out", "features": 1}],
    "loss": {"type": "mse", "target": "price"},
    "train": {"micro_batch": 32, "accumulate": 2},
    "optimizer": {"type": "adam", "lr": 0.02},
})
run = gacc.Session(step, device=(sys.argv[1:] or ["auto"])[0], seed=1)
for epoch in range(10):
    for _, window in training.sample(frac=1, random_state=epoch).groupby(np.arange(len(training)) // 64):
        for part in (window[:32], window[32:]):
            run.step(house=part[features], price=part["price"])
        run.update()
print(f"R² {run.evaluate(house=test[features], price=test['price']).metrics['r2']:.4f} of the test set")
prices = run.predict(house=test[features])[:, 0] * deviation["price"] + mean["price"]
print(pandas.DataFrame({"price": houses.price[1600:1605], "predicted": prices[:5]}).round(-2))
