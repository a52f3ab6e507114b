"""The command line of the importers: `prepare cifar10 | cifar100 | mnist | images | arrays SOURCE DIR`."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpitrain.data.plan import Plan
from mpitrain.errors import BadInput

Subparsers = Any  # argparse keeps the type of add_subparsers() to itself


def add_sources(sources: Subparsers) -> None:
    """Add the importers of images and arrays to `prepare`."""
    for name in ("cifar10", "cifar100"):
        cifar = sources.add_parser(name, help=f"CIFAR-{name[5:]}: the python or the binary archive")
        cifar.add_argument("source", type=Path, metavar="SOURCE", help="the tar.gz, or the folder it was unpacked into")
        if name == "cifar100":
            cifar.add_argument("--labels", choices=("fine", "coarse"), default="fine", help="100 or 20; default: fine")
        cifar.set_defaults(name=name)
        add_common(cifar, _cifar)
    mnist = sources.add_parser("mnist", help="MNIST, Fashion-MNIST and others of their form: IDX files")
    mnist.add_argument("source", type=Path, metavar="SOURCE", help="the folder of the four files, gzipped or not")
    mnist.add_argument("--classes", type=int, default=10, help="default: 10")
    add_common(mnist, _mnist)


def add_common(parser: argparse.ArgumentParser, planning: Callable[[argparse.Namespace], Plan]) -> None:
    """What all importers have, to be added after their own: the folder, and how many processes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the shards go")
    parser.add_argument("--jobs", type=int, help="processes; default: one a core, divided by the ranks of a node")
    parser.set_defaults(run=run_import, planning=planning)


def run_import(options: argparse.Namespace) -> int:
    """Import in all ranks; the exit status."""
    if options.jobs is not None and options.jobs < 1:
        raise BadInput(f"--jobs {options.jobs}: at least 1")
    from mpitrain.agreement import ending_together
    from mpitrain.data.importing import Importing
    from mpitrain.mpi import Transport, abort_on_exception
    from mpitrain.session import Stop

    abort_on_exception()
    stop = Stop()
    stop.install()
    transport = Transport()
    importing = Importing(transport, options.folder, options.jobs, stop)
    return ending_together(transport, lambda: importing.run(lambda: options.planning(options)))


def _cifar(options: argparse.Namespace) -> Plan:
    from mpitrain.data import cifar

    coarse = getattr(options, "labels", "") == "coarse"
    return cifar.plan(options.source, options.name + ("-coarse" if coarse else ""))


def _mnist(options: argparse.Namespace) -> Plan:
    from mpitrain.data import mnist

    return mnist.plan(options.source, options.classes)
