"""`python -m mpitrain stability`: print one JSON object about one setting or about a grid of settings."""

import argparse
import json
from contextlib import suppress
from math import isfinite
from pathlib import Path

import numpy as np

from mpitrain.algorithms import elastic
from mpitrain.algorithms.stability import grid, maps, variance
from mpitrain.errors import BadInput, naming
from mpitrain.files import Record, replacing
from mpitrain.start import Subparsers, option

METHODS = ("easgd", "eamsgd", "admm")
MOST = 1000  # workers, which are 2001 rows of a matrix and half a minute; points of a grid along each axis


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand; `args.run` is then `run`."""
    what = "stability and noise of EASGD, EAMSGD and ADMM at a setting (on x²/2; needs no data)"
    parser = subparsers.add_parser("stability", help=what)
    option(parser, "--method", "whose stability", choices=METHODS, required=True)
    option(parser, "--workers P", "number of workers", int, required=True)
    option(parser, "--eta E", "learning rate, in units of 1/curvature", float)
    option(parser, "--alpha A", "moving rate α = ηρ = β/p; this or --rho", float)
    option(parser, "--rho R", "penalty ρ; this or --alpha", float)
    option(parser, "--momentum D", "δ of eamsgd (0.9)", float)
    option(parser, "--simulate T", "add the centre at times 0 … T, from 1000", int)
    option(parser, "--grid N", "N × N points of η in (0, 0.01), ρ in (0, 10)", int)
    option(parser, "--variance", "with --grid: the centre's variance over η and β in (0, 1) instead")
    option(parser, "--out FILE", "where --grid goes: .png or .csv", Path)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the JSON object. Raises BadInput naming the option."""
    if not 1 <= args.workers <= MOST:
        raise BadInput(f"--workers: 1 to {MOST}, not {args.workers}")
    if args.momentum is None:
        args.momentum = 0.9 if args.method == "eamsgd" else 0.0
    elif args.method != "eamsgd":
        raise BadInput(f"--momentum: {args.method} has none; it is eamsgd's")
    if not 0 <= args.momentum < 1:
        raise BadInput(f"--momentum: must be in [0, 1), not {args.momentum}")
    if args.variance and (args.grid is None or args.method == "admm"):
        raise BadInput("--variance: draws a --grid for easgd or eamsgd")
    answer = _point(args) if args.grid is None else _grid(args)
    print(json.dumps({"method": args.method, "workers": args.workers, **answer}))


def _point(args: argparse.Namespace) -> Record:
    if args.out is not None:
        raise BadInput("--out: only --grid writes a file")
    eta = _number("--eta", args.eta)
    if eta <= 0:
        raise BadInput(f"--eta: must be positive, not {eta}")
    alpha, rho = _strength(args, eta)
    method = maps.method_named(args.method, args.momentum)
    strength, radius = rho if args.method == "admm" else alpha, float("inf")
    with np.errstate(over="ignore", invalid="ignore"), suppress(np.linalg.LinAlgError):
        radius = float(maps.spectral_radius(method, args.workers, np.float64(eta), np.float64(strength)))
    if not isfinite(radius):
        raise BadInput(f"--eta: with {eta} and this --alpha or --rho the spectral radius overflows")
    answer: Record = {"eta": eta, "alpha": alpha, "rho": rho, "spectral_radius": radius}
    answer["stable"] = radius <= 1 + maps.ALLOWANCE
    if args.method == "easgd":
        answer["condition_holds"] = bool(elastic.easgd_condition(np.float64(eta), np.float64(alpha)))
    if args.method != "admm":
        answer["noise"] = _noise(args, eta, alpha)
    if args.simulate is not None:
        if args.simulate < 1:
            raise BadInput(f"--simulate: at least 1, not {args.simulate}")
        answer["centre"] = maps.centre_trajectory(method, args.workers, eta, strength, args.simulate)
    return answer


def _noise(args: argparse.Namespace, eta: float, alpha: float) -> dict[str, float | None]:
    """Stationary variances of the centre, of the workers' mean and of one worker by itself, in units of the
    gradient's variance; None where there is none."""
    setting = (args.workers, eta, alpha, args.momentum)
    together, in_turn = variance.synchronous(*setting), variance.round_robin(*setting)
    figures = {
        "beta": args.workers * alpha,
        "centre_variance": together.centre,
        "mean_variance": together.mean,
        "centre_variance_round_robin": in_turn.centre,
        "mean_variance_round_robin": in_turn.mean,
        "single_worker_variance": variance.single(eta, args.momentum),
    }
    return {name: figure if isfinite(figure) else None for name, figure in figures.items()}


def _grid(args: argparse.Namespace) -> Record:
    for name in ("eta", "alpha", "rho", "simulate"):
        if getattr(args, name) is not None:
            raise BadInput(f"--{name}: --grid covers all η and ρ, leave it out")
    if not 2 <= args.grid <= MOST:
        raise BadInput(f"--grid: 2 to {MOST}, not {args.grid}")
    if args.out is None:
        raise BadInput("--out: --grid needs a file to write, .png or .csv")
    if args.out.suffix not in grid.SUFFIXES:
        raise BadInput(f"--out: {args.out} ends neither in .csv nor in .png")
    if args.variance:
        points = grid.variances(args.workers, args.grid, args.momentum)
        found: Record = {"smallest": points.point(points.value.argmin())}
    else:
        points = grid.sweep(args.method, args.workers, args.grid, args.momentum)
        unstable = float((points.value > 1 + maps.ALLOWANCE).mean())
        found = {"unstable_share": unstable, "largest": points.point(points.value.argmax())}
    with naming(f"--out: {args.out}"), replacing(args.out) as [temporary]:
        grid.write(temporary, points, args.method, args.workers)
    return {"out": str(args.out), **found}


def _number(option: str, value: float | None) -> float:
    if value is None:
        raise BadInput(f"{option}: required without --grid")
    if not isfinite(value):
        raise BadInput(f"{option}: must be finite, not {value}")
    return value


def _strength(args: argparse.Namespace, eta: float) -> tuple[float, float]:
    """(α, ρ) from whichever is given."""
    if (args.alpha is None) == (args.rho is None):
        raise BadInput("--alpha, --rho: give one of the two")
    option, value = ("--alpha", args.alpha) if args.rho is None else ("--rho", args.rho)
    if _number(option, value) < 0:
        raise BadInput(f"{option}: must not be negative, not {value}")
    return (value, value / eta) if args.rho is None else (eta * value, value)
