"""gaccc --report writes a page that explains the plan, whatever the model is called and however large it is."""
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as xml

import harness
from harness import expect, layer, run

SVG = "{http://www.w3.org/2000/svg}"
LIMIT = 2 << 20  # bytes of a page


# The page's script with just so much of a browser as it uses; prints the title, and what is added to the body.
DRAW = """
const [, data, code] = require('fs').readFileSync(process.argv[1], 'utf-8')
  .match(/<script type="application\\/json" id="plan">([^]*?)<\\/script>\\s*<script>([^]*?)<\\/script>/);
const body = {insertAdjacentHTML: (where, html) => process.stdout.write(html)};
const document = {body, getElementById: id => ({textContent: {plan: data}[id]})};
new Function('document', code)(document);
"""


def draw(page):
    """Returns what the page's script draws: markup that is well-formed XML, too."""
    node = shutil.which("node") or harness.skip("no Node.js on this machine")
    return subprocess.run([node, "-e", DRAW, page], check=True, capture_output=True, encoding="utf-8").stdout


def make(model, folder, *options):
    """Returns the page, as text and as a tree, and the plan, which is the one that the page has."""
    page = folder / "page.html"
    plan = json.loads(run("gaccc", model, "--plan", "--json", "--report", page, *options).stdout)
    whole = page.read_text(encoding="utf-8")
    expect(len(whole.encode()) < LIMIT, f"the page has {len(whole.encode())} bytes")
    expect(json.loads(re.search('id="plan">(.*?)</script>', whole, re.S)[1]) == plan,
           "the page draws what --plan --json says")
    drawn = draw(page)
    expect("@import" not in whole and "url(" not in whole and whole.count("<script") == 2 and " src=" not in whole,
           "the page needs nothing from elsewhere")
    return drawn, xml.fromstring(f"<body>{drawn}</body>"), plan


def words(tree):
    return " ".join("".join(tree.itertext()).split())


def titles(tree):
    return ["".join(t.itertext()) for t in tree.iter(SVG + "title")]


def count(number):
    return f"{number:,}"


def check_page(tree, plan):
    links = [v for e in tree.iter() for k, v in e.attrib.items() if k in ("src", "href") or k.endswith("}href")]
    expect(not links, f"links: {links}")
    said = words(tree)
    for figure in (plan["model"], plan["target"], plan["precision"], count(plan["parameters"]),
                   count(plan["bytes"]["peak"]),
                   f"{plan['effective_batch']} ({plan['micro_batch']} × {plan['accumulate']})"):
        expect(" ".join(str(figure).split()) in said, f"the page does not say {figure!r}")
    for kind in ("weights", "gradients", "optimizer", "activations", "workspace", "inputs"):
        if plan["bytes"][kind] > 0:
            expect(count(plan["bytes"][kind]) in said, f"the bytes of {kind}, {plan['bytes'][kind]}")
    pictures = list(tree.iter(SVG + "svg"))
    expect(len(pictures) >= 4, f"{len(pictures)} pictures")
    for picture in pictures:
        left, top, width, height = map(float, picture.get("viewBox").split())
        for rect in picture.iter(SVG + "rect"):
            x, y, w, h = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
            expect(w >= 0 and h >= 0, f"a rectangle of {w} x {h}")
            expect(left - 1 <= x and x + w <= left + width + 1 and top - 1 <= y and y + h <= top + height + 1,
                   f"a rectangle outside its picture: {xml.tostring(rect)[:200]}")
    return pictures


def test_examples(folder):
    for name in harness.EXAMPLE_NAMES:
        text, tree, plan = make(harness.example(name), folder)
        check_page(tree, plan)
        module = run("gaccc", harness.example(name), "--emit", "ir", "-o", "-").stdout
        hints = titles(tree)
        for buffer in re.findall(r"^  (?:param|accum|state) @([\w./-]+) :", module, re.M):
            expect(any(h.startswith(buffer + " ") for h in hints), f"{name}: {buffer} is not on the map")
        step = re.search(r"^  step\(.*?^  }", module, re.M | re.S)[0]
        for value in re.findall(r"%([\w./-]+) = (?!reshape)[^\n]*\] at \d", step):
            expect(any(h.startswith(value + " ") for h in hints), f"{name}: {value} is not on the map")
        expect(len(re.findall(r"<td class=\"n\">\d+</td><td>[^<]*</td><td>[^<]*</td><td><i",
                              text)) == plan["kernels_per_launch"],
               f"{name}: the list of kernels")
        again, _, _ = make(harness.example(name), folder)
        expect(again == text, f"{name}: two pages of one model differ")


def test_recompute(folder):
    """The page shows what is computed again, what that costs, and what other budgets would cost."""
    model = harness.example("residual_mlp")
    text, tree, plan = make(model, folder, "--set", "recompute.policy=sqrt", "--set", "train.micro_batch=512")
    said, again = words(tree), plan["recompute"]["recomputed_ops"]
    check_page(tree, plan)
    expect(again > 0 and f"This plan (policy sqrt) computes {again} operations again" in said, said[-3000:])
    expect("this plan" in said and len(points(tree)) >= 3, "the curve")
    text, tree, plan = make(model, folder)
    expect("its recompute policy is none" in words(tree), "policy none is said")


def test_any_name_is_shown_as_it_is(folder):
    name = "<b>&\"'</title></svg>--> ]]> \x01 \uffff ünï 漢"
    model = re.sub(r"(?m)^name = .*$", lambda _: f"name = {json.dumps(name)}",
                   harness.example("mnist_mlp_plain").read_text(), count=1)
    (folder / "model.toml").write_text(model.replace('name = "fc1"', """name = "a<i>&'x" """), encoding="utf-8")
    text, tree, plan = make(folder / "model.toml", folder)
    expect("a&lt;i&gt;&amp;&#39;x.weight" in text and "a<i>" not in text, "the layer's name is escaped")
    expect(name.replace("\x01", "\ufffd").replace("\uffff", "\ufffd") in "".join(tree.itertext()),
           "the model's name is shown")
    check_page(tree, plan | {"model": "漢"})


def deep_model(folder, blocks):
    model = folder / "deep.toml"
    block = layer("residual", layer("layer_norm", name="ln"),
                  layer("linear", name="up", features=32, activation="gelu"),
                  layer("linear", name="down", features=16), name="block")
    layers = layer("sequential", block, name="h", repeat=blocks) + layer("linear", name="out", features=4)
    model.write_text(harness.classifier("deep", [16], 4, layers, optimizer='type = "adamw"'))
    return model


def points(tree):
    """The curve's plans: by budget, the arena, and the time and its bound in percent."""
    pattern = r"a budget of ([\d,]+) bytes: an arena of .* \(([\d,]+) bytes\), ([\d.]+) % more time; .* less than ([\d.]+) %"
    found = [re.fullmatch(pattern, title).groups() for title in titles(tree) if title.startswith("a budget of ")]
    return {int(budget.replace(",", "")): (int(arena.replace(",", "")), more, least) for budget, arena, more,
            least in found}


def check_curve(folder, model, budgets, *options):
    """Every point of the curve is what gaccc answers when it is asked for that budget; the page's own plan is one of
    them."""
    curve = {}
    for budget in budgets:
        _, tree, plan = make(model, folder, "--memory", f"{budget}B", *options)
        page = points(tree)
        expect(page.get(budget, [0])[0] == plan["bytes"]["peak"],
               f"this plan has {plan['bytes']['peak']} bytes, not so its point: {page}")
        expect(all(curve.get(known, shown) == shown for known, shown in page.items()),
               "two pages say two things of one budget")
        expect("proven least" in words(tree), "the card")
        curve |= page
    expect(len(curve) >= 12, f"{len(curve)} points: {sorted(curve)}")
    for asked, shown in curve.items():
        again = json.loads(run("gaccc", model, "--plan", "--json", "--memory", f"{asked}B", *options).stdout)
        percents = [f"{100 * again['recompute'][key]:.2f}" for key in ("overhead", "overhead_lower_bound")]
        expect(shown == (again["bytes"]["peak"], *percents),
               f"{asked} bytes: the page says {shown}, gaccc {again['bytes']['peak']} and {percents}")
    costs = [float(more) for _, (_, more, _) in sorted(curve.items())]
    expect(costs == sorted(costs, reverse=True), f"more memory costs more: {costs}")


def test_the_curve_is_what_gaccc_answers(folder):
    check_curve(folder, harness.example("residual_mlp"), [9_000_000, 10_000_000], "--set", "train.micro_batch=512")
    check_curve(folder, deep_model(folder, 6), [170_000, 220_000], "--set", "train.micro_batch=64")


def test_thousands_of_kernels(folder):
    text, tree, plan = make(deep_model(folder, 100), folder)
    expect(plan["kernels_per_launch"] > 1000, f"{plan['kernels_per_launch']} kernels are not many")
    check_page(tree, plan)
    expect(titles(tree), "hints")


def test_text(folder):
    """--plan shows the same for a terminal: a line of blocks for each region, and the fullest moment."""
    done = run("gaccc", harness.example("residual_mlp"), "--plan")
    lines = done.stdout.splitlines()
    step = next(line for line in lines if line.startswith("  step "))
    blocks = step.split()[1]
    kernels = len(blocks)  # a block for each
    expect(set(blocks) <= set("▁▂▃▄▅▆▇█") and 40 < kernels < 60 and "█" in blocks, step)
    expect(any(re.match(rf"  peak at +kernel \d+ of {kernels} of the step \(", line) for line in lines), done.stdout)
    expect(any(re.match(r"  alive then +98.0 KiB  image \(inputs\)", line) for line in lines), done.stdout)
    wide = run("gaccc", deep_model(folder, 30), "--plan").stdout
    expect(max(map(len, wide.splitlines())) <= 120, "the text fits a terminal")


def test_kernels(folder):
    """--plan --kernels: what runs on a GPU, with estimates that add up, as a table, as JSON and on the page."""
    half = ("--set", "precision.compute=f16", "--target", "sm_90a")
    for options in (half, (*half, "--launch", "graph")):
        model = harness.example("mnist_mlp")
        plan = json.loads(run("gaccc", model, "--plan", "--kernels", "--json", *options).stdout)
        step = [one for one in plan["kernels"] if one["program"] == "step"]
        # Small kernels that follow each other may share a launch, which is one row.
        expect(10 < len(step) <= plan["kernels_per_launch"]
               and any(one["program"] == "update" for one in plan["kernels"]), plan["kernels"])
        expect(sum(one["flops"] for one in step) == plan["flops_per_launch"], "the plan's FLOPs")
        for one in step:
            expect(one["blocks"] > 0 and one["threads"] > 0 and one["bytes"] > 0, one)
            expect(one["seconds"] == 0 or one["seconds"] > one["floor_seconds"], f"faster than its floor: {one}")
            expect(one["bound"] in ("bandwidth", "compute", "latency", "parallelism", "launch"), one)
        # Launches of a graph's stream follow each other; those of two streams, and of one kernel's level, run side by
        # side.
        total = sum(one["seconds"] for one in step)
        expect(plan["step_seconds"] <= total + 1e-6 and plan["step_seconds"] > plan["step_floor_seconds"],
               f"{plan['step_seconds']}, {total}")
        streams = [sum(one["seconds"] for one in step if one["stream"] == stream) for stream in (0, 1)]
        expect(("graph" in options) == (streams[1] > 0), f"a graph has two: {streams}")
        expect("graph" not in options or plan["step_seconds"] > max(streams) - 1e-9,
               f"{plan['step_seconds']}, {streams}")
        text = run("gaccc", model, "--plan", "--kernels", *options).stdout
        expect(text.startswith(run("gaccc", model, "--plan", *options).stdout), "the plan comes first")
        lines = text.splitlines()
        begin = next(i for i, line in enumerate(lines)
                     if line.startswith("kernels of a micro-batch, estimated for sm_90 (H100 SXM) and not measured"))
        overlap = [line for line in lines if line.startswith("  sum of the rows ")]
        expect(len(overlap) == (total - plan["step_seconds"] > 1e-7), f"rows that add up to more say why: {overlap}")
        rows = [line.split() for line in lines[begin + 2:-2 - len(overlap)]]
        micros = [float(line[81:92]) for line in lines[begin + 2:-2 - len(overlap)]]
        expect(micros == sorted(micros, reverse=True), "sorted by time")
        expect(not overlap
               or f"{1e6 * total:.1f} us: launches of {'two streams' if 'graph' in options else 'one level'} run side "
                  f"by side" in overlap[0], overlap)
        expect(f"{1e6 * plan['step_seconds']:.1f} us estimated" in lines[-2] and "ratio" in lines[-2], lines[-2])
        expect(max(map(len, lines)) <= 120, "the text fits a terminal")
        text, tree, _ = make(model, folder, *options)
        expect("on sm_90 (H100 SXM); nothing was measured" in words(tree) and f"<code>{rows[0][0][:16]}" in text,
               "the page has the table")
    expect("kernels" not in json.loads(run("gaccc", model, "--plan", "--json").stdout), "only where it was asked for")


def test_picture(folder):
    """--emit svg: the memory over the kernels as a file of its own, with a legend and with the page's colours."""
    run("gaccc", harness.example("shakespeare_gpt"), "--emit", "svg", cwd=folder)
    picture = xml.parse(folder / "shakespeare_gpt.svg").getroot()
    said = words(picture)
    for word in ("weights", "activations", "the arena:", "step:", "prefers-color-scheme: dark", ".optimizer {"):
        expect(word in said, f"{word}: {said}")
    kinds = {path.get("class") for path in picture.iter(SVG + "path")}
    expect({"weights", "gradients", "optimizer", "activations", "workspace"} <= kinds, kinds)
    run("gaccc", harness.example("shakespeare_gpt"), "--emit", "svg", "--stop-after", "fuse", code=2)


def test_files(folder):
    """All outputs or none: a page or an artifact that cannot be written leaves the other as it was."""
    model, page, artifact = harness.example("mnist_mlp_plain"), folder / "page.html", folder / "step.ptx"
    run("gaccc", model, "--report", page, "-o", artifact)
    expect(page.stat().st_size > 1000 and artifact.stat().st_size > 1000, "both are written")
    page.write_text("old page")
    artifact.write_text("old artifact")
    for options in (["--report", folder / "none/page.html", "-o", artifact],
                    ["--report", page, "-o", folder / "none/step.ptx"],
                    ["--report", page, "-o", artifact, "--set", "train.micro_batch=0"]):
        run("gaccc", model, *options, code=1)
        expect(page.read_text() == "old page" and artifact.read_text() == "old artifact", f"untouched by {options}")
    for options in (["--report", artifact, "-o", artifact], ["--report", page, "--emit", "ir", "--stop-after", "fuse",
                                                             "-o", artifact],
                    ["--report", "-", "-o", "-"]):
        run("gaccc", model, *options, code=2)
    shutil.copy(model, folder / "model.toml")
    run("gaccc", folder / "model.toml", "--report", folder / "model.toml", "-o", artifact, code=2)
    expect((folder / "model.toml").read_text() == model.read_text(), "the model file is no output")
    expect(sorted(p.name for p in folder.iterdir()) == ["model.toml", "page.html", "step.ptx"], "nothing else is left")


def console(browser, page, folder):
    """Returns what a browser says of a page on its console, and how many pixels high the page is at 1280 wide."""
    shot = folder / "shot.png"
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                           "--window-size=1280,2000",
                           f"--user-data-dir={folder}/profile", "--enable-logging=stderr", f"--screenshot={shot}",
                           page.as_uri()],
                          capture_output=True, timeout=120, stdin=subprocess.DEVNULL)
    expect(shot.exists() and shot.stat().st_size > 0, done.stderr.decode(errors="replace")[-2000:])
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line]
    return lines, shot.stat().st_size


def find_browser():
    names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"]
    return next((p for n in names if (p := shutil.which(n))),
                None) or harness.skip("no headless Chromium on this machine")


def test_dark_and_narrow(folder):
    """The page takes the browser's colours, and on a narrow screen only tables and pictures are moved sideways."""
    browser = find_browser()
    make(harness.example("shakespeare_gpt"), folder)
    page = folder / "page.html"
    page.write_text(page.read_text() + "<script>document.title = [getComputedStyle(document.body).backgroundColor, "
                    "innerWidth, document.documentElement.scrollWidth].join(' ')</script>")
    for width, scheme, colour in ((400, 0, "rgb(22, 24, 28)"), (1280, 1, "rgb(255, 255, 255)")):
        done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900",
                               f"--user-data-dir={folder}/profile", f"--blink-settings=preferredColorScheme={scheme}",
                               "--dump-dom", page.as_uri()],
                              capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        title = re.search("<title>(.*?)</title>", done.stdout)
        expect(title, done.stderr[-2000:])
        seen, inner, whole = title[1].rsplit(" ", 2)
        expect(seen == colour, f"{width}: the background is {seen}, not {colour}")
        expect(int(whole) <= int(inner), f"the page is {whole} wide on a screen of {inner}")


def test_backward_kernels_stand_with_their_layer(folder):
    """An attention's projection bears the attention's name in the forward pass: it is no row of its own, behind the
    loss."""
    text, _, _ = make(harness.example("shakespeare_gpt"), folder)
    rows = re.findall(r'<text x="4" y="[\d.]+" text-anchor="start" class="t">([a-z][\w.]*)</text>', text)
    expect("h.3.mix.attn" in rows and "h.3.mix.attn.proj" not in rows and rows[-1] == "loss", str(rows))


def test_in_a_browser(folder):
    browser = find_browser()
    bad = folder / "bad.html"
    bad.write_text("<!DOCTYPE html><title>x</title><script>nothing.there()</script>")
    expect(console(browser, bad, folder)[0], "an error on a page is seen")
    (folder / "empty.html").write_text("<!DOCTYPE html><title>x</title>")
    empty = console(browser, folder / "empty.html", folder)[1]
    for model in (harness.example("residual_mlp"), deep_model(folder, 40)):
        make(model, folder)
        lines, size = console(browser, folder / "page.html", folder)
        expect(not lines, f"the console says: {lines}")
        expect(size > 5 * empty, "the page is not blank")


harness.main(globals())
