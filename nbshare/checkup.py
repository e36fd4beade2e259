"""`doctor`, which tests nbshare on this machine, and its report."""

from __future__ import annotations

import html
import os
import platform
import sys
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nbshare import __version__
from nbshare.memory import budget, can_share, usable_cpus
from nbshare.memory.budget import in_words
from nbshare.memory.kinds import SETTING, Memfd
from nbshare.notebook.environment import has_server, is_static, shell, surroundings
from nbshare.self_test import Step, self_test
from nbshare.wire.context import threads_per_worker

__all__ = ["Report", "doctor"]

# Settings of users; the docstring of nbshare explains each.
VARIABLES = {"NBSHARE_LONG_LOADING_S", "NBSHARE_MARK_PRINTS", SETTING, "NBSHARE_STATIC"}
VARIABLES |= {"NBSHARE_ADDRESS", "NBSHARE_HOST"}
PACKAGES = "numpy", "tqdm", "ipywidgets", "matplotlib", "pillow", "cloudpickle", "threadpoolctl"
WIDTH = 88  # characters of a line of text

# Mark, next to the state's word, and colour: the theme's, and a fallback for pages that strip it.
_LOOKS = {
    "ok": ("✓", "color:#009E73;color:var(--jp-success-color1,#009E73)"),
    "failed": ("✗", "color:#B2182B;color:var(--jp-error-color1,#B2182B)"),
    "not run": ("–", "color:#757575;color:var(--jp-ui-font-color2,#757575)"),
}


@dataclass(frozen=True, repr=False)
class Report:
    """The report of `nbshare.doctor`: a table in a notebook, text elsewhere.

    Attributes
    ----------
    found : dict of str to str
        CPUs, memory, versions and other facts.
    steps : list of Step
        The self-test: `name`, `state`, `seconds`, `detail` and `remedy` of each step.
    """

    found: dict[str, str]
    steps: list[Step]

    @property
    def ok(self) -> bool:
        """Whether the self-test passed."""
        return all(step.state == "ok" for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dict for JSON."""
        return {"ok": self.ok, "found": self.found, "self_test": list(map(asdict, self.steps))}

    def __repr__(self) -> str:
        lines = [_entry(name, text) for name, text in self.found.items()]
        lines += ["", self._verdict()]
        lines += [
            _entry(f"  {step.name}", f"{step.state:9}{_outcome(step)}") for step in self.steps
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        found = [(f"<b>{name}</b>", html.escape(text)) for name, text in self.found.items()]
        steps = [(step.name, _marked(step)) for step in self.steps]
        return f"<div>{_table(found)}<div>{self._verdict()}</div>{_table(steps)}</div>"

    def _verdict(self) -> str:
        return f"The self-test {'passed' if self.ok else 'FAILED'}."


def doctor() -> Report:
    """Show what nbshare finds on this machine, and test whether it works here.

    The self-test takes about a second. In a separate process, it shares an array, starts two
    workers, checks the result of a parallel map, interrupts a run, and checks that no process and
    no shared memory is left. ``python -m nbshare doctor`` prints the same in a terminal.

    Returns
    -------
    Report
        A table in a notebook, text elsewhere. ``report.ok`` is True if the self-test passed,
        ``report.found`` is a dict of facts about the machine, ``report.steps`` lists the steps of
        the self-test, and ``report.to_dict()`` returns everything for JSON.

    Examples
    --------
    >>> import nbshare
    >>> report = nbshare.doctor()
    >>> report.ok
    True
    >>> [step.name for step in report.steps][:3]
    ['share an array', 'start workers', 'run a parallel map']
    """
    return Report({name: _answer(ask) for name, ask in _QUESTIONS.items()}, self_test())


# ------------------------------------------------------------------------ what there is


def _answer(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - nothing a broken system lacks may hide the rest
        return f"not known: {error}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def _cpus() -> str:
    usable, total = usable_cpus(), os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    reasons = []
    if allowed < total:
        reasons.append(f"the affinity mask allows {allowed}")
    if usable < allowed:
        reasons.append(f"a cgroup's quota allows {usable}")
    return f"{usable} of {total} can be used: {' and '.join(reasons) or 'nothing limits them'}"


def _blas() -> str:
    from threadpoolctl import threadpool_info

    loaded = [
        f"{each['internal_api']} {each['version'] or ''}, threads: {each['num_threads']}"
        for each in threadpool_info()
    ]
    n = usable_cpus()
    each_has = threads_per_worker(n, n, os.environ)
    return f"{'; '.join(loaded) or 'none found'}; in each of {n} workers: {each_has}"


def _memory() -> str:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for limit in _memory_limits() if limit < total]
    limit = f"the cgroup's limit is {in_words(min(limits))}" if limits else "no cgroup limit"
    return f"{in_words(budget.available())} available, the machine has {in_words(total)}; {limit}"


def _memory_limits() -> Iterable[int]:
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    for cgroup_version, folder in budget.ancestors("memory"):
        with suppress(OSError, ValueError):  # no such group here; or the limit is "max"
            yield int(Path(folder, names[cgroup_version]).read_text())


def _shared_memory() -> str:
    if not can_share():
        return "none: it needs Linux; arrays are in private memory"
    if setting := os.environ.get(SETTING):
        return f"{setting}, as {SETTING} says"
    try:
        Memfd().open().close()
    except (OSError, AttributeError) as error:  # Python lacks the call on this system
        return f"files in /dev/shm or the directory for temporary files, since memfd fails: {error}"
    return "memfd: anonymous memory, which /dev/shm does not limit"


def _dev_shm() -> str:
    status = os.statvfs("/dev/shm")  # noqa: S108
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    return f"{in_words(total)}, {in_words(free)} free"


def _open_files() -> str:
    import resource  # late: not on every system

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{soft} at most" + f"; nbshare can raise this to {hard}" * (soft < hard)


def _kernel() -> str:
    if surroundings() == "kernel":
        return f"{type(shell().kernel).__module__.partition('.')[0]} {_version('ipykernel')}"
    return f"none; ipykernel {_version('ipykernel')}"


def _front_end() -> str:
    if surroundings() != "kernel":
        return f"none, this is a {surroundings()}"
    if "google.colab" in sys.modules:
        return "Colab"
    if "__vsc_ipynb_file__" in shell().user_ns:
        return "VS Code"
    return "JupyterLab or Jupyter Notebook" if has_server() else "none known, as under nbconvert"


def _display() -> str:
    match surroundings():
        case "kernel":
            stop = "with a Stop button" if has_server() else "without a Stop button"
            frames = "; last frames only (NBSHARE_STATIC)" if is_static() else ""
            return f"progress display {stop}, and plots{frames}"
        case "terminal":
            return "progress bar of tqdm; no plots"
        case "log":
            return "nothing, or with progress=True a line now and then; no plots"


def _settings() -> str:
    names = sorted(name for name in os.environ if name.startswith("NBSHARE_"))
    unknown = {name: "" if name in VARIABLES else " (unknown)" for name in names}
    return (
        ", ".join(f"{n}={os.environ[n]}{unknown[n]}" for n in names)
        or "no NBSHARE_ variable is set"
    )


_QUESTIONS = {
    "nbshare": lambda: f"{__version__} in {Path(__file__).parent}",
    "Python": lambda: f"{platform.python_version()} ({sys.executable})",
    "system": lambda: f"{platform.system()} {platform.release()} on {platform.machine()}",
    "packages": lambda: ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    "CPUs": _cpus,
    "BLAS": _blas,
    "memory": _memory,
    "shared memory": _shared_memory,
    "/dev/shm": _dev_shm,  # noqa: S108
    "open files": _open_files,
    "kernel": _kernel,
    "front end": _front_end,
    "display": _display,
    "settings": _settings,
}


# ------------------------------------------------------------------------ how it is shown


def _entry(name: str, text: str) -> str:
    """Return a name with a text next to it, wrapped into lines."""
    indent = 24 * " "
    return textwrap.fill(
        text, WIDTH, initial_indent=f"{name:24}", subsequent_indent=indent, break_long_words=False
    )


def _outcome(step: Step) -> str:
    seconds = f"{step.seconds:.2f} s" if step.state == "ok" else ""
    remedy = f"To do: {step.remedy}" if step.remedy else ""
    return "  ".join(filter(None, [seconds, step.detail, remedy]))


def _marked(step: Step) -> str:
    mark, colour = _LOOKS[step.state]
    outcome = html.escape(_outcome(step)).replace("  ", "&emsp;")
    # U+FE0E: a mark, not an emoji.
    return f'<span style="{colour}">{mark}&#xFE0E;</span> {step.state}&emsp;{outcome}'


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Return an HTML table of cells that are already markup."""
    lines = (
        "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><tbody>{''.join(lines)}</tbody></table>"
