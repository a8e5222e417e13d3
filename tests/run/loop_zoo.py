"""Training loops with one fault each, re-made from public reports, in two models and two optimizers: gacc.verify finds
the fault and names it. ZOO has a row for each: the name, the report, the models, and what the tables say."""
import collections
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

K = 3
SIZES = (4, 4, 4, 4, 4, 3, 4, 2)  # samples of the micro-batches: windows of 3, 3 and 2, the last two ragged
VOCAB, T, CLASSES = 17, 6, 5
CLIP = 0.5
OPTIMIZERS = {"adamw": {"type": "adamw", "lr": 2e-3, "weight_decay": 0.1, "decay": "matrices"},
              "sgd": {"type": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "decay": "matrices"}}
SCHEDULE = {"type": "exponential", "gamma": 0.7}


# ---------------------------------------------------------------- models
class Attends(nn.Module):
    """A causal language model: attention, a norm, a head tied to the embedding."""

    def __init__(self, width=16):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCAB, width, padding_idx=0), nn.Parameter(torch.randn(T, width) * 0.1)
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return self.head(self.norm(x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])))


class Convolves(nn.Module):
    """A causal language model of convolutions along the text, tied as well."""

    def __init__(self, width=12):
        super().__init__()
        self.embed, self.conv = nn.Embedding(VOCAB, width, padding_idx=0), nn.Conv1d(width, width, 3)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(self.norm(x + F.gelu(self.conv(F.pad(x.transpose(1, 2), (2, 0)))).transpose(1, 2)))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.drop = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Dropout(0.2)
        self.fc = nn.Linear(6 * 16, CLASSES)
        self.again = False  # whether the block is computed again in the backward pass

    def block(self, x):
        return F.relu(self.bn(self.conv(x)))

    def forward(self, x):
        h = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        return self.fc(self.drop(F.avg_pool2d(h, 2).flatten(1)))


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.bn, self.drop = nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.fc2, self.norm, self.fc3 = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, CLASSES)
        self.again = False

    def block(self, x):
        return F.gelu(self.bn(self.fc1(x)))

    def forward(self, x):
        x = x.flatten(1)
        h = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        return self.fc3(self.norm(h + F.gelu(self.fc2(self.drop(h)))))


TEXTS, IMAGES = (Attends, Convolves), (Pictures, Rows)
ANY = (Attends, Rows)


def make(model, seed=0, sizes=SIZES):
    """The module and its micro-batches."""
    torch.manual_seed(seed)
    module, batches = model(), []
    for n in sizes:
        if model in TEXTS:
            x = torch.randint(1, VOCAB, (n, T))
            y = torch.cat([x[:, 1:], torch.randint(1, VOCAB, (n, 1))], 1)
            begin, end = torch.randint(0, 3, (n, 1)), torch.randint(4, T + 1, (n, 1))
            at = torch.arange(T)[None]  # padded on both sides
            x[(at < begin) | (at >= end)], y[(at < begin) | (at >= end)] = 0, -100
            batches.append((x, y))
        else:
            batches.append((torch.randn(n, 1, 8, 8), torch.randint(0, CLASSES, (n,))))
    return module, batches


# ---------------------------------------------------------------- parts of loops
def loss_of(out, y, **more):
    """A mean over what counts, as people write it."""
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1), **more)


def summed(out, y):
    return loss_of(out, y, reduction="sum")


def count(batches):
    return sum(int((y != -100).sum()) for _, y in batches)


def windows(batches):
    return [batches[i:i + K] for i in range(0, len(batches), K)]


def backward(module, window, run=lambda loss: loss.backward()):
    for x, y in window:
        run(summed(module(x), y) / count(window))


def clip(module, most=CLIP):
    nn.utils.clip_grad_norm_(module.parameters(), most)


def decayed(module, kind=torch.optim.AdamW, everywhere=False, **more):
    """An optimizer that a loop makes itself: decay on matrices, or on all."""
    table = OPTIMIZERS["sgd" if kind is torch.optim.SGD else "adamw"]
    named = dict(module.named_parameters()).values()
    groups = [{"params": [p for p in named if p.ndim > 1], "weight_decay": table["weight_decay"]},
              {"params": [p for p in named if p.ndim < 2], "weight_decay": table["weight_decay"] * everywhere}]
    return kind(groups, lr=table["lr"], **more)


def same_kind(optimizer, module, **more):
    more = more | ({"momentum": 0.9} if isinstance(optimizer, torch.optim.SGD) else {})
    return decayed(module, type(optimizer), **more)


def exponential(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)


# ---------------------------------------------------------------- the zoo
ZOO = []
Zoo = collections.namedtuple("Zoo", "name source models loop tables optimizers sizes")


def fault(name, source, models=ANY, *, optimizers=("adamw", "sgd"), sizes=SIZES, **tables):
    """`source` is the public report; `tables` are those of gacc.verify beside train.accumulate."""
    def keep(loop):
        ZOO.append(Zoo(name, source, models, loop, tables, optimizers, sizes))
        return loop
    return keep


CLIPPED = {"train": {"clip_norm": CLIP}}
SCHEDULED = {"schedule": SCHEDULE}
HALF = {"precision": {"compute": "f16"}}


@fault("K times the gradient", "https://github.com/karpathy/nanoGPT/issues/206")
def undivided(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            loss_of(module(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@fault("mean of means", "https://github.com/meta-pytorch/torchtune/pull/1875")
def mean_of_means(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            (loss_of(module(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


@fault("short windows divided by K", "https://github.com/jingyaogong/minimind/issues/749", IMAGES, sizes=(4,) * 8)
def tail_by_k(module, optimizer, batches):
    for i, (x, y) in enumerate(batches):
        (loss_of(module(x), y) / K).backward()
        if (i + 1) % K == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()


@fault("divided by K twice", "https://github.com/huggingface/accelerate/issues/3533")
def twice_divided(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            loss = loss_of(module(x), y) / len(window)
            (loss / K).backward()
        optimizer.step()
        optimizer.zero_grad()


@fault("gradients cleared inside a window", "https://github.com/bytetriper/RAE/issues/67")
def cleared(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            optimizer.zero_grad()
            (loss_of(module(x), y) / K).backward()
        optimizer.step()


@fault("gradients kept over a window", "https://github.com/meta-pytorch/torchforge/pull/71")
def kept(module, optimizer, batches):
    for window in windows(batches):
        backward(module, window)
        optimizer.step()


@fault("an update each micro-batch", "https://github.com/thunlp/OpenPrompt/issues/106")
def each_micro_batch(module, optimizer, batches):
    for x, y in batches:
        (loss_of(module(x), y) / K).backward()
        optimizer.step()
        optimizer.zero_grad()


@fault("the last window is dropped", "https://github.com/timoschick/pet/issues/36")
def dropped(module, optimizer, batches):
    for window in windows(batches):
        backward(module, window)
        if len(window) == K:
            optimizer.step()
            optimizer.zero_grad()


@fault("the last window is carried on", "https://github.com/Lightning-AI/pytorch-lightning/issues/19684",
       train={"epochs": 2})
def carried(module, optimizer, batches):
    for window in windows(batches + batches):
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()


@fault("a window is cut too early", "https://github.com/rasbt/LLMs-from-scratch/pull/300")
def too_early(module, optimizer, batches):
    starts = [0, *range(1, len(batches), K), len(batches)]
    for begin, end in zip(starts, starts[1:]):
        backward(module, batches[begin:end])
        optimizer.step()
        optimizer.zero_grad()


@fault("clipping before unscaling", "https://github.com/milesial/Pytorch-UNet/issues/468", **CLIPPED, **HALF)
def clipped_scaled(module, optimizer, batches):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for window in windows(batches):
        with torch.autocast("cpu", dtype=torch.float16):
            for x, y in window:
                scaler.scale(summed(module(x).float(), y) / count(window)).backward()
        clip(module)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@fault("clipping of each micro-batch", "https://github.com/huggingface/transformers/issues/1563", **CLIPPED)
def clipped_each(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            (summed(module(x), y) / count(window)).backward()
            clip(module)
        optimizer.step()
        optimizer.zero_grad()


@fault("clipping before the mean", "https://github.com/petuum/adaptdl/pull/26", **CLIPPED)
def clipped_sum(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            summed(module(x), y).backward()
        clip(module)
        for p in module.parameters():
            p.grad /= count(window)
        optimizer.step()
        optimizer.zero_grad()


@fault("schedule a micro-batch", "https://github.com/sgl-project/SpecForge/issues/364", **SCHEDULED)
def schedule_each(module, optimizer, batches):
    schedule = exponential(optimizer)
    for window in windows(batches):
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()
        for _ in window:
            schedule.step()


@fault("decay on what has none", "https://github.com/ServiceNow/Fast-LLM/issues/542")
def decay_everywhere(module, optimizer, batches):
    optimizer = same_kind(optimizer, module, everywhere=True)
    for window in windows(batches):
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()


@fault("coupled decay for decoupled", "https://github.com/pytorch/pytorch/pull/21250", optimizers=("adamw",))
def coupled(module, optimizer, batches):
    optimizer = decayed(module, torch.optim.Adam)
    for window in windows(batches):
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()


@fault("statistics moved twice", "https://github.com/pytorch/pytorch/issues/96136", IMAGES)
def checkpointed(module, optimizer, batches):
    module.again = True
    for window in windows(batches):
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()


@fault("evaluation in training mode", "https://github.com/wolny/pytorch-3dunet/issues/53", IMAGES)
def evaluated_in_training(module, optimizer, batches):
    validation = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    for window in windows(batches):
        with torch.no_grad():
            module(validation)
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()


@fault("evaluation mode left on", "https://github.com/joeynmt/joeynmt/issues/184", IMAGES)
def left_in_eval(module, optimizer, batches):
    module.train()
    for i, window in enumerate(windows(batches)):
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()
        if i == 0:
            module.eval()
            with torch.no_grad():
                module(batches[0][0])


@fault("a loss that counts ignored targets", "https://github.com/IBM/pytorch-seq2seq/issues/125", TEXTS)
def counts_ignored(module, optimizer, batches):
    for window in windows(batches):
        n = sum(y.numel() for _, y in window)
        for x, y in window:
            (loss_of(module(x), y, reduction="none").sum() / n).backward()
        optimizer.step()
        optimizer.zero_grad()


@fault("targets shifted twice", "https://github.com/huggingface/transformers/issues/47394", TEXTS)
def shifted_twice(module, optimizer, batches):
    for window in windows(batches):
        n = sum(int((y[:, 1:] != -100).sum()) for _, y in window)
        for x, y in window:
            (summed(module(x)[:, :-1], y[:, 1:]) / n).backward()
        optimizer.step()
        optimizer.zero_grad()


@fault("targets not shifted", "https://github.com/KempnerInstitute/KempnerForge/issues/154", TEXTS)
def not_shifted(module, optimizer, batches):
    for window in windows(batches):
        for x, y in window:
            (summed(module(x), torch.where(y == -100, y, x)) / count(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


@fault("ignored targets are trained", "https://github.com/EleutherAI/gpt-neo/pull/45", TEXTS)
def pads_trained(module, optimizer, batches):
    for window in windows(batches):
        n = sum(y.numel() for _, y in window)
        for x, y in window:
            (summed(module(x), y.clamp(min=0)) / n).backward()
        optimizer.step()
        optimizer.zero_grad()


@fault("a padding row trained", "https://github.com/google/torchax/pull/11", TEXTS)
def padding_trained(module, optimizer, batches):
    module.embed.padding_idx = None
    for window in windows(batches):
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()


@fault("a tied weight untied", "https://github.com/NVIDIA-NeMo/Automodel/pull/2511", TEXTS)
def untied(module, optimizer, batches):
    module.head.weight = nn.Parameter(module.head.weight.detach().clone())
    for window in windows(batches):
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()
        module.head.weight.grad = None


@fault("resume without moments", "https://github.com/LibreYOLO/libreyolo/pull/277")
def no_moments(module, optimizer, batches):
    for i, window in enumerate(windows(batches)):
        if i == 1:
            saved = copy.deepcopy(module.state_dict())
            optimizer = same_kind(optimizer, module)
            module.load_state_dict(saved)
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()


@fault("resume without the schedule", "https://github.com/lightly-ai/lightly-train/pull/301", **SCHEDULED)
def no_schedule(module, optimizer, batches):
    schedule = exponential(optimizer)
    for i, window in enumerate(windows(batches)):
        if i == 1:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = same_kind(optimizer, module)
            optimizer.load_state_dict(state)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"]
            schedule = exponential(optimizer)
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


@fault("resume without the scaler", "https://github.com/ultralytics/ultralytics/pull/22189", **HALF)
def no_scaler(module, optimizer, batches):
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1)
    for i, window in enumerate(windows(batches)):
        if i == 2:
            scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1)
        with torch.autocast("cpu", dtype=torch.float16):
            backward(module, window, lambda loss: scaler.scale(loss).backward())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@fault("micro-batches seen again after a resume", "https://github.com/kyutai-labs/pocket-tts/pull/287")
def no_order(module, optimizer, batches):
    for window in [*windows(batches)[:2], *windows(batches)[:1]]:
        backward(module, window)
        optimizer.step()
        optimizer.zero_grad()


@fault("a skipped update that the schedule counts", "https://github.com/Lightning-AI/pytorch-lightning/issues/18828",
       **SCHEDULED, **HALF)
def skip_counted(module, optimizer, batches):
    scaler, schedule = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24,
                                            backoff_factor=2.0 ** -14), exponential(optimizer)
    for window in windows(batches):
        for x, y in window:
            with torch.autocast("cpu", dtype=torch.float16):
                out = module(x)
            scaler.scale(summed(out, y) / count(window)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
