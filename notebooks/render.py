"""Render the docstrings of the public names as Markdown: ``notebooks/reference.md``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from numpydoc.docscrape import NumpyDocString, Parameter

import nbshare

GROUPS = {
    "Calls": [
        "parallel_map",
        "map_async",
        "Job",
        "last_job",
        "jobs",
        "MISSING",
        "report",
        "worker_index",
        "shutdown",
    ],
    "Grids, tables and tiles as items": ["grid", "rows", "tiles"],
    "Arrays in shared memory": [
        *("share", "empty", "zeros", "ones", "full"),
        *("empty_like", "zeros_like", "ones_like", "full_like"),
        *("SharedArray", "SharedObject", "SharedBuffer", "SharedLock"),
    ],
    "Streams of blocks": ["pipeline", "RingBuffer"],
    "For other libraries": ["Executor", "register_joblib", "import_file"],
    "Looking at results": ["LivePlot", "explore"],
    "Results on disk": ["Checkpoint", "open_checkpoint", "attach"],
    "This machine": ["doctor"],
    "Types of what calls return": nbshare.types.__all__,
}
LISTS = ("Parameters", "Other Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns")
TEXTS = ("Notes", "References", "Examples")


def reference() -> str:
    """Return the reference of all public names, grouped, with links between them."""
    grouped = [name for names in GROUPS.values() for name in names]
    others = sorted(set(nbshare.__all__) - set(grouped) - {"errors", "types", "MapInterrupted"})
    assert not others, f"in no group: {others}"
    lines = ["# Reference", "", "Made from the docstrings by `notebooks/rebuild.py`.", ""]
    for title, names in GROUPS.items():
        links = ", ".join(f"[`{name}`](#{name.lower()})" for name in names)
        lines += [f"- {title}: {links}"]
    lines += ["- [Errors and warnings](#errors-and-warnings)", ""]
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in names:
            home = nbshare.types if name in nbshare.types.__all__ else nbshare
            lines += [f"### {name}", "", *entry(name, getattr(home, name)), ""]
    lines += ["## Errors and warnings", "", *markdown(inspect.getdoc(nbshare.errors) or ""), ""]
    for name in nbshare.errors.__all__:
        lines += [f"### {name}", "", *entry(name, getattr(nbshare.errors, name)), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def entry(name: str, thing: Any) -> Iterator[str]:
    """Yield the lines of one name: how it is called, what its docstring says, its members."""
    is_error = inspect.isclass(thing) and issubclass(thing, BaseException)
    parsed = NumpyDocString(inspect.getdoc(thing) or "")
    if parsed["Parameters"] and (signature := signature_of(name, thing)):
        yield from ("```python", signature, "```", "")
    yield from rendered(parsed)
    if inspect.isclass(thing) and not is_error:
        for member, value in members(thing):
            shown = f"{name}.{member}"
            if callable(value):
                shown = signature_of(shown, value) or shown
            yield from ("", f"#### `{shown}`" if len(shown) < 80 else f"#### `{name}.{member}`", "")
            yield from rendered(NumpyDocString(inspect.getdoc(value) or ""))


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public members that a class, or a private base of it in nbshare, defines."""
    seen = set()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != "nbshare":
            continue
        for name, value in vars(base).items():
            inner = getattr(value, "__func__", value)
            is_shown = callable(inner) or isinstance(value, property)
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
    shown = str(inspect.Signature(plain))
    if len(name + shown) <= 90:
        return name + shown
    arguments = "".join(f"    {part},\n" for part in shown[1:-1].split(", "))
    return f"{name}(\n{arguments})"


def rendered(parsed: NumpyDocString) -> Iterator[str]:
    """Yield a docstring as Markdown."""
    yield from markdown("\n".join(parsed["Summary"]))
    yield ""
    yield from markdown("\n".join(parsed["Extended Summary"]))
    for title in LISTS:
        if parsed[title]:
            yield from ("", f"**{title}**", "")
            for parameter in parsed[title]:
                yield from listed(parameter)
    if parsed["See Also"]:
        names = [name for functions, _ in parsed["See Also"] for name, _ in functions]
        yield from ("", "**See also** " + ", ".join(map(linked, names)))
    for title in TEXTS:
        if parsed[title]:
            yield from ("", f"**{title}**", "", *markdown("\n".join(parsed[title])))


def listed(parameter: Parameter) -> Iterator[str]:
    """Yield a parameter as an item of a list, its description indented."""
    name, kind = parameter.name, parameter.type
    head = f"`{name}`" + (f" : {inline(kind)}" if kind else "") if name else f"*{inline(kind)}*"
    yield f"- {head}" + ("\\" if parameter.desc else "")  # a line break of Markdown
    for line in markdown("\n".join(parameter.desc)):
        yield f"  {line}" if line else ""


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
        yield line if fence else inline(line.replace("::", ":") if line.endswith("::") else line)


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
    text = re.sub(r"``(.+?)``", r"`\1`\0", text)
    text = re.sub(r"(?<!`)`([\w.]+)`(?!\0)", lambda found: linked(found[1]), text)
    return re.sub(r"`(.+?) <(https?://.+?)>`_", r"[\1](\2)", text).replace("\0", "")


def linked(name: str) -> str:
    """Return a name as code, linked to its entry if it has one."""
    short = name.removeprefix("nbshare.").removeprefix("errors.").removeprefix("types.")
    homes = nbshare, nbshare.errors, nbshare.types
    is_ours = any(short in home.__all__ for home in homes)
    return f"[`{name}`](#{short.lower()})" if is_ours else f"`{name}`"
