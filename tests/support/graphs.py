"""Graphs of objects, and functions that tell which of the objects they are given are the same."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial


class Node:
    """Part of a graph. Its method takes what a map passes."""

    def __init__(self):
        self.parts = []

    def shape(self, *args, **shared):
        """Return the shape of all that it is given, with itself."""
        return shape_of([self, args, sorted(shared.items())])


class Slotted:
    """A node without a dict."""

    __slots__ = ("parts",)

    def __init__(self):
        self.parts = []


class Callable(Node):
    """A node that can be the function."""

    def __call__(self, *args, **shared):
        """Return its shape."""
        return self.shape(*args, **shared)


class Named(OrderedDict):
    """A container of the user's."""

    @property
    def parts(self):
        """Its list, as the others have one."""
        return self.setdefault("parts", [])


class Mark:
    """Is told from others by its identity, as long as it has no attribute."""


ABSENT, UNSET = object(), Mark()
MARKS = ABSENT, UNSET


def marked(x, default=ABSENT):
    """Return which of the marks of this module an object is, and what it has."""
    return x is default, x is UNSET, vars(x) if isinstance(x, Mark) else None


def mark(i):
    return MARKS[i]


KINDS = Node, Slotted, Callable, Named


def shape_of(root):
    """Return what a walk finds: values, classes, and for an object where it was met first."""
    met = {}
    found = []
    left = [root]
    while left:
        obj = left.pop()
        if isinstance(obj, KINDS):
            found.append(met.setdefault(id(obj), len(found)))
            if found[-1] == len(found) - 1:
                found.append(type(obj).__name__)
                left.append(obj.parts)
        elif isinstance(obj, dict):
            left += [part for pair in obj.items() for part in pair]
        elif isinstance(obj, list | tuple):
            found.append(len(obj))
            left += obj
        else:
            found.append(obj)
    return found


def shape(*args, **shared):
    return shape_of([args, sorted(shared.items())])


def around(obj):
    """Return a function that has an object in its closure."""

    def inner(*args, **shared):
        return shape_of([obj, args, sorted(shared.items())])

    return inner


def with_argument(obj):
    return partial(shape, obj)


def method_of(obj):
    return obj.shape if isinstance(obj, Node) else around(obj)


FUNCTIONS = around, with_argument, method_of, lambda _: shape
