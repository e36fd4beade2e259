"""Digests of values, equal in each process and on each machine.

They are not digests of pickles, which may differ for equal objects, or of addresses. Containers,
arrays and objects are traversed. Functions and classes of the user's files count by the source that
they reach (`checkpoint.code`), those of installed packages by their names.
"""

from __future__ import annotations

import copyreg
import hashlib
import re
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.arrays.known_types import attributes_of
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.functions.annotations import OF_ANNOTATIONS, parts_of
from nbshare._core.functions.modules import find_named
from nbshare._core.functions.pickling import TOO_DEEP, is_by_value
from nbshare._core.messages import cut
from nbshare.errors import CheckpointError

SIZE = 16  # bytes
MOST_SHOWN = 60  # characters of the path to a part in a message
PIECE_NBYTES = 16 << 20  # size of the pieces in which arrays are hashed
N_THREADS = 4  # number of threads that hash pieces
MOST_DEEP, MOST_KEPT = 6, 200  # limits of an outline
OF_WRAPPERS = "cache_info", "targetoptions"  # attributes of functions with a cache, and of Numba's
OF_MEMBERS = "fget", "fset", "fdel", "__func__"  # parts of a property or a class method
# Attributes in which objects cache answers, or keep work space.
ANSWERS = {
    "_cs_matrix._has_sorted_indices", "_cs_matrix._has_canonical_format", "ExtensionArray._cache",
    "ExtensionArray._readonly", "UnivariateSpline._data",
    "Delaunay._transform", "Delaunay._vertex_to_simplex", "Delaunay._vertex_neighbor_vertices",
    "_VectorizerMixin._stop_words_id",
}  # fmt: skip
TENSORS = {"Tensor", "Parameter", "Buffer"}  # torch's classes. Subclasses have attributes

DIGITS = re.compile(r"\d{9,}")  # digits of a possible address
OF_ADDRESSES = id, object.__hash__

LEVELS = 24  # levels to which elements of a set are compared

_NOT_MET = None, b""
_BYTES = {bytes, bytearray, memoryview}
_CODE = types.ModuleType | types.FunctionType | type
_PLAIN = {type(None), bool, int, float, complex, str, type(Ellipsis), type(NotImplemented), range}
_MEMBERS = property, staticmethod, classmethod  # these cannot be pickled
_OF_NAMED_TUPLES = set(vars(namedtuple("Any", ())))
_ARRAYS = {np.ndarray, np.memmap, SharedArray, np.ma.MaskedArray}  # subclasses have attributes


def digest(*parts: Any) -> bytes:
    """Return the digest of several bytes objects."""
    hashed = hashlib.sha1(usedforsecurity=False)  # the quickest that is good enough
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return bytes(hashed.digest()[:SIZE])


class Attributes(dict[str, Any]):
    """The parts of a function or class, by name, which is hashed like the state of an object."""


class Digests:
    """Computes digests of values.

    Parameters
    ----------
    definition : callable
        ``definition(obj)`` returns a text for a function, class or module, and records the code
        that it reaches.
    version : str, optional
        The user's version. If given, an object without a stable digest counts only by its type.

    Attributes
    ----------
    outlines : dict
        The outlines of values, by their names in messages: short digests of parts, by their paths.
    labels : dict
        Names in messages of functions and classes that are sent by value, by address.
    odd : set of str
        The types of objects of packages, whose pickles may differ in each process.
    """

    def __init__(self, definition: Callable[[Any], str], version: str | None) -> None:
        self.definition, self.version = definition, version
        self.outlines: dict[str, dict[str, str]] = {}
        self.labels: dict[int, str] = {}
        self.odd = set[str]()
        self._names: list[str] = []  # names of the values that are being traversed

    def of(self, value: Any, where: str, outline: Outline | None = None) -> bytes:
        """Return the digest of a value. Errors name it `where`.

        Raises
        ------
        CheckpointError
            If the value has no stable digest.
        """
        self._names.append(where)
        try:
            return _Walk(self, outline).of(value, where)
        except RecursionError:
            raise CheckpointError(
                f"{where} is nested too deeply to be compared. {TOO_DEEP}"
            ) from None
        finally:
            self._names.pop()

    def of_part(self, value: Any, where: str) -> str:
        """Return the digest of a part of a key, and store its outline."""
        outline = Outline(where)
        found = self.of(value, where, outline).hex()
        self.outlines[where] = outline.told()
        return found

    def way_to(self, where: str) -> str:
        """Return the name of an object for messages, with the value that leads to it."""
        half = MOST_SHOWN // 2
        shown = where if len(where) <= MOST_SHOWN else f"{where[:half]} ... {where[-half:]}"
        first = self._names[0]
        return shown if where.startswith(first) else f"{shown}, to which {first} leads,"


class Outline:
    """Short digests of the parts of a value, outer parts first, which later show a changed part.

    Parameters
    ----------
    where : str
        The name of the value in messages.
    """

    def __init__(self, where: str) -> None:
        self._start = len(where)
        self._found = [dict[str, str]() for _ in range(MOST_DEEP)]  # digests, by depth and path

    def note(self, where: str, depth: int, found: bytes) -> None:
        """Record a part, `depth` levels below the value."""
        if depth <= MOST_DEEP and len(self._found[depth - 1]) < MOST_KEPT:
            self._found[depth - 1].setdefault(where[self._start :], found[:4].hex())

    def told(self) -> dict[str, str]:
        """Return the digests, by the paths to the parts."""
        return dict(islice(chain.from_iterable(map(dict.items, self._found)), MOST_KEPT))


class _Walk:
    """Traverses a value, and visits each object once."""

    def __init__(self, digests: Digests, outline: Outline | None = None) -> None:
        self._digests, self._outline = digests, outline
        self._known: dict[int, tuple[Any, bytes]] = {}  # digests, and the objects, kept alive
        self._in_cycles = set[int]()  # unfinished objects, and those in cycles
        self._n_cycles = self._depth = 0

    def of(self, value: Any, where: str) -> bytes:
        """Return the digest of a value."""
        kind, key = type(value), id(value)
        if kind in _PLAIN:
            return _of_text(kind.__name__, repr(value))
        if kind in _BYTES:
            return _of_bytes(value)
        if kind is tuple:  # not kept, because it may hold a copy of an array
            return self._all("tuple", value, where)
        if key in self._known:
            self._n_cycles += key in self._in_cycles
            return self._known[key][1]
        self._known[key] = value, _of_text("again", str(len(self._in_cycles)))
        self._in_cycles.add(key)
        before = self._n_cycles
        found = self._of_parts(value, kind, where)
        if self._n_cycles == before:  # in a cycle, the digest depends on the path
            self._known[key] = value, found
            self._in_cycles.discard(key)
        return found

    def _of_parts(self, value: Any, kind: type, where: str) -> bytes:
        if kind is list:
            return self._all("list", value, where)
        if kind in (dict, types.MappingProxyType):
            return self._pairs(kind.__name__, value, where)
        if kind is Attributes:
            return self._pairs("state", value, where)
        if isinstance(value, set | frozenset):
            reduce = set.__reduce__ if isinstance(value, set) else frozenset.__reduce__
            attributes = reduce(value)[2]
            return self._all("set", [kind, attributes, *self._elements(value, where)], where)
        if kind in _ARRAYS or isinstance(value, np.generic):
            return self._array(value, where)
        if isinstance(value, _CODE):
            proxy: Any = None if issubclass(kind, _CODE) else value
            if hasattr(proxy, "_self_wrapper"):  # a decorated function of wrapt
                return self._all("wrapper", [proxy.__wrapped__, proxy._self_wrapper], where)
            return _of_text(self._digests.definition(value))
        if isinstance(value, _MEMBERS):
            parts = [getattr(value, name, None) for name in OF_MEMBERS]
            return self._all("member", [kind, *parts], where)
        if isinstance(value, types.MethodType):
            return self._all("method", [value.__func__, value.__self__], where)
        if hasattr(value, "__wrapped__") and any(hasattr(value, each) for each in OF_WRAPPERS):
            options = getattr(value, "targetoptions", None)
            of_cache = getattr(value, "cache_parameters", lambda: None)()
            return self._all("wrapper", [kind, value.__wrapped__, options, of_cache], where)
        if (found := _parts_in(value, kind)) is not None:
            return self._all(kind.__name__, found, where)
        if isinstance(value, OF_ANNOTATIONS):
            return self._all("annotation", [kind.__name__, *parts_of(value)], where)
        if _is_unnamed_tuple(kind):
            return self._all("named tuple", [kind.__name__, value._fields, *value], where)
        return self._object(value, kind, where)

    def _elements(self, values: Iterable[Any], where: str) -> list[bytes]:
        """Return the digests of a set's elements in an order that does not depend on their hashes.

        Elements that refer to themselves are visited in the order of their sketches. The digest
        differs in another process only if different elements have equal sketches.
        """
        sketches = [
            (*self._sketch.of_element(value, where), self._known.get(id(value), _NOT_MET)[1], value)
            for value in values
        ]
        sketches.sort(key=itemgetter(0, 2))
        return [
            found if is_whole else self.of(value, where) for found, is_whole, _, value in sketches
        ]

    @cached_property
    def _sketch(self) -> _Sketch:
        return _Sketch(self._digests)

    def _all(self, tag: str, values: Iterable[Any], where: str) -> bytes:
        values = list(values)
        if _PLAIN.issuperset(map(type, values)):
            return _of_text(tag, repr(values))
        found = []
        self._depth += 1
        for i, value in enumerate(values):  # a comprehension would use one more level of recursion
            found.append(self.of(value, way := f"{where}[{i}]"))
            if self._outline is not None:
                self._outline.note(way, self._depth, found[-1])
        self._depth -= 1
        return digest(tag.encode(), *found)

    def _pairs(self, tag: str, pairs: Mapping[Any, Any], where: str) -> bytes:
        if _PLAIN.issuperset(map(type, (*pairs, *pairs.values()))):
            if self._outline is not None and len(pairs) <= MOST_KEPT:
                for key, value in pairs.items():
                    self._outline.note(_way(tag, where, key), self._depth + 1, self.of(value, ""))
            return _of_text(tag, repr(dict(pairs)))
        found = []
        self._depth += 1
        for key, value in pairs.items():
            way = _way(tag, where, key)
            found += [self.of(_key_of(key, value), where), self.of(value, way)]
            if self._outline is not None:
                self._outline.note(way, self._depth, found[-1])
        self._depth -= 1
        return digest(tag.encode(), *found)

    def _array(self, array: Any, where: str) -> bytes:
        if array.dtype.names:  # bytes between fields are arbitrary
            fields = [array[name] for name in array.dtype.names]
            return self._all("fields", [repr(array.dtype), array.dtype.metadata, *fields], where)
        if is_masked(array):
            mask, data = np.ma.getmaskarray(array), np.ma.getdata(array)
            zero = np.zeros((), array.dtype)
            parts = [np.where(mask, zero, data), mask, array.fill_value, array.hardmask]
            return self._all("masked", parts, where)
        plain = np.asarray(array)
        kind = "scalar" if isinstance(array, np.generic) else "array"
        text = f"{kind} {plain.dtype.name} {plain.dtype.str} {plain.shape}"
        if metadata := plain.dtype.metadata:  # such as h5py's, about the contents
            return self._all(text, [metadata, plain.view(plain.dtype.str)], where)
        if plain.dtype.char in "gG":  # some bytes of a long double are arbitrary
            plain = plain.astype("U")
        if plain.dtype.hasobject or plain.dtype.char == "T":
            return self._all(text, plain.ravel().tolist(), where)
        pieces = list(_pieces(np.atleast_1d(plain)))
        if len(pieces) == 1:
            return digest(text.encode(), _bytes_of(pieces[0]))
        with ThreadPoolExecutor(N_THREADS) as threads:
            found = threads.map(lambda piece: digest(_bytes_of(piece)), pieces)
            return digest(text.encode(), *found)

    def _object(self, value: Any, kind: type, where: str) -> bytes:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind is np.random.RandomState and value is np.random.mtrand._rand:  # held by SciPy
            return _of_text("NumPy's global random state, which is another one in each process")
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:
            if self._digests.version is not None:
                return _of_text("object", name)
            raise CheckpointError(
                f"{self._digests.way_to(where)} is a {name}, which cannot be compared with that of "
                'another run. Pass checkpoint=nbshare.Checkpoint(path, version="1"), with which '
                "such objects are compared only by type, and pass another version when results "
                "would change."
            ) from error
        if isinstance(reduced, str):
            return _of_text("name", name, str(getattr(value, "__module__", None)), reduced)
        if kind.__module__.partition(".")[0] not in sys.stdlib_module_names | {"numpy"}:
            self._digests.odd.add(name)
        func, args, state, items, pairs = (*reduced, None, None, None)[:5]
        found = [self._all("object", [func, args, list(items or ())], where)]
        found.append(self._pairs("pairs", dict(pairs or ()), where))
        states = state if type(state) is tuple else (state,)
        if reduce is None and getattr(kind, "__reduce__", None) is np.ndarray.__reduce__:
            states = *states, *filter(None, [attributes_of(value)])  # NumPy omits these
        for each in states:
            if isinstance(each, dict):
                attributes = _values_in(each, value, kind, self._digests.labels)
                found.append(self._pairs("state", attributes, where))
            else:
                found.append(self.of(each, where))
        return digest(*found)


class _Sketch(_Walk):
    """Traverses values to a limited depth, so that elements of a set can be sorted."""

    def __init__(self, digests: Digests) -> None:
        super().__init__(digests)
        self._left = self._least = 0  # levels left here, and at the end of the longest path
        self._is_cut = False
        # By object and levels left (0 if complete): the object, its digest, and its number of
        # levels.
        self._found: dict[tuple[int, int], tuple[Any, bytes, int]] = {}

    def of_element(self, value: Any, where: str) -> tuple[bytes, bool]:
        """Return the sketch of a set's element, and whether it covers all parts of the element."""
        self._left, self._is_cut = LEVELS, False
        return self.of(value, where), not self._is_cut

    def of(self, value: Any, where: str) -> bytes:
        """Return the digest of a value down to the depth that is left."""
        kind, key = type(value), (id(value), self._left)
        if kind in _PLAIN or kind in _BYTES:
            return super().of(value, where)
        if isinstance(value, types.FunctionType | type) and is_by_value(value):
            self._is_cut = True  # its name depends on earlier visits
            return _of_text("code", *_texts_in(value))
        if not self._left:
            self._is_cut = True
            return _of_text("cut", kind.__name__)
        whole = self._found.get((id(value), 0))
        if whole is not None and whole[2] <= self._left:
            self._least = min(self._least, self._left - whole[2])
            return whole[1]
        if (known := self._found.get(key)) is not None:
            self._is_cut = True
            return known[1]
        was_cut, least = self._is_cut, self._least
        self._left -= 1
        self._is_cut, self._least = False, self._left
        found = self._of_parts(value, kind, where)
        self._left += 1
        n_levels = self._left - self._least
        self._found[key if self._is_cut else (id(value), 0)] = value, found, n_levels
        self._is_cut, self._least = self._is_cut or was_cut, min(self._least, least)
        return found

    def _of_parts(self, value: Any, kind: type, where: str) -> bytes:
        if kind is tuple:
            return self._all("tuple", value, where)
        return super()._of_parts(value, kind, where)

    def _elements(self, values: Iterable[Any], where: str) -> list[bytes]:
        return sorted(self.of(value, where) for value in values)


def is_salted(name: str, member: Any) -> bool:
    """Return whether a method is a ``__hash__`` by attrs, whose code holds the hash of a text."""
    code = getattr(member, "__code__", None)
    return name == "__hash__" and getattr(code, "co_filename", "").startswith("<attrs generated")


def _texts_in(value: Any) -> Iterator[str]:
    """Yield code and plain values by which functions or classes of the same name differ."""
    yield value.__qualname__
    if isinstance(value, type):
        for name, member in vars(value).items():
            if type(member) in _PLAIN:
                yield f"{name} {member!r}"
            elif isinstance(member, types.FunctionType) and not is_salted(name, member):
                yield from _texts_in(member)
        return
    code = value.__code__
    cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
    values = *code.co_consts, *(value.__defaults__ or ()), *cells
    yield repr((code.co_code, code.co_names, [x for x in values if type(x) in _PLAIN]))


def _is_unnamed_tuple(kind: Any) -> bool:
    """Return whether a class is a plain named tuple without a name in its module, as in pandas.

    Such a class is defined by its fields. Its code is new for each table.
    """
    members = vars(kind).keys() - set(getattr(kind, "_fields", ()))
    is_named = find_named(kind.__module__, kind.__name__) is kind
    return kind.__bases__ == (tuple,) and members == _OF_NAMED_TUPLES and not is_named


def _of_text(*words: str) -> bytes:
    return digest(" ".join(words).encode("utf8", "surrogatepass"))


def _way(tag: str, where: str, key: Any) -> str:
    """Return the path to an attribute or an entry, for messages."""
    return where + (f".{key}" if tag == "state" else f"[{cut(repr(key))}]")


def _key_of(key: Any, value: Any) -> Any:
    """Return a key of a dict, or a text instead of the address of the object that it leads to."""
    if type(key) is int and (key == id(value) or (type(value) is tuple and key in map(id, value))):
        return "address"
    return key


def _of_bytes(value: Any) -> bytes:
    if isinstance(value, memoryview):
        return digest(f"memoryview {value.format} {value.shape}".encode(), value.tobytes())
    return digest(type(value).__name__.encode(), value)


def _values_in(
    state: dict[str, Any], owner: Any, kind: type, labels: Mapping[int, str]
) -> dict[str, Any]:
    """Return the attributes of an object, except cached values that follow from others.

    In texts such as a name built from ``id(self)``, the address of an attribute, the object, its
    class or an object in `labels` is replaced by its name.
    """
    answers = {
        name
        for name in state
        for base in kind.__mro__
        if f"{base.__name__}.{name}" in ANSWERS or isinstance(vars(base).get(name), cached_property)
    }
    # In order, because it may depend on a set of names, as those of uncertainties.
    values = {name: state[name] for name in sorted(state, key=str) if name not in answers}
    texts = {name: _text_with_numbers(x) for name, x in values.items()}
    if found := {name: text for name, text in texts.items() if DIGITS.search(text)}:
        parts = {**state, "self": owner, "type": kind}
        names = {str(address(x)): name for name, x in parts.items() for address in OF_ADDRESSES}
        names |= {str(address): label for address, label in labels.items()}
        for name, text in found.items():
            if not names.keys().isdisjoint(DIGITS.findall(text)):
                values[name] = DIGITS.sub(lambda each: names.get(each[0], each[0]), text)
    return values


def _text_with_numbers(value: Any) -> str:
    """Return a text that may contain an address, from a str, an int or a short tuple. Else ""."""
    if isinstance(value, str):
        return str.__str__(value)
    is_short = type(value) is tuple and len(value) < 9 and _PLAIN.issuperset(map(type, value))
    return repr(value) if type(value) is int or is_short else ""


def _pieces(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield an array in pieces that depend only on its shape and dtype."""
    row_nbytes = array[:1].nbytes
    if row_nbytes > PIECE_NBYTES and array.ndim > 1:
        for row in array:
            yield from _pieces(row)
    else:
        step = max(1, PIECE_NBYTES // max(1, row_nbytes))
        for k in range(0, max(1, len(array)), step):
            yield array[k : k + step]


def _bytes_of(array: npt.NDArray[Any]) -> Any:
    """Return the bytes of an array in C order, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else b""


def _parts_in(value: Any, kind: type) -> list[Any] | None:
    """Return the parts of another package's value to compare, or None if its pickle suffices.

    The pickles of some equal values differ.
    """
    package = kind.__module__.partition(".")[0]
    if package == "pandas" and kind.__name__ == "DataFrame":
        # Not its blocks, because they depend on how the frame was made.
        columns = [column.array for _, column in value.items()]
        flags = value.flags.allows_duplicate_labels
        return [value.columns, value.index, value.attrs, flags, *columns]
    if package == "loguru":
        return [kind]  # results do not depend on what is logged
    if package == "torch":
        return _parts_in_torch(value, kind)
    return None


def _parts_in_torch(value: Any, kind: type) -> list[Any] | None:
    """Return the parts of a tensor or a storage, whose pickles contain addresses."""
    torch = sys.modules["torch"]
    if kind.__module__ == "torch.storage":
        raw = getattr(value, "_untyped_storage", value)
        data = torch.empty(0, dtype=torch.uint8).set_(raw.cpu())
        return [kind, str(getattr(value, "dtype", "")), str(raw.device), np.asarray(data)]
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if kind.__name__ not in TENSORS or value.is_quantized or value.device.type == "meta":
        return None
    # Not the storage, because the tensor may be a small part of it.
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = np.asarray(plain.reshape(-1).view(torch.uint8))
    about = [str(value.dtype), str(value.device), tuple(value.shape), value.requires_grad]
    return [kind, *about, vars(value), data]
