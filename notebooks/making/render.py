"""Render the docstrings of the public names as Markdown: an index, and a page for each subject."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpydoc.docscrape import NumpyDocString, Parameter

import nbshare
from nbshare._core.shapes.shaped import ShapedItems

INDEX = "reference.md"
DETAILS = "details.md"  # the rules behind parallel_map, written by hand
PAGES = {  # title and names of each page, in the folder `reference`
    "calls": (
        "Calls",
        ["parallel_map", "map_async", "plan", "report", "worker_index", "shutdown"],
    ),
    "jobs": ("Jobs", ["Job", "last_job", "jobs", "MISSING"]),
    "items": ("Grids, tables and tiles as items", ["grid", "rows", "tiles"]),
    "plots": ("Looking at results", ["LivePlot", "explore"]),
    "arrays": (
        "Arrays in shared memory",
        [
            *("share", "empty", "zeros", "ones", "full"),
            *("empty_like", "zeros_like", "ones_like", "full_like"),
            *("SharedArray", "SharedObject", "SharedBuffer", "SharedLock", "register_type"),
        ],
    ),
    "streams": ("Streams of blocks", ["pipeline", "RingBuffer"]),
    "disk": ("Results on disk", ["Checkpoint", "open_checkpoint", "attach"]),
    "libraries": ("For other libraries", ["Executor", "register_joblib", "import_file"]),
    "machine": ("This machine", ["doctor"]),
    "types": ("Types of what calls return", nbshare.types.__all__),
    "errors": ("Errors and warnings", nbshare.errors.__all__),
}
PAGE_OF = {name: page for page, (_, names) in PAGES.items() for name in names}
PAGE_OF["MapInterrupted"] = "errors"

# Topics, and the name, the argument, or the section of ``details.md`` about each.
TOPICS = {
    "arguments that are the same for all items": "parallel_map.shared",
    "arrays as items": "parallel_map.iterables",
    "BLAS and OpenMP threads": "details.workers",
    "chunks": "parallel_map.chunksize",
    "clusters: Dask, Ray, SLURM": "details.clusters",
    "colour limits of an image": "LivePlot.limits",
    "combinations of parameters": "grid",
    "cost of a plot": "LivePlot.interval_s",
    "DataFrame: rows as items": "rows",
    "DataFrame: groups as items": "details.grids and tables",
    "debugger": "Job.debug",
    "edited files": "details.code",
    "errors of items": "parallel_map.on_error",
    "generators": "details.generators",
    "GPU for each worker": "worker_index",
    "initializer": "parallel_map.initializer",
    "lengths of iterables": "parallel_map.iterables",
    "max_workers=": "parallel_map.max_workers",
    "memory that a run takes": "details.memory",
    "memory-mapped files": "details.arrays-and-objects",
    "number of workers": "parallel_map.max_workers",
    "plots of your own": "LivePlot.kind",
    "prints and logs": "details.prints",
    "progress bar: label, or none": "parallel_map.progress",
    "progress of one long item": "report",
    "random numbers": "parallel_map.seed",
    "results: an array or a list": "parallel_map.out",
    "results as they arrive": "Job",
    "results in order, as they arrive": "Job.in_order",
    "results so far": "Job.partial",
    "results that are tuples": "parallel_map.out",
    "resume after a crash": "parallel_map.checkpoint",
    "retries and time limits": "parallel_map.retries",
    "runs that go on without the notebook": "map_async.detach",
    "Stop, and what is kept": "Job.partial",
    "stop when the result is good enough": "parallel_map.until",
    "sum of all results": "parallel_map.reduce",
    "tiles of an image": "tiles",
    "what workers inherit": "details.workers",
}
TUTORIALS = {
    "01_first_parallel_map": ["parallel_map"],
    "02_worker_files": ["parallel_map.func", "import_file"],
    "03_progress_and_plots": [
        *("parallel_map.progress", "parallel_map.plot", "parallel_map.seed"),
        *("LivePlot", "report"),
    ],
    "04_when_things_go_wrong": [
        *("parallel_map.on_error", "parallel_map.retries", "parallel_map.timeout"),
        *("Job.debug", "errors"),
    ],
    "05_sweeps_and_files": [
        *("parallel_map.iterables", "parallel_map.out", "parallel_map.reduce"),
        *("parallel_map.until", "grid", "tiles"),
    ],
    "06_tables": ["rows"],
    "07_shared_arrays": [
        *("parallel_map.shared", "share", "SharedArray", "SharedObject", "register_type"),
        "SharedLock",
    ],
    "08_background_jobs": ["map_async", "Job", "explore"],
    "09_executor": ["Executor"],
    "10_libraries": ["register_joblib"],
    "12_pipelines": ["pipeline", "RingBuffer"],
    "13_one_buffer_many_arrays": ["SharedBuffer"],
    "14_long_runs": [
        *("parallel_map.checkpoint", "map_async.detach"),
        *("Checkpoint", "open_checkpoint", "attach"),
    ],
    "15_clusters": ["parallel_map.backend"],
    "11_a_model_in_each_worker": ["parallel_map.initializer", "worker_index"],
}
TUTORIAL_OF = {thing: tutorial for tutorial, things in TUTORIALS.items() for thing in things}
LISTS = ("Parameters", "Other Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns")
TEXTS = ("Notes", "References", "Examples")


def reference() -> dict[str, str]:
    """Return the text of each file: an index, and pages with links between them."""
    others = sorted(set(nbshare.__all__) - set(PAGE_OF) - {"errors", "types"})
    assert not others, f"on no page: {others}"
    files = {INDEX: index()}
    for page, (title, names) in PAGES.items():
        lines = [f"# {title}", "", f"[All subjects](../{INDEX})", ""]
        if page == "errors":
            lines += [*markdown(inspect.getdoc(nbshare.errors) or ""), ""]
            lines += [*tutorial("errors"), ""]
        homes = [nbshare, nbshare.types, nbshare.errors]
        for name in names:
            (home, *_) = [home for home in homes if name in home.__all__]
            lines += [f"## {name}", "", *entry(name, getattr(home, name)), ""]
        files[f"reference/{page}.md"] = on_page(page, lines)
    return files


def index() -> str:
    """Return the first page: subjects with their names, then topics."""
    lines = ["# Reference", "", "Made from the docstrings by `notebooks/making/rebuild.py`.", ""]
    lines += [f"- [parallel_map in detail]({DETAILS}): the rules behind it, by subject"]
    for page, (title, names) in PAGES.items():
        lines += [f"- [{title}](reference/{page}.md): {', '.join(map(linked, names))}"]
    lines += ["", "## What you look for", ""]
    for topic, place in sorted(TOPICS.items(), key=lambda item: item[0].lower()):
        name, _, part = place.partition(".")
        target = f"{DETAILS}#{anchor(part)}"
        if name in PAGE_OF:
            target = f"reference/{PAGE_OF[name]}.md#{anchor(place)}"
        lines += [f"- {topic}: [{place}]({target})"]
    return on_page("", lines)


def on_page(page: str, lines: list[str]) -> str:
    """Return a page, its links to names as they are from there."""
    folder = "" if page else "reference/"
    text = "\n".join(lines).replace(f"](@{page}.md#", "](#")
    text = text.replace("](@", f"]({folder}")
    text = re.sub(r"\n\n( *)```\n", r"\n\1```\n\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def anchor(place: str) -> str:
    """Return the name of a place in its page: a name, or one with an argument or a note."""
    return place.lower().replace(".", "-").replace(" ", "-")


def tutorial(thing: str) -> Iterator[str]:
    """Yield a link to the tutorial about a name or an argument, if there is one."""
    if name := TUTORIAL_OF.get(thing):
        words = name[3:].replace("_", " ")
        yield f"Tutorial: [{words[0].upper()}{words[1:]}](../{name}.ipynb)"


def entry(name: str, thing: Any) -> Iterator[str]:
    """Yield the lines of one name: how it is called, what its docstring says, its members."""
    is_error = inspect.isclass(thing) and issubclass(thing, BaseException)
    parsed = NumpyDocString(inspect.getdoc(thing) or "")
    if parsed["Parameters"] and (signature := signature_of(name, thing)):
        yield from ("```python", signature, "```", "")
    yield from rendered(parsed, name)
    # Items of a run have no methods for users.
    if inspect.isclass(thing) and not is_error and not issubclass(thing, ShapedItems):
        described = {attribute.name for attribute in parsed["Attributes"]}
        for member, value in members(thing):
            if member in described:
                continue
            shown = f"{name}.{member}"
            if callable(value):
                shown = signature_of(shown, value) or shown
            head = shown if len(shown) < 80 else f"{name}.{member}"
            yield from ("", f'<a id="{anchor(f"{name}.{member}")}"></a>', "", f"### `{head}`", "")
            yield from rendered(NumpyDocString(inspect.getdoc(value) or ""), f"{name}.{member}")


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members that a class, or a private base of it in nbshare, defines.

    Without those that wrap NumPy's methods: NumPy's documentation describes them.
    """
    seen = set()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != "nbshare":
            continue
        for name, value in vars(base).items():
            inner = getattr(value, "__func__", value)
            is_shown = callable(inner) or isinstance(value, property)
            is_shown &= not hasattr(np.ndarray, name) or not hasattr(inner, "__wrapped__")
            if name[0] != "_" and is_shown and inspect.getdoc(inner) and name not in seen:
                seen.add(name)
                yield name, inner


def signature_of(name: str, thing: Any) -> str:
    """Return how something is called, without types and self."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    plain = [
        p.replace(annotation=p.empty) for p in found.parameters.values() if p.name not in ("self",)
    ]
    plain = [p for p in plain if p.kind is not p.VAR_KEYWORD or "Never" not in str(found)]
    shown = re.sub(r"<class '(\w+)'>", r"\1", str(inspect.Signature(plain)))
    if len(name + shown) <= 90:
        return name + shown
    arguments = "".join(f"    {part},\n" for part in shown[1:-1].split(", "))
    return f"{name}(\n{arguments})"


def rendered(parsed: NumpyDocString, owner: str) -> Iterator[str]:
    """Yield a docstring as Markdown."""
    yield from markdown("\n".join(parsed["Summary"]))
    yield from ("", *tutorial(owner), "")
    yield from markdown("\n".join(parsed["Extended Summary"]))
    for title in LISTS:
        if parsed[title]:
            yield from ("", f"**{title}**", "")
            for parameter in parsed[title]:
                yield from listed(parameter, owner)
    if parsed["See Also"]:
        names = [name for functions, _ in parsed["See Also"] for name, _ in functions]
        yield from ("", "**See also** " + ", ".join(map(linked, names)))
    for title in TEXTS:
        if parsed[title]:
            yield from ("", f"**{title}**", "")
            for line in markdown("\n".join(parsed[title])):
                if title == "Notes" and (subject := re.match(r"\*\*([\w ]+)\*\*", line)):
                    subject_of = subject[1].removeprefix("A ")
                    yield from (f'<a id="{anchor(f"{owner}.{subject_of}")}"></a>', "")
                yield line


def listed(parameter: Parameter, owner: str) -> Iterator[str]:
    """Yield a parameter as an item of a list, its description indented."""
    name, kind = parameter.name, parameter.type
    head = f"`{name}`" + (f" : {inline(kind)}" if kind else "") if name else f"*{inline(kind)}*"
    names = [f"{owner}.{each.strip(' *')}" for each in name.split(",") if name]
    places = "".join(f'<a id="{anchor(each)}"></a>' for each in names)
    yield f"- {places}{head}" + ("\\" if parameter.desc else "")  # a line break of Markdown
    for line in markdown("\n".join(parameter.desc)):
        yield f"  {line}" if line else ""
    for each in names:
        for line in tutorial(each):
            yield from ("", f"  {line}")


def markdown(text: str) -> Iterator[str]:
    """Yield the lines of reStructuredText as Markdown: examples and literal blocks fenced."""
    fence = ""
    for line in [*tables(text.splitlines()), None]:
        is_code = line is not None and (line.startswith((">>>", "...", "    ")) or fence == ">>>")
        if line is not None and fence == ">>>" and not line:
            is_code = False
        if fence and not is_code and not (fence == "::" and line == ""):
            yield "```"
            fence = ""
        if line is None:
            return
        if is_code and not fence:
            fence = ">>>" if line.startswith(">>>") else "::"
            yield from ("", "```python" if fence == ">>>" else "```text")
        if line == "::":
            continue
        if fence:
            yield line if fence == ">>>" else line[4:]
        else:
            yield inline(line.replace("::", ":") if line.endswith("::") else line)


def tables(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a text, its simple tables as Markdown's."""
    columns: list[slice] = []  # of the table that is being read
    rows: list[list[str]] = []
    n_borders = 0  # of three
    for line in lines:
        if re.fullmatch(r"=+(  +=+)+", line):
            n_borders += 1
            starts = [found.start() for found in re.finditer("=+", line)]
            columns = [slice(*ends) for ends in zip(starts, [*starts[1:], None], strict=True)]
            if n_borders == 2:
                rows.append(["---"] * len(columns))
            elif n_borders == 3:
                yield from (f"| {' | '.join(row)} |" for row in rows)
                rows, n_borders = [], 0
        elif not n_borders:
            yield line
        elif (cells := [line[column].strip() for column in columns])[0]:
            rows.append(cells)
        else:  # the row goes on
            rows[-1] = [" ".join(parts).strip() for parts in zip(rows[-1], cells, strict=True)]


def inline(text: str) -> str:
    """Return a line with the names of nbshare as links, and literals as code."""
    text = text.replace(f"``notebooks/{DETAILS}``", f"[parallel_map in detail](../{DETAILS})")
    text = re.sub(r"``(.+?)``", r"`\1`\0", text)
    text = re.sub(r"(?<!`)`([\w.]+)`(?!\0)", lambda found: linked(found[1]), text)
    return re.sub(r"`(.+?) <(https?://.+?)>`_", r"[\1](\2)", text).replace("\0", "")


def linked(name: str) -> str:
    """Return a name as code, linked to its entry if it has one."""
    short = name.removeprefix("nbshare.").removeprefix("errors.").removeprefix("types.")
    page = PAGE_OF.get(short)
    return f"[`{name}`](@{page}.md#{short.lower()})" if page else f"`{name}`"
