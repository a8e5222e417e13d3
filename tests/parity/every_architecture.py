#!/usr/bin/env python3
"""Every causal language model of transformers, tiny and with random weights, by gacc.from_torch, or from its folder by
gacc.from_pretrained: its logits and an update of all weights beside PyTorch.

    venv/bin/python tests/parity/every_architecture.py [--folder] [--results FILE] [--page docs/which-models.md]
        [NAME ...]

A model is right where its logits are within 1e-5 of the largest, and one update of plain SGD moves each parameter by
its gradient, within 1e-3 of the parameter's largest or of a thousandth of the model's. Each model is a process of its
own, for at most `SECONDS`. Needs torch and transformers.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import textwrap
import traceback
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

harness.begin_package("torch", "transformers")
import gacc.torch  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES  # noqa: E402

SECONDS = 240
TOKENS = 12
SIZES = {  # a number, and the keys that it is the value of
    99: "vocab_size text_vocab_size vocab_size_per_layer_input",
    64: "intermediate_size n_inner ffn_dim decoder_ffn_dim encoder_ffn_dim d_ff ffn_hidden_size "
        "max_position_embeddings n_positions max_seq_len n_ctx max_sequence_length max_target_positions",
    32: "hidden_size n_embd d_model embed_dim n_embed dim embedding_size word_embed_proj_dim emb_dim lru_width "
        "decoder_hidden_size",
    16: "index_n_heads kv_lora_rank q_lora_rank index_head_dim moe_intermediate_size shared_expert_intermediate_size "
        "expert_ffn_hidden_size moe_shared_expert_intermediate_size",
    8: "head_dim d_kv v_head_dim qk_nope_head_dim qk_rope_head_dim linear_key_head_dim linear_value_head_dim "
       "mamba_d_head mamba_head_dim state_size mamba_d_state ssm_state_size global_head_dim sliding_window "
       "attention_window_size "
       "window_size attention_chunk_size hidden_size_per_layer_input mamba_n_heads index_topk block_size",
    4: "num_attention_heads n_head num_heads n_heads decoder_attention_heads encoder_attention_heads time_step_rank "
       "linear_num_value_heads num_experts num_local_experts n_routed_experts moe_num_experts",
    2: "num_hidden_layers n_layer num_layers n_layers decoder_layers encoder_layers depth num_key_value_heads kv_heads "
       "num_kv_heads linear_num_key_heads num_experts_per_tok moe_k moe_topk num_experts_per_token "
       "top_k_experts bos_token_id",
    1: "n_group topk_group pad_token_id first_k_dense_replace",
    3: "eos_token_id", 0: "num_kv_shared_layers", 0.0: "layerdrop"}
SMALL = {key: number for number, keys in SIZES.items() for key in keys.split()} | {
    "use_cache": False, "use_mambapy": False}
BY_KIND = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}
MORE = {  # what a model wants besides
    "bamba": dict(mamba_n_heads=8, mamba_d_head=8, mamba_expand=2),
    "codegen": dict(rotary_dim=8), "cpmant": dict(dim_head=8, prompt_length=2),
    "cohere_compass_text": dict(rope_parameters=BY_KIND),
    "dbrx": dict(attn_config={"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
                 ffn_config={"hidden_size": 32, "ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}),
    "dots3_note": dict(vision_config={"adapter_out_dim": 32}, audio_config={"adapter_out_dim": 32}),
    "dots1": dict(n_shared_experts=1), "falcon_h1": dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_ssm=64),
    "gemma3n_text": dict(num_kv_shared_layers=0, activation_sparsity_pattern=[0.9, 0.0],
                         layer_types=["sliding_attention", "full_attention"]),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]]), "gptj": dict(rotary_dim=8),
    "jamba": dict(num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
                  expert_layer_offset=1),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "mamba2": dict(num_heads=8, head_dim=8, expand=2), "nemotron_h": dict(num_hidden_layers=4),
    "recurrent_gemma": dict(num_hidden_layers=3),
    "reformer": dict(is_decoder=True, axial_pos_embds=False, attention_head_size=8, attn_layers=["local", "lsh"],
                     local_attn_chunk_length=4, lsh_attn_chunk_length=4),
    "xlnet": dict(d_head=8), "xmod": dict(default_language="en_XX"),
    "zamba": dict(num_hidden_layers=3, mamba_dt_rank=2),
    "zamba2": dict(num_hidden_layers=3, n_mamba_heads=8, layers_block_type=["mamba", "mamba", "hybrid"]),
    "zaya": dict(num_experts_per_tok=1, router_hidden_size=16)}
DRAFTS = "it drafts from the states of another model, and takes no tokens alone"
CODES = "a sample of it is several rows, one for each codebook, and gacc's samples are rows"
APART = {  # what cannot be tried, and why
    "gemma3n": "of images and sounds, too large here; its text part is gemma3n_text", "gemma4_assistant": DRAFTS,
    "gemma4_unified_assistant": DRAFTS, "musicgen": CODES, "musicgen_melody": CODES}


def sizes_of(has, kind):
    latent = {"num_key_value_heads": 4} if "kv_lora_rank" in has else {}  # all heads share one latent
    return {key: value for key, value in SMALL.items() if key in has} | latent | MORE.get(kind, {})


def small(kind):
    """The configuration of a model of this type at a tiny size: those keys of SMALL that it has."""
    config = transformers.CONFIG_MAPPING[kind]
    try:
        has = config().to_dict()
    except (TypeError, ValueError):
        has = SMALL
    sizes = sizes_of(has, kind)
    for key in ("text_config", "llm_config", "decoder"):
        if isinstance(has.get(key), dict):
            of = has[key].get("model_type")
            sizes[key] = sizes_of(has[key], of) | {"model_type": of} | sizes.get(key, {})
    return config(**sizes)


def made(kind):
    """The model; of a configuration of several, as of text and images, it takes the part that is its own."""
    model, config = getattr(transformers, NAMES[kind]), small(kind)
    parts = [config, *(getattr(config, name) for name in config.sub_configs)]
    own = next((part for part in parts if isinstance(part, model.config_class)), config)
    return model._from_config(own).float().eval()


class Untried(Exception):
    """Why a model cannot be judged."""


def by_torch(model, tokens):
    """A session with the step of the module itself, and the names of its inputs."""
    step = gacc.from_torch(model, {"input_ids": tokens}, loss="cross_entropy", target="y", output="logits",
                           optimizer={"type": "sgd", "lr": 1.0}, set={"precision.compute": "f32"})
    return gacc.Session(step, device="cpu", threads=1), ("input_ids", "y")


def by_folder(model, _):
    """A session with the step of the folder that transformers writes, and the names of its inputs."""
    with tempfile.TemporaryDirectory() as folder:
        for key, value in model.config.to_dict().items():
            if isinstance(value, float) and "drop" in key:
                setattr(model.config, key, 0.0)  # a module in eval() draws nothing, and a folder is trained
        try:
            model.save_pretrained(folder)
        except Exception as error:  # of transformers, at this size
            raise Untried(f"transformers does not save it: {type(error).__name__}: {error}") from error
        step = gacc.from_pretrained(folder, context=TOKENS, train={"micro_batch": 2},
                                    optimizer={"type": "sgd", "lr": 1.0}, set={"precision.compute": "f32"})
        run = gacc.Session(step, device="cpu", threads=1)
        run.load(folder)
    return run, ("tokens", "next")


def verdict(kind, door):
    """Returns ("right", figures), ("wrong", figures), ("refused", reason) or ("not tried", reason)."""
    if kind in APART:
        return "not tried", APART[kind]
    torch.manual_seed(0)
    try:
        model = made(kind)
        for p in model.parameters():
            if p.dim() > 1 and float(p.detach().abs().max()) == 0:
                torch.nn.init.normal_(p, std=0.02)
        tokens = torch.randint(4, 90, (2, TOKENS))
        logits = model(tokens)["logits"]
        y = torch.randint(0, logits.shape[-1], logits.shape[:-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), y.flatten()).backward()
    except Exception as error:  # of the model, at this size
        return "not tried", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
    try:
        run, (takes, target) = door(model, tokens)
        forward = ((torch.as_tensor(run.predict(**{takes: tokens})) - logits).abs().max() / logits.abs().max()).item()
        run.step(**{takes: tokens, target: y})
        run.update()
    except Untried as why:
        return "not tried", str(why).splitlines()[0][:160]
    except gacc.Error as error:
        lines = str(error).splitlines()
        return "refused", (lines[0] if not lines[0].startswith("torch.export") else " ".join(lines[:3]))[:200]
    after, worst = run.parameters(), (0.0, "")
    parameters = [(n, p) for n, p in model.named_parameters() if p.grad is not None]
    largest = max(p.grad.abs().max() for _, p in parameters)
    for n, p in parameters:
        off = (p - after[n] - p.grad).abs() - 2.0 ** -22 * p.abs().maximum(after[n].abs())
        worst = max(worst, ((off.max() / p.grad.abs().max().maximum(largest / 1000)).item(), n))
    good = forward <= 1e-5 and worst[0] <= 1e-3
    figures = f"logits {forward:.0e}, update {worst[0]:.0e}"
    return ("right", figures) if good else ("wrong", f"{figures} ({worst[1]})")


def warm():
    """What each model would load anew: transformers' modules, and PyTorch's exporter."""
    model = transformers.LlamaForCausalLM(small("llama"))
    gacc.torch.text_of(model, {"input_ids": torch.zeros(2, TOKENS, dtype=torch.int64)}, output="logits")


def alone(kind, door, again=True):
    """The verdict of a process of its own; of another one where it died, as PyTorch's threads sometimes do in forks."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        signal.alarm(SECONDS)
        warnings.simplefilter("ignore")
        try:
            told = verdict(kind, door)
        except BaseException as error:
            place = traceback.format_exc().strip().splitlines()[-3].strip()
            told = "traceback", f"{type(error).__name__}: {error}"[:160] + "; " + place
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    died = os.WTERMSIG(os.waitpid(child, 0)[1])
    if not said and died != signal.SIGALRM and again:
        return alone(kind, door, again=False)
    return tuple(json.loads(said)) if said else ("not judged", (
        f"more than {SECONDS} s" if died == signal.SIGALRM else f"its process died of signal {died}"))


def page(verdicts):
    counts = {word: sum(told[0] == word for told in verdicts.values()) for word in ("right", "wrong", "refused")}
    tried = sum(counts.values())
    text = (f"`gacc.from_pretrained` and `gacc.from_torch` take what transformers has. Of the {len(verdicts)} causal "
            f"language models of transformers {transformers.__version__}, each at a tiny size, {counts['right']} are "
            "right: their logits and an update of all weights are PyTorch's. "
            f"{counts['refused']} are refused with the reason, {counts['wrong']} are wrong, and "
            f"{len(verdicts) - tried} were not judged. `tests/parity/every_architecture.py` tries them, "
            f"with PyTorch {torch.__version__.partition('+')[0]}, and writes this page.")
    lines = ["# Which models?", "", *textwrap.wrap(text, 110, break_on_hyphens=False), "",
             "| model_type | | |", "| --- | --- | --- |"]
    for kind, (word, why) in sorted(verdicts.items()):
        why = why.partition(" (Could not guard")[0]  # what follows is of PyTorch's own terms
        lines.append(f"| {kind} | {word} | {re.sub(r'[|`<>]', ' ', why)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Tries causal language models of transformers by gacc.from_torch.")
    parser.add_argument("names", nargs="*", help="model types; without any, all that --results has not")
    parser.add_argument("--folder", action="store_true", help="from its folder, by gacc.from_pretrained")
    parser.add_argument("--results", type=pathlib.Path, help="a file of verdicts, which are added as they come")
    parser.add_argument("--page", type=pathlib.Path, help="where the table of all verdicts is written")
    given = parser.parse_args()
    lines = given.results.read_text().splitlines() if given.results and given.results.exists() else []
    verdicts = {kind: (word, why) for kind, word, why in map(json.loads, lines)}
    torch.set_num_threads(1)
    warm()
    for kind in given.names or sorted(NAMES.keys() - verdicts.keys()):
        verdicts[kind] = alone(kind, by_folder if given.folder else by_torch)
        print(f"{kind}: {': '.join(verdicts[kind])}", flush=True)
        if given.results:
            with given.results.open("a") as results:
                results.write(json.dumps([kind, *verdicts[kind]]) + "\n")
    print(collections.Counter(word for word, _ in verdicts.values()))
    if given.page:
        given.page.write_text(page(verdicts), encoding="utf-8")
    if bad := [kind for kind, (word, _) in verdicts.items() if word in ("wrong", "traceback")]:
        sys.exit(f"wrong: {', '.join(bad)}")


if __name__ == "__main__":
    main()
