"""A loop of accelerate beside the exact step: python -m gacc.verify verify_accelerate.py:loop --batches 8"""
import accelerate
import torch

from verify_models import batches, loss, module, optimizer, target, train  # noqa: F401  what gacc.verify takes


def loop(module, optimizer, batches, accumulate=4):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    module, optimizer, loader = accelerator.prepare(module, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(module):
            accelerator.backward(torch.nn.functional.cross_entropy(module(x), y))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
