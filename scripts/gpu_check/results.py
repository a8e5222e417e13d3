"""Rows, the report and the archive. Both files are replaced as a whole, so a call that is cut off leaves them."""
import collections
import io
import json
import os
import tarfile
import threading
import time

from . import machine

SHOWN = 11000  # characters of the table on standard output: a caller may keep no more than the last 12,000


def replace(path, data):
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, path)


class Results:
    def __init__(self, out, head):
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.head = out, head  # head: lines about the machine
        self.rows, self.sections, self.files = [], [], {}
        self.lock = threading.Lock()
        self.archived = 0.0  # when
        self.save()

    @property
    def failed(self):
        return sum(row["verdict"] == "FAILED" for row in self.rows)

    def keep(self, name, data):
        """A file for the archive; it goes there with the next row."""
        with self.lock:
            self.files[name] = data.encode() if isinstance(data, str) else data

    def row(self, stage, what, verdict, detail=""):
        """verdict: passed, FAILED, SKIPPED, or done for what is measured."""
        if machine.ending and verdict == "FAILED":
            verdict, detail = "SKIPPED", "interrupted"
        with self.lock:
            self.rows.append({"stage": stage, "what": what, "verdict": verdict, "detail": " ".join(detail.split())})
            print(f"{verdict:<8} {stage}: {what}{': ' + self.rows[-1]['detail'] if detail else ''}"[:300], flush=True)
            self.save()

    def section(self, title, lines):
        """A table for the report, lines of which the first are the most important."""
        with self.lock:
            self.sections = [one for one in self.sections if one[0] != title] + ([(title, lines)] if lines else [])
            self.save()

    def save(self, last=False):
        """The report, and now and then all files with it."""
        report = self.report().encode()
        results = json.dumps({"head": self.head, "rows": self.rows, "sections": self.sections}, indent=1).encode()
        replace(self.out / "report.md", report)
        if not last and time.monotonic() < self.archived + 5:  # seconds
            return
        self.archived = time.monotonic()
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar:
            for name, data in [*self.files.items(), ("report.md", report), ("results.json", results)]:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        replace(self.out / "results.tar.gz", out.getvalue())

    def report(self):
        lines = ["# gpu-check", "", *self.head, "", f"{self.failed} failed", "", "| stage | what | verdict | |",
                 "| --- | --- | --- | --- |"]
        lines += ["| {stage} | {what} | {verdict} | ".format(**row) + row["detail"].replace("|", "/") + " |"
                  for row in self.rows]
        for title, table in self.sections:
            lines += ["", f"## {title}", "", "```", *table, "```"]
        return "\n".join(lines) + "\n"

    def summary(self, most=SHOWN):
        """Returns the summary for a person: failures, measurements, tables, and how many tests passed."""
        lines = list(self.head)
        for stage in dict.fromkeys(row["stage"] for row in self.rows):
            count = collections.Counter(row["verdict"] for row in self.rows if row["stage"] == stage)
            lines.append(f"{stage}: " + ", ".join(f"{n} {verdict}" for verdict, n in count.items()))
        lines += ["FAILED  {stage}: {what}: {detail}".format(**row)[:240] for row in self.rows
                  if row["verdict"] == "FAILED"]
        lines += ["{stage}: {what}: {detail}".format(**row)[:240] for row in self.rows
                  if row["verdict"] == "done" and row["stage"] != "probes"]
        skipped = {}
        for row in self.rows:
            if row["verdict"] == "SKIPPED":
                skipped.setdefault((row["stage"], row["detail"]), []).append(row["what"])
        lines += [f"SKIPPED {stage}: {len(names)} ({names[0]}{' ...' if names[1:] else ''}): {reason}"[:200]
                  for (stage, reason), names in skipped.items()]
        # The tables share what is left; each gives up its last lines first.
        left = most - sum(len(line) + 1 for line in lines)
        for number, (title, table) in enumerate(self.sections):
            share = left // (len(self.sections) - number)
            shown = [f"-- {title}"]
            for line in table:
                if sum(len(one) + 1 for one in shown) + len(line) > share - 40:
                    shown.append(f"   ... {len(table) - len(shown) + 1} more lines in report.md")
                    break
                shown.append(line)
            left -= sum(len(one) + 1 for one in shown)
            lines += shown
        return "\n".join(lines)[:most]
