"""The command line: ``python -m nbshare demo`` and ``python -m nbshare doctor``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nbshare import __version__
from nbshare.errors import NbshareError


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The arguments after ``python -m nbshare``. Default: those of this process.

    Returns
    -------
    int
        The exit status: 0 success, 1 failure, 130 stopped by Ctrl-C.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return _doctor(options) if options.command == "doctor" else _demo(options)
    except KeyboardInterrupt as interrupt:
        print(f"nbshare {options.command}: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130
    except (NbshareError, OSError, ValueError, RuntimeError, MemoryError) as error:
        print(f"nbshare {options.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nbshare",
        description="Parallel maps for notebooks, on NumPy arrays in shared memory.",
    )
    parser.add_argument("--version", action="version", version=f"nbshare {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command")
    demo = commands.add_parser(
        "demo",
        help="run a real job on all CPUs, check it against a plain loop, draw a plot",
        description="Compute the horizon in 180 directions for every cell of an elevation model, "
        "check the result against a plain loop, and draw it.",
    )
    demo.add_argument(
        "--workers", type=int, metavar="N", help="number of workers (default: the usable CPUs)"
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("nbshare-demo.png"),
        metavar="PATH",
        help="file of the plot (default: %(default)s)",
    )
    doctor = commands.add_parser(
        "doctor",
        help="show what nbshare finds on this machine, and test whether it works here",
        description="Show CPUs, memory, versions and settings, and run a self-test of about a "
        "second. The exit status is 1 if the self-test fails.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser


def _demo(options: argparse.Namespace) -> int:
    from nbshare.demo import run  # here: --help needs none of it

    run(options.out, options.workers)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from nbshare.checkup import doctor

    report = doctor()
    print(json.dumps(report.to_dict(), indent=2) if options.json else report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
