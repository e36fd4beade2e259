"""Edits of code that a key must see, whatever way leads to it, and edits that it must not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs are forked")

PROGRAM = """
import gc, os, sys
from nbshare._core.checkpoint.key import key_of
from nbshare._core.arguments.options import MapOptions, checked_request
gc.freeze()  # so that forks do not copy what is here
for line in sys.stdin:
    if os.fork():
        if os.wait()[1]:
            print("it failed", flush=True)
        continue
    os.chdir(line.removesuffix("\\n"))
    sys.path.insert(0, os.getcwd())
    if os.path.exists("cell"):
        exec(open("cell").read())
    else:
        from work import f
    request, _ = checked_request(f, [[1, 2]], MapOptions())
    print(sorted(key_of(request, None).parts.items()), flush=True)
    os._exit(0)  # as all that Python does in the end takes most of the time
"""


# In a module and in a notebook where the function itself leads to the edit, in one of them where a
# file does that it imports.
def in_module(code: str, *edit: str, **files: str):
    """Return the files of a case, where a module has the function, and the edit of one of them."""
    return {"work.py": code, **{f"{k.replace('__', '/', 1)}.py": v for k, v in files.items()}}, edit


def in_cell(code: str, *edit: str, **files: str):
    """Return the same, where a cell of a notebook has the function."""
    files, edit = in_module(code, *edit, **files)
    return {"cell": files.pop("work.py"), **files}, edit


def both(name: str, code: str, *edit: str, **files: str):
    """Return the two cases for code that may be in a module and in a cell."""
    case = edit, files
    return {
        f"{name}, module": in_module(code, *case[0], **case[1]),
        f"{name}, notebook": in_cell(code, *case[0], **case[1]),
    }


# Each edit replaces a text that only one of the files has.
FILTERS = "def load(x): return x\ndef blur(x): return x + 1\ndef edge(x): return x * 10\n"
EDGE = "x * 10", "x * 11"
REGISTRY = "KNOWN = {}\ndef register(g):\n    KNOWN[g.__name__] = g\n    return g\n"
FIELD = "KNOWN = {}\nclass Field:\n    def __set_name__(self, owner, name): KNOWN[name] = owner\n"

SEEN = {
    **both(
        "getattr",
        "import filters\ndef f(x): return getattr(filters, 'ed' + 'ge')(filters.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    "getattr of an alias": in_cell(
        "import filters\ndef f(x):\n    m = filters\n    return getattr(m, 'ed' 'ge')(m.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    "the dict of a module": in_cell(
        "import filters\ndef f(x): return filters.__dict__['ed' + 'ge'](filters.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    "dir": in_module(
        "import filters\ndef f(x): return [n for n in dir(filters) if filters.load(n) > 'c'][0]\n",
        "def edge",
        "def sharp",
        filters=FILTERS,
    ),
    "a module as an argument": in_cell(
        "import filters\ndef g(m, x): return m.edge(x)\n"
        "def f(x): return g(filters, filters.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    "a module in a default": in_cell(
        "import filters\ndef f(x, m=filters): return m.edge(filters.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    "a module in an object": in_cell(
        "import filters\nfrom types import SimpleNamespace\nns = SimpleNamespace(m=filters)\n"
        "def f(x): return ns.m.edge(filters.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    "a module in a closure": in_cell(
        "import filters\ndef make(m):\n    return lambda x: m.edge(x)\n"
        "g = make(filters)\ndef f(x): return g(filters.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    **both(
        "a module imported in the function",
        "def f(x):\n    import filters as m\n    return getattr(m, 'ed' + 'ge')(m.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    **both(
        "eval",
        "import filters\ndef f(x): return eval('filters.ed' + 'ge')(filters.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    **both(
        "the table of modules",
        "import filters\nfrom sys import modules\n"
        "def f(x): return modules['fil' + 'ters'].edge(filters.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    "the globals of a function": in_cell(
        "import filters\ndef f(x): return filters.load(filters.load, x)\n",
        *EDGE,
        filters="def load(g, x): return g.__globals__['ed' + 'ge'](x)\n"
        "def edge(x): return x * 10\n",
    ),
    **both(
        "the name of a keyword",
        "def g(a=0, b=0): return 10 * a + b\ndef f(x): return g(a=x)\n",
        "g(a=x)",
        "g(b=x)",
    ),
    "two keywords that change places": in_cell(
        "def g(a=0, b=0): return 10 * a + b\ndef f(x): return g(a=x, b=1) + g(b=x, a=1)\n",
        "g(a=x, b=1)",
        "g(b=x, a=1)",
    ),
    "the keyword of a class pattern": in_cell(
        "from fractions import Fraction\n"
        "def f(x):\n    match Fraction(x, 3):\n        case Fraction(numerator=n): return n\n",
        "numerator=n",
        "denominator=n",
    ),
    "an argument by position only": in_cell(
        "import inspect\ndef g(a): return a\ndef f(x): return str(g.__code__.co_posonlyargcount)\n",
        "g(a)",
        "g(a, /)",
    ),
    **both(
        "an annotation of a function",
        "def g(a: int): return a\ndef f(x): return g.__annotations__['a'](x)\n",
        "a: int",
        "a: float",
    ),
    "an annotation of a class": in_cell(
        "import typing\nclass C:\n    a: int\ndef f(x): return typing.get_type_hints(C)['a'](x)\n",
        "a: int",
        "a: str",
    ),
    **both(
        "annotations that become texts",
        "def g(a: int): return a\ndef f(x): return str(g.__annotations__)\n",
        "def g",
        "from __future__ import annotations\ndef g",
    ),
    "an accessor of pandas": in_cell(
        "import registered\ndef f(x): return registered.made(x).geo.area()\n",
        *EDGE,
        registered="import pandas as pd\n"
        "@pd.api.extensions.register_series_accessor('geo')\n"
        "class Geo:\n    def __init__(self, s): self.s = s\n"
        "    def area(self): return (lambda x: x * 10)(self.s.iloc[0])\n"
        "def made(x): return pd.Series([x])\n",
    ),
    "a codec": in_module(
        "import registered\ndef f(x): return registered.load('a').encode('own')\n",
        *EDGE,
        registered="import codecs\n@codecs.register\n"
        "def search(name, x=1): return x * 10\n"
        "def load(x): return x\n",
    ),
    "a dispatch on types": in_module(
        "import part\nfrom base import area\ndef f(x): return area(x)\n",
        *EDGE,
        base="from functools import singledispatch\n@singledispatch\ndef area(x): return 0\n",
        part="from base import area\n@area.register(int)\ndef _(x): return x * 10\n",
    ),
    "a registry by a decorator": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN['ed' + 'ge'](x)\n",
        *EDGE,
        reg=REGISTRY,
        part="from reg import register\n@register\ndef edge(x): return x * 10\n",
    ),
    "a registry by a decorator of a method": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN['ed' + 'ge'](None, x)\n",
        *EDGE,
        reg=REGISTRY,
        part="from reg import register\n"
        "class C:\n    @register\n    def edge(self, x): return x * 10\n",
    ),
    "a registry by a call": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN['ed' + 'ge'](x)\n",
        *EDGE,
        reg=REGISTRY,
        part="import reg\ndef edge(x): return x * 10\n_ = reg.register(edge)\n",
    ),
    "a registry by __set_name__": in_cell(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN['k'].edge(x)\n",
        *EDGE,
        reg=FIELD,
        part="from reg import Field\n"
        "class C:\n    k = Field()\n    @staticmethod\n    def edge(x): return x * 10\n",
    ),
    "a registry by __set_name__ of an object made before": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN['k'].edge(x)\n",
        *EDGE,
        reg=FIELD + "FIELD = Field()\n",
        part="from reg import FIELD\n"
        "class C:\n    k = FIELD\n    @staticmethod\n    def edge(x): return x * 10\n",
    ),
    "a registry by __init_subclass__": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN[0].edge(x)\n",
        *EDGE,
        reg="KNOWN = []\nclass Base:\n    def __init_subclass__(cls): KNOWN.append(cls)\n",
        part="from reg import Base\n"
        "class C(Base):\n    @staticmethod\n    def edge(x): return x * 10\n",
    ),
    "a registry by __init_subclass__ of a base of a base": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN[1].edge(x)\n",
        *EDGE,
        reg="KNOWN = []\nclass Base:\n    def __init_subclass__(cls): KNOWN.append(cls)\n",
        mid="import reg\nclass Mid(reg.Base): pass\n",
        part="from mid import Mid\n"
        "class C(Mid):\n    @staticmethod\n    def edge(x): return x * 10\n",
    ),
    "a registry by a metaclass": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN[1].edge(x)\n",
        *EDGE,
        reg="KNOWN = []\nclass Meta(type):\n    def __init__(cls, *args): KNOWN.append(cls)\n"
        "class Base(metaclass=Meta): pass\n",
        part="from reg import Base\n"
        "class C(Base):\n    @staticmethod\n    def edge(x): return x * 10\n",
    ),
    "a registry by a metaclass of an installed class": in_module(
        "import part\ndef f(x): return part.load(x)\n",
        *EDGE,
        part="import ctypes\ndef load(x): return x\n"
        "class C(ctypes.Structure):\n    def edge(self, x): return x * 10\n",
    ),
    "the subclasses of a class": in_module(
        "import part\nfrom reg import Base\ndef f(x): return Base.__subclasses__()[0]().edge(x)\n",
        "x * 10",
        "x * 11",
        reg="class Base:\n    def __init_subclass__(cls): pass\n",
        part="from reg import Base\nclass C(Base):\n    def edge(self, x): return x * 10\n",
    ),
    "a list that grows in the body of a class": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN[0](x)\n",
        *EDGE,
        reg="KNOWN = []\n",
        part="from reg import KNOWN\ndef edge(x): return x * 10\n"
        "class C:\n    KNOWN.append(edge)\n",
    ),
    "a list that grows in place in the body of a class": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN[0](x)\n",
        *EDGE,
        reg="KNOWN = []\n",
        part="from reg import KNOWN\ndef edge(x): return x * 10\n"
        "class C:\n    k = KNOWN\n    k += [edge]\n",
    ),
    "a list that grows in a default": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN[0](x)\n",
        *EDGE,
        reg="KNOWN = []\n",
        part="from reg import KNOWN\ndef edge(x): return x * 10\n"
        "def other(k=KNOWN.append(edge)): pass\n",
    ),
    "a list that grows in an annotation": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN[0](x)\n",
        *EDGE,
        reg="KNOWN = []\n",
        part="from reg import KNOWN\ndef edge(x): return x * 10\n"
        "def other(k: KNOWN.append(edge)): pass\n",
    ),
    "a patch in the body of a class": in_module(
        "import part, filters\ndef f(x): return filters.load(x)\n",
        *EDGE,
        filters="def load(x): return x\n",
        part="import filters\ndef edge(x): return x * 10\nclass C:\n    filters.load = edge\n",
    ),
    "a patch of an item": in_module(
        "import part, reg\ndef f(x): return reg.KNOWN['k'](x)\n",
        *EDGE,
        reg="KNOWN = {}\n",
        part="import reg\ndef edge(x): return x * 10\nreg.KNOWN['k'] = edge\n",
    ),
    "a patch in a loop": in_module(
        "import part, filters\ndef f(x): return filters.load(x)\n",
        *EDGE,
        filters="def load(x): return x\n",
        part="import filters\ndef edge(x): return x * 10\n"
        "for n in ['load']:\n    setattr(filters, n, edge)\n",
    ),
    "an operator that registers": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN[0](x)\n",
        *EDGE,
        reg="KNOWN = []\nclass Op:\n    def __or__(self, g): KNOWN.append(g)\nOP = Op()\n",
        part="from reg import OP\ndef edge(x): return x * 10\n_ = OP | edge\n",
    ),
    "a star import that begins to give a name": in_module(
        "import box\ndef f(x): return box.load(x)\n",
        "def more(x): return 3",
        "def load(x): return 3",
        box="def load(x): return 2\nfrom inner import *\n",
        inner="def more(x): return 3\n",
    ),
    "the __all__ of a star import": in_module(
        "import box\ndef f(x): return box.load(x)\n",
        "['more']",
        "['load']",
        box="def load(x): return 2\nfrom inner import *\n",
        inner="__all__ = ['more']\ndef load(x): return 3\ndef more(x): return 3\n",
    ),
    "a name that comes by two star imports": in_module(
        "import box\ndef f(x): return box.edge(x)\n",
        *EDGE,
        box__mid="from .last import *\n",
        box____init__="from .mid import *\n",
        box__last=FILTERS,
    ),
    "a name of a package that its module has, too": in_module(
        "import box\ndef f(x): return box.edge(x)\n",
        *EDGE,
        box____init__="from .edge import edge\n",
        box__edge="def edge(x): return x * 10\n",
    ),
    "a module that makes its names": in_module(
        "import box\ndef f(x): return box.edge(x)\n",
        *EDGE,
        box="def __getattr__(name): return made\ndef made(x): return x * 10\n",
    ),
    "a module that makes its names in a loop": in_module(
        "import box\ndef f(x): return box.edge(x)\n",
        *EDGE,
        box="for n in ['edge']:\n    globals()[n] = lambda x: made(x)\n"
        "def made(x): return x * 10\n",
    ),
    "a name that a file binds in one case": in_module(
        "from box import load\ndef f(x): return load(x)\n",
        *EDGE,
        box="if len('a') == 1:\n    def load(x): return edge(x)\nelse:\n    load = None\n"
        "def edge(x): return x * 10\n",
    ),
    "a name that a file binds in a loop": in_module(
        "import box\ndef f(x): return box.load(x)\n",
        *EDGE,
        box="for load in [lambda x: edge(x)]: pass\ndef edge(x): return x * 10\n",
    ),
    "a package that is passed on": in_cell(
        "import box, box.inner\ndef g(m, x): return m.inner.edge(x)\n"
        "def f(x): return g(box, box.inner.load(x))\n",
        *EDGE,
        box____init__="from . import inner\n",
        box__inner=FILTERS,
    ),
    "a module of a module": in_cell(
        "import box\ndef f(x): return getattr(box.inner, 'ed' + 'ge')(box.inner.load(x))\n",
        *EDGE,
        box____init__="from . import inner\n",
        box__inner=FILTERS,
    ),
    "a module that another has imported": in_cell(
        "import mid\ndef f(x): return mid.filters.edge(x)\n",
        *EDGE,
        mid="import filters\n",
        filters=FILTERS,
    ),
    "a module imported for its effect": in_module(
        "import filters, part\ndef f(x): return filters.load(x)\n",
        *EDGE,
        filters="KNOWN = {}\ndef load(x): return KNOWN['k'](x)\n",
        part="from filters import KNOWN\nKNOWN.update(k=lambda x: x * 10)\n",
    ),
    "eval in a helper": in_module(
        "import filters\ndef f(x): return filters.load(x)\n",
        *EDGE,
        filters="def load(x): return eval('ed' + 'ge')(x)\ndef edge(x): return x * 10\n",
    ),
    "a formula": in_module(
        "import filters\ndef f(x): return filters.load(x)\n",
        *EDGE,
        filters="import models\ndef load(x): return models.ols('y ~ edge(x)', x)\n"
        "def edge(x): return x * 10\n",
        models="def ols(text, x): return 1\n",
    ),
    "a value in a query": in_module(
        "import filters\ndef f(x): return filters.load(x)\n",
        "LIMIT = 1",
        "LIMIT = 2",
        filters="def load(x): return x.query('a > @LIMIT')\nLIMIT = 1\n",
    ),
    "modules by their names": in_module(
        "import filters\ndef f(x): return filters.load(x)\n",
        *EDGE,
        filters="import sys\ndef load(x): return getattr(sys.modules[__name__], 'ed' + 'ge')(x)\n"
        "def edge(x): return x * 10\n",
    ),
    "the frame of a function": in_module(
        "import filters\ndef f(x): return filters.load(x)\n",
        *EDGE,
        filters="import sys\ndef load(x): return sys._getframe().f_globals['ed' + 'ge'](x)\n"
        "def edge(x): return x * 10\n",
    ),
    **{
        what: home(
            "import inspect, lib\nfrom inspect import getsource as source_of\n"
            f"def f(x): return {read}\n",
            "first",
            "second",
            lib='"first"\ndef g(): pass\n' if "of a module" in what else "def g():\n    'first'\n",
        )
        for what, home, read in [
            ("the docstring", in_module, "lib.g.__doc__"),
            ("the docstring by its name", in_cell, "getattr(lib.g, '__doc__')"),
            ("the docstring, cleaned", in_cell, "inspect.getdoc(lib.g)"),
            ("the docstring of a module", in_module, "lib.__doc__"),
            ("the source", in_module, "inspect.getsource(lib.g)"),
            ("the source, by another name", in_cell, "source_of(lib.g)"),
            ("the file", in_module, "open(lib.__file__).read()"),
        ]
    },
    **{
        f"a registry by {what}": in_module(
            "import part\nfrom reg import R\ndef f(x): return R[0](x)\n",
            *EDGE,
            reg="R = []\n",
            part="from collections import defaultdict\n"
            "from functools import cache, partial, reduce\nfrom reg import R\n"
            "def edge(x): return x * 10\ndef init(*_): R.append(edge)\n"
            f"_ = {call}\n",
        )
        for what, call in {
            "partial": "partial(R.append, edge)()",
            "reduce": "reduce(lambda _, g: R.append(g), [edge, edge])",
            "a function with a cache": "cache(init)()",
            "a dict with defaults": "defaultdict(init)['k']",
        }.items()
    },
    "a registry by members of an enumeration": in_module(
        "import part\nfrom reg import R\ndef f(x): return R[0](x)\n",
        *EDGE,
        reg="R = []\n",
        part="from enum import Enum\nfrom reg import R\ndef edge(x): return x * 10\n"
        "class E(Enum):\n    A = 1\n    def __init__(self, v): R.append(edge)\n",
    ),
    "a virtual subclass, module": in_module(
        "import part\nfrom collections.abc import Sized\ndef f(x): return isinstance(1.5, Sized)\n",
        "(int)",
        "(float)",
        part="from collections.abc import Sized as S\n_ = S.register(int)\n",
    ),
    "a virtual subclass, notebook": in_cell(
        "from abc import ABC\nclass B(ABC): pass\nB.register(int)\n"
        "def f(x): return isinstance(x, B)\n",
        "(int)",
        "(str)",
    ),
    "the line of a function": in_module(
        "import lib\ndef f(x): return lib.g.__code__.co_firstlineno\n",
        "K = 1\n",
        "K = 1\n\n",
        lib="K = 1\ndef g(): pass\n",
    ),
    **both(
        "a name in a text",
        "import filters, pydoc\ndef f(x): return pydoc.locate('filters.edge')(filters.load(x))\n",
        *EDGE,
        filters=FILTERS,
    ),
    "a docstring that is read": in_module(
        "import filters\ndef f(x): return filters.load(x)\n",
        "first",
        "second",
        filters="def load(x):\n    'first'\n    return load.__doc__\n",
    ),
    "an element that grows": in_module(
        "import part\nfrom reg import KNOWN\ndef f(x): return KNOWN['k'][0] * x\n",
        "(10)",
        "(11)",
        reg="KNOWN = {'k': []}\n",
        part="import functools\nfrom reg import KNOWN\n_ = KNOWN['k'].append(10)\n",
    ),
    **{
        name: case
        for what, imports in {
            "names": ("from filters import edge as g", "from other import g"),
            "modules": ("import filters as m; g = m.edge", "import other as m; g = m.g"),
        }.items()
        for name, case in both(
            f"one of two imports of {what}",
            f"def f(x):\n    if x:\n        {imports[0]}\n    else:\n        {imports[1]}\n"
            "    return g(x)\n",
            *EDGE,
            filters=FILTERS,
            other="def g(x): return 1\n",
        ).items()
    },
    "an import that sets a global": in_cell(
        "def first():\n    global g\n    from filters import edge as g\n"
        "def f(x):\n    first()\n    return g(x)\n",
        *EDGE,
        filters=FILTERS,
    ),
    **both(
        "an import in the body of a class",
        "class C:\n    import filters as m\ndef f(x): return C.m.edge(x)\n",
        *EDGE,
        filters=FILTERS,
    ),
    **{
        f"a function with the name of {what}": in_cell(
            "import functools, json, filters\nimport numpy as np\n"
            f"@functools.wraps({wrapped})\ndef g(x): return x * 10\ndef f(x): return g(x)\n",
            *EDGE,
            filters="def load(x): return x\n",
        )
        for what, wrapped in {
            "an installed function": "json.dumps",
            "one of NumPy": "np.mean",
            "one of an own file": "filters.load",
        }.items()
    },
    "a function that says to be of another module": in_cell(
        "def g(x): return x * 10\ng.__module__ = 'os'\ndef f(x): return g(x)\n",
        *EDGE,
    ),
    "a class that a call makes": in_cell(
        "from dataclasses import make_dataclass\nC = make_dataclass('C', [('a', int, 3)])\n"
        "def f(x): return C().a * x\n",
        "int, 3",
        "int, 4",
    ),
    "the options of a cache": in_cell(
        "import functools\n@functools.lru_cache(typed=True)\ndef g(x, y): return str(x)\n"
        "def f(x): return g(1, 2) + g(1.0, 2)\n",
        "typed=True",
        "typed=False",
    ),
    **{
        f"the order of {what}": in_module(
            "import lib\ndef f(x): return lib.g()\n",
            first + second,
            second + first,
            lib=lib.format(first, second),
            other="def g(): return 3\n",
        )
        for what, (lib, first, second) in {
            "a default": ("K = 1\n{}{}", "def g(k=K): return k\n", "K = 2\n"),
            "an alias": ("def h(): return 1\n{}{}", "g = h\n", "def h(): return 2\n"),
            "a base": (
                "class A: k = 1\n{}{}def g(): return C.k\n",
                "class C(A): pass\n",
                "class A: k = 2\n",
            ),
            "an import": ("{}{}", "from other import g\n", "def g(): return 2\n"),
            "what a call changes": (
                "A = []\n{}{}def g(): return B\n",
                "A.append(1)\n",
                "B = len(A)\n",
            ),
        }.items()
    },
    "the order of what a module has": in_module(
        "import filters\ndef f(x): return [*vars(filters)]\n",
        "A = 1\nB = 2\n",
        "B = 2\nA = 1\n",
        filters="A = 1\nB = 2\n",
    ),
    "the order of what a class has": in_cell(
        "class C:\n    a = 1\n    b = 2\ndef f(x): return [*vars(C)]\n",
        "    a = 1\n    b = 2\n",
        "    b = 2\n    a = 1\n",
    ),
}

USED = "import plain\ndef f(x): return plain.load(x)\n"
IN_PLAIN = """\
'A module.'
from __future__ import annotations
import functools, math
import re
import numpy as np
from abc import ABC, ABCMeta, abstractmethod
from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar, overload
import other
from other import helper as aid
try:
    import missing_one as fast
except ImportError:
    fast = None
LIMIT = 3
TABLE = {"a": [1, 2], "b": (LIMIT, -LIMIT)}
AREA = LIMIT * 2
SQUARES = [k * k for k in (1, 2, 3)]
T = TypeVar("T")
Pair = namedtuple("Pair", "a b")
GRID = np.linspace(0, 1, 31)
WORD = re.compile("word 32")
ROOT = math.sqrt(33)

def load(x: int, k: float = LIMIT) -> float:
    'Load it.'
    # why
    return other.helper(x) + k

def unrelated(x, y=LIMIT, *more, z: int = 5):
    import json
    print(other.not_used(x) + len(json.dumps(x)), 'unrelated text')
    return [each for each in more if other.not_used(each)]

class Plain:
    scale = 7
    kinds = ["a", "b"]
    def method(self): return self.scale * 8
    @property
    def area(self): return 9
    @area.setter
    def area(self, value): self.scale = 10
    @staticmethod
    def still(x): return 11
    @classmethod
    def made(cls): return cls() or 12
    class Inner:
        k = 13

class Base(ABC):
    @abstractmethod
    def step(self): return 14

class Derived(Base):
    def step(self): return 15

class Foreign(other.Base):
    def step(self): return 16

class Abstract(metaclass=ABCMeta):
    k = 17

@dataclass(frozen=True)
class Data:
    k: int = 18
    some: list = field(default_factory=list)

class Kind(Enum):
    ONE = 19

class Row(NamedTuple):
    k: int = 20

class Box(Generic[T]):
    k = 21

class Wrong(ValueError):
    k = 22

@functools.lru_cache(maxsize=None)
def cached(x): return 23

async def later(x): return 24

def generator(x): yield 25

scaled = lambda x: 26 * x
"""
IN_OTHER = """
def helper(x): return 1.0 * x
def not_used(x): return 2.0 * x
class Base:
    k = 30
"""
NOT_SEEN = {
    "a comment": ("# why", "# because"),
    "a docstring": ("Load it.", "Loads it."),
    "the docstring of the module": ("A module.", "The module."),
    "formatting": ("other.helper(x) + k", "(other.helper( x )+k)"),
    "quotes": ("'unrelated text'", '"unrelated text"'),
    "empty lines": ("def load", "\n\n\ndef load"),
    "a function": ("if other.not_used", "if not other.not_used"),
    "a default": ("= 5)", "= 6)"),
    "an annotation": ("z: int", "z: float"),
    "a text": ("unrelated text", "another text"),
    "an import in a function": ("    import json", "    import json, csv"),
    "a constant": ("[1, 2]", "[1, 3]"),
    "a constant of a constant": ("LIMIT * 2", "LIMIT * 4"),
    "a list that is computed": ("k * k", "k + k"),
    "an array": (", 31)", ", 310)"),
    "a pattern": ("word 32", "word 320"),
    "a function of numbers": ("(33)", "(330)"),
    "a named tuple": ('"a b"', '"a b c"'),
    "a class attribute": ("scale = 7", "scale = 70"),
    "a method": ("self.scale * 8", "self.scale * 80"),
    "a property": ("return 9", "return 90"),
    "a setter": ("= 10", "= 100"),
    "a static method": ("return 11", "return 110"),
    "a class method": ("or 12", "or 120"),
    "a class in a class": ("k = 13", "k = 130"),
    "an abstract class": ("return 14", "return 140"),
    "a derived class": ("return 15", "return 150"),
    "a class derived from one of another file": ("return 16", "return 160"),
    "a class with a plain metaclass": ("k = 17", "k = 170"),
    "a dataclass": ("= 18", "= 180"),
    "an enumeration": ("= 19", "= 190"),
    "a class of tuples": ("= 20", "= 200"),
    "a generic class": ("k = 21", "k = 210"),
    "an exception": ("k = 22", "k = 220"),
    "a function with a cache": ("return 23", "return 230"),
    "a coroutine": ("return 24", "return 240"),
    "a generator": ("yield 25", "yield 250"),
    "a lambda": ("26 * x", "27 * x"),
    "a function of another file": ("2.0 * x", "3.0 * x"),
    "a class of another file": ("k = 30", "k = 300"),
    "a new function": ("def unrelated", "def new(x): return x\ndef unrelated"),
    "a new import": ("import functools, math", "import functools, math, cmath"),
}
WAYS = {
    "module": ("work.py", USED),
    "notebook": ("cell", "def f(x):\n    import plain as p\n    return p.load(x)\n"),
}


@pytest.fixture(scope="module")
def parts_in():
    """Give the key of a call with the function in a folder, as a process of its own finds it.

    Each is forked from one that has imported the package, which takes most of the time.
    """
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:

        def parts_in(folder: Path) -> str:
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
            found = process.stdout.readline()
            assert found.startswith("[("), found
            return found

        yield parts_in


def write(folder: Path, files: dict[str, str], *edits: tuple[str, str]) -> None:
    """Write files. Each edit changes the one that has its text."""
    for edit in edits:
        (name,) = (name for name, text in files.items() if edit[0] in text)
        files = files | {name: files[name].replace(*edit, 1)}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("case", SEEN)
def test_an_edit_is_seen_whatever_leads_to_it(case, tmp_path, parts_in):
    """By names or not, in a module and in a notebook."""
    files, edit = SEEN[case]
    if "pandas" in case:
        pytest.importorskip("pandas")
    if "grows in an annotation" in case and sys.version_info >= (3, 14):
        pytest.skip("annotations run when they are read, and the list does not grow")
    write(tmp_path / "before", files)
    write(tmp_path / "after", files, edit)
    assert parts_in(tmp_path / "before") != parts_in(tmp_path / "after")


RUN = """
import os, sys
sys.path.insert(0, os.getcwd())
import nbshare
exec(open("cell").read())
found = nbshare.parallel_map(f, [1, 2], checkpoint="run", progress=False)
print([*found] == [f(1), f(2)])
"""
RUNS = [
    "getattr, notebook",
    "the globals of a function",
    "the name of a keyword, notebook",
    "a registry by __set_name__",
    "an annotation of a function, notebook",
]
# The used parts of a file are known only once a worker has executed it.
EDGES = """
import filters, inspect, os, pydoc
import numpy as np
import sys as s
if not os.path.exists("edges.npy"):
    np.save("edges.npy", np.array([filters.Edge()], object))
def f(x): return {edge}(filters.load(x))
"""
BY_LOOKING_UP = {
    "a module by its name": "s.modules.get('filters').edge",
    "an attribute by its name": "getattr(s, 'modules')['filters'].edge",
    "a function by its name": "pydoc.locate('filters.edge')",
    "the module of a function": "inspect.getmodule(filters.load).edge",
    "an object in a file": "np.load('edges.npy', allow_pickle=True)[0].edge",
}
OF_FILTERS = FILTERS + "class Edge:\n    def edge(self, x): return edge(x)\n"


@pytest.mark.first
@pytest.mark.parametrize("case", RUNS)
def test_a_run_gives_no_old_results_after_an_edit(case, assert_is_seen):
    """As in a notebook, with two processes with one checkpoint, and an edit between."""
    assert_is_seen(*SEEN[case])


@pytest.mark.parametrize("case", BY_LOOKING_UP)
def test_a_run_gives_no_old_results_of_what_it_looked_up(case, assert_is_seen):
    """It uses one name of a file, and comes to others in a way that names do not tell."""
    cell = EDGES.replace("{edge}", BY_LOOKING_UP[case])
    assert_is_seen({"cell": cell, "filters.py": OF_FILTERS}, EDGE)


def test_a_run_gives_no_old_results_of_plugins_that_it_finds(assert_is_seen):
    """They are executed by their paths."""
    cell = "import glob, runpy\n"
    cell += (
        "def f(x): return sum(runpy.run_path(p)['R'][0] for p in glob.glob('plugins/*.py')) * x\n"
    )
    files = {"cell": cell, "plugins/a.py": "R = [10]\n"}
    assert_is_seen(files, {"plugins/a.py": "R = [11]\n"})


@pytest.mark.parametrize("when", ["in a call", "at the import"])
def test_a_run_gives_no_old_results_when_a_package_gets_a_module(when, assert_is_seen):
    """Which it finds by listing the package."""
    listed = "[import_module('box.' + m.name).K for m in iter_modules(__path__)]"
    init = "from importlib import import_module\nfrom pkgutil import iter_modules\n"
    init += f"def load(): return {listed}\n" if "call" in when else f"ALL = {listed}\n"
    read = "box.load()" if "call" in when else "box.ALL"
    cell = f"import box\ndef f(x): return sum({read}) * x\n"
    files = {"cell": cell, "box/__init__.py": init, "box/a.py": "K = 1\n"}
    assert_is_seen(files, {"box/b.py": "K = 2\n"})


@pytest.fixture
def assert_is_seen(forks, tmp_path):
    """Run it twice, and after an edit."""

    def check(files, edit):
        write(tmp_path, files)
        assert forks.run(RUN, tmp_path).stdout == "True\n"
        assert forks.run(RUN, tmp_path).stdout == "True\n"
        write(tmp_path, *([edit] if isinstance(edit, dict) else [files, edit]))
        assert "CheckpointError" in forks.run(RUN, tmp_path).stderr

    return check


@pytest.mark.parametrize("way", WAYS)
def test_edits_next_to_what_is_used_are_not_seen(way, tmp_path, parts_in):
    """All of them, of definitions that the function does not reach, and of what is no code."""
    name, text = WAYS[way]
    files = {name: text, "plain.py": IN_PLAIN, "other.py": IN_OTHER}
    write(tmp_path / "before", files)
    write(tmp_path / "after", files, *NOT_SEEN.values())
    assert parts_in(tmp_path / "after") == parts_in(tmp_path / "before")
