"""The command line, ``python -m nbshare`` with ``run``, ``resume``, ``demo`` or ``doctor``."""

from __future__ import annotations

import argparse
import json
import math
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbshare import __version__
from nbshare.errors import NbshareError

EXPECTED = NbshareError, OSError, ValueError, RuntimeError, MemoryError
RUN = """Call a function for every item on all CPUs, and store the results in a folder. The same
command continues a run that was stopped or killed. Started several times, also on other
machines that see the folder, the processes share the items; any may be killed at any time,
and all exit when the run is complete. From Python, nbshare.attach(DIR) shows and returns
the results, also while the command runs."""
RESUME = """Continue a run that map_async(..., detach=True) began, with the function and arguments
that its folder holds. They are pickles, which can run any code: resume only your own runs."""
ITEMS = """rows of a .npy array, a list in a .json file, or lines of a .txt file; several files
give one argument each"""
SHARED = "arguments that are the same for every item, from such files"
IF_CHANGED = "what to do with results of older code: run their items again, or keep them"
GRACE = "seconds that items have after SIGTERM or SIGUSR1 (default: %(default)g)"
ENDS = """After SIGTERM or SIGUSR1, such as a scheduler's notice, no further item begins, those that
run may finish, and the command exits with 75: run it again to continue. For Slurm:
    #SBATCH --signal=B:USR1@60
    exec python -m nbshare run ...
Other exit codes: 0 complete, 1 error, 130 Ctrl-C. Finished results are kept in each case."""


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
        The exit status: 0 success, 1 failure, 75 to be continued, 130 stopped by Ctrl-C.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return COMMANDS[options.command](options)
    except KeyboardInterrupt as interrupt:
        print(f"nbshare {options.command}: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return 130
    except Exception as error:
        if not isinstance(error, EXPECTED) and options.command not in ("run", "resume"):
            raise
        kind = "" if isinstance(error, EXPECTED) else f"{type(error).__name__}: "
        lines = [f"nbshare {options.command}: {kind}{error}", *getattr(error, "__notes__", ())]
        lines += _importing(error)
        print(*lines, sep="\n", file=sys.stderr)
        return 1


def _importing(error: Exception) -> list[str]:
    """Return the lines of the traceback in files that failed to be imported."""
    frames = traceback.extract_tb(error.__traceback__)
    is_import = [frame.filename.startswith("<frozen importlib") for frame in frames]
    users = [x for k, x in enumerate(frames) if any(is_import[:k]) and not is_import[k]]
    return [line.rstrip() for line in traceback.format_list(users)]


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
    _add_run(commands)
    return parser


def _add_run(commands: Any) -> None:
    common: dict[str, Any] = {
        "epilog": ENDS,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "argument_default": argparse.SUPPRESS,  # a missing option has the default of Python's call
    }
    does = "run a function of a file for every item, and store the results"
    usage = "python -m nbshare run FILE.py:NAME --items FILE ... --checkpoint DIR [options]"
    run = commands.add_parser("run", help=does, usage=usage, description=RUN, **common)
    does = "continue a detached run from its folder, as after a restart of the machine"
    resume = commands.add_parser("resume", help=does, description=RESUME, **common)
    resume.add_argument("path", type=Path, metavar="DIR", help="folder of the results")
    add, several = run.add_argument, {"nargs": "+", "action": "extend"}
    add("func", metavar="FILE.py:NAME", help="function to call")
    add("--items", required=True, metavar="FILE", help=ITEMS, **several)
    add("--shared", type=_name_and_file, metavar="NAME=FILE", help=SHARED, **several)
    add("--checkpoint", required=True, metavar="DIR", help="folder of the results")
    add("--max-workers", type=int, metavar="N", help="number of workers (default: usable CPUs)")
    add("--seed", type=int, help="pass each call its own random generator, rng=")
    add("--retries", type=int, metavar="N", help="extra attempts of an item that failed")
    add("--timeout", type=float, metavar="S", help="seconds that an item may take")
    add("--out", choices=["list", "stack"], help="form of the results (default: by the first)")
    add("--on-error", choices=["raise", "return"], help="return: continue when an item fails")
    add("--if-changed", choices=["restart", "accept"], help=IF_CHANGED)
    for each in (run, resume):
        each.add_argument("--grace", type=_seconds, default=30.0, metavar="S", help=GRACE)


def _name_and_file(text: str) -> tuple[str, str]:
    name, _, file = text.partition("=")
    if not (name.isidentifier() and file):
        raise argparse.ArgumentTypeError(f"{text!r}: write name=file, such as elevation=dem.npy")
    return name, file


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r}: write a number of seconds, such as 30")


def _run(options: argparse.Namespace) -> int:
    from nbshare._core.runs import driver

    given = {name: value for name, value in vars(options).items() if name != "command"}
    return (driver.run if options.command == "run" else driver.resume)(**given)


def _demo(options: argparse.Namespace) -> int:
    from nbshare._core.entries.demo import run  # late, because --help does not need it

    run(options.out, options.workers)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from nbshare._core.entries.checkup import doctor

    report = doctor()
    print(json.dumps(report.to_dict(), indent=2) if options.json else report)
    return 0 if report.ok else 1


COMMANDS = {"demo": _demo, "doctor": _doctor, "run": _run, "resume": _run}

if __name__ == "__main__":
    sys.exit(main())
