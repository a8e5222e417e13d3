"""gacc-plan on the public MiniMalloc cases."""
import csv

import harness
from harness import expect, run


def placed(path, capacity):
    """The rows of a CSV that gacc-plan wrote: inside the range, none over another."""
    rows = [{k: int(row[k]) for k in ("lower", "upper", "size", "offset")} for row in csv.DictReader(path.open())]
    for i, a in enumerate(rows):
        expect(0 <= a["offset"] <= capacity - a["size"], f"{path}: {a} leaves the range")
        for b in rows[:i]:
            apart = a["upper"] <= b["lower"] or b["upper"] <= a["lower"]
            expect(apart or a["offset"] + a["size"] <= b["offset"] or b["offset"] + b["size"] <= a["offset"],
                   f"{path}: {a} and {b} share bytes")
    return len(rows)


def test_minimalloc(folder):
    """All eleven fit the capacity that their names state; without slack in E and I."""
    cases = sorted((harness.ROOT.parent / "shared/data/minimalloc/challenging").glob("*.csv"))
    if not cases:
        harness.skip("no ../shared/data/minimalloc")
    for case in cases:
        capacity = int(case.name.split(".")[1])
        out = folder / case.name
        run("gacc-plan", "offsets", case, "--capacity", capacity, "-o", out)
        expect(placed(out, capacity) == len(case.read_text().splitlines()) - 1, f"{case.name}: rows were lost")


harness.main(globals())
