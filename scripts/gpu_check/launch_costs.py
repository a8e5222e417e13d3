"""A profile beside what gaccc says of each launch of a step (`--plan --kernels --json`): bytes, FLOPs and estimated
seconds."""
import collections


def programs(profile, name):
    """Durations of each run of a program."""
    return [e["dur"] for e in profile["traceEvents"] if e["cat"] == "program" and e["name"] == name]


def fastest(profile, costs):
    """FLOPs a second of the fastest product."""
    timed = [(costs[one["launch"]], one["microseconds"]) for one in profile["kernels"] if one["program"] == "step"]
    return max(cost["flops"] / time * 1e6 for cost, time in timed if cost["name"].startswith("product ") and time > 0)


def table(profile, costs, copy, products, engine):
    """Lines of a table, the most time lost first; time of all launches and above the ceilings, in microseconds; and
    what is wrong. `copy` and `products` are what the machine can do, in bytes and FLOPs a second; `engine` computed the
    products. Without `costs`, of an artifact that came without estimates, times alone."""
    launches = [one for one in profile["kernels"] if one["program"] == "step"]
    if costs is None:
        return times_alone(launches)
    if not costs or any(one["launch"] >= len(costs) for one in launches):
        return [], 0, 0, "the pack's list of launches is of another step"
    of_engine = "seconds" if engine == "cublas" else "builtin_seconds"
    rows = {}
    for one in launches:
        cost = costs[one["launch"]]
        if one["name"].removesuffix(" (in its product)") != cost["name"] and not cost["name"].startswith("product "):
            return [], 0, 0, f"launch {one['launch']} is {one['name']}, the estimate's is {cost['name']}"
        row = rows.setdefault(one["name"], collections.Counter())
        row.update(count=1, time=one["microseconds"], bytes=cost["bytes"], flops=cost["flops"])
        if one["microseconds"] > 0:
            row.update(floor=max(cost["bytes"] / copy, cost["flops"] / products) * 1e6, estimate=cost[of_engine] * 1e6)
    total, estimated = (sum(row[what] for row in rows.values()) for what in ("time", "estimate"))
    lost = {name: row["time"] - row["floor"] for name, row in rows.items()}
    lines = [f"{'launch':<40} {'n':>3} {'us':>9} {'estimate':>9} {'off by':>6} {'lost us':>9} {'share':>6} "
             f"{'MB each':>8} {'GB/s':>6} {'TF/s':>6} {'%':>4}"]
    for name in sorted(rows, key=lambda n: -lost[n]):
        row = rows[name]
        if row["time"] == 0:  # done by its product
            continue
        time, estimate = row["time"], row["estimate"]
        lines.append(f"{name[:40]:<40} {row['count']:>3} {time:>9.1f} {estimate:>9.1f} {factor(time, estimate)} "
                     f"{lost[name]:>9.1f} {100 * time / total:>5.1f}% {row['bytes'] / row['count'] / 1e6:>8.2f} "
                     f"{row['bytes'] / time / 1e3:>6.0f} {row['flops'] / time / 1e6:>6.1f} "
                     f"{100 * row['floor'] / time:>4.0f}")
    lines.append(f"{'sum':<40} {len(launches):>3} {total:>9.1f} {estimated:>9.1f} {factor(total, estimated)} "
                 f"{sum(lost.values()):>9.1f}")
    return lines, total, sum(lost.values()), ""


def times_alone(launches):
    rows = {}
    for one in launches:
        rows.setdefault(one["name"], collections.Counter()).update(count=1, time=one["microseconds"])
    total = sum(row["time"] for row in rows.values())
    lines = [f"{'launch':<40} {'n':>3} {'us':>9} {'share':>6}"]
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["time"]):
        lines.append(f"{name[:40]:<40} {row['count']:>3} {row['time']:>9.1f} {100 * row['time'] / total:>5.1f}%")
    return lines, total, 0, ""


def factor(measured, estimated):
    """Returns the measured time over the estimate: above 1 the model is too fast."""
    return f"{measured / estimated:>5.2f}x" if estimated > 0 else f"{'':>6}"
