"""Training loops that are right, as people write them: gacc.verify has nothing to say about them. RIGHT has a row for
each: the loop, its model, and what the tables say."""
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from loop_zoo import (CLIP, K, OPTIMIZERS, SIZES, Attends, Convolves, Pictures, Rows, backward, clip, count,
                      exponential,
                      loss_of, same_kind, summed, windows)

RIGHT = []


class Frozen(Rows):
    """The first layer is not trained, and its norm keeps its statistics."""

    def __init__(self):
        super().__init__()
        self.fc1.requires_grad_(False)
        self.bn.eval()


class Recomputed(Rows):
    def forward(self, x):
        h = self.block(x.flatten(1))
        return self.fc3(self.norm(h + checkpoint(lambda z: F.gelu(self.fc2(self.drop(z))), h, use_reentrant=False)))


class Measures(nn.Module):
    """A regression; `outputs` numbers a sample."""

    def __init__(self, outputs=3):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 12), nn.Linear(12, outputs)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x.flatten(1))))


def right(*models, optimizer="adamw", sizes=SIZES, dicts=False, **tables):
    def keep(loop):
        RIGHT.extend((loop, model, optimizer, sizes, dicts, tables) for model in models)
        return loop
    return keep


def stepped(optimizer):
    optimizer.step()
    optimizer.zero_grad()


@right(Attends, Pictures, train={"accumulate": 1})
def each_batch_is_a_window(module, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        loss_of(module(x), y).backward()
        optimizer.step()


@right(Attends, Rows)
@right(Convolves, Pictures, optimizer="sgd")
def divided_by_what_counts(module, optimizer, batches):
    for window in windows(batches):
        backward(module, window)
        stepped(optimizer)


@right(Attends, Rows)
def one_backward_of_the_window(module, optimizer, batches):
    for window in windows(batches):
        (sum(summed(module(x), y) for x, y in window) / count(window)).backward()
        stepped(optimizer)


@right(Convolves, Pictures)
def weighted_means(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            (loss_of(module(x), y) * count([(x, y)]) / count(window)).backward()
        stepped(optimizer)


@right(Attends, Rows, train={"accumulate": K, "clip_norm": CLIP})
def sums_divided_at_the_end(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            summed(module(x), y).backward()
        for p in module.parameters():
            p.grad.div_(count(window))
        clip(module)
        stepped(optimizer)


@right(Rows, sizes=(4,) * 6)
def means_of_equal_batches(module, optimizer, batches):
    for i, (x, y) in enumerate(batches):
        (loss_of(module(x), y) / K).backward()
        if (i + 1) % K == 0:
            stepped(optimizer)


@right(Attends, schedule={"type": "exponential", "gamma": 0.7}, train={"accumulate": K, "clip_norm": CLIP})
def scheduled(module, optimizer, batches):
    schedule = exponential(optimizer)
    for window in windows(batches):
        backward(module, window)
        clip(module)
        stepped(optimizer)
        schedule.step()


@right(Rows, schedule={"type": "cosine", "total": 8, "warmup": 2, "min_lr": 1e-4}, train={"accumulate": 1})
def cosine(module, optimizer, batches):
    def factor(t):
        if t < 2:
            return (t + 1) / 2
        return (1e-4 + (2e-3 - 1e-4) * (1 + math.cos(math.pi * min(1, (t - 2) / 6))) / 2) / 2e-3
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for batch in batches:
        backward(module, [batch])
        stepped(optimizer)
        schedule.step()


@right(Pictures, schedule={"type": "step", "step_size": 2, "gamma": 0.5}, train={"accumulate": 1}, optimizer="sgd")
def steps(module, optimizer, batches):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for batch in batches:
        backward(module, [batch])
        stepped(optimizer)
        schedule.step()


@right(Convolves, schedule={"type": "linear", "total": "run"}, train={"accumulate": K})
def linear_over_the_run(module, optimizer, batches):
    updates = math.ceil(len(batches) / K)
    for t, window in enumerate(windows(batches)):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - t / updates)
        backward(module, window)
        stepped(optimizer)


def in_half(module, optimizer, batches, dtype, scaler=None, schedule=None):
    for window in windows(batches):
        for x, y in window:
            with torch.autocast("cpu", dtype=dtype):
                loss = summed(module(x), y) / count(window)
            (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(optimizer)
        clip(module)
        before = scaler.get_scale() if scaler else 0
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
        if schedule and not scaler.get_scale() < before:
            schedule.step()


@right(Attends, Convolves, Pictures, Rows, precision="f16", train={"accumulate": K, "clip_norm": CLIP})
@right(Attends, Rows, precision="f16", train={"accumulate": K, "clip_norm": CLIP}, optimizer="sgd")
def f16_with_a_scaler(module, optimizer, batches):
    in_half(module, optimizer, batches, torch.float16, torch.amp.GradScaler("cpu", init_scale=1024.0))


@right(Attends, Rows, precision="f16", train={"accumulate": K, "clip_norm": CLIP},
       schedule={"type": "exponential", "gamma": 0.7})
def f16_with_a_skipped_window(module, optimizer, batches):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, backoff_factor=2.0 ** -14)
    in_half(module, optimizer, batches, torch.float16, scaler, exponential(optimizer))


@right(Attends, Convolves, Pictures, Rows, precision="bf16", train={"accumulate": K, "clip_norm": CLIP})
@right(Convolves, Pictures, precision="bf16", train={"accumulate": K, "clip_norm": CLIP}, optimizer="sgd")
def bf16(module, optimizer, batches):
    in_half(module, optimizer, batches, torch.bfloat16)


@right(Convolves, precision="f16", train={"accumulate": 1})
def skips_by_hand(module, optimizer, batches):
    scale = 2.0 ** 22
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_of(module(x).float(), y)
        (loss * scale).backward()
        if all(p.grad.isfinite().all() for p in module.parameters()):
            for p in module.parameters():
                p.grad /= scale
            optimizer.step()
        else:
            scale /= 2.0 ** 12


@right(Pictures, Rows)
def an_average_beside(module, optimizer, batches):
    average = torch.optim.swa_utils.AveragedModel(module, use_buffers=True)
    for window in windows(batches):
        backward(module, window)
        stepped(optimizer)
        average.update_parameters(module)
        with torch.no_grad():
            average(window[0][0])


@right(Frozen)
def frozen_parts(module, optimizer, batches):
    module.train()
    module.bn.eval()
    for window in windows(batches):
        backward(module, window)
        stepped(optimizer)


@right(Pictures, Rows)
def evaluated_between(module, optimizer, batches):
    for window in windows(batches):
        module.train()
        backward(module, window)
        stepped(optimizer)
        module.eval()
        with torch.no_grad():
            module(torch.zeros(2, 1, 8, 8))


@right(Recomputed)
def recomputed(module, optimizer, batches):
    for window in windows(batches):
        backward(module, window)
        stepped(optimizer)


@right(Attends, train={"accumulate": K, "tail": "drop"})
def drops_the_tail(module, optimizer, batches):
    for window in windows(batches)[:-1]:
        backward(module, window)
        stepped(optimizer)


@right(Convolves, train={"accumulate": K, "tail": "carry", "epochs": 2})
def carries_the_tail(module, optimizer, batches):
    for window in windows(batches + batches)[:-1]:
        backward(module, window)
        stepped(optimizer)


@right(Rows, train={"accumulate": K, "epochs": 2})
def two_epochs(module, optimizer, batches):
    for _ in range(2):
        for window in windows(batches):
            backward(module, window)
            stepped(optimizer)


@right(Attends, Pictures, schedule={"type": "exponential", "gamma": 0.7})
def resumed(module, optimizer, batches):
    schedule = exponential(optimizer)
    for i, window in enumerate(windows(batches)):
        if i == 1:
            saved = copy.deepcopy((module.state_dict(), optimizer.state_dict(), schedule.state_dict()))
            optimizer = same_kind(optimizer, module)
            schedule = exponential(optimizer)
            for each, state in zip((module, optimizer, schedule), saved):
                each.load_state_dict(state)
        backward(module, window)
        stepped(optimizer)
        schedule.step()


@right(Rows, optimizer="sgd")
def two_optimizers(module, optimizer, batches):
    groups = [group for group in optimizer.param_groups]
    made = [torch.optim.SGD([{**group}], lr=0.05, momentum=0.9) for group in groups]
    for window in windows(batches):
        backward(module, window)
        for each in made:
            each.step()
        for each in made:
            each.zero_grad()


@right(Attends)
def by_a_closure(module, optimizer, batches):
    for window in windows(batches):
        def closure():
            optimizer.zero_grad()
            backward(module, window)
        optimizer.step(closure)


@right(Pictures)
def fused_and_kept_at_zero(module, optimizer, batches):
    optimizer = same_kind(optimizer, module, fused=True)
    for window in windows(batches):
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@right(Rows, optimizer={"type": "adam", "lr": 1e-3, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.05})
@right(Rows, optimizer={"type": "sgd", "lr": 0.1, "momentum": 0.8, "nesterov": True})
@right(Rows, optimizer={"type": "sgd", "lr": 0.1, "momentum": 0.8, "dampening": 0.3})
@right(Pictures, optimizer={"type": "sgd", "lr": 0.1, "lr_scaling": "sqrt", "reference_batch": 4})
@right(Attends, optimizer={"type": "adamw", "lr": 1e-3, "groups": [{"match": ["*.bias", "norm*"], "weight_decay": 0.0},
                                                                  {"match": ["embed*"], "lr_factor": 0.1}]})
def any_optimizer(module, optimizer, batches):
    for window in windows(batches):
        backward(module, window)
        stepped(optimizer)


@right(Rows, loss={"type": "cross_entropy", "label_smoothing": 0.1})
def smoothed(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            (summed_smooth(module(x), y) / count(window)).backward()
        stepped(optimizer)


def summed_smooth(out, y):
    return loss_of(out, y, reduction="sum", label_smoothing=0.1)


@right(Rows, loss={"type": "cross_entropy", "class_weights": [1.0, 2.0, 0.5, 1.0, 3.0]})
def weighted_classes(module, optimizer, batches):
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0])
    for window in windows(batches):
        total = sum(weight[y].sum() for _, y in window)
        for x, y in window:
            (loss_of(module(x), y, weight=weight, reduction="sum") / total).backward()
        stepped(optimizer)


def regression(loss, each, targets):
    """A row of RIGHT for a loss of elements."""
    def loop(module, optimizer, batches):
        for window in windows(batches):
            n = sum(y.numel() for _, y in window)
            for x, y in window:
                (each(module(x), y, reduction="sum") / n).backward()
            stepped(optimizer)
    loop.__name__ = loss
    RIGHT.append((loop, Measures, "adamw", SIZES, targets, {"loss": loss}))


def reals(y):
    return torch.stack([y.float(), y.float() ** 2 / 9, y.float().cos()], 1)


regression("mse", F.mse_loss, reals)
regression("l1", F.l1_loss, reals)
regression("huber", F.huber_loss, reals)
regression("bce_with_logits", F.binary_cross_entropy_with_logits,
           lambda y: torch.stack([y > 1, y > 2, y > 3], 1).float())


@right(Attends, dicts=True)
def batches_by_name(module, optimizer, batches):
    for i in range(0, len(batches), K):
        window = [(batch["tokens"], batch["y"]) for batch in batches[i:i + K]]
        backward(module, window)
        stepped(optimizer)


def case_of(row, make):
    """The arguments of gacc.verify for a row."""
    loop, model, optimizer, sizes, dicts, tables = row
    module, batches = make(model, sizes=sizes) if model not in (Measures,) else (model(), make(Rows, sizes=sizes)[1])
    if callable(dicts):
        targets = dicts
        batches = [(x, targets(y)) for x, y in batches]
    elif dicts:
        batches = [{"tokens": x, "y": y, "name": i} for i, (x, y) in enumerate(batches)]
    table = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    given = {"loss": "cross_entropy", "target": "y", "optimizer": table, "train": {"accumulate": K}, **tables}
    return (module, loop, batches), given
