"""The picture of a map's results: what is drawn of all kinds of them, and what is refused.

Where there is an oracle, NumPy is it: the pixels, lines and bars are those of the results.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from played import PlayedJob, played

from nbshare.notebook.base import CannotDrawError
from nbshare.notebook.figure import LiveFigure, render
from nbshare.notebook.image import ColourLimits, Reduced, choose_layout
from nbshare.notebook.values import Values


def is_blank(png, box):
    """Tell whether a box of the picture, in fractions, is all of the missing cells' grey."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    left, top, right, bottom = (np.multiply(box, image.size * 2)).round().astype(int)
    region = np.asarray(image)[top:bottom, left:right].reshape(-1, 3).astype(int)
    return bool((abs(region - 0xE8) <= 4).all())


@pytest.mark.parametrize(
    ("results", "title"),
    [
        (np.arange(1000.0), "500 of 1000"),
        (np.arange(300_000), "150000 of 300000"),
        (np.random.default_rng(0).random((120, 50)), "60 of 120"),
        (np.random.default_rng(0).random((3000, 2000), np.float32), "1500 of 3000"),
        (np.random.default_rng(0).random((10, 30, 40)) > 0.5, "mean of 5 of 10"),
        (np.random.default_rng(0).random((4, 1500, 1100), np.float32), "mean of 2 of 4"),
        (np.full((10, 30, 40, 3), 200, np.uint8), "mean of 5 of 10"),
        (np.full((10, 30, 40), np.nan), "mean of 5 of 10"),
        (np.zeros((1, 1)), "0 of 1"),
    ],
)
def test_every_shape_of_numbers_has_its_picture(results, title):
    job = played(results, 0.5)
    if not job.n_done:
        job.flags[:], title = True, "1 of 1"
    frame = LiveFigure(job, "image", job.label).frame(final=True)
    assert frame.title == f"horizon: {title}"
    width, height = Image.open(io.BytesIO(frame.png)).size
    assert width / height == 640 / 400


def test_rows_that_are_missing_stay_blank():
    png = render(played(np.random.default_rng(0).random((100, 30)), 0.5))
    assert not is_blank(png, (0.2, 0.15, 0.7, 0.4))
    assert is_blank(png, (0.2, 0.55, 0.7, 0.75))


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        (np.zeros((4, 2, 3, 5)), "the shape"),
        (np.zeros((4, 0)), "the shape"),
        (np.zeros(4, "f8, i4"), "dtype .*f8.*i4"),
        ([(1, 2)], "of type tuple"),
        ([np.ones(2), np.ones(3)], "several shapes"),
        (np.zeros(4, "M8[s]"), "dates"),
        (np.array(["a", "b"]), "dtype <U1"),
        ([{"a": 1}], "of type dict"),
    ],
)
def test_results_that_suit_no_image_are_refused_with_a_reason(results, reason):
    with pytest.raises(CannotDrawError, match=reason):
        render(played(results, 1))


def test_a_job_without_results_cannot_be_rendered():
    with pytest.raises(ValueError, match="no result yet"):
        render(PlayedJob(np.zeros(3)))


@pytest.mark.parametrize("shape", [(50,), (50, 7), (50, 6, 5), (3000, 2), (200_000,)])
def test_the_picture_is_the_mean_and_each_result_is_read_once(shape):
    rng = np.random.default_rng(1)
    results = rng.random(shape, np.float32)
    layout = choose_layout(shape[0], shape[1:])
    order, present = rng.permutation(shape[0]), np.zeros(shape[0], bool)
    data = np.full_like(results, np.nan)  # also after it was read: reading it again would show
    mean = Reduced(shape[0], layout)
    for part in np.array_split(order, 4):
        data[:] = np.nan
        data[part], present[part] = results[part], True
        mean.add_new(Values(data, present), budget_s=60)
    cells = np.arange(shape[0]) * layout.n_cells // shape[0]
    sums = np.zeros((layout.n_cells, *shape[1:]))
    np.add.at(sums, cells, results)
    expected = (sums.T / np.bincount(cells)).T.squeeze()
    pixels = mean.pixels()
    np.testing.assert_allclose(pixels.ravel()[: expected.size], expected.ravel())
    assert np.isnan(pixels.ravel()[expected.size :]).all()
    assert mean.n_shown == shape[0]


def test_a_refresh_takes_in_only_what_its_time_allows_and_the_last_frame_all():
    results = np.ones((40, 500, 500))  # in float64 one block of 8 MiB holds four of them
    mean = Reduced(40, choose_layout(40, (500, 500)))
    mean.add_new(Values(results, np.ones(40, bool)), budget_s=0)
    assert 0 < mean.n_shown < 40
    mean.add_new(Values(results, np.ones(40, bool)), budget_s=float("inf"))
    assert mean.n_shown == 40
    assert (mean.pixels() == 1).all()


def test_an_interrupt_while_results_are_taken_in_leaves_no_wrong_mean(monkeypatch):
    results, present = np.arange(12.0).reshape(4, 3, 1), np.ones(4, bool)
    mean = Reduced(4, choose_layout(4, (3, 1)))
    add = Reduced._add

    def interrupted_add(*args):
        monkeypatch.setattr(Reduced, "_add", add)
        add(*args)
        raise KeyboardInterrupt  # the sums are added to, the items not noted yet

    monkeypatch.setattr(Reduced, "_add", interrupted_add)
    with pytest.raises(KeyboardInterrupt):
        mean.add_new(Values(results, present), budget_s=60)
    mean.add_new(Values(results, present), budget_s=60)
    np.testing.assert_array_equal(mean.pixels(), results.mean(axis=0))


def test_colours_stay_while_the_data_move_little_and_are_exact_at_the_end():
    rng = np.random.default_rng(2)
    limits = ColourLimits()
    limits.follow(rng.random((50, 50)), final=False)
    before = limits.low, limits.high
    limits.follow(rng.random((50, 50)) * 1.03, final=False)
    assert (limits.low, limits.high) == before
    limits.follow(rng.random((50, 50)) * 3, final=False)
    assert limits.high > 2.5
    exact = rng.random((50, 50)) * 3.01
    limits.follow(exact, final=True)
    assert (limits.low, limits.high) == pytest.approx(np.percentile(exact, (2, 98)))


def test_a_function_gets_cleared_axes_and_its_colour_bar_does_not_pile_up():
    seen = []

    def draw(ax, partial):
        seen.append((len(ax.images), int(partial.count())))
        ax.figure.colorbar(ax.imshow(partial), ax=ax)

    job = played(np.random.default_rng(0).random((10, 5)), 0.2)
    figure = LiveFigure(job, draw, "drawn")
    widths = []
    for n in (4, 6, 8, 10):
        job.flags[:n] = True
        figure.frame(final=False)
        widths.append(figure.figure.axes[0].get_position().width)
    assert seen == [(0, 20), (0, 30), (0, 40), (0, 50)]
    assert len(figure.figure.axes) == 2
    assert widths == pytest.approx([widths[0]] * 4, rel=0.02)
