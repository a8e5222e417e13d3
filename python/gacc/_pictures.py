"""The pictures of docs/tutorials: lines and stacked bars as SVG, light and dark. Whole pixels, so that the last bits
of a figure are no matter.

    lines("loss.svg", "update", "loss", {"plain": losses, "scaled": others})      # values, or (x, y) pairs
    bars("memory.svg", "MiB", {"f32": {"weights": 3.2, "activations": 7.0}, "f16": {...}})
"""
import html
import math
import pathlib

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 60, 16, 46, 44
STYLE = """svg { background: var(--page); font: 12px sans-serif; --page: #fff; --text: #222; --rule: #ccc }
text { fill: var(--text) }
.rule { stroke: var(--rule) }
@media (prefers-color-scheme: dark) { svg { --page: #16181c; --text: #ddd; --rule: #444 } }"""
COLOURS = ("#3b7dd8", "#d9822b", "#2e9e6b", "#b65fc2", "#c94f4f", "#8a8f98", "#b3a125")


def text(x, y, words, anchor="middle"):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{html.escape(str(words))}</text>'


def steps(low, high):
    """Round numbers from low to high, some four of them."""
    size = 10 ** math.floor(math.log10((high - low) / 3))
    size *= next(m for m in (5, 2, 1) if (high - low) / (m * size) >= 3) if (high - low) / size >= 3 else 0.5
    return [size * n for n in range(math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9) + 1)]


def write(file, title, names, shapes):
    legend, x = [], 10
    for colour, name in zip(COLOURS, names):
        legend += [f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/>', text(x + 17, 21, name, "start")]
        x += round(26 + 6.6 * len(name))
    pathlib.Path(file).write_text("\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
         f'aria-label="{html.escape(title)}">',
         f"<style>{STYLE}</style>", *legend, *shapes, "</svg>\n"]))


def lines(file, x_title, y_title, series):
    series = {name: [(i + 1, v) if not isinstance(v, tuple) else v for i, v in enumerate(values)]
              for name, values in series.items()}
    points = [p for values in series.values() for p in values]
    (x0, x1), (y0, y1) = ((min(axis), max(axis)) for axis in zip(*points))
    right = lambda x: LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
    down = lambda y: HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
    shapes = [text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 8, x_title), text(10, TOP - 4, y_title, "start")]
    for y in steps(y0, y1):
        shapes += [f'<path class="rule" d="M{LEFT} {down(y):.0f}H{WIDTH - RIGHT}"/>',
                   text(LEFT - 8, down(y) + 4, f"{y:g}", "end")]
    shapes += [text(right(x), HEIGHT - BOTTOM + 16, f"{x:g}") for x in steps(x0, x1)]
    for colour, values in zip(COLOURS, series.values()):
        line = "L".join(f"{right(x):.0f} {down(y):.0f}" for x, y in values)
        shapes.append(f'<path fill="none" stroke="{colour}" stroke-width="2" d="M{line}"/>')
    write(file, f"{y_title} by {x_title}: {', '.join(series)}", list(series), shapes)


def bars(file, unit, rows):
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    most, left = max(sum(row.values()) for row in rows.values()), LEFT + 70
    long = lambda value: value / most * (WIDTH - left - RIGHT - 70)
    high, shapes = (HEIGHT - TOP - 10) / len(rows), []
    for n, (name, row) in enumerate(rows.items()):
        y, at = TOP + n * high, 0
        shapes.append(text(left - 8, y + high / 2, name, "end"))
        for part, value in row.items():
            shapes.append(f'<rect x="{left + long(at):.0f}" y="{y + 5:.0f}" width="{long(value):.0f}" '
                          f'height="{high - 14:.0f}" fill="{COLOURS[parts.index(part)]}"/>')
            at += value
        shapes.append(text(left + long(at) + 6, y + high / 2, f"{at:.1f} {unit}", "start"))
    write(file, f"{unit}: {', '.join(rows)}", parts, shapes)
