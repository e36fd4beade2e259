"""`explore` in a real kernel, and what it refuses. The browser sees the rest."""

from __future__ import annotations

import numpy as np
import pytest

import nbshare
from nbshare._core.notebook import explore as explore_module
from nbshare._core.notebook.explore import ResultGrid, finished

WIDGET = "application/vnd.jupyter.widget-view+json"
MAPS = np.random.default_rng(1).random((6, 20, 30))


@pytest.mark.parametrize(
    ("results", "options", "error", "message"),
    [
        ({"a": MAPS[0]}, {}, TypeError, "these are of type dict"),
        ([{"a": MAPS[0]}], {}, TypeError, "these are of type dict"),
        ([], {}, ValueError, "nothing to show"),
        (np.arange(5), {}, TypeError, "single values"),
        (MAPS[:0], {}, ValueError, "nothing to show"),
        (MAPS, {"axes": {"a": [1, 2], "b": [1, 2]}}, ValueError, "2 × 2 values"),
        (MAPS, {"kind": "pie"}, ValueError, "kind='pie'"),
        (MAPS, {"plot": "image"}, TypeError, "pass a LivePlot"),
        (np.zeros((2, 3, 4, 5)), {}, ValueError, "kind= is needed"),
    ],
)
def test_what_cannot_be_explored_is_refused(results, options, error, message):
    """With what to do, before anything is drawn."""
    with pytest.raises(error, match=message):
        nbshare.explore(results, **options)


def test_durations_have_the_unit_of_the_longest_so_far():
    lasting = 10 ** np.arange(4)[:, np.newaxis] * np.arange(5).astype("m8[s]")
    view = ResultGrid(finished(lasting), None, nbshare.LivePlot(), {})
    for item, unit in enumerate(["s", "s", "min", "h"]):
        view.draw(item, sharp=False)
        assert view._figure.figure.axes[0].get_ylabel() == f"result ({unit})"


def test_outside_of_a_notebook_a_sentence_says_what_to_do():
    """And the script goes on."""
    with pytest.warns(nbshare.errors.DisplayWarning, match="call it in a cell"):
        nbshare.explore(MAPS)


def test_the_picture_is_there_when_the_cell_ends(common):
    """In a kernel without a page, of an image, a line, and the first place of a grid."""
    _, kernel = common
    kernel.run_well("maps = np.random.default_rng(1).random((6, 20, 30))")
    image = kernel.run_well("nbshare.explore(maps)")
    assert image.mimetypes == {"image/png", "text/plain"}
    assert image.rows[0].startswith("To choose other results")
    assert image.rows[-1] == "item 0"
    line = kernel.run_well("nbshare.explore(maps[:, 0], kind='hist')")
    assert line.rows[-1] == "item 0"
    code = "nbshare.explore(maps, axes={'azimuth': [0, 120.5], 'height': ['a', 'b', 'c']})"
    assert kernel.run_well(code).rows[-1] == "azimuth = 0, height = a"


def test_another_front_end_than_jupyters_gets_panel_and_picture_in_one_output(common):
    """It shows the one or the other. A document that is rebuilt has the picture alone."""
    _, kernel = common
    kernel.run_well("maps = np.random.default_rng(1).random((6, 20, 30))")
    kernel.run_well("__vsc_ipynb_file__ = 'maps.ipynb'")  # as VS Code does
    shown = kernel.run_well("nbshare.explore(maps)")
    assert shown.rows == ["item 0"]
    assert shown.mimetypes == {WIDGET, "image/png", "text/plain"}
    kernel.run_well("os.environ['NBSHARE_STATIC'] = '1'")
    shown = kernel.run_well("nbshare.explore(maps[1:])")
    kernel.run_well("del os.environ['NBSHARE_STATIC'], __vsc_ipynb_file__")
    assert shown.rows == ["item 0"]
    assert shown.mimetypes == {"image/png", "text/plain"}


def test_buttons_choose_the_next_result_and_the_one_before(common):
    """Over all axes of a grid, as the results follow each other, and around the ends."""
    _, kernel = common
    kernel.run_well(
        "from nbshare._core.notebook import explore as x\n"
        "axes = {'azimuth': np.array([0, 120]), 'height': np.array([1, 2, 3])}\n"
        "panel = x.Panel(x.ResultGrid(x.finished(np.ones((6, 4))), None, nbshare.LivePlot(), axes))"
        "\nback, on, own = panel._all.children[2].children\nseen = [panel._words.value]\n"
        "for button in [on, on, on, back, back, back, back]:\n"
        "    button.click(); seen.append(panel._item)"
    )
    assert kernel.run_well("print(seen)").stdout == "['drawing…', 1, 2, 3, 2, 1, 0, 5]\n"


def test_a_panel_in_the_place_of_another_leaves_no_results_of_that_in_memory(common):
    """A cell that is run again and again with new results keeps the newest alone."""
    _, kernel = common
    kernel.run_well("__vsc_ipynb_file__ = 'maps.ipynb'\nimport weakref\nseen = []")
    code = "maps = nbshare.ones((6, 20, 30)); seen.append(weakref.ref(maps))"
    for _ in range(3):
        cell = kernel.finish(kernel.start(f"{code}\nnbshare.explore(maps)", cell="a"))
        assert cell.status == "ok", cell.traceback
    kernel.run_well(
        "import gc\nuntil_s = time.monotonic() + 5\n"
        "while seen[0]() is not None or seen[1]() is not None:\n"
        "    assert time.monotonic() < until_s and gc.collect() >= 0\n"
        "    time.sleep(0.05)\n"
        "del __vsc_ipynb_file__"
    )


def test_no_value_of_an_image_is_cut():
    """Not even one that the sample for the common scale does not hold."""
    maps = np.zeros((3, 70, 70))
    maps[1, 31, 17] = 9.0
    view = ResultGrid(finished(maps), None, nbshare.LivePlot(), {})
    view.draw(1, sharp=False)
    assert view._figure.figure.axes[0].images[0].get_clim()[1] >= 9
    view = ResultGrid(finished(maps), None, nbshare.LivePlot(limits=(0, 1)), {})
    view.draw(1, sharp=False)
    assert view._figure.figure.axes[0].images[0].get_clim() == (0, 1)
    assert view._figure._painters[0]._bar.extend == "max"


def test_all_items_are_drawn_on_one_scale():
    """Whichever is shown first, the colours of an image, the axis of a line or a histogram stay."""
    maps = np.linspace(0, 100, 6 * 40 * 50).reshape(6, 40, 50)
    volumes = maps.reshape(6, 5, 8, 50)
    kinds = ("image", maps), ("line", maps[:, 0]), ("hist", maps), ("image", volumes)
    for kind, results in kinds:
        view = ResultGrid(finished(results), kind, nbshare.LivePlot(), {})
        scales = set()
        for item in (0, 5, 3):
            view.draw(item, sharp=False)
            axes = view._figure.figure.axes[0]
            limits = {"image": lambda a: a.images[0].get_clim(), "line": lambda a: a.get_ylim()}
            scales.add(limits.get(kind, lambda a: a.get_xlim())(axes))
        assert len(scales) == 1


@pytest.mark.parametrize("kind", ["image", "line"])
def test_an_item_is_drawn_on_its_own_scale_on_request(kind):
    """One of small values among large ones shows its shape, and the others stay comparable."""
    maps = np.linspace(0, 100, 6 * 40 * 50).reshape(6, 40, 50)
    view = ResultGrid(
        finished(maps if kind == "image" else maps[:, 0]), kind, nbshare.LivePlot(), {}
    )

    def limits(**options):
        view.draw(0, sharp=False, **options)
        axes = view._figure.figure.axes[0]
        return axes.images[0].get_clim() if kind == "image" else axes.get_ylim()

    of_all, own = limits(), limits(own_scale=True)
    assert own[1] - own[0] < (of_all[1] - of_all[0]) / 4
    assert limits() == of_all


@pytest.mark.parametrize("kind", ["job", "results"])
def test_the_parameters_of_a_grid_are_the_sliders(kind, monkeypatch):
    """Of a job as of its array. Each picture is that of its combination."""
    views = []
    monkeypatch.setattr(
        explore_module, "ResultGrid", lambda *a: views.append(ResultGrid(*a)) or views[0]
    )
    job = nbshare.map_async(
        lambda a, b: np.full((2, 3), 10 * a + b), nbshare.grid(a=[1, 2], b=range(3))
    )
    results = job.result()
    with pytest.warns(nbshare.errors.DisplayWarning):
        nbshare.explore(job if kind == "job" else results)
    (view,) = views
    assert list(view.axes) == ["a", "b"]
    name = "a = 2, b = 1"
    assert view.name(4) == (f"{job.label}: {name}" if kind == "job" else name)
    assert view.pick(4)[1].tolist() == np.full((2, 3), 21).tolist()


def ragged(n):
    """Return rows of several lengths and images, with a gap and an empty one."""
    if n == 0:
        return None
    return np.full((n, 2 * n) if n % 2 else n, 1.0 * n) if n < 6 else np.zeros(0)


@pytest.mark.parametrize("kind", ["job", "results"])
def test_results_of_several_shapes_are_shown_one_at_a_time(kind):
    """Each in its own kind, and a missing or empty one as a sentence."""
    job = nbshare.map_async(ragged, range(7), backend="threads", progress=False)
    results = job.result()
    view = ResultGrid(job if kind == "job" else finished(results), None, nbshare.LivePlot(), {})
    assert view.first == 1
    for item in (1, 2, 5, 4):
        view.draw(item, sharp=False)
        axes = view._figure.figure.axes[0]
        shown = axes.lines[0].get_ydata() if item in (2, 4) else axes.images[0].get_array()
        assert np.array_equal(shown, results[item])
        assert axes.get_title("left").endswith(f"item {item}")
    assert view.draw(0, sharp=False).title.endswith("No result")
    assert "empty" in view.draw(6, sharp=False).title


def test_results_of_several_shapes_have_one_scale():
    results = [np.arange(n) * 1.0 for n in (3, 50, 8)]
    view = ResultGrid(finished([*results, "text"]), None, nbshare.LivePlot(), {})
    limits = set()
    for item in range(3):
        view.draw(item, sharp=False)
        limits.add(view._figure.figure.axes[0].get_ylim())
    assert len(limits) == 1


def test_a_picture_names_its_item():
    """By its index, where no parameters of a grid name it."""
    view = ResultGrid(finished(MAPS), None, nbshare.LivePlot(), {})
    assert view.name(2) == "item 2"
    assert np.array_equal(view.pick(2)[1], MAPS[2])


def test_a_list_of_a_coarse_grid_is_at_its_places():
    """The list itself is in the order of the run."""
    axes = {"a": range(5), "b": range(3)}
    job = nbshare.map_async(pair_of, nbshare.grid(order="coarse", **axes), out="list")
    assert job.wait(60)
    view = ResultGrid(job, None, nbshare.LivePlot(), axes)
    assert [view.pick(i)[1].tolist() for i in (0, 4, 14)] == [[0, 0], [1, 1], [4, 2]]
    assert job.result()[1].tolist() == [4, 0]


def pair_of(a, b):
    return np.array([a, b])
