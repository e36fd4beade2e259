"""The command line, ``python tests/benchmarks``."""

from __future__ import annotations

import argparse
import compileall
import importlib
import os
import sys
from functools import partial
from pathlib import Path

import contestants
import report
from facts import facts_round
from race import Schedule, race_round, scaling_round
from workloads import workloads

ROOT = Path(__file__).resolve().parents[2]
PARTS = {"race": race_round, "facts": facts_round, "scaling": scaling_round}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        "python tests/benchmarks", description="Compare nbshare with other libraries and the loop."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="small sizes, the race only, under two minutes")
    add("--size", choices=("smoke", "quick", "full"), help="how large the workloads are")
    add("--only", nargs="+", metavar="NAME", help="contestants whose names contain one of these")
    add("--workloads", nargs="+", choices=workloads("smoke"), help="default: all")
    add("--parts", nargs="+", choices=PARTS, help="default: all")
    add("--also", metavar="MODULE", default=[], nargs="+", help="modules with more contestants")
    add("--workers", type=int, default=len(os.sched_getaffinity(0)), help="default: all CPUs")
    add("--rounds", type=int, default=5, help="repetitions, if the budget allows")
    add("--budget", type=float, help="seconds for all; default: 840, with --quick 100")
    add("--memory", type=float, help="GB that one contestant may use; default: half of the free")
    add("--load", type=Path, metavar="FILE", help="measure nothing: read what --json has written")
    add("--json", type=Path, metavar="FILE", help="write all measurements")
    add("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    add("--picture", type=Path, metavar="FILE", help="draw the race as a PNG file")
    return parser.parse_args(arguments)


def chosen(args: argparse.Namespace) -> list[type[contestants.Contestant]]:
    """Return the contestants that are installed and asked for, the loop always first."""
    known = list(contestants.CONTESTANTS)
    sys.path.append(os.getcwd())
    for module in args.also:
        for cls in importlib.import_module(module).CONTESTANTS:
            cls.module = module
            known.append(cls)
    loop, *others = known
    if args.only:
        wanted = [name.lower() for name in args.only]
        others = [cls for cls in others if any(name in cls.name.lower() for name in wanted)]
    return [loop, *(cls for cls in others if contestants.version(cls))]


def measure(options: argparse.Namespace) -> report.Report:
    """Run all that was asked for."""
    # As installed libraries are. A checkout would compile again in each process, for some 0.3 s,
    # where PYTHONDONTWRITEBYTECODE is set.
    compileall.compile_dir(ROOT / "nbshare", quiet=1)
    options.contestants = chosen(options)
    options.workloads = options.workloads or list(workloads("smoke"))
    options.size = options.size or ("quick" if options.quick else "full")
    options.parts = options.parts or (["race"] if options.quick else list(PARTS))
    options.budget = options.budget or (100 if options.quick else 840)
    half = report.available_memory() / 2
    options.memory = min(options.memory * 1e9, half) if options.memory else half
    done = report.Report(report.machine(options))
    Schedule(options, done).run(
        {name: partial(part, options, done) for name, part in PARTS.items()}
    )
    return done


def main(arguments: list[str]) -> int:
    """Measure or load, print the tables, write what was asked. Return 1 if a result was wrong."""
    args = parse(arguments)
    done = report.Report.load(args.load) if args.load else measure(args)
    print(done.text())
    if args.json:
        done.save(args.json)
    if args.markdown:
        args.markdown.write_text(done.markdown())
    if args.picture and (done.race or done.scaling):
        from picture import draw

        draw(done, args.picture)
    return 1 if done.wrong() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
