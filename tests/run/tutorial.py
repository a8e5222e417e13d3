"""docs/tutorials/published-model.md, on a folder that is made here: random weights, two layers, a tokenizer of its
own."""
import json
import os
import re
import shlex
import subprocess

import harness
from harness import expect

MAKE = harness.MAKE_TOKENIZER + r"""
import numpy as np
template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
(folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": template}))
C, M, V = 32, 48, 260
config = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=V, hidden_size=C, intermediate_size=M, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, hidden_act="silu", rms_norm_eps=1e-5, max_position_embeddings=128,
              tie_word_embeddings=True)
(folder / "config.json").write_text(json.dumps(config))
shapes = {"model.embed_tokens.weight": (V, C), "model.norm.weight": (C,)}
for i in range(2):
    layer = f"model.layers.{i}."
    shapes |= {layer + "input_layernorm.weight": (C,), layer + "post_attention_layernorm.weight": (C,)}
    shapes |= {layer + f"self_attn.{k}_proj.weight": (n, C) for k, n in (("q", C), ("k", C // 2), ("v", C // 2), ("o", C))}
    shapes |= {layer + "mlp.gate_proj.weight": (M, C), layer + "mlp.up_proj.weight": (M, C), layer + "mlp.down_proj.weight": (C, M)}
random = np.random.default_rng(1)
header, data = {"__metadata__": {"format": "pt"}}, b""
for name, shape in shapes.items():
    tensor = (random.normal(0, 0.05, shape) if len(shape) > 1 else np.ones(shape)).astype("<f4").tobytes()
    header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + len(tensor)]}
    data += tensor
text = json.dumps(header).encode()
(folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
"""


def made(folder):
    """A model, a text and chats; returns Python and the environment in which the pages' commands find what they
    name."""
    python = harness.peer("numpy", "tokenizers", "jinja2")
    model = folder / "FOLDER"
    model.mkdir()
    subprocess.run([python, "-c", MAKE, model], check=True)
    (folder / "text.txt").write_text("to be or not to be, that is the question\n" * 200)
    (folder / "chats.jsonl").write_text("".join(json.dumps({"prompt": f"{n} and {n} are ", "completion": str(2 * n)})
                                                + "\n" for n in range(64)))
    return python, dict(os.environ, PYTHONPATH=str(harness.ROOT / "python"),
                        GACC_LIBRARY=str(harness.BIN / "libgacc.so.0"),
                        PATH=f"{harness.BIN}:{os.environ['PATH']}")


def type_commands(page, folder, python, environment, *changes):
    """Runs the indented commands of a page; returns how many there are."""
    commands = re.findall(r"(?m)^    ((?:python3|gaccc|gacc-exec) .*)$", (harness.ROOT / page).read_text())
    for command in commands:
        for old, new in changes:
            command = command.replace(old, new)
        words = [python if word == "python3" else word for word in shlex.split(command)]
        done = subprocess.run(words, cwd=folder, env=environment, input="hi\n", capture_output=True, text=True)
        expect(done.returncode == 0, f"{command}\n{done.stderr}")
    return len(commands)


def test_the_page_s_commands_make_an_adapter(folder):
    python, environment = made(folder)
    page = "docs/tutorials/published-model.md"
    expect(type_commands(page, folder, python, environment) == 10, "the page has ten commands")
    for adapter in "adapter", "answers":
        expect(sorted(path.name
                      for path in (folder / adapter).iterdir()) == ["adapter_config.json", "adapter_model.safetensors"],
                      adapter)
    code = re.findall(r"(?m)^    ((?:import|step|run|gacc)\b[ .].*)$", (harness.ROOT / page).read_text())
    expect(len(code) == 5, code)
    done = subprocess.run([python, "-c", "\n".join(code)], cwd=folder, env=environment, capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)


def test_the_readme_s_commands_make_an_adapter(folder):
    """The model here has 128 positions."""
    python, environment = made(folder)
    expect(type_commands("README.md", folder, python, environment, ("--context 512", "--context 128")) == 3,
           "the README has three commands")
    expect((folder / "adapter/adapter_config.json").exists(), "no adapter")


harness.main(globals())
