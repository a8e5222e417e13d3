"""The programs of a wheel, as commands: a wheel's libraries are next to them, where nothing else looks."""
from __future__ import annotations

import os
import sys

from . import program


def main() -> None:
    path, environment = program(os.path.basename(sys.argv[0]))
    os.execve(path, [path, *sys.argv[1:]], environment)
