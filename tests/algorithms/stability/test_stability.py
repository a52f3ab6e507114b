"""§4 of Zhang, Choromanska & LeCun 2015: the paper's maps, its conditions, its figure, and the command."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpitrain.algorithms import admm, elastic
from mpitrain.algorithms.optimizers import sgd
from mpitrain.algorithms.stability import maps, variance
from mpitrain.algorithms.stability.command import add_parser
from mpitrain.errors import BadInput
from mpitrain.flat import Array

SIZES = [1, 2, 3, 5, 8, 16, 64]


def composite(method: maps.Map, workers: int, eta: float, strength: float) -> Array:
    """Fᵖ…F¹ by p products, as printed."""
    F = np.eye(len(method(0, workers, np.float64(eta), np.float64(strength))))
    for i in range(workers):
        F = method(i, workers, np.float64(eta), np.float64(strength)) @ F
    return F


def radius_of(F: Array) -> Array:
    return np.abs(np.linalg.eigvals(F)).max(axis=-1)


def test_the_printed_maps_of_easgd() -> None:
    """p = 2, η = 0.1, α = 0.3."""
    eta, a, b = np.float64(0.1), np.float64(0.3), 1 - 0.1 - 0.3
    F1 = np.array([[b, 0, a], [0, 1, 0], [a, 0, 1 - a]])
    F2 = np.array([[1, 0, 0], [0, b, a], [0, a, 1 - a]])
    assert np.array_equal(maps.easgd(0, 2, eta, a), F1)
    assert np.array_equal(maps.easgd(1, 2, eta, a), F2)


def test_the_printed_maps_of_admm() -> None:
    """p = 2, η = 0.1, ρ = 5, i = 1."""
    eta, rho = np.float64(0.1), np.float64(5.0)
    pull, keep = 0.5 / 1.5, 0.9 / 1.5
    F1 = np.array([[1, -1, 0, 0, 1], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    F2 = np.array([[1, 0, 0, 0, 0], [pull, keep, 0, 0, pull], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    F3 = np.array(
        [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [-1 / 2, 1 / 2, -1 / 2, 1 / 2, 0]]
    )
    assert np.array_equal(maps.admm_dual(0, 2, eta, rho), F1)
    assert np.array_equal(maps.admm_local(0, 2, eta, rho), F2)
    assert np.array_equal(maps.admm_centre(2, eta, rho), F3)


@pytest.mark.parametrize("method, strength", [(maps.easgd, 0.3), (maps.admm, 2.5)])
@pytest.mark.parametrize("workers", SIZES)
def test_a_round_is_a_turn_to_the_power_p(method: maps.Map, strength: float, workers: int) -> None:
    round_ = composite(method, workers, 0.05, strength)
    turn = maps.turn(method, workers, np.float64(0.05), np.float64(strength))
    np.testing.assert_allclose(np.linalg.matrix_power(turn, workers), round_, atol=1e-12)
    radius = maps.spectral_radius(method, workers, np.float64(0.05), np.float64(strength))
    assert radius == pytest.approx(radius_of(round_), abs=1e-7)


def test_a_grid_of_settings_equals_one_at_a_time() -> None:
    eta, rho = np.meshgrid([0.001, 0.005], [0.5, 2.5, 9.0])
    together = maps.spectral_radius(maps.admm, 3, eta, rho)
    assert together.shape == (3, 2)
    for point in np.ndindex(3, 2):
        assert together[point] == maps.spectral_radius(maps.admm, 3, eta[point], rho[point])


def test_the_condition_is_exact_for_the_two_by_two_map() -> None:
    """10 000 random (η, α), inside and outside; both eigenvalues are real, so this is exact but for rounding."""
    rng = np.random.default_rng(1)
    eta, alpha = rng.uniform(-0.5, 2.5, 10_000), rng.uniform(-0.5, 1.5, 10_000)
    blocks = np.stack([np.stack([1 - eta - alpha, alpha], -1), np.stack([alpha, 1 - alpha], -1)], -2)
    radius = np.abs(np.linalg.eigvalsh(blocks)).max(axis=-1)
    holds = elastic.easgd_condition(eta, alpha)
    assert np.array_equal(holds, radius <= 1 + 1e-12)
    assert 0.2 < holds.mean() < 0.8


@pytest.mark.parametrize("workers", SIZES)
def test_the_synchronous_condition_is_exact(workers: int) -> None:
    """Of the mean and the centre by equations 5 and 6, and of how far workers are from their mean, x ← (1 − η − α)x."""
    rng = np.random.default_rng(workers)
    eta, alpha = rng.uniform(-0.5, 2.5, 10_000), rng.uniform(-0.5, 4.5, 10_000) / (workers + 1)
    beta = workers * alpha
    both = np.stack([np.stack([1 - eta - alpha, alpha], -1), np.stack([beta, 1 - beta], -1)], -2)
    radius = np.maximum(np.abs(np.linalg.eigvals(both)).max(axis=-1), np.abs(1 - eta - alpha) * (workers > 1))
    holds = elastic.easgd_condition(eta, alpha, workers)
    assert np.array_equal(holds, radius <= 1 + 1e-12)
    assert 0.1 < holds.mean() < 0.8


@pytest.mark.parametrize(
    ("algorithm", "warned"), [(elastic.Easgd, False), (elastic.EasgdSync, True), (elastic.EamsgdSync, True)]
)
def test_a_moving_rate_that_is_only_too_large_in_step_is_warned_of(
    algorithm: type[elastic.AttractingCentre], warned: bool
) -> None:
    """Two workers at α = 0.9, η = 0.1: one after another 0.974 is the limit, together 0.655."""
    assert bool(algorithm(alpha=0.9).warnings(0.1, 2)) == warned
    assert not algorithm(alpha=0.65).warnings(0.1, 2)


@pytest.mark.parametrize("workers", SIZES)
def test_the_condition_suffices_for_a_round(workers: int) -> None:
    rng = np.random.default_rng(workers)
    eta, share = rng.uniform(0, 2, 100), rng.uniform(0, 1, 100)
    share[:5], eta[5:8] = 1.0, 0.0  # on the edges too
    alpha = share * (4 - 2 * eta) / (4 - eta)
    assert maps.spectral_radius(maps.easgd, workers, eta, alpha).max() <= 1 + maps.ALLOWANCE


def test_the_condition_is_not_necessary_for_an_even_round() -> None:
    """p = 2, η = 0.8: α = 0.775 violates α ≤ 2.4/3.2 = 0.75, and F¹ alone diverges; F²F¹ contracts."""
    eta, alpha = np.float64(0.8), np.float64(0.775)
    assert not elastic.easgd_condition(eta, alpha)
    assert radius_of(maps.easgd(0, 2, eta, alpha)) > 1.04
    assert radius_of(composite(maps.easgd, 2, 0.8, 0.775)) < 0.98


@pytest.mark.parametrize("workers", [1, 3, 5, 9])
def test_the_condition_is_exact_for_an_odd_round(workers: int) -> None:
    """A turn's characteristic polynomial (m − 1 + α)(mᵖ − 1 + η + α) − α² is 4 − 2η − α(4 − η) at m = −1 when p is odd.

    Where that is negative there is a root below −1, as the polynomial is of even degree.
    """
    rng = np.random.default_rng(workers)
    eta, alpha = rng.uniform(0, 3, 1000), rng.uniform(0, 1.5, 1000)
    stable = maps.spectral_radius(maps.easgd, workers, eta, alpha) <= 1 + maps.ALLOWANCE
    assert np.array_equal(stable, elastic.easgd_condition(eta, alpha))


@pytest.mark.parametrize("workers", [3, 8])
def test_admm_is_unstable_where_the_paper_says(workers: int) -> None:
    """η = 0.001, ρ = 2.5: every worker's own map is stable, their round is not; EASGD with α = ηρ is stable."""
    eta = np.float64(0.001)
    for i in range(workers):
        assert radius_of(maps.admm(i, workers, eta, np.float64(2.5))) <= 1 + 1e-9
    assert maps.spectral_radius(maps.admm, workers, eta, np.float64(2.5)) > 1.0005
    assert maps.spectral_radius(maps.easgd, workers, eta, np.float64(0.0025)) < 1
    centre = np.abs(maps.centre_trajectory(maps.admm, workers, 0.001, 2.5, 60_000))
    assert centre[-3000:].max() > 100 * centre[:3000].max()


def test_the_first_turns_of_admm_by_hand() -> None:
    """p = 3, η = 0.001, ρ = 2.5: λ = 0, x¹ = (1000 − 1 + 2.5)/1.0025 = 999.0025, so x̃ moves by −0.9975/3."""
    centre = maps.centre_trajectory(maps.admm, 3, 0.001, 2.5, 2)
    assert [round(each, 2) for each in centre] == [1000.0, 999.67, 999.45]


def test_the_trajectory_is_that_of_the_rules() -> None:
    """Round-robin ADMM and EASGD, 3 workers, 40 turns, by the rules on vectors of one element."""
    eta, rho, p = 0.05, 2.5, 3
    x, lam, contribution = np.full((p, 1), 1000.0), np.zeros((p, 1)), np.full((p, 1), 1000.0)
    y, d, scratch = np.full((p, 1), 1000.0), np.empty(1), np.empty(1)
    centre, other = np.array([1000.0]), np.array([1000.0])
    by_admm, by_easgd = [1000.0], [1000.0]
    for t in range(40):
        i = t % p
        admm.dual_ascent(lam[i], x[i], centre, scratch)
        admm.step(x[i], -eta * x[i], lam[i], centre, scratch, eta=eta, rho=rho)
        admm.centre_move(d, contribution[i], x[i], lam[i], scratch, workers=p)
        elastic.move_centre(centre, d)
        by_admm.append(centre[0])
        elastic.elastic_difference(d, y[i], other, alpha=eta * rho)
        elastic.move_centre(other, d)
        g = y[i].copy()
        elastic.give_up(y[i], d)
        sgd.sgd(y[i], g, scratch, eta=eta)
        by_easgd.append(other[0])
    assert maps.centre_trajectory(maps.admm, p, eta, rho, 40) == pytest.approx(by_admm, rel=1e-10)
    assert maps.centre_trajectory(maps.easgd, p, eta, eta * rho, 40) == pytest.approx(by_easgd, rel=1e-10)


def test_a_trajectory_ends_before_it_overflows() -> None:
    centre = maps.centre_trajectory(maps.easgd, 1, 1.0, 50.0, 10_000)
    assert 100 < len(centre) < 1000 and np.isfinite(centre).all()


def test_easgd_is_eamsgd_without_momentum() -> None:
    for i in range(3):
        with_velocity = maps.eamsgd(i, 3, np.float64(0.1), np.float64(0.3), momentum=0.0)
        kept = [1, 3, 5, 6]  # x¹, x², x³ and x̃
        by_easgd = maps.easgd(i, 3, np.float64(0.1), np.float64(0.3))
        np.testing.assert_allclose(with_velocity[np.ix_(kept, kept)], by_easgd, rtol=1e-15)


def test_the_trajectory_of_eamsgd_is_that_of_the_rules() -> None:
    """Three workers, 40 turns, by the rules on vectors of one element."""
    eta, alpha, delta, p = 0.05, 0.2, 0.9, 3
    x, v, d, centre = np.full((p, 1), 1000.0), np.zeros((p, 1)), np.empty(1), np.array([1000.0])
    ahead, seen = np.empty(1), [1000.0]
    for t in range(40):
        i = t % p
        sgd.look_ahead(ahead, x[i], v[i], delta)
        elastic.elastic_difference(d, x[i], centre, alpha=alpha)
        elastic.move_centre(centre, d)
        elastic.give_up(x[i], d)
        v[i] = delta * v[i] - eta * ahead
        x[i] += v[i]
        seen.append(centre[0])
    method = maps.method_named("eamsgd", delta)
    assert maps.centre_trajectory(method, p, eta, alpha, 40) == pytest.approx(seen, rel=1e-10)


def command(line: str, capsys: pytest.CaptureFixture[str]) -> Any:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["stability", *line.split()])
    args.run(args)
    return json.loads(capsys.readouterr().out)


def test_command_about_one_setting(capsys: pytest.CaptureFixture[str]) -> None:
    answer = command("--method admm --workers 3 --eta 0.001 --rho 2.5 --simulate 3", capsys)
    assert answer["spectral_radius"] == pytest.approx(1.00097, abs=1e-5)
    assert answer["stable"] is False and answer["alpha"] == 0.0025 and "condition_holds" not in answer
    assert len(answer["centre"]) == 4 and answer["centre"][0] == 1000.0
    answer = command("--method easgd --workers 4 --eta 0.1 --alpha 0.2", capsys)
    assert answer["stable"] is True and answer["condition_holds"] is True
    assert answer["rho"] == pytest.approx(2.0) and "centre" not in answer
    answer = command("--method easgd --workers 2 --eta 0.8 --alpha 0.775", capsys)
    assert answer["stable"] is True and answer["condition_holds"] is False
    assert command("--method easgd --workers 4 --eta 0.1 --alpha 0", capsys)["stable"] is True


def test_command_writes_a_grid(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    answer = command(f"--method admm --workers 3 --grid 10 --out {path}", capsys)
    assert path.read_text().startswith("eta,rho,spectral_radius\n")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    assert table.shape == (100, 3)
    for eta, rho, radius in table[::7]:
        assert radius == pytest.approx(radius_of(composite(maps.admm, 3, eta, rho)), abs=1e-10)
    assert answer["unstable_share"] == (table[:, 2] > 1 + maps.ALLOWANCE).mean() > 0
    assert answer["largest"]["spectral_radius"] == table[:, 2].max()


def test_a_grid_on_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    path.write_text("old")
    program = (
        "import resource, sys; from mpitrain.__main__ import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)); sys.exit(main(sys.argv[1:]))"
    )
    asked = f"stability --method admm --workers 3 --grid 50 --out {path}".split()
    ended = subprocess.run([sys.executable, "-B", "-c", program, *asked], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (2, f"mpitrain: --out: {path}: File too large\n")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_command_tells_the_noise_of_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    noise = command("--method easgd --workers 4 --eta 0.1 --alpha 0.225", capsys)["noise"]
    assert noise["beta"] == pytest.approx(0.9)
    assert noise["single_worker_variance"] == pytest.approx(0.1 / 1.9)
    assert noise["centre_variance"] == pytest.approx(variance.synchronous(4, 0.1, 0.225).centre)
    assert command("--method easgd --workers 3 --eta 2.5 --alpha 0.1", capsys)["noise"]["centre_variance"] is None
    assert "noise" not in command("--method admm --workers 3 --eta 0.1 --rho 1", capsys)


def test_command_writes_a_grid_of_variances(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "variance.csv"
    smallest = command(f"--method eamsgd --workers 4 --grid 5 --variance --out {path}", capsys)["smallest"]
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    for eta, beta, value in table:
        assert value == variance.synchronous(4, eta, beta / 4, 0.9).centre
    assert smallest["centre_variance"] == table[:, 2].min()


@pytest.mark.parametrize("method", ["easgd", "admm", "eamsgd --variance"])
def test_command_draws_a_figure(method: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "grid.png"
    command(f"--method {method} --workers 3 --grid 12 --out {path}", capsys)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_figure_without_matplotlib_is_bad_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadInput, match=r"--out: .*matplotlib"):
        command(f"--method admm --workers 3 --grid 2 --out {tmp_path / 'grid.png'}", capsys)


@pytest.mark.parametrize(
    "options, named",
    [
        ("--workers 0 --eta 0.1 --alpha 0.1", "--workers"),
        ("--workers 200000 --eta 0.1 --alpha 0.1", "--workers"),
        ("--workers 3 --alpha 0.1", "--eta"),
        ("--workers 3 --eta 0 --alpha 0.1", "--eta"),
        ("--workers 3 --eta -1 --alpha 0.1", "--eta"),
        ("--workers 3 --eta nan --alpha 0.1", "--eta"),
        ("--workers 3 --eta 1e-320 --alpha 1e300", "--eta"),
        ("--workers 3 --eta 1e300 --rho 1e300", "--eta"),
        ("--workers 3 --eta 0.1 --alpha -0.1", "--alpha"),
        ("--workers 3 --eta 0.1 --alpha inf", "--alpha"),
        ("--workers 3 --eta 0.1 --rho -1", "--rho"),
        ("--workers 3 --eta 0.1", "--alpha, --rho"),
        ("--workers 3 --eta 0.1 --alpha 0.1 --rho 1", "--alpha, --rho"),
        ("--workers 3 --eta 0.1 --alpha 0.1 --simulate 0", "--simulate"),
        ("--workers 3 --eta 0.1 --alpha 0.1 --out a.csv", "--out"),
        ("--workers 3 --grid 1 --out a.csv", "--grid"),
        ("--workers 3 --grid 200000 --out a.csv", "--grid"),
        ("--workers 3 --grid 4", "--out"),
        ("--workers 3 --grid 4 --out a.jpg", "--out"),
        ("--workers 3 --grid 4 --out /proc/nowhere/a.csv", "--out"),
        ("--workers 3 --grid 4 --eta 0.1 --out a.csv", "--eta"),
        ("--workers 3 --eta 0.1 --alpha 0.1 --momentum 0.9", "--momentum"),
        ("--workers 3 --eta 0.1 --alpha 0.1 --method eamsgd --momentum 1", "--momentum"),
        ("--workers 3 --eta 0.1 --alpha 0.1 --variance", "--variance"),
    ],
)
def test_bad_values_name_the_option(options: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadInput, match=f"^{named}: "):
        command(f"--method easgd {options}", capsys)
