"""A PyTorch DataLoader feeds the step: two spirals, told apart.

    python3 dataloader.py [cpu|cuda]
"""
import sys

import gacc
import torch
from torch.utils.data import DataLoader, TensorDataset

MODEL = {
    "model": {"name": "spirals", "metrics": ["accuracy"]},
    "inputs": {"point": {"shape": [2], "dtype": "f32"}, "arm": {"dtype": "i32", "range": 2}},
    "layers": [
        {"type": "linear", "name": "fc1", "features": 64, "activation": "relu"},
        {"type": "linear", "name": "fc2", "features": 64, "activation": "relu"},
        {"type": "linear", "name": "out", "features": 2},
    ],
    "loss": {"type": "cross_entropy", "target": "arm"},
    "train": {"micro_batch": 64, "accumulate": 4, "epochs": 30},  # an update sees 256 samples, the memory 64
    "optimizer": {"type": "adam", "lr": 0.01},
}


def spirals(count):
    arm, turn = torch.randint(2, (count,)), torch.rand(count) * 9
    angle = turn + arm * torch.pi
    return TensorDataset(torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 9, arm)


torch.manual_seed(1)
training, test = spirals(4096), spirals(1024)
step = gacc.compile(MODEL)
print(f"the step takes {step.plan['bytes']['peak']:,} bytes")


def told(run, epoch):
    if epoch % 10 == 0:
        result = run.evaluate_over(DataLoader(test, batch_size=1024))
        print(f"epoch {epoch}: loss {result.loss:.4f}, accuracy {result.metrics['accuracy']:.2%} of the test set")


loader = DataLoader(training, batch_size=256, shuffle=True)
run = gacc.train(step, loader, on_epoch=told, seed=1, device=(sys.argv[1:] or ["auto"])[0])
run.save("spirals.safetensors")
