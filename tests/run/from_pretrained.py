"""Published models through the code of transformers: from config.json alone, with the folder's weights, adapters that
PEFT opens, packed documents."""
import json
import os
import shutil
import sys
import warnings

import harness
from harness import expect, raises

harness.begin_package("torch", "transformers", "numpy")
import gacc  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from gacc import pretrained  # noqa: E402
from gacc import torch as lowering  # noqa: E402

SIZES = dict(vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=64, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
T = 16
PLAIN = dict(train={"micro_batch": 2}, optimizer={"type": "sgd", "lr": 1.0})


TEXT_CONFIG = {kind: kind + "TextConfig" for kind in ("Gemma3", "Qwen3_5")}  # KIND + Config is that of another module


def made(kind, folder, **more):
    """A model of transformers with random weights, and its folder."""
    torch.manual_seed(0)
    config = getattr(transformers, TEXT_CONFIG.get(kind, kind + "Config"))(**SIZES | more)
    model = getattr(transformers, kind + "ForCausalLM")(config).float().eval()
    model.save_pretrained(folder)
    return model


def config_alone(folder, to):
    to.mkdir()
    shutil.copy(folder / "config.json", to)
    return to


def off(a, b):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    return ((a - b).abs().max() / b.abs().max()).item()


def as_text(net, x):
    """The text of a step of from_pretrained's kind, without constants, and how far what it computes is off."""
    said = ['loss.type = "mse"', 'loss.target = "y"', 'optimizer.type = "sgd"']
    text, _ = lowering.text_of(net, {"x": x}, target="y", settings=lambda names: said)
    run = gacc.Session(gacc.compile(text), device="cpu", threads=1)
    run.load({name: p for name, p in net.named_parameters() if name in run.parameters()})
    return text, off(run.predict(x=x), net(x).detach())


def after_an_update(kind, model, run, x, y, most):
    """The step's parameters after one update of SGD. The module has the gradients then; the logits before it are
    within `most` of its own."""
    logits = model(x).logits
    wrong = off(run.predict(tokens=x), logits.detach())
    expect(wrong < most, f"{kind}: the logits are {wrong:.1e} off")
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
    run.step(tokens=x, next=y)
    run.update()
    return run.parameters()


def tokens():
    return torch.randint(3, 99, (2, T)), torch.randint(3, 99, (2, T))


def command(*words, code=0):
    environment = os.environ | {"PYTHONPATH": str(harness.ROOT / "python")}
    return harness.run(sys.executable, "-m", "gacc.pretrained", *words, code=code, env=environment)


def test_the_configuration_is_enough_and_the_weights_come_later(folder):
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    experts = dict(num_local_experts=4, num_experts_per_tok=2)
    for kind, more in (("Llama", {}), ("Gemma3", dict(head_dim=8, sliding_window=8, layer_types=layers)),
                       ("Mixtral", experts)):
        model = made(kind, folder / kind, **more)
        step = gacc.from_pretrained(config_alone(folder / kind, folder / f"{kind}.alone"), context=T, **PLAIN)
        expect(step.plan["parameters"] == model.num_parameters(), f"{kind}: {step.plan['parameters']} parameters")
        run = gacc.Session(step, device="cpu", threads=1)
        run.load(folder / kind)
        after = after_an_update(kind, model, run, *tokens(), 1e-5)
        expect(set(after) == set(model.state_dict()), "the names are not the module's")
        for name, p in model.named_parameters():
            expect(off(p.detach() - p.grad, after[name]) < 1e-5, f"{kind}: {name} moved otherwise")


def test_adapters_open_in_peft(folder):
    peft = harness.peer("peft") and __import__("peft")
    model = made("Llama", folder / "base")
    command(config_alone(folder / "base", folder / "alone"), "--lora", 4, "--context", T, "-o", folder / "step.ptx",
            "--set", "precision.compute=f32", "--set", "optimizer.lr=0.05", "--set", "train.accumulate=1")
    x, y = tokens()
    np.savez(folder / "data.npz", tokens=x.int().numpy(), next=y.int().numpy())
    harness.run("gacc-exec", folder / "step.ptx", "--data", f"npz:{folder / 'data.npz'}", "--load", folder / "base",
                "--updates", 3, "--save-adapter", folder / "adapter", "--device", "cpu", "--check", 2)
    harness.run("gacc-exec", folder / "step.ptx", "--data", f"npz:{folder / 'data.npz'}", "--load", folder / "base",
                "--load-adapter", folder / "adapter", "--predict", folder / "out.npy", "--device", "cpu")
    said = json.loads((folder / "adapter/adapter_config.json").read_text())
    wanted = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    expect(set(said["target_modules"]) == wanted, f"{said}")
    tuned = peft.PeftModel.from_pretrained(model, folder / "adapter").eval()
    with torch.no_grad():
        expect(off(np.load(folder / "out.npy"), tuned(x).logits) < 1e-5, "PEFT computes another function")


def test_half_parameters_and_those_on_meta(folder):
    """Names, shapes and dtypes are the module's; what it computes in is what its parameters are."""
    made("Llama", folder / "base")
    model = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.bfloat16).eval()
    x, y = tokens()
    step = gacc.from_torch(model, {"input_ids": x}, loss="cross_entropy", target="y", output="logits", **PLAIN)
    expect(step.plan["precision"] == "bf16", f"{step.plan['precision']}")
    run = gacc.Session(step, device="cpu", threads=1)
    state = run.parameters()
    same = [state[name].dtype == value.dtype and torch.equal(state[name], value)
            for name, value in model.state_dict().items()]
    expect(all(same), "a parameter is another")
    expect(off(run.predict(input_ids=x), model(x).logits.float().detach()) < 3e-2, "other logits")
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(model.config).to(torch.bfloat16)
    step = gacc.from_torch(empty.eval(), {"input_ids": x}, loss="cross_entropy", target="y", output="logits", **PLAIN)
    other = gacc.Session(step, device="cpu", threads=1)
    other.load(model.state_dict())
    same = np.array_equal(other.predict(input_ids=x), run.predict(input_ids=x))
    expect(same, "the module on meta computes otherwise")
    net = torch.nn.Linear(2, 2, device="meta")
    net.register_buffer("shift", torch.ones(2, device="meta"))
    net.forward = lambda x: torch.nn.functional.linear(x, net.weight) + net.shift
    x = {"x": torch.zeros(2, 2)}
    raises(gacc.Error, "`shift`", "meta")(lambda: gacc.from_torch(net, x, loss="mse", optimizer="sgd"))


def test_a_large_table_that_is_the_same_along_an_axis(_):
    """As Qwen3.5's angles of three grids are: a text without constants counts them."""
    class Turned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(16)  # which begins with ones and zeros

        def forward(self, x):
            angles = torch.arange(64.0)[:, None] * (1 / torch.arange(1.0, 17))
            return self.norm(x) * angles.expand(3, 1, 64, 16).clone().squeeze(1)
    x = torch.randn(2, 3, 64, 16)
    expect(as_text(Turned(), x)[1] < 1e-6, "others")


def test_rotary_positions_are_one_op_before_attention(folder):
    """Halves and pairs side by side, some channels of a head, scaled ones, two thetas, layers without."""
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=100.0)
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    for kind, more, count in (
            ("Llama", dict(rope_scaling=yarn), 3),
            ("Cohere", {}, 3),
            ("Glm4", dict(head_dim=8, partial_rotary_factor=0.5), 3),
            ("StableLm", {}, 3),
            ("Gemma3", dict(head_dim=8, sliding_window=8, layer_types=layers), 3),
            ("Gemma2", dict(head_dim=8, sliding_window=8, attn_logit_softcapping=5.0), 3),
            ("SmolLM3", dict(no_rope_layers=[1, 0, 1]), 2)):
        model = made(kind, folder / kind, **more)
        text, _, settings, _ = pretrained.text_of(folder / kind, context=T)
        expect(text.count(" = rope ") == 2 * count, f"{kind}: {text.count(' = rope ')} in step and predict")
        expect(text.count(" = attention ") == 6 and "softmax" not in text, f"{kind}: not all attentions are one op")
        expect(text.count(" offset = 1.0") == text.count(" = rms_norm ") * (kind[:5] == "Gemma"), f"{kind}: its norms")
        run = gacc.Session(gacc.compile(text, set=settings), device="cpu", threads=1)
        run.load(folder / kind)
        x, _ = tokens()
        wrong = off(run.predict(tokens=x), model(x).logits.detach())
        expect(wrong < 1e-5, f"{kind}: the logits are {wrong:.1e} off")


def test_heads_with_sinks_are_one_op(folder):
    """Scores of no key, which are trained, too: in windows and without."""
    experts = dict(num_local_experts=4, num_experts_per_tok=2)
    for kind, more in (("GptOss", experts | dict(head_dim=8, sliding_window=4)),
                       ("GraniteSWA", dict(sliding_window=5))):
        model = made(kind, folder / kind, **more)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("sinks"):
                    p.copy_(2 * torch.randn_like(p))
        model.save_pretrained(folder / kind)
        text, _, settings, _ = pretrained.text_of(folder / kind, context=T)
        expect(text.count(" = attention.sinks ") == 6, f"{kind}: not all attentions are one op")
        expect("softmax" not in text or kind == "GptOss", f"{kind}: a matrix of scores")  # its router has one
        run = gacc.Session(gacc.from_pretrained(folder / kind, context=T, **PLAIN), device="cpu", threads=1)
        run.load(folder / kind)
        x, y = tokens()
        after = after_an_update(kind, model, run, x, y, 1e-5)
        for name, p in model.named_parameters():
            wrong = off(after[name] - p.detach(), -p.grad)
            expect(wrong < 1e-3, f"{kind}: {name} moved otherwise ({wrong:.1e})")


def test_heads_with_sinks_in_packed_documents(folder):
    """Trained with a dropout that draws next to nothing, attention is written out: a document sees no key of another
    there either."""
    documents = torch.tensor([[0] * 7 + [1] * (T - 7)] * 2, dtype=torch.int32)
    for dropout in (0.0, 1e-9):
        name = folder / str(dropout)
        model = made("GraniteSWA", name, sliding_window=5, attention_dropout=dropout)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(0.3 * torch.randn_like(p))
        model.save_pretrained(name)
        step = gacc.from_pretrained(name, context=T, pack=True, **PLAIN)
        text = pretrained.text_of(name, context=T, pack=True)[0]
        expect(text.count(" = attention.sinks ") == (3 if dropout else 6), f"dropout {dropout}: other ops")
        run = gacc.Session(step, device="cpu", threads=1)
        run.load(name)
        x, y = tokens()
        alone = torch.cat([model(part).logits for part in (x[:, :7], x[:, 7:])], 1)
        wrong = off(run.predict(tokens=x, documents=documents), alone.detach())
        expect(wrong < 1e-5, f"dropout {dropout}: packed documents see each other ({wrong:.1e})")
        torch.nn.functional.cross_entropy(alone.flatten(0, 1), y.flatten()).backward()
        run.step(tokens=x, next=y, documents=documents)
        run.update()
        after = run.parameters()
        for name, p in model.named_parameters():
            wrong = off(after[name] - p.detach(), -p.grad)
            expect(wrong < 1e-3, f"dropout {dropout}: {name} moved otherwise ({wrong:.1e})")


def test_attentions_that_choose_or_add_keys_stay_as_written(folder):
    """They do so only where the attention is one that they know."""
    heads = dict(head_dim=16, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2, q_lora_rank=16,
                 index_topk=4, index_head_dim=16, hc_mult=2, num_hidden_layers=2, initializer_range=0.2)
    latent = dict(kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=16)
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}
    compressed = dict(num_key_value_heads=1, o_groups=2, o_lora_rank=16, index_n_heads=2, mlp_layer_types=["moe"] * 2,
                      compress_rates=rates, layer_types=list(rates), sliding_window=4)
    for kind, more in (("HYV4", latent | dict(num_key_value_heads=4, index_n_heads=12)), ("DeepseekV4", compressed)):
        model = made(kind, folder / kind, **heads | more)
        run = gacc.Session(gacc.from_pretrained(folder / kind, context=T, **PLAIN), device="cpu", threads=1)
        run.load(folder / kind)
        x, _ = tokens()
        wrong = off(run.predict(tokens=x), model(x).logits.detach())
        expect(wrong < 1e-5, f"{kind}: the logits are {wrong:.1e} off")


def test_integers_that_the_weights_have_are_refused(folder):
    """DeepSeek V4's first layers look their experts up by the token, in a table of the checkpoint."""
    sizes = dict(num_hidden_layers=1, head_dim=16, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2,
                 q_lora_rank=16, o_groups=2, o_lora_rank=16, hc_mult=2, layer_types=["sliding_attention"])
    made("DeepseekV4", folder / "base", num_key_value_heads=1, mlp_layer_types=["hash_moe"], **sizes)
    raises(gacc.Error, "`model.layers.0.mlp.gate.tid2eid`", "integers")(
        lambda: gacc.from_pretrained(folder / "base", context=T, **PLAIN))


def test_a_delta_rule_is_one_op(folder):
    """Whose heads share keys, over more than one of transformers' chunks of 64. Rotary positions of images are those of
    texts. transformers' own sums are as far from double as these bounds."""
    length = 70
    sizes = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=12,
                 num_hidden_layers=4, head_dim=8, initializer_range=0.1, max_position_embeddings=length)
    for kind in ("Qwen3_5", "OlmoHybrid"):
        model = made(kind, folder / kind, **sizes)
        text = pretrained.text_of(folder / kind, context=length)[0]
        counts = [text.count(f" = {op} ") for op in ("delta_rule", "attention", "rope", "cumsum", "exp")]
        expect(counts == [6, 2, 2, 0, 6], f"{kind}: {counts} in step and predict")
        run = gacc.Session(gacc.from_pretrained(folder / kind, context=length, **PLAIN), device="cpu", threads=1)
        run.load(folder / kind)
        x, y = (torch.randint(3, 99, (2, length)) for _ in range(2))
        after = after_an_update(kind, model, run, x, y, 1e-4)
        for name, p in model.named_parameters():
            wrong = off(after[name] - p.detach(), -p.grad)
            expect(wrong < 2e-3, f"{kind}: {name} moved otherwise ({wrong:.1e})")
        run.save(f"{folder / kind}.saved/")  # OLMo's convolutions are three tensors of a file each
        saved = type(model).from_pretrained(f"{folder / kind}.saved").state_dict()
        differs = [name for name, value in saved.items() if not torch.equal(value, torch.as_tensor(after[name]))]
        expect(not differs, f"{kind}: the saved folder has other numbers of {differs}")
        raises(gacc.Error, "document before", "--pack")(
            lambda: gacc.from_pretrained(folder / kind, context=length, pack=True, **PLAIN))


def test_what_is_called_a_delta_rule_and_is_none(folder):
    """The function of transformers is tried: where it computes something else, it is followed."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as file
    model = made("Qwen3_5", folder / "base", linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8,
                 linear_value_head_dim=8, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
                 head_dim=8)
    kept = file.torch_chunk_gated_delta_rule
    file.torch_chunk_gated_delta_rule = lambda query, key, value, g, beta, **_: (value * g[..., None] * 2, None)
    try:
        text, _, settings, _ = pretrained.text_of(folder / "base", context=T)
        run = gacc.Session(gacc.compile(text, set=settings), device="cpu", threads=1)
        run.load(folder / "base")
        x, _ = tokens()
        expect(" = delta_rule " not in text, "it was taken for one")
        expect(off(run.predict(tokens=x), model(x, use_cache=False).logits.detach()) < 1e-5, "other logits")
    finally:
        file.torch_chunk_gated_delta_rule = kept


def test_a_window_of_one_token(folder):
    model = made("Llama", folder / "base")
    run = gacc.Session(gacc.from_pretrained(folder / "base", context=1, **PLAIN), device="cpu", threads=1)
    run.load(folder / "base")
    x = tokens()[0][:, :1].contiguous()
    expect(off(run.predict(tokens=x), model(x).logits.detach()) < 1e-5, "other logits")


def test_what_is_no_turn_stays_as_it_is_written(_):
    """Another sign, tables that no position's angle makes, keys that are turned otherwise than queries."""
    class Attention(torch.nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.kind, self.qkv = kind, torch.nn.Linear(8, 24)

        def turned(self, x, by):
            angles = torch.arange(x.shape[2], dtype=torch.float32)[:, None] * torch.tensor([1.0, 0.25]) * by
            cosine, sine = (torch.cat([table] * 2, -1) for table in (angles.cos(), angles.sin()))
            a, b = x.chunk(2, -1)
            if self.kind == "sign":
                return x * cosine + torch.cat([b, -a], -1) * sine
            if self.kind == "rounded":
                a, b = x.to(torch.int32).float().chunk(2, -1)
            if self.kind == "no position":
                cosine, sine = (table(torch.full((), 0.5)).expand(1, 4) for table in (torch.cos, torch.sin))
            return x * cosine + torch.cat([-b, a], -1) * (sine * sine if self.kind == "table" else sine)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            q, k = self.turned(q, 1.0), self.turned(k, 0.5 if self.kind == "keys" else 1.0)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return y.transpose(1, 2).flatten(2)
    x = torch.randn(2, 6, 8)
    for kind, count in ("plain", 2), ("sign", 0), ("table", 0), ("keys", 0), ("rounded", 0), ("no position", 0):
        text, wrong = as_text(Attention(kind), x)
        expect(text.count(" = rope ") == count, f"{kind}: {text.count(' = rope ')} turns")
        expect(wrong < 1e-5, f"{kind}: {wrong:.1e} off")


def test_what_is_nearly_a_norm_is_computed_as_written(_):
    """A sum with alpha, a weight that is rounded, a buffer of whole numbers; a norm of a constant is known."""
    def norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    cases = {
        "offset": lambda net, x: norm(x) * (net.w + 1),
        "alpha": lambda net, x: norm(x) * torch.add(net.w, 1.0, alpha=2.0),
        "alpha of eps": lambda net, x: net.w * x * torch.rsqrt(
            torch.add(x.pow(2).mean(-1, keepdim=True), 0.25, alpha=2.0)),
        "rounded weight": lambda net, x: norm(x) * (net.w.to(torch.int32).float() + 1),
        "rounded input": lambda net, x: net.w * x * torch.rsqrt(
            x.to(torch.int32).float().pow(2).mean(-1, keepdim=True) + 1e-5),
        "whole numbers": lambda net, x: norm(x) * (net.i + 0.5),
        "constant": lambda net, x: x * net.w + norm(net.m)[:1, :8]}

    class Net(torch.nn.Module):
        def __init__(self, function):
            super().__init__()
            self.function, self.w = function, torch.nn.Parameter(torch.linspace(-3, 4, 8))
            self.register_buffer("i", torch.arange(1, 9))
            self.register_buffer("m", torch.randn(70, 32))

        def forward(self, x):
            return self.function(self, x) + self.w
    x = 2 * torch.randn(2, 6, 8)
    for kind, function in cases.items():
        text, wrong = as_text(Net(function), x)
        expect((" = rms_norm " in text) == (kind not in ("alpha of eps", "rounded input", "constant")), text)
        expect(wrong < 1e-5, f"{kind}: {wrong:.1e} off")


def test_packed_documents_are_each_alone(folder):
    for kind, more in (("Llama", {}), ("Gemma2", dict(head_dim=8, sliding_window=8)), ("Phi", {}), ("GPTNeoX", {}),
                       ("Qwen3", dict(head_dim=T)), ("Olmo2", dict(hidden_size=T))):  # as many channels as positions
        model = made(kind, folder / kind, **more)
        step = gacc.from_pretrained(folder / kind, context=T, pack=True, **PLAIN)
        run = gacc.Session(step, device="cpu", threads=1)
        run.load(folder / kind)
        x, _ = tokens()
        cuts = [(0, 5), (5, 6), (6, T)]
        documents = torch.zeros(2, T, dtype=torch.int32)
        for number, (begin, end) in enumerate(cuts):
            documents[:, begin:end] = number
        with torch.no_grad():
            alone = torch.cat([model(x[:, begin:end]).logits for begin, end in cuts], 1)
        wrong = off(run.predict(tokens=x, documents=documents), alone)
        expect(wrong < 1e-5, f"{kind}: packed documents see each other ({wrong:.1e})")
    made("Mamba", folder / "mamba", num_hidden_layers=2, state_size=8)
    raises(gacc.Error, "--pack")(lambda: gacc.from_pretrained(folder / "mamba", context=T, pack=True, **PLAIN))


class Mixer(torch.nn.Module):
    """Tokens by documents' positions, an attention, and what `mixes` makes of its output [batch, T, width]."""

    def __init__(self, width, mixes):
        super().__init__()
        self.table, self.places = torch.nn.Embedding(9, width), torch.nn.Embedding(T, width)
        self.inside, self.outside = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, 9)
        self.square, self.layer, self.mixes = torch.nn.Parameter(torch.randn(T, T)), torch.nn.Linear(T, T), mixes

    def forward(self, tokens, documents):
        x = self.table(tokens) + self.places(torch.ops.gacc.positions(documents))
        parts = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.inside(x).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.outside(self.mixes(self, y.transpose(1, 2).flatten(2)))


def test_a_product_over_the_positions_is_no_way_between_documents(_):
    """Also where there are as many features, whose products are none."""
    x = torch.zeros(2, T, dtype=torch.int64)
    said = ['loss.type = "cross_entropy"']
    ways = {"layer": lambda net, x: net.layer(x.mT).mT,
            "parameter": lambda net, x: net.square.tril() @ x,
            "constant": lambda net, x: torch.ones(T, T).tril() @ x,
            "einsum": lambda net, x: torch.einsum("btc,ts->bsc", x, net.square)}
    for width in (T, 24):
        def lowered(mixes):
            return lowering.text_of(Mixer(width, mixes), {"tokens": x, "documents": x}, target="next", classes=True,
                                    settings=lambda names: said)
        lowered(lambda net, x: x * 2)
        for mixes in ways.values():
            raises(gacc.Error, "a product over the positions", "--pack")(lambda: lowered(mixes))


def test_blocks_that_are_alike_are_followed_once(_):
    from gacc.torch import export
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | dict(num_hidden_layers=5))).eval()
    x = {"input_ids": torch.zeros(2, 8, dtype=torch.int64)}
    def products(once):
        graph = export.exported(model, x, {}, "logits", True, once).graph
        return [n.args[1].name for n in graph.nodes if n.target is torch.ops.aten.linear.default]
    expect(products(True) == products(False), "other products of other parameters")


def test_an_encoder_is_warned_of(folder):
    for kind, more in ("Bert", {}), ("RoFormer", {}), ("Llama", {}), ("GPT2", {}), ("Bert", {"is_decoder": True}):
        config = getattr(transformers, kind + "Config")(**SIZES | more)
        config.save_pretrained(folder / "any")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            gacc.from_pretrained(folder / "any", context=T, **PLAIN)
        said = [str(one.message) for one in said if "later positions" in str(one.message)]
        encoder = kind in ("Bert", "RoFormer") and not more
        expect(len(said) == encoder and all('"is_decoder": true' in one for one in said), f"{kind}, {more}: {said}")
    transformers.BertConfig(**SIZES).save_pretrained(folder / "any")
    done = command(folder / "any", "--context", T, "--plan")
    expect(f"warning: {folder / 'any'}: the attention of BertLMHeadModel sees later" in done.stderr, done)


def test_the_texts_of_a_model_of_images(folder):
    """Its vision part, whose start writes parameters, is neither in the step nor looked for in a file; an adapter is of
    the layers that the text goes through."""
    sizes = {key: value for key, value in SIZES.items() if not key.endswith("token_id")}
    config = transformers.Gemma3Config(
        text_config=sizes | dict(head_dim=8, sliding_window=8, num_hidden_layers=2), mm_tokens_per_image=4,
        vision_config=dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                           image_size=56, patch_size=14, vision_use_head=False),
        boi_token_index=96, eoi_token_index=97, image_token_index=98)
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(config).float().eval()
    model.save_pretrained(folder / "base")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step = gacc.from_pretrained(config_alone(folder / "base", folder / "alone"), context=T, **PLAIN)
    said = [str(one.message) for one in said if "does not read" in str(one.message)]
    parts = "`model.vision_tower`, `model.multi_modal_projector`"
    expect(len(said) == 1 and parts in said[0], f"{said}")
    run = gacc.Session(step, device="cpu", threads=1)
    run.load(folder / "base")
    x, _ = tokens()
    with torch.no_grad():
        wrong = off(run.predict(tokens=x), model(x).logits)
    expect(wrong < 1e-5, f"the logits are {wrong:.1e} off")
    done = command(folder / "alone", "--lora", 2, "--context", T, "-o", folder / "step.ptx")
    expect(f"warning: {folder / 'alone'}: the forward of tokens alone does not read {parts}" in done.stderr, done)
    run = gacc.Session(gacc.open(folder / "step.ptx"), device="cpu", threads=1)
    run.load(folder / "base")
    run.save_adapter(folder / "adapter")
    adapted = gacc._arrays.read_safetensors(folder / "adapter/adapter_model.safetensors")
    expect(len(adapted) == 2 * 7 * 2 and not any("vision" in name for name in adapted), f"{sorted(adapted)}")
    vision = {"rank": 2, "match": ["out_proj"]}
    raises(gacc.Error, "the forward of tokens alone reads none of the layers", "`match`")(
        lambda: gacc.from_pretrained(folder / "alone", context=T, lora=vision))


def test_buffers_of_a_folder_are_read_with_it(folder):
    """What only a file has values of is a frozen parameter of the step, as the biases of DeepSeek's routers are."""
    model = made("Apertus", folder / "base")
    buffer = model.model.layers[1].mlp.act_fn.beta
    buffer.fill_(0.75)
    model.save_pretrained(folder / "base")
    step = gacc.from_pretrained(config_alone(folder / "base", folder / "alone"), context=T, **PLAIN)
    run = gacc.Session(step, device="cpu", threads=1)
    run.load(folder / "base")
    x, y = tokens()
    wrong = off(run.predict(tokens=x), model(x).logits.detach())
    expect(wrong < 1e-5, f"the logits are {wrong:.1e} off")
    run.step(tokens=x, next=y)
    run.update()
    after = run.parameters()
    expect(set(after) == set(model.state_dict()), "the names are not the module's")
    expect(torch.equal(after["model.layers.1.mlp.act_fn.beta"], buffer), "it was trained")


def test_what_a_model_starts_with_leaves_parameters_alone(_):
    """Also where it writes them by their memory, or has numbers of its own in them."""
    from gacc.torch import hollow

    class Model(torch.nn.Module):
        config = None

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4, device="meta"))
            self.own = torch.nn.Parameter(torch.full((2,), 5.0))
            self.register_buffer("steps", torch.zeros(3, device="meta"))
            self.register_buffer("kept", torch.full((2,), 7.0))

        def _init_weights(self, part):
            part.weight.data.normal_()
            part.weight[0].fill_(1)
            part.own.zero_()
            part.kept.zero_()
            part.steps.copy_(torch.arange(3))
    model = Model()
    with hollow.in_f32(model) as empty:
        expect(empty == set() and model.steps.tolist() == [0, 1, 2], f"{empty}: {model.steps}")
        expect(model.weight.untyped_storage().nbytes() == 4 and model.weight.count_nonzero() == 0, "a parameter")
    expect(model.own.tolist() == [5, 5] and model.kept.tolist() == [7, 7], f"{model.own}, {model.kept}")
    expect(model.weight.is_meta and not hasattr(model.own, "_is_hf_initialized"), "left behind")


def test_code_of_a_folder_is_not_run(folder):
    (folder / "code.py").write_text("raise SystemExit(7)\n")
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "other", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}))
    raises(gacc.Error, "gacc runs no code of a folder", "gacc.from_torch")(lambda: gacc.from_pretrained(folder))
    expect("gacc runs no code of a folder" in command(folder, code=1).stderr, "the command")


def test_what_is_wrong_is_said(folder):
    folder.joinpath("config.json").write_text('{"model_type": "llamma"}')
    expect("llamma" in command(folder, "--plan", code=1).stderr, "the model_type is not named")
    refused = harness.run("gaccc", folder, "--plan", code=1).stderr
    expect("gacc.pretrained" in refused, "gaccc does not name the other door")
    folder.joinpath("config.json").write_text(json.dumps({"model_type": "llama"} | SIZES))
    nobody = {"rank": 2, "match": ["nobody"]}
    raises(gacc.Error, "`nobody`", "q_proj")(lambda: gacc.from_pretrained(folder, context=T, lora=nobody))
    most = SIZES["max_position_embeddings"]
    raises(gacc.Error, f"--context {most + 1} is more than the {most} positions of the model ({folder})")(
        lambda: gacc.from_pretrained(folder, context=most + 1))
    raises(gacc.Error, "no/where: there is no such file or folder", "hf download no/where --local-dir where")(
        lambda: gacc.from_pretrained("no/where"))
    for context in 0, -1:
        raises(ValueError, f"context is a whole number from 1 on, not {context}")(
            lambda: gacc.from_pretrained(folder, context=context))
    raises(TypeError, "context is 1.5, and takes a whole number")(lambda: gacc.from_pretrained(folder, context=1.5))
    raises(ValueError, "rank")(lambda: gacc.from_pretrained(folder, context=T, lora=0))


harness.main(globals())
