#!/usr/bin/env python3
"""Models of transformers, tiny and with random weights, by gacc.from_torch: the forward and the gradients beside
PyTorch.

    venv/bin/python tests/parity/transformers_models.py [NAME ...]

The forward is within 1e-5 of the largest output. One update of plain SGD with the rate 1 moves each parameter by its
gradient within 1e-4 of the parameter's largest, or of a thousandth of the model's, and two roundings of the
parameter. The inputs are those of the forward, with padding where a model takes a mask. Needs a Python with torch and
transformers, and peft for one of them. """
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

harness.begin_package("torch", "transformers")
import gacc  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

SMALL = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
             max_position_embeddings=64, num_labels=5,
             pad_token_id=1)
CAUSAL = SMALL | dict(num_key_value_heads=2)
IMAGE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
             patch_size=8, num_labels=5)
SEQUENCES = dict(vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                 decoder_attention_heads=4, encoder_ffn_dim=64,
                 decoder_ffn_dim=64, max_position_embeddings=64)
STAGES = dict(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5)


def tokens(high=99):
    return torch.randint(3, high, (2, 16))


def padded():
    given = {"input_ids": tokens(), "attention_mask": torch.ones(2, 16, dtype=torch.int64)}
    for each, padding in (("input_ids", 1), ("attention_mask", 0)):
        given[each][1, 12:] = padding
    return given


def masked():
    """The padding as truths: numbers might be any, of which OPT makes positions."""
    given = padded()
    return given | {"attention_mask": given["attention_mask"].bool()}


def pixels():
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def two_sequences():
    return {"input_ids": tokens(), "decoder_input_ids": tokens()}


MODELS = {  # the class without `For...`, its head, the configuration's sizes, the inputs
    **{kind: (kind, "CausalLM", CAUSAL | more, padded) for kind, more in {
        "Llama": {}, "Mistral": dict(sliding_window=8), "Qwen2": {}, "Qwen3": dict(head_dim=8), "Phi": {}, "Phi3": {},
        "Gemma": dict(head_dim=8),
        "Gemma2": dict(head_dim=8), "StableLm": {}, "Olmo2": {}, "Starcoder2": {}, "Cohere": {}, "Granite": {},
        "SmolLM3": {}, "GPTNeoX": {}}.items()},
    "GPT2": ("GPT2", "LMHeadModel", dict(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64), padded),
    "OPT": ("OPT", "CausalLM", SMALL | dict(ffn_dim=64, word_embed_proj_dim=32), masked),
    "Mpt": ("Mpt", "CausalLM", dict(vocab_size=99, d_model=32, n_layers=2, n_heads=4, max_seq_len=64), padded),
    "Mamba": ("Mamba", "CausalLM", dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8),
              lambda: {"input_ids": tokens()}),
    **{kind: (kind, "SequenceClassification", SMALL, padded) for kind in ("Bert", "Roberta", "Albert", "Electra")},
    "ModernBert": ("ModernBert", "SequenceClassification", SMALL | dict(pad_token_id=0, bos_token_id=1, eos_token_id=2),
                   lambda: {"input_ids": tokens()}),
    "T5": ("T5", "ConditionalGeneration", dict(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
           two_sequences),
    "Bart": ("Bart", "ConditionalGeneration", SEQUENCES, two_sequences),
    **{kind: (kind, "ImageClassification", IMAGE, pixels) for kind in ("ViT", "DeiT", "Beit")},
    **{kind: (kind, "ImageClassification", STAGES, pixels) for kind in ("Swin", "Swinv2")},
    **{kind: (kind, "ImageClassification", dict(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, num_labels=5),
              pixels)
       for kind in ("ConvNext", "ConvNextV2")},
    "Wav2Vec2": ("Wav2Vec2", "SequenceClassification", SMALL | dict(
        conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, classifier_proj_size=16, apply_spec_augment=False),
        lambda: {"input_values": torch.randn(2, 400)}),
}


def made(name):
    kind, head, sizes, inputs = MODELS[name.removeprefix("PEFT ")]
    model = getattr(transformers, kind + ("" if head == "LMHeadModel" else "For")
                    + head)(getattr(transformers, kind + "Config")(**sizes))
    if name.startswith("PEFT "):
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"],
                                                           init_lora_weights=False, task_type="CAUSAL_LM"))
    return model.eval(), inputs()


def check(name):
    torch.manual_seed(0)
    model, inputs = made(name)
    step = gacc.from_torch(model, inputs, loss="cross_entropy", target="y", output="logits",
                           optimizer={"type": "sgd", "lr": 1.0})
    run = gacc.Session(step, device="cpu", threads=1)
    logits = model(**inputs)["logits"]
    y = torch.randint(0, logits.shape[-1], logits.shape[:-1])
    torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()
    forward = ((torch.as_tensor(run.predict(inputs)) - logits).abs().max() / logits.abs().max()).item()
    run.step(inputs, y=y)
    run.update()
    after, worst = run.parameters(), (0, "")
    parameters = [(n, p) for n, p in model.named_parameters(remove_duplicate=False) if p.grad is not None]
    largest = max(p.grad.abs().max() for _, p in parameters)
    for n, p in parameters:
        off = (p - after[n] - p.grad).abs() - 2.0 ** -22 * p.abs().maximum(after[n].abs())
        worst = max(worst, ((off.max() / p.grad.abs().max().maximum(largest / 1000)).item(), n))
    print(f"{name}: forward {forward:.0e}, gradients {worst[0]:.0e} ({worst[1]})", flush=True)
    return forward <= 1e-5 and worst[0] <= 1e-4


if __name__ == "__main__":
    wrong = [name for name in sys.argv[1:] or [*MODELS, "PEFT Llama"] if not check(name)]
    if wrong:
        sys.exit(f"beyond the bounds: {', '.join(wrong)}")
