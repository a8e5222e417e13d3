"""Modules of PyTorch that people have, small: each a function that gives the module, its inputs, the loss and the
target. And what tests/run/from_torch.py and tests/parity/torch_modules.py ask of any."""
import copy
import json
import math

import gacc
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import harness
from harness import expect

NETS = {}


def net(build):
    NETS[build.__name__] = build
    return build


def images(channels=3, size=32, batch=4):
    return torch.randn(batch, channels, size, size)


def classes(n=5, *shape, batch=4):
    return torch.randint(0, n, (batch, *shape))


class Basic(nn.Module):
    """A block of ResNet-18."""

    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512), n=1000):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0])
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        before, layers = widths[0], []
        for i, w in enumerate(widths):
            layers.append(nn.Sequential(Basic(before, w, 1 if i == 0 else 2), Basic(w, w)))
            before = w
        self.layers, self.avgpool, self.fc = nn.Sequential(*layers), nn.AdaptiveAvgPool2d(1), nn.Linear(before, n)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


@net
def resnet18():
    return ResNet((8, 12, 16, 24), 5), {"x": images(size=64, batch=8)}, "cross_entropy", classes(batch=8)


class SqueezeExcite(nn.Module):
    def __init__(self, c, inner):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(c, inner, 1), nn.Conv2d(inner, c, 1)

    def forward(self, x):
        s = F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))
        return x * F.hardsigmoid(self.fc2(s))


class Inverted(nn.Module):
    def __init__(self, cin, wide, cout, kernel, stride, se, act):
        super().__init__()
        layers = [nn.Conv2d(cin, wide, 1, bias=False), nn.BatchNorm2d(wide, eps=0.001, momentum=0.01),
                  act(inplace=True),
                  nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False),
                  nn.BatchNorm2d(wide, eps=0.001, momentum=0.01), act(inplace=True)]
        layers += [SqueezeExcite(wide, max(4, wide // 4))] if se else []
        layers += [nn.Conv2d(wide, cout, 1, bias=False), nn.BatchNorm2d(cout, eps=0.001, momentum=0.01)]
        self.block, self.residual = nn.Sequential(*layers), stride == 1 and cin == cout

    def forward(self, x):
        return x + self.block(x) if self.residual else self.block(x)


@net
def mobilenet_v3():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True),
        Inverted(8, 8, 8, 3, 2, True, nn.ReLU), Inverted(8, 24, 12, 3, 1, False, nn.ReLU),
        Inverted(12, 24, 12, 5, 1, True, nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(12, 16), nn.Hardswish(inplace=True), nn.Dropout(0.0), nn.Linear(16, 5),
    ), {"input": images()}, "cross_entropy", classes()


class ConvNeXtBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c, eps=1e-6)
        self.up, self.down, self.gamma = nn.Linear(c, 4 * c), nn.Linear(4 * c, c), nn.Parameter(
            1e-1 * torch.ones(c, 1, 1))

    def forward(self, x):
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + self.gamma * self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@net
def convnext():
    return nn.Sequential(nn.Conv2d(3, 12, 4, 4), LayerNorm2d(12), ConvNeXtBlock(12), LayerNorm2d(12),
                         nn.Conv2d(12, 16, 2, 2),
                         ConvNeXtBlock(16), nn.AdaptiveAvgPool2d(1), LayerNorm2d(16), nn.Flatten(), nn.Linear(16, 5)
                         ), {"input": images()}, "cross_entropy", classes()


class ViT(nn.Module):
    def __init__(self, c=24, heads=3, depth=2):
        super().__init__()
        self.patch = nn.Conv2d(3, c, 8, 8)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, c) * 0.02), nn.Parameter(torch.randn(1, 17, c) * 0.02)
        layer = nn.TransformerEncoderLayer(c, heads, 2 * c, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder, self.norm, self.head = nn.TransformerEncoder(layer, depth,
                                                                   enable_nested_tensor=False), nn.LayerNorm(
                                                                       c), nn.Linear(c, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.encoder(x))[:, 0])


@net
def vit():
    return ViT(), {"x": images()}, "cross_entropy", classes()


@net
def vgg_bn():
    layers, before = [], 3
    for w in (8, "M", 12, "M", 16, 16, "M"):
        if w == "M":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(before, w, 3, padding=1), nn.BatchNorm2d(w), nn.ReLU(inplace=True)]
            before = w
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(64, 32), nn.ReLU(True),
                         nn.Linear(32, 5)
                         ), {"input": images()}, "cross_entropy", classes()


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        def double(cin, cout):
            return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(2, cout), nn.ReLU(),
                                 nn.Conv2d(cout, cout, 3, padding=1), nn.ReLU())
        self.d1, self.d2, self.d3 = double(3, 8), double(8, 16), double(16, 24)
        self.up2, self.u2 = nn.ConvTranspose2d(24, 16, 2, 2), double(32, 16)
        self.up1, self.u1 = nn.Upsample(scale_factor=2, mode="nearest"), double(24, 8)
        self.out = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        y = self.u2(torch.cat([self.up2(c), b], 1))
        y = self.u1(torch.cat([self.up1(y), a], 1))
        return self.out(y).permute(0, 2, 3, 1)  # classes last


@net
def unet():
    return UNet(), {"x": images(size=16)}, "cross_entropy", classes(4, 16, 16)


@net
def speech_cnn():
    return nn.Sequential(nn.Conv1d(1, 8, 9, 4, 4), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(4),
                         nn.Conv1d(8, 16, 3, padding=1), nn.BatchNorm1d(16),
                         nn.ReLU(), nn.AvgPool1d(2), nn.Conv1d(16, 16, 3, padding=1, groups=4), nn.GELU(),
                         nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                         nn.Linear(16, 5),
                         nn.LogSoftmax(-1)), {"input": torch.randn(4, 1, 400)}, "cross_entropy", classes()


class CausalSelfAttention(nn.Module):
    def __init__(self, c, heads, t):
        super().__init__()
        self.c_attn, self.c_proj, self.heads = nn.Linear(c, 3 * c), nn.Linear(c, c), heads
        self.register_buffer("bias", torch.tril(torch.ones(t, t)).view(1, 1, t, t))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        return self.c_proj((F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c))


class FlashSelfAttention(CausalSelfAttention):
    def forward(self, x):
        b, t, c = x.size()
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v,
                                                          is_causal=True).transpose(1, 2).contiguous().view(b, t, c))


class NanoGPT(nn.Module):
    def __init__(self, attention, vocab=31, c=24, heads=2, t=12, depth=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, c), nn.Embedding(t, c)
        self.h = nn.ModuleList(nn.ModuleDict({
            "ln_1": nn.LayerNorm(c), "attn": attention(c, heads, t), "ln_2": nn.LayerNorm(c),
            "mlp": nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))}) for _ in range(depth))
        self.ln_f, self.lm_head = nn.LayerNorm(c), nn.Linear(c, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = x + block["attn"](block["ln_1"](x))
            x = x + block["mlp"](block["ln_2"](x))
        return self.lm_head(self.ln_f(x))


@net
def nanogpt():
    return NanoGPT(CausalSelfAttention), {"idx": classes(31, 12)}, "cross_entropy", classes(31, 12)


@net
def nanogpt_flash():
    return NanoGPT(FlashSelfAttention), {"idx": classes(31, 12)}, "cross_entropy", classes(31, 12)


class RMSNorm(nn.Module):
    def __init__(self, c, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(c)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class LlamaBlock(nn.Module):
    def __init__(self, c=32, heads=4, kv=2, t=10):
        super().__init__()
        self.heads, self.kv, self.d = heads, kv, c // heads
        self.q_proj, self.k_proj = nn.Linear(c, c, bias=False), nn.Linear(c, kv * self.d, bias=False)
        self.v_proj, self.o_proj = nn.Linear(c, kv * self.d, bias=False), nn.Linear(c, c, bias=False)
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(c, 48,
                                                                 bias=False), nn.Linear(c, 48, bias=False), nn.Linear(
                                                                     48, c, bias=False)
        self.norm1, self.norm2 = RMSNorm(c), nn.RMSNorm(c, eps=1e-6)
        angles = torch.outer(torch.arange(t).float(), 10000 ** (-torch.arange(0, self.d, 2).float() / self.d))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin(), persistent=False)

    def rope(self, x):
        half = x.shape[-1] // 2
        return x * self.cos + torch.cat([-x[..., half:], x[..., :half]], -1) * self.sin

    def forward(self, x):
        b, t, c = x.shape
        y = self.norm1(x)
        q = self.rope(self.q_proj(y).view(b, t, self.heads, self.d).transpose(1, 2))
        k = self.rope(self.k_proj(y).view(b, t, self.kv, self.d).transpose(1, 2))
        v = self.v_proj(y).view(b, t, self.kv, self.d).transpose(1, 2)
        k, v = (u[:, :, None].expand(b, self.kv, self.heads // self.kv, t, self.d).reshape(b, self.heads, t, self.d)
                for u in (k, v))
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        y = self.norm2(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


@net
def llama_block():
    return LlamaBlock(), {"x": torch.randn(4, 10, 32)}, "mse", torch.randn(4, 10, 32)


class Perceiver(nn.Module):
    def __init__(self, c=16, latents=6):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, c))
        self.q, self.kv, self.out = nn.Linear(c, c), nn.Linear(8, 2 * c), nn.Linear(c, 5)
        self.mha, self.norm = nn.MultiheadAttention(c, 2, batch_first=True, kdim=8, vdim=8), nn.LayerNorm(c)

    def forward(self, x):
        latents = self.latents.unsqueeze(0).expand(x.shape[0], -1, -1)
        k, v = self.kv(x).chunk(2, -1)
        q = self.q(latents)
        z = latents + torch.softmax(torch.einsum("bnc,bmc->bnm", q, k) / 4, -1) @ v
        z = z + self.mha(self.norm(z), x, x, need_weights=False)[0]
        return self.out(z.mean(1))


@net
def perceiver():
    return Perceiver(), {"x": torch.randn(4, 20, 8)}, "cross_entropy", classes()


class Mixer(nn.Module):
    def __init__(self, c=16, n=16):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 8, 8)
        self.n1, self.n2, self.norm = nn.LayerNorm(c), nn.LayerNorm(c), nn.LayerNorm(c)
        self.tokens, self.channels = nn.Sequential(nn.Linear(n, 24), nn.GELU(),
                                                   nn.Linear(24, n)), nn.Sequential(
                                                       nn.Linear(c, 32), nn.GELU(), nn.Linear(32, c))
        self.head = nn.Linear(c, 5)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.n2(x))
        return self.head(self.norm(x).mean(dim=1))


@net
def mlp_mixer():
    return Mixer(), {"x": images()}, "cross_entropy", classes()


class DeepSets(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi, self.rho, self.lam = nn.Linear(6, 16), nn.Linear(16, 1), nn.Linear(16, 16)

    def forward(self, x):
        y = torch.tanh(self.phi(x))
        y = F.elu(self.lam(y - y.max(dim=1, keepdim=True).values))
        y = y - y.mean(1, keepdim=True)
        return self.rho(y.pow(2).sum(1)).squeeze(-1)


@net
def deepsets():
    return DeepSets(), {"x": torch.randn(4, 9, 6)}, "mse", torch.randn(4)


class ACT(nn.Module):
    """Images and joint positions to a chunk of actions, by encoder and decoder."""

    def __init__(self, c=16):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, c, 3, 4, 1))
        self.state, self.queries, self.pos = nn.Linear(7, c), nn.Embedding(5, c), nn.Parameter(
            torch.randn(17, 1, c) * 0.1)
        self.transformer = nn.Transformer(c, 2, 1, 1, 32, 0.0)  # positions first
        self.head = nn.Linear(c, 7)

    def forward(self, image, qpos):
        tokens = self.backbone(image).flatten(2).permute(2, 0, 1)
        tokens = torch.cat([self.state(qpos)[None], tokens], 0) + self.pos
        queries = self.queries.weight[:, None].repeat(1, image.shape[0], 1)
        return self.head(self.transformer(tokens, queries)).transpose(0, 1)


@net
def act_policy():
    return ACT(), {"image": images(), "qpos": torch.randn(4, 7)}, "l1", torch.randn(4, 5, 7)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                  nn.Linear(4 * 49, 8), nn.Sigmoid())
        self.head = nn.Linear(8, 1)

    def forward(self, a, b):
        return self.head(torch.abs(self.body(a) - self.body(b))).squeeze(1)


@net
def siamese():
    return Siamese(), {"a": images(1, 16), "b": images(1, 16)}, "bce_with_logits", torch.randint(0, 2, (4,)).float()


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 12, 3, 2, 1),
                                     nn.LeakyReLU(0.2))
        self.decoder = nn.Sequential(nn.ConvTranspose2d(12, 8, 3, 2, 1, output_padding=1), nn.SiLU(),
                                     nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh())

    def forward(self, x):
        return self.decoder(self.encoder(x))


@net
def autoencoder():
    x = images(1, 16)
    return Autoencoder(), {"x": x}, "mse", x.tanh()


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mu, self.logvar, self.dec = nn.Linear(20, 16), nn.Linear(16, 4), nn.Linear(16, 4), nn.Linear(
            4, 20)

    def forward(self, x, noise):
        h = F.softplus(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h).clamp(-8, 8)
        z = mu + noise * torch.exp(0.5 * logvar)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1, keepdim=True)
        return torch.cat([self.dec(z), (kl + 1e-3).sqrt()], 1)  # mse with 0 behind x is the kl


@net
def vae():
    x = torch.randn(4, 20)
    return VAE(), {"x": x, "noise": torch.randn(4, 4)}, "mse", torch.cat([x, torch.zeros(4, 1)], 1)


class TabTransformer(nn.Module):
    def __init__(self, sizes=(5, 7, 3), c=12):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, c, padding_idx=1 if n == 7 else None) for n in sizes)
        self.layer = nn.TransformerEncoderLayer(c, 2, 24, 0.0, batch_first=True)
        self.norm, self.head = nn.LayerNorm(4), nn.Sequential(nn.Linear(3 * c + 4, 16), nn.SELU(), nn.Linear(16, 1))

    def forward(self, first, second, third, numbers):
        x = torch.stack([e(column) for e, column in zip(self.embeddings, (first, second, third))], 1)
        x = self.layer(x).flatten(1)
        return self.head(torch.cat([x, self.norm(numbers)], 1))


@net
def tab_transformer():
    columns = {name: torch.randint(0, n, (4,)) for name, n in (("first", 5), ("second", 7), ("third", 3))}
    return TabTransformer(), {**columns, "numbers": torch.randn(4, 4)}, "huber", torch.randn(4, 1)


class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.out = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x, adjacency):
        degree = adjacency.sum(-1, keepdim=True).clamp(min=1)
        for layer in (self.a, self.b, self.c):
            x = F.gelu(layer(torch.bmm(adjacency, x) / degree))
        return self.out(x.amax(1))


@net
def gnn():
    return GNN(), {"x": torch.randn(4, 9, 6), "adjacency": (torch.rand(4, 9,
                                                                       9) < 0.4).float()}, "cross_entropy", classes()


class WaveNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.embed = nn.Embedding(16, c)
        self.filters = nn.ModuleList(nn.Conv1d(c, 2 * c, 2, dilation=2 ** i) for i in range(3))
        self.mixes, self.skips = nn.ModuleList(nn.Conv1d(c, c, 1)
                                               for _ in range(3)), nn.ModuleList(nn.Conv1d(c, c, 1) for _ in range(3))
        self.out = nn.Conv1d(c, 16, 1)

    def forward(self, tokens):
        x, skips = self.embed(tokens).transpose(1, 2), 0
        for i, (conv, mix, skip) in enumerate(zip(self.filters, self.mixes, self.skips)):
            a, b = conv(F.pad(x, (2 ** i, 0))).chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            x, skips = x + mix(y), skips + skip(y)
        return self.out(F.relu(skips)).transpose(1, 2)


@net
def wavenet():
    return WaveNet(), {"tokens": classes(16, 20)}, "cross_entropy", classes(16, 20)


class TextCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 10)
        self.convs = nn.ModuleList(nn.Conv1d(10, 6, k) for k in (2, 3, 4))
        self.drop, self.fc = nn.Dropout(0.0), nn.Linear(18, 5)

    def forward(self, tokens):
        x = self.embed(tokens).permute(0, 2, 1)
        pooled = [F.max_pool1d(F.relu(c(x)), x.shape[-1] - c.kernel_size[0] + 1).squeeze(2) for c in self.convs]
        return self.fc(self.drop(torch.cat(pooled, 1)))


@net
def text_cnn():
    return TextCNN(), {"tokens": classes(40, 15)}, "cross_entropy", classes()

LOSSES = {"cross_entropy": lambda out, y: F.cross_entropy(out.flatten(0, -2), y.flatten()), "mse": F.mse_loss,
          "l1": F.l1_loss,
          "bce_with_logits": F.binary_cross_entropy_with_logits, "huber": F.huber_loss}
SGD = {"type": "sgd", "lr": 0.01, "momentum": 0.9}


def made(name):
    torch.manual_seed(0)
    return NETS[name]()


def session(step):
    return gacc.Session(step, "cpu", threads=1)


def updated(module, inputs, loss, target, optimizer=lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
            dtype=torch.float32):
    """PyTorch's loss, and the state of a copy after one update; without the count of batches."""
    module = copy.deepcopy(module).to(dtype).train()
    moves = optimizer([p for p in module.parameters() if p.requires_grad])
    inputs, target = ({n: x.to(dtype) if x.is_floating_point() else x for n, x in given.items()}
                      for given in (inputs, {"": target}))
    value = LOSSES[loss](module(*inputs.values()), target[""])
    value.backward()
    moves.step()
    return value.item(), {n: x.detach() for n, x in module.state_dict().items()
                          if not n.endswith("num_batches_tracked")}


def apart(some, others):
    """The largest difference over tensors, each relative to its largest number where that is above 1; and of which."""
    return max((((some[n].double() - x.double()).abs().max() / x.double().abs().max().clamp(min=1)).item(), n) for n,
               x in others.items())


def allocated(step, inputs, target, folder):
    """The bytes that a run of the step takes by its log, which says them twice."""
    step.save(folder / "step.ptx")
    np.savez(folder / "data.npz", y=target.numpy(), **{name: x.numpy() for name, x in inputs.items()})
    harness.run("gacc-exec", folder / "step.ptx", "--device", "cpu", "--quiet", "--data", f"npz:{folder / 'data.npz'}",
                "--epochs", 1,
                "--load", folder / "step.safetensors", "--log", folder / "log.jsonl")
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return {event[key] for event in events for key in ("arena_bytes", "peak_bytes") if key in event}


def a_budget_changes_no_bit(name, folder):
    """At half of the activations: what is allocated is the plan's peak, inside the budget, and the weights are the
    same."""
    module, inputs, loss, target = made(name)
    tables = dict(loss=loss, target="y", optimizer=SGD, train={"micro_batch": 4, "accumulate": 2})
    free = gacc.from_torch(module, inputs, **tables)
    bytes_of = free.plan["bytes"]
    budget = bytes_of["peak"] - bytes_of["activations"] // 2
    tight = gacc.from_torch(module, inputs, memory=f"{budget}B", **tables)
    peak = tight.plan["bytes"]["peak"]
    expect(peak <= budget, f"{name}: the peak {peak} is above {budget}")
    taken = allocated(tight, inputs, target, folder)
    expect(taken == {peak}, f"{name}: {taken} were allocated, and the peak is {peak}")
    states = []
    for step in (free, tight):
        run = session(step)
        for _ in range(4):
            run.step(inputs, y=target)
            if run.launches == 2:
                run.update()
        states.append(run.parameters())
    expect(all(torch.equal(states[0][n], states[1][n]) for n in states[0]), f"{name}: a budget changed the weights")


def a_ragged_window_is_one_batch(name):
    """7 samples by 4 launches, the last of one, are PyTorch's update of one batch of 7."""
    module, inputs, loss, target = made(name)
    several = {n: torch.cat([x, x[:3]]) for n, x in inputs.items()}
    wanted = torch.cat([target, target[:3]])
    value, after = updated(module, several, loss, wanted)
    run = session(gacc.from_torch(module, inputs, loss=loss, target="y", optimizer=SGD,
                                  train={"micro_batch": 2, "accumulate": 4}))
    for i in range(0, 7, 2):
        run.step({n: x[i:i + 2] for n, x in several.items()}, y=wanted[i:i + 2])
    window = run.update()
    expect(window.samples == 7 and abs(window.loss - value) < 1e-5 * max(1, value), f"{name}: {window} and {value}")
    worst, where = apart(run.parameters(), after)
    expect(worst <= 1e-6, f"{name}: {where} of 2 + 2 + 2 + 1 samples is {worst:.1e} off")
