"""gaccc --fits: each cell of the table is what --plan says for the same options."""
import json
import subprocess
import tomllib

import harness
from harness import expect

SMALL = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=512, hidden_size=32,
             intermediate_size=48,
             num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_act="silu", rms_norm_eps=1e-5,
             max_position_embeddings=256, tie_word_embeddings=False)
LLAMA3_8B = dict(SMALL, vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                 num_attention_heads=32,
                 num_key_value_heads=8, rope_theta=500000.0, max_position_embeddings=8192, torch_dtype="bfloat16")


def gaccc(*words):
    return subprocess.run([str(harness.BIN / "gaccc"), *map(str, words)], capture_output=True, text=True)


def fits(*words):
    done = gaccc(*words, "--json")
    expect(done.returncode == 0, done.stderr)
    return json.loads(done.stdout)


def plan(*words):
    """The plan; None where nothing fits."""
    done = gaccc(*words, "--plan", "--json")
    expect(done.returncode in (0, 1) and (done.returncode == 0 or "does-not-fit" in done.stderr), done.stderr)
    return json.loads(done.stdout) if done.returncode == 0 else None


def folder_of(folder, **config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def cards_of(table):
    """Sizes around what the model needs: none fits, only blocks, some with recompute, and the last holds all."""
    blocks, lora, full = (table["ways"][way]["least"] for way in ("lora_q8_0", "lora", "full"))
    return [lora // 2, blocks + (lora - blocks) // 2, lora + 1024, *(int(full * part) for part in (1.02, 4))]


def test_pack_adds_the_input_and_the_keys(folder):
    model = folder_of(folder, **SMALL)
    text = harness.run("gaccc", model, "--context", 96, "--pack", "--emit", "toml", "-o", "-").stdout
    made = tomllib.loads(text)
    expect(list(made["inputs"]) == ["tokens", "next", "documents"]
           and made["inputs"]["documents"] == made["inputs"]["next"], text)
    expect(text.count('documents = "documents"') == 1, text)
    (folder / "m.toml").write_text(text)
    both = [harness.run("gaccc", *words, "--emit", "ir", "-o", "-").stdout.split(") phase", 1)[1]
            for words in ((folder / "m.toml",), (model, "--context", 96, "--pack"))]
    expect(both[0] == both[1], "the model file that is printed is another model")
    expect("documents" not in harness.run("gaccc", model, "--emit", "toml", "-o", "-").stdout, "it was not asked for")
    expect("--pack" in gaccc(folder / "m.toml", "--pack", "--plan").stderr, "a model file has the key itself")


def test_documents_cost_what_their_length_asks(folder):
    """Attention alone is cheaper; the bytes are the same, but for the numbers."""
    model = folder_of(folder, **dict(SMALL, max_position_embeddings=4096))
    some = ["--context", 4096, "--set", "precision.compute=bf16", "--kernels"]
    whole, packed, short = plan(model, *some), plan(model, *some, "--pack"), plan(model, *some, "--documents", 300)
    seconds = [sum(k["seconds"] for k in p["kernels"] if "attention" in k["name"]) for p in (whole, packed, short)]
    expect(abs(seconds[1] - seconds[0]) <= 0.02 * seconds[0] and seconds[2] < 0.3 * seconds[0], seconds)
    expect(packed["bytes"]["peak"] == short["bytes"]["peak"] <= whole["bytes"]["peak"] + 4096 * 64,
           [p["bytes"]["peak"] for p in (whole, packed, short)])


def test_a_window_is_one_that_compiles(folder):
    """Here a hasty search finds a plan for a longer one, and the whole search none."""
    model = folder_of(folder, **dict(SMALL, hidden_size=48, intermediate_size=192, num_key_value_heads=1,
                                     vocab_size=2000, max_position_embeddings=1024, torch_dtype="bfloat16"))
    size = 2029372
    row = fits(model, "--fits", f"{size}B")["cards"][0]
    for blocks in ("q8_0", "q4_0"):
        longest = row[f"lora_{blocks}"]["context"]
        said = plan(model, "--context", longest, "--lora", 16, "--set", f"precision.frozen={blocks}",
                    "--set", "train.micro_batch=1", "--set", "train.accumulate=32", "--memory", f"{size}B")
        expect(said is not None, f"{longest} tokens on {blocks} in {size}")


def test_every_cell_is_what_plan_says(folder):
    model = folder_of(folder, **dict(SMALL, num_hidden_layers=2))
    some = ["--context", 128, "--lora", 4]
    sizes = cards_of(fits(model, *some, "--fits", "1KiB"))
    table = fits(model, *some, "--fits", ",".join(f"{size}B" for size in sizes))
    batch = table["effective_batch"]
    auto = ["--set", "train.micro_batch=auto", "--set", "train.accumulate=auto", "--set",
            f"train.effective_batch={batch}"]
    one = ["--set", "train.micro_batch=1", "--set", f"train.accumulate={batch}"]
    expect([row["bytes"] for row in table["cards"]] == sizes and table["context"] == 128, table)
    ways = {"full": [], "lora": ["--lora", 4], "lora_q8_0": ["--lora", 4, "--set", "precision.frozen=q8_0"]}
    expect(list(table["ways"]) == ["full", "lora", "lora_q8_0", "lora_q4_0"], list(table["ways"]))
    chosen = {way: set() for way in ways}
    for row in table["cards"]:
        for way, adapters in ways.items():
            cell, size = row[way], ["--memory", f"{row['bytes']}B"]
            if way == "lora_q8_0":
                expect((cell is None) == row["lora"]["fits"], f"blocks are asked for where nothing larger fits: {row}")
                if cell is None:
                    continue
            said = plan(model, "--context", 128, *adapters, *auto, *size)
            expect(cell["fits"] == (said is not None), f"{way} in {size}: {cell}")
            if said is not None:
                again = said["recompute"]
                expect((cell["micro_batch"], cell["accumulate"], cell["peak"], cell["overhead"],
                        cell["overhead_lower_bound"])
                       == (said["micro_batch"], said["accumulate"], said["bytes"]["peak"], again["overhead"],
                           again["overhead_lower_bound"]), f"{way} in {size}: {cell}, {again}")
                chosen[way].add((cell["micro_batch"], cell["overhead"] > 0))
            longest = cell["context"]
            if longest:
                expect(plan(model, "--context", longest, *adapters, *one, *size) is not None,
                       f"{way}: {longest} in {size}")
            if longest < table["positions"]:
                expect(plan(model, "--context", longest + max(1, longest // 8), *adapters, *one, *size) is None,
                       f"{way}: {longest} in {size}")
    expect(table["positions"] == 256 and table["cards"][-1]["full"]["context"] == 256, table)
    expect(not table["cards"][0]["lora"]["fits"] and table["cards"][-1]["full"]["fits"], table)
    expect(all(len(found) > (way != "lora_q8_0") for way, found in chosen.items()),
           f"cards differ in what fits: {chosen}")


def test_the_runtime_allocates_what_the_table_says(folder):
    model = folder_of(folder, **SMALL)
    size = int(fits(model, "--fits", "1")["ways"]["full"]["least"] * 1.2)
    cell = fits(model, "--fits", f"{size}B")["cards"][0]["full"]
    made = gaccc(model, "--memory", f"{size}B", "--set", f"train.micro_batch={cell['micro_batch']}",
                 "--set", f"train.accumulate={cell['accumulate']}", "-o", folder / "step.ptx")
    expect(made.returncode == 0, made.stderr)
    harness.run("gacc-exec", folder / "step.ptx", "--data", "synthetic:tokens", "--updates", 1, "--device", "cpu",
                "--log", folder / "log")
    events = harness.read_log(folder / "log")
    expect(events[0]["arena_bytes"] == cell["peak"], f"{events[0]}, {cell}")


def test_the_table_says_what_bounds_the_least(folder):
    model = folder_of(folder, **SMALL)
    done = gaccc(model, "--fits", "1,512KiB", "--quiet")
    expect(done.returncode == 0 and done.stderr == "", done.stderr)
    lines = done.stdout.splitlines()
    expect([line.split()[:2] for line in lines if line.startswith(("512",
                                                                   "1.00"))] == [["512", "KiB"], ["1.00", "GiB"]],
                                                                   done.stdout)
    expect("256+" in done.stdout, "all positions fit")
    least = [line for line in lines if "at least, most of it" in line]
    expect(len(least) == 4 and "state" in least[0], done.stdout)
    way = fits(model, "--fits", "1")["ways"]["full"]
    expect(way["least"] == way["weights"] + way["state"] + way["values"], way)


def test_the_least_is_that_of_the_smallest_card(folder):
    """A small budget cuts the loss into more parts, and what the table says of the least is with those."""
    model = folder_of(folder, **dict(SMALL, vocab_size=192, num_hidden_layers=16))
    table = fits(model, "--fits", "1KiB,1GiB")
    for way, what in table["ways"].items():
        expect(what["least"] == table["cards"][0][way]["least"], f"{way}: {what}, {table['cards'][0][way]}")


def test_a_model_file_has_windows_of_one_length(folder):
    done = gaccc(harness.example("shakespeare_gpt"), "--fits", "1")
    expect(done.returncode == 0 and "other lengths are tried of a published model's folder" in done.stdout,
           done.stderr + done.stdout)
    table = fits(harness.example("mnist_cnn"), "--fits")
    expect([row["bytes"] >> 30 for row in table["cards"]] == [4, 6, 8, 12, 16, 24, 40, 80], table)
    expect(table["positions"] is None and table["cards"][0]["full"]["context"] is None, table)
    expect(table["cards"][0]["full"]["fits"], table)


def test_the_adapters_of_a_model_file_are_its_own(folder):
    model = folder_of(folder, **SMALL)
    expect(gaccc(model, "--lora", 4, "--emit", "toml", "-o", folder / "model.toml").returncode == 0, "")
    table = fits(folder / "model.toml", "--fits", "1KiB,1GiB")
    expect(list(table["ways"]) == ["lora", "lora_q8_0", "lora_q4_0"] and "own" in table["ways"]["lora"]["name"], table)
    expect(table["ways"]["lora"]["trained"] == fits(model, "--lora", 4, "--fits", "1")["ways"]["lora"]["trained"],
           table)


def test_what_makes_no_sense_with_it_is_a_wrong_command(folder):
    model = folder_of(folder, **SMALL)
    for words, said in ([["--plan"], "--plan"], [["-o", folder / "a"], "-o"], [["--emit", "toml"], "--emit"],
                        [["--memory", "1GiB"], "--memory"],
                        [["--report", folder / "r.html"], "--report"], [["--summary"], "--summary"],
                        [["--ranks", "auto"], "--ranks"]):
        done = gaccc(model, "--fits", "8", *words)
        expect(done.returncode == 2 and said in done.stderr, done.stderr)
    for sizes in "8,", "0", "-4", "8XB":
        done = gaccc(model, f"--fits={sizes}")
        expect(done.returncode == 2 and "sizes of cards" in done.stderr, f"{sizes}: {done.stderr}")
    expect(gaccc("--fits", model).returncode == 0, "the model may follow the option")
    bad = folder_of(folder, **dict(SMALL, hidden_act="relu2"))
    expect(gaccc(bad, "--fits").returncode == 1, "a model that is wrong")


def test_a_small_budget_cuts_the_loss_into_more_parts(folder):
    """Without a budget shapes decide. Recompute changes no bit; another number of parts does, and loss.chunks fixes
    it."""
    model = folder_of(folder, **dict(SMALL, vocab_size=160, intermediate_size=64, num_hidden_layers=12))
    some = ["--context", 128, "--set", "train.micro_batch=4", "--set", "train.accumulate=2"]
    whole = plan(model, *some)
    budget = ["--memory", f"{sum(whole['bytes'][kind] for kind in ('weights', 'gradients', 'optimizer')) + 1_300_000}B"]
    least = plan(model, *some, *budget)
    expect(least["loss_chunks"] > whole["loss_chunks"], f"{whole['loss_chunks']}, {least['loss_chunks']}")
    expect(plan(model, *some, "--memory", "1GiB")["loss_chunks"] == whole["loss_chunks"],
           "a large budget changes nothing")

    def trained(name, *words):
        made = gaccc(model, *some, *words, "-o", folder / f"{name}.ptx")
        expect(made.returncode == 0, made.stderr)
        harness.run("gacc-exec", folder / f"{name}.ptx", "--data", "synthetic:tokens", "--updates", 3, "--device",
                    "cpu", "--save", folder / name)
        return folder / name
    small = trained("small", *budget)
    parts = trained("parts", "--set", f"loss.chunks={least['loss_chunks']}")
    expect(small.read_bytes() == parts.read_bytes(), "the budget's recompute changes bits")
    worst = harness.far_apart(harness.read_safetensors(small), harness.read_safetensors(trained("whole")))
    expect(worst[0] < 1e-5, f"{worst}")


def test_a_model_of_eight_billion_parameters_is_answered(folder):
    """One plan; the whole table takes a minute, and is made by hand."""
    model = folder_of(folder, **LLAMA3_8B)
    done = gaccc(model, "--set", "precision.compute=bf16", "--lora", 8, "--context", 2048, "--fits", "24GiB")
    expect(done.returncode == 0 and "most of it the weights" in done.stdout, done.stdout + done.stderr)


harness.main(globals())
