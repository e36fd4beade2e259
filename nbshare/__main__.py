"""The command line: ``python -m nbshare demo``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nbshare.errors import NbshareError


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after ``python -m nbshare``. Default: those of this process.

    Returns
    -------
    int
        The exit status: 0 all well, 1 something is wrong, 130 stopped by Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m nbshare",
        description="Parallel maps for notebooks, on NumPy arrays in shared memory.",
    )
    commands = parser.add_subparsers(title="commands", required=True)
    demo = commands.add_parser(
        "demo",
        help="run a real job on all CPUs, check it against a plain loop, draw a picture",
        description="Compute the horizon in 180 directions for every cell of an elevation model, "
        "check the result against a plain loop and draw a picture of it.",
    )
    demo.add_argument(
        "--workers", type=int, metavar="N", help="number of workers (default: the usable CPUs)"
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("nbshare-demo.png"),
        metavar="PATH",
        help="where the picture goes (default: %(default)s)",
    )
    options = parser.parse_args(arguments)

    try:
        from nbshare.demo import run  # here: --help needs none of it

        run(options.out, options.workers)
    except KeyboardInterrupt as interrupt:
        print(f"nbshare demo: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130
    except (NbshareError, OSError, ValueError, RuntimeError, MemoryError) as error:
        print(f"nbshare demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
