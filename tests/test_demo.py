"""The demo's numbers are right, and its command line says what it did or what is wrong."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nbshare.__main__ import main
from nbshare._core.entries import demo


def naive_horizon(azimuth, elevation, dx, dy, row, column):
    """One cell, one step after the other, in the words of the definition."""
    rows, columns = elevation.shape

    def height_at(r, c):
        if 0 <= r < rows and 0 <= c < columns:
            return float(elevation[r, c])
        return float(elevation.min())

    steepest = 0.0
    distance = demo.STEP_M
    while distance <= demo.REACH_M:
        y = row - distance * math.cos(math.radians(azimuth)) / dy
        x = column + distance * math.sin(math.radians(azimuth)) / float(dx[row, 0])
        r, c = math.floor(y), math.floor(x)
        fy, fx = y - r, x - c
        height = (
            height_at(r, c) * (1 - fy) * (1 - fx)
            + height_at(r, c + 1) * (1 - fy) * fx
            + height_at(r + 1, c) * fy * (1 - fx)
            + height_at(r + 1, c + 1) * fy * fx
        )
        steepest = max(steepest, (height - float(elevation[row, column])) / distance)
        distance += demo.STEP_M
    return math.degrees(math.atan(steepest))


def flat(rows, columns, cell):
    return np.zeros((rows, columns), np.float32), np.full((rows, 1), float(cell)), float(cell)


@pytest.fixture(scope="module")
def jacksboro():
    return demo.load()


def test_the_map_has_metres_and_its_north_edge_first(jacksboro):
    """Cells are 93 m high, and they grow wider from row to row, so the rows run southwards."""
    elevation, dx, dy = jacksboro
    assert elevation.shape == (344, 403)
    assert elevation.dtype == np.float32
    assert dy == pytest.approx(92.77, abs=0.01)
    assert dx.shape == (344, 1)
    assert dx[0, 0] == pytest.approx(74.35, abs=0.01)
    assert (np.diff(dx[:, 0]) > 0).all()
    # Powell Valley, the lowest ground, is in the south-east of the map, the peaks south-west.
    quarters = [elevation[:172, :200], elevation[:172, 200:], elevation[172:, :200]]
    assert elevation[172:, 200:].min() < min(quarter.min() for quarter in quarters)


@pytest.mark.parametrize("azimuth", [0.0, 133.7, 222.0, 270.0])
def test_equals_a_plain_loop_over_steps(jacksboro, azimuth):
    """The vectorised march gives what the definition gives, at the edges of the map too."""
    elevation, dx, dy = jacksboro
    angles = demo.horizon(azimuth, elevation, dx, dy)
    assert angles.shape == elevation.shape
    assert angles.dtype == np.float32
    for row, column in [(0, 0), (343, 402), (0, 200), (150, 0), (171, 201), (290, 220), (300, 350)]:
        expected = naive_horizon(azimuth, elevation, dx, dy, row, column)
        assert angles[row, column] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("azimuth", "row", "column"),
    [(0.0, 1, 0), (90.0, 0, -1), (180.0, -1, 0), (270.0, 0, 1)],
)
def test_a_peak_stands_at_the_right_angle(azimuth, row, column):
    """Seen from n cells away, a peak of height h stands at atan(h / distance), exactly there."""
    cell, peak = demo.STEP_M * 2, 300.0
    elevation, dx, dy = flat(41, 41, cell)
    elevation[20, 20] = peak
    angles = demo.horizon(azimuth, elevation, dx, dy)
    for n in (2, 5, 20):
        expected = math.degrees(math.atan(peak / (n * cell)))
        assert angles[20 + n * row, 20 + n * column] == pytest.approx(expected, abs=1e-3)
        assert angles[20 - n * row, 20 - n * column] == 0  # it looks the other way


@pytest.mark.parametrize("azimuth", [30.0, 60.0, 120.0, 210.0, 330.0])
def test_azimuths_turn_clockwise_from_north(azimuth):
    """A tower seen in a slanting direction, on cells that are not square."""
    rows = columns = 121
    elevation = np.zeros((rows, columns), np.float32)
    dx, dy = np.full((rows, 1), 50.0), 100.0
    elevation[58:63, 55:66] = 500.0  # 500 m × 550 m around the centre (60, 60)
    distance = 3000.0
    row = round(60 + distance * math.cos(math.radians(azimuth)) / dy)
    column = round(60 - distance * math.sin(math.radians(azimuth)) / 50.0)
    angle = demo.horizon(azimuth, elevation, dx, dy)[row, column]
    nearest, centre = distance - 400, distance
    assert math.degrees(math.atan(500 / centre)) < angle < math.degrees(math.atan(500 / nearest))
    assert demo.horizon(azimuth + 180, elevation, dx, dy)[row, column] == 0


def test_flat_land_hides_nothing():
    """Neither does the edge of the map."""
    elevation, dx, dy = flat(10, 12, 90.0)
    elevation += 100
    assert not demo.horizon(77.0, elevation, dx, dy).any()


def test_same_bits_every_time(jacksboro):
    """The same call gives the same bytes."""
    first, second = (demo.horizon(101.0, *jacksboro).tobytes() for _ in range(2))
    assert first == second


def test_spread_orders_every_number_once():
    """Every number of the range, once, and early ones far apart."""
    for n in (0, 1, 2, 3, 6, 7, 12, 64, 180):
        assert sorted(demo.spread(n)) == list(range(n))
    assert demo.spread(8) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert demo.spread(180)[:4] == [0, 90, 45, 135]


def test_sky_view_leaves_out_what_is_masked():
    """Mean of cos² over the maps that are there. In a masked array the others do not count."""
    horizons = np.zeros((3, 2, 2), np.float32)
    horizons[1] = 60.0
    assert demo.sky_view(horizons) == pytest.approx(np.full((2, 2), 0.75))
    partial = np.ma.MaskedArray(horizons, mask=np.zeros(horizons.shape, bool))
    partial[1] = np.ma.masked
    assert demo.sky_view(partial) == pytest.approx(np.ones((2, 2)))
    assert demo.sky_view(partial).dtype == np.float32


@pytest.fixture
def small(monkeypatch, jacksboro):
    """Let the demo look at a part of the map, in 2 directions instead of 180, and compare all."""
    elevation, dx, dy = jacksboro
    monkeypatch.setattr(demo, "load", lambda: (elevation[:90, :120].copy(), dx[:90], dy))
    monkeypatch.setattr(demo, "N_AZIMUTHS", 2)
    monkeypatch.setattr(demo, "N_SAMPLE", 2)


def test_the_demo_computes_checks_and_draws(tmp_path, capfd, small, monkeypatch):
    """Exit status 0, the figures in the terminal, and a picture at the place it names."""
    set_load(monkeypatch, 0.5)
    out = tmp_path / "sky.png"
    assert main(["demo", "--workers", "2", "--out", str(out)]) == 0
    text = capfd.readouterr().out
    assert out.read_bytes().startswith(b"\x89PNG")
    assert str(out.resolve()) in text
    assert "equal, bit for bit" in text
    assert re.search(r"speed-up +\d+\.\d", text)
    assert "its load is" not in text


def set_load(monkeypatch, load):
    """Let the machine have two CPUs, and so much to do."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load,) * 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


def test_a_busy_machine_is_told_with_the_speed_up(tmp_path, capfd, small, monkeypatch):
    """With the speed-up, the first figure that a newcomer sees."""
    set_load(monkeypatch, 400.0)
    assert main(["demo", "--workers", "2", "--out", str(tmp_path / "sky.png")]) == 0
    line = re.search("speed-up.*", capfd.readouterr().out)[0]
    assert "its load is 400 on 2 CPUs" in line


def refuse(capfd, arguments):
    """Run the demo, which must fail with one line on stderr. Return that line."""
    assert main(["demo", *arguments]) == 1
    lines = capfd.readouterr().err.strip().splitlines()
    message = lines[-1]  # above it may stand the bar
    assert message.startswith("nbshare demo: ")
    return message


def test_no_workers_is_refused(tmp_path, capfd, small):
    """An impossible number of workers is one clear line, and nothing is written."""
    out = tmp_path / "sky.png"
    assert "-1" in refuse(capfd, ["--workers", "-1", "--out", str(out)])
    assert not out.exists()


def test_an_unwritable_place_is_refused_at_once(tmp_path, capfd, monkeypatch):
    """Before the work, not after it."""
    monkeypatch.setattr(demo, "parallel_map", None)  # never reached
    message = refuse(capfd, ["--out", str(tmp_path / "missing" / "sky.png")])
    assert str(tmp_path / "missing") in message
    assert str(tmp_path) in refuse(capfd, ["--out", str(tmp_path)])


def test_a_wrong_result_is_found(tmp_path, capfd, small, monkeypatch):
    """One wrong bit, or a wrong shape, is an exit status of 1 and no picture."""
    out = tmp_path / "sky.png"

    def with_one_wrong_bit(function, azimuths, *, shared, **_):
        maps = np.stack([function(azimuth, **shared) for azimuth in azimuths])
        maps[0, 3, 4] = np.nextafter(maps[0, 3, 4], np.float32(90))
        return maps

    monkeypatch.setattr(demo, "parallel_map", with_one_wrong_bit)
    assert "azimuth 0°" in refuse(capfd, ["--out", str(out)])
    monkeypatch.setattr(demo, "parallel_map", lambda *_, **__: np.zeros((2, 3)))
    assert "azimuth 0°" in refuse(capfd, ["--out", str(out)])
    assert not out.exists()


def test_ctrl_c_is_one_line_and_status_130(tmp_path):
    """The whole job as a process of its own, stopped by Ctrl-C in the middle."""
    command = [sys.executable, "-m", "nbshare", "demo", "--out", str(tmp_path / "sky.png")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(3):  # the introduction, after which the map starts
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1].startswith("nbshare demo: ")
    assert not (tmp_path / "sky.png").exists()


def test_the_command_as_a_person_types_it(tmp_path):
    """From a folder of its own, with everything at its default, but in a few directions only."""
    few = "from nbshare._core.entries import demo; demo.N_AZIMUTHS = demo.N_SAMPLE = 2"
    as_typed = "import runpy; runpy.run_module('nbshare', run_name='__main__', alter_sys=True)"
    done = subprocess.run(
        [sys.executable, "-c", f"{few}; {as_typed}", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.split()[-1]) == (tmp_path / "nbshare-demo.png").resolve()
    assert (tmp_path / "nbshare-demo.png").stat().st_size > 10_000
