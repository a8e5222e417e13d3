#!/usr/bin/env python3
"""Prints the README's picture: the memory timeline of examples/shakespeare_gpt.toml, as its report draws it.

    picture.py [--bin FOLDER]        scripts/bless writes it to docs/memory.svg
"""
import argparse
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
        page = pathlib.Path(folder, "page.html")
        model = ROOT / "examples/shakespeare_gpt.toml"
        subprocess.run([parser.parse_args().bin / "gaccc", model, "--plan", "--report", page], check=True,
                       stdout=subprocess.DEVNULL)
        text = page.read_text()
    style = re.search("<style>(.*?)</style>", text, re.S)[1]
    picture = re.search("<svg.*?</svg>", text, re.S)[0]
    # Nothing points at a picture: no titles, and no columns to point at.
    picture = re.sub("<title>.*?</title>", "", picture, flags=re.S)
    picture = re.sub(r'<(rect|path)[^>]* class="h"[^>]*(/>|></\1>)\n?', "", picture)
    legend = re.findall(r'<i style="background:(#\w+)"></i>(\w+)</span>', text[:text.index("<svg")])
    for i, (colour, name) in enumerate(legend):
        x = 74 + 110 * i
        picture = picture.replace("</svg>", f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>\n'
                                  f'<text x="{x + 18}" y="18" class="t">{name}</text>\n</svg>')
    begin = picture.index(">") + 1
    print(f"{picture[:begin]}\n<style>{style}svg {{ background: var(--page); margin: 0; }}\n</style>{picture[begin:]}")


main()
