"""What the examples of gacc.verify train: a small network, a small language model, eight micro-batches of each."""
import torch
from torch import nn

loss, target = "cross_entropy", "y"
optimizer = {"type": "adamw", "lr": 1e-3, "weight_decay": 0.01}
train = {"accumulate": 4, "clip_norm": 1.0}


def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 5))


def batches(sizes=(4,) * 8):
    torch.manual_seed(1)
    return [(torch.randn(n, 20), torch.randint(0, 5, (n,))) for n in sizes]


def text_module():
    import transformers
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64))


def text_batches(sizes=(2,) * 8, prompt=0):
    """`prompt`: by how many tokens each further micro-batch has a longer prompt, which does not count."""
    torch.manual_seed(1)
    out = []
    for i, n in enumerate(sizes):
        tokens = torch.randint(0, 64, (n, 12))
        counts = torch.arange(12) >= min(10, i * prompt)
        out.append({"input_ids": tokens, "labels": tokens.where(counts, -100)})
    return out
