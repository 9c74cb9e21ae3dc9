"""Run a module or a file under a pretended card."""

import argparse
import runpy
import sys

from .cards import CARDS
from .start import start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretended", description=__doc__)
    parser.add_argument("--card", choices=CARDS, default="rtx 3090")
    parser.add_argument("-m", dest="is_module", action="store_true", help="what follows is a module's name")
    parser.add_argument("what")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    start(given.card)
    sys.argv = [given.what, *given.rest]
    if given.is_module:
        runpy.run_module(given.what, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(given.what, run_name="__main__")


if __name__ == "__main__":
    main()
