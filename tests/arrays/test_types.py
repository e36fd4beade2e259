"""Types whose objects are taken apart: held once as inputs, and not copied as results."""

from __future__ import annotations

import abc
import copyreg
import ctypes
import enum
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest

import nbshare
from nbshare import parallel_map
from nbshare._core.functions.pickling import dumps_apart
from nbshare._core.store.apart import pickler_maker
from nbshare._core.store.logs import OUT_OF_BAND
from tests.support import objects, spectra
from tests.support.objects import OBJECTS, OTHERS, equal
from tests.support.spectra import Calibrated, Plain, Signed, Spectrum, parts_of

SHORT = 8000  # bytes of a pickle that holds none of the memory of an object
ALL = {name: make for name, make in {**OBJECTS, **OTHERS}.items() if "forest" not in name}


def as_result(value):
    """Return the pickle of a result, and the result as the caller has it."""
    data, buffers = dumps_apart(value, OUT_OF_BAND, pickler_maker())
    return data, pickle.loads(data, buffers=[bytearray(each) for each in buffers])


@pytest.mark.parametrize("name", OTHERS)
def test_an_object_keeps_type_and_values(name):
    """An object whose pickle would hold its values has them next to the pickle."""
    obj = OTHERS[name]()
    wrapped = nbshare.share(obj, wrap=True)
    (_, _, nbytes), *_ = wrapped._packed
    assert nbytes < SHORT
    assert equal(wrapped.get(), obj)


def test_columns_of_polars_count_as_sorted_if_they_did():
    """A list column has another flag, and would be sorted wrongly if it counted as sorted."""
    polars = pytest.importorskip("polars")
    n = 3000
    frame = polars.DataFrame(
        {"lists": [[3, 1], [1], [2]] * (n // 3), "up": range(n), "down": range(n, 0, -1)}
    ).with_columns(polars.col("up").set_sorted(), polars.col("down").set_sorted(descending=True))
    for found in (as_result(frame)[1], nbshare.share(frame, wrap=True).get()):
        for name, flags in frame.flags.items():
            assert found[name].flags["SORTED_ASC"] == flags["SORTED_ASC"]
            assert found[name].flags["SORTED_DESC"] == flags["SORTED_DESC"]
        assert found.sort("lists").equals(frame.sort("lists"))


@pytest.mark.parametrize("name", ["polars DataFrame", "memoryview", "torch tensor"])
def test_an_object_arrives_in_a_worker(name):
    """A worker has an equal object, whether it was shared before or not."""
    obj = OTHERS[name]()
    for given in (obj, nbshare.share(obj)):
        assert parallel_map(objects.is_other, [name], shared={"obj": given}, out="list") == [True]


@pytest.mark.parametrize("name", ALL)
def test_a_result_keeps_type_and_values(name):
    """A result has its values next to its pickle, and the caller may write to its arrays."""
    value = ALL[name]()
    data, found = as_result(value)
    assert len(data) < SHORT
    assert equal(found, value)


values = np.arange(20_000.0)
ARRAYS = {
    "contiguous": values,
    "Fortran": np.asfortranarray(values.reshape(100, 200)),
    "strided": values[::2],
    "reversed": values[::-1],
    "transposed": values.reshape(10, 20, 100).transpose(1, 2, 0),
    "broadcast": np.broadcast_to(values[:5], (1000, 5)),
    "dates": values.astype("M8[ns]"),
    "durations": values.astype("m8[s]").reshape(100, 200).T,
    "records with dates": np.zeros(2000, [("x", "f8"), ("t", "M8[s]")]),
    "big-endian": values.astype(">f8"),
    "texts": values.astype("U20"),
    "of no dimension": np.zeros((), [("x", "f8", 1000)]),
    "of objects": values[:10].astype(object),
    "small": values[::2][:3],
    "in shared memory": nbshare.share(values)[::2],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_in_a_result_is_that_of_the_loop(name):
    """Values, dtype and order of an array are the same, and it can be written to."""
    array = ARRAYS[name]
    _, [found] = as_result([array])
    assert type(found) is np.ndarray
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.flags.writeable
    assert np.array_equal(found, array)
    if array.flags.f_contiguous:
        assert found.flags.f_contiguous


@pytest.mark.parametrize("dtype", ["uint16", "float8_e4m3fn"])
def test_tensors_of_newer_types_arrive(dtype):
    """PyTorch cannot load its own pickles of these."""
    torch = pytest.importorskip("torch")
    tensor = torch.arange(5000.0).to(getattr(torch, dtype))[::2]
    for found in (as_result(tensor)[1], nbshare.share(tensor, wrap=True).get()):
        assert (found.dtype, found.stride()) == (tensor.dtype, tensor.stride())
        assert found.tolist() == tensor.tolist()


@pytest.mark.parametrize("form", ["c", "N", "@l", "P"])
def test_a_memoryview_keeps_a_format_that_numpy_lacks(form):
    """A memoryview of characters, sizes or pointers does not become bytes."""
    for data in (b"abcdefgh" * 6, bytearray(b"abcdefgh" * 6)):
        flat = memoryview(data).cast(form)
        for view in (flat, flat[::2], flat.cast("B").cast(form, (2, len(flat) // 2))):
            for found in (as_result(view)[1], nbshare.share(view, wrap=True).get()):
                assert (found.format, found.shape) == (view.format, view.shape)
                assert (found.readonly, found.tolist()) == (view.readonly, view.tolist())


def test_arrays_of_ctypes_are_those_of_the_loop():
    """The type of such an array is made when it is used, and no module has it."""
    grid = ((ctypes.c_int * 3) * 2)((1, 2, 3), (4, 5, 6))
    for found in (as_result([grid, type(grid)])[1], nbshare.share([grid, type(grid)])):
        assert found[1] is type(found[0]) is type(grid)
        assert bytes(found[0]) == bytes(grid)
    assert parallel_map(lambda x, grid=grid: grid[1][x], [2]) == [6]


class Slotted(np.ndarray):
    """Has attributes in slots only."""

    __slots__ = ("label",)


class Mixed(objects.Labelled):
    """Has attributes in a slot, and in a dict."""

    __slots__ = ("unit",)


def test_subclasses_of_arrays_keep_attributes_in_slots():
    slotted, mixed = values.view(Slotted), values.view(Mixed)
    slotted.label, mixed.label, mixed.unit = "a", "b", "c"
    for one, other in (as_result([slotted, mixed])[1], nbshare.share([slotted, mixed])):
        assert (type(one), one.label) == (Slotted, "a")
        assert (type(other), other.label, other.unit) == (Mixed, "b", "c")
    assert type(nbshare.share([values.view(Slotted)])[0]) is Slotted  # without a label


def test_results_are_not_copied_by_the_caller():
    """Strided arrays and dates in a list are in the memory that the worker wrote to."""
    [[strided, dates]] = parallel_map(objects.odd_arrays, [0], out="list")
    assert all(nbshare._core.memory.segment_of(each) is not None for each in (strided, dates))


class Color(enum.Enum):
    """Has a metaclass."""

    RED = 1


class Shape(abc.ABC):
    """Has another one."""

    @abc.abstractmethod
    def area(self):
        """Return nothing."""


@pytest.mark.parametrize("value", [Color, Shape, Color.RED, len, ..., NotImplemented, range(3)])
def test_what_is_pickled_by_name_is_the_same_object(value):
    """Classes with metaclasses, members of an Enum and built-in objects come as themselves."""
    found = as_result([value])[1][0]
    assert found is value or (found == value and type(value) is range)


def test_ways_of_copyreg_are_kept(monkeypatch):
    """A class that is registered with `copyreg` is pickled so, also one derived from ndarray."""

    def reduce(obj):
        return str, (type(obj).__name__,)

    for cls in (Plain, objects.Labelled):
        monkeypatch.setitem(copyreg.dispatch_table, cls, reduce)
    both = [Plain(values), objects.labelled()]
    assert as_result(both)[1] == nbshare.share(both) == ["Plain", "Labelled"]


# ------------------------------------------------------------------------ users' own types


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Forget what a test registers."""
    from nbshare._core.arrays import reducers

    for table in ("_entries", "_waiting"):
        monkeypatch.setattr(reducers, table, dict(getattr(reducers, table)))
    monkeypatch.setattr(reducers, "_found", weakref.WeakKeyDictionary())


def is_apart(obj):
    """Return whether an object's array is shared, and not in its pickle."""
    return spectra.is_shared(nbshare.share(obj))


def test_an_object_of_a_registered_class_is_held_once():
    """Workers see the memory of a shared object, and the caller that of a result."""
    spectrum = spectra.spectrum(1)
    assert parallel_map(spectra.is_shared, [spectrum], out="list") == [True]
    [result] = parallel_map(spectra.spectrum, [3], out="list")
    assert spectra.is_shared(result)
    assert result.flux[0] == 3


def test_plain_pickle_is_not_changed():
    """What pickle writes of a registered class has its values."""
    assert len(pickle.dumps(spectra.spectrum(1))) > 80_000


def test_a_class_of_a_notebook_can_be_registered(script):
    """A class that workers cannot import is sent by value, and its arrays by reference."""
    out = script("""
import numpy as np, nbshare
class Mine:
    def __init__(self, flux):
        self.flux = flux
    def __reduce__(self):
        return Mine, (self.flux.tolist(),)
def register():
    nbshare.register_type(Mine, lambda mine: (Mine, (mine.flux,)))
register()
def kind(_, mine):
    return type(mine.flux).__name__, float(mine.flux.sum())
shared = {"mine": Mine(np.ones(1000))}
print(nbshare.parallel_map(kind, [0], shared=shared, out="list", progress=False))
def twice(_, mine):
    return Mine(2 * mine.flux)
[mine] = nbshare.parallel_map(twice, [0], shared=shared, initializer=register, progress=False)
print(kind(0, mine))
""")
    assert out == "[('ndarray', 1000.0)]\n('ndarray', 2000.0)\n"


def test_subclasses_are_left_to_pickle():
    """A registered function may know nothing of a subclass."""
    nbshare.register_type(Plain, parts_of)
    assert is_apart(Plain(values))
    assert not is_apart(Calibrated(values))


def test_subclasses_may_be_served_but_those_with_ways_of_their_own():
    """With ``subclasses=True`` a class is taken apart if it is pickled as its base is."""
    nbshare.register_type(Spectrum, parts_of, subclasses=True)
    assert is_apart(Calibrated(values))
    assert type(nbshare.share(Calibrated(values))) is Calibrated
    signed = nbshare.share(Signed(values))
    assert not spectra.is_shared(signed)
    assert signed.flux[1] == -1


def test_a_function_may_leave_an_object_to_pickle():
    """`NotImplemented` means that the object is pickled as if its type were not registered."""
    nbshare.register_type(Plain, lambda obj: NotImplemented if len(obj.flux) < 9 else parts_of(obj))
    assert not is_apart(Plain(values[:5]))
    assert is_apart(Plain(values))


def test_the_last_function_counts():
    """A type that is registered again has the new function."""
    nbshare.register_type(Plain, lambda obj: NotImplemented)
    nbshare.register_type(Plain, parts_of)
    assert is_apart(Plain(values))


@pytest.mark.parametrize(
    ("cls", "reduce", "message"),
    [
        (spectra.spectrum(1), parts_of, "pass a class"),
        (list, parts_of, "pickle handles objects of this type"),
        (enum.EnumMeta, parts_of, "pickle handles objects of this type"),
        (np.ndarray, parts_of, "nbshare sends objects of this type itself"),
        (nbshare.SharedBuffer, parts_of, "nbshare sends objects of this type itself"),
        (Plain, "parts", "reduce='parts' is not allowed: pass a function"),
    ],
)
def test_what_cannot_be_registered_is_refused(cls, reduce, message):
    """The error says what to pass instead."""
    with pytest.raises(TypeError, match=message):
        nbshare.register_type(cls, reduce)


# ------------------------------------------------------------------------- known packages


def test_no_package_is_imported():
    """The table knows packages, but does not load them, here or in workers."""
    program = (
        "import sys, numpy as np\nbefore = {*sys.modules}\nimport nbshare\n"
        "nbshare.share([np.float64(1), np.matrix([1]), memoryview(b'x'), Exception()])\n"
        "packages = {'torch', 'polars', 'pandas', 'pyarrow', 'astropy', 'numpy.ma'}\n"
        "print(*packages & ({*sys.modules} - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_worker_writes_to_its_own_tensor():
    """A tensor can be written to, and neither the caller nor another worker sees that."""
    torch = pytest.importorskip("torch")
    tensor = torch.ones(100_000)
    assert set(parallel_map(spectra.sum_of, range(2), shared={"tensor": tensor})) <= {1e5, 0}
    assert parallel_map(spectra.add_one, [tensor]) == [2e5]
    assert tensor.sum() == 1e5


def test_a_shared_tensor_arrives_as_it_is_now():
    """It can be changed here after `share`, and the next call sees that."""
    tensor = nbshare.share(pytest.importorskip("torch").ones(100_000))
    assert parallel_map(spectra.total, [tensor]) == [1e5]
    tensor += 1
    assert parallel_map(spectra.total, [tensor]) == [2e5]
    assert parallel_map(spectra.sum_of, [0], shared={"tensor": tensor}) == [2e5]


def test_parameters_stay_parameters():
    """A module can be trained on, in a worker as here."""
    pytest.importorskip("torch")
    network = OTHERS["torch module"]()
    found = nbshare.share(network)
    assert all(p.requires_grad and p.is_leaf for p in found.parameters())
    found(network.weight.detach()).sum().backward()
    assert found.weight.grad is not None


def test_sorted_columns_of_polars_stay_known():
    """Columns that polars knows to be sorted are joined and grouped faster."""
    pl = pytest.importorskip("polars")

    frame = pl.DataFrame({"up": values, "down": values[::-1], "other": values}).lazy()
    frame = frame.with_columns(pl.col("up").set_sorted()).collect()
    frame = frame.with_columns(pl.col("down").set_sorted(descending=True))
    assert nbshare.share(frame).flags == frame.flags
    assert frame.flags["up"]["SORTED_ASC"]


def test_every_type_of_polars_arrives():
    """Types that Arrow lacks are pickled by polars."""
    pl = pytest.importorskip("polars")

    n = 2000
    texts = ["a", "b"] * (n // 2)
    columns = [
        pl.Series("int", [1, None] * (n // 2), pl.Int8),
        pl.Series("wide", [1 << 70] * n, pl.Int128),
        pl.Series("category", texts, pl.Categorical),
        pl.Series("enum", texts, pl.Enum(["b", "a"])),
        pl.Series("list", [[1], []] * (n // 2)),
        pl.Series("pair", [[1, 2]] * n, pl.Array(pl.Int64, 2)),
        pl.Series("struct", [{"x": 1, "y": "u"}] * n),
        pl.Series("nothing", [None] * n),
        pl.Series("time", ARRAYS["dates"][:n]),
        pl.Series("bytes", [b"x"] * n),
    ]
    for column in columns:
        for obj in (column, column.to_frame()):
            for found in (nbshare.share(obj), as_result(obj)[1]):
                assert found.equals(obj), column
                assert getattr(found, "schema", None) == getattr(obj, "schema", None)


def table_of_texts():
    pa = pytest.importorskip("pyarrow")

    return pa.table({"text": [f"row number {i:08d}" for i in range(100_000)]})


def pandas_texts():
    import pandas as pd

    return table_of_texts().to_pandas(types_mapper=pd.ArrowDtype)


def polars_texts():
    pl = pytest.importorskip("polars")

    return pl.from_arrow(table_of_texts())


@pytest.mark.parametrize("make", [pandas_texts, polars_texts])
@pytest.mark.parametrize("part", [slice(10, 500), slice(20, 90_000)])
def test_a_small_part_of_a_frame_is_sent_alone(make, part):
    """A slice is a view of all buffers of its frame, which are not sent with a small one."""
    frame = make()
    whole, taken = nbshare.share(frame, wrap=True).nbytes, frame[part]
    wrapped = nbshare.share(taken, wrap=True)
    assert wrapped.get().equals(taken)
    assert wrapped.nbytes < max(0.2 * whole, 1.2 * whole * (part.stop - part.start) / len(frame))
