"""The command line of `simulate` and `calibrate`."""

from pathlib import Path

from mpitrain.cli.arguments import add_training_arguments
from mpitrain.start import Subparsers


def add_parsers(commands: Subparsers) -> None:
    """Add both commands."""
    _add_simulate(commands)
    _add_calibrate(commands)


def _add_simulate(commands: Subparsers) -> None:
    parser = commands.add_parser("simulate", help="train on a cluster that a file describes, in virtual time")
    add_training_arguments(parser)
    what = "the cluster: a file, or a paper's name, such as strom2015: docs/simulate.md"
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--cluster", metavar="FILE", help=what)
    again = "a run of run.record_order = true: repeat its training to the bit, event by event"
    where.add_argument("--replay", type=Path, metavar="RUN", help=again)
    parser.add_argument("--trace", action="store_true", help="also write trace.json: --set run.trace=true")
    alone = "neither data nor gradients, for time and traffic alone"
    parser.add_argument("--phantom", action="store_true", help=alone)
    entries = "entries that a phantom of sparse-delta sends per weight and minibatch; default: its target_density"
    parser.add_argument("--density", type=float, metavar="D", help=entries)
    parser.add_argument("--ranks", type=int, metavar="N", help="how many; default: as many as the cluster has room for")
    parser.set_defaults(run="mpitrain.simulation.command:run")


def _add_calibrate(commands: Subparsers) -> None:
    parser = commands.add_parser("calibrate", help="measure this machine's file for simulate, under mpirun")
    parser.add_argument("cluster", type=Path, metavar="FILE", help="the file to write, such as cluster.toml")
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="default: the embedded digits")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key, as a.b=value")
    parser.set_defaults(run="mpitrain.simulation.calibrate:calibrate")
