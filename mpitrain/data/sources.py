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
    _add_images(sources)
    _add_arrays(sources)


def _add_images(sources: Subparsers) -> None:
    images = sources.add_parser("images", help="pictures in a folder for each class")
    images.add_argument("source", type=Path, metavar="SOURCE", help="CLASS/..., or train/CLASS/..., val/..., test/...")
    images.add_argument(
        "--size", type=int, default=0, metavar="N", help="the shorter side to N pixels, and the middle N x N of that"
    )
    images.add_argument("--grey", action="store_true", help="one channel instead of three")
    images.add_argument("--dev", type=float, default=0.0, metavar="SHARE", help="of each class to hold out; default: 0")
    images.add_argument("--test", type=float, default=0.0, metavar="SHARE", help="of each class; default: 0")
    images.add_argument("--seed", type=int, default=1, help="of the split and the order; default: 1")
    add_common(images, _images)


def _add_arrays(sources: Subparsers) -> None:
    arrays = sources.add_parser(
        "arrays",
        help="arrays of an npz archive or an HDF5 file",
        description="In SOURCE and in the names of arrays, {part} stands for each part's name.",
    )
    arrays.add_argument("source", metavar="SOURCE", help="the file, or {part}.npz and the like")
    inputs = arrays.add_mutually_exclusive_group(required=True)
    inputs.add_argument("--images", metavar="NAME", help="uint8 [n, h, w] or [n, h, w, channels]")
    inputs.add_argument("--features", metavar="NAME", help="numbers [frames, dims]")
    arrays.add_argument("--targets", metavar="NAME", default="targets", help="class of each sample; default: targets")
    utterances = arrays.add_mutually_exclusive_group()
    utterances.add_argument(
        "--utterances", metavar="NAME", default="", help="offsets where utterances begin, and the end"
    )
    utterances.add_argument("--lengths", metavar="NAME", default="", help="frames of each utterance")
    arrays.add_argument("--speakers", metavar="NAME", default="", help="name or number of each utterance's speaker")
    arrays.add_argument("--parts", default="train", help="such as train,dev,test; default: train")
    arrays.add_argument("--classes", type=int, help="default: the greatest target and one")
    arrays.add_argument("--channels-first", action="store_true", help="images are [n, channels, h, w]")
    add_common(arrays, _arrays)


def add_common(parser: argparse.ArgumentParser, planning: Callable[[argparse.Namespace], Plan]) -> None:
    """Add the arguments that all importers share, after their own: the folder and the number of processes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the shards go")
    parser.add_argument("--jobs", type=int, help="processes; default: one a core, divided by the ranks of a node")
    parser.set_defaults(run=run_import, planning=planning)


def check_jobs(options: argparse.Namespace) -> None:
    """Raise BadInput naming --jobs if it is invalid."""
    if options.jobs is not None and options.jobs < 1:
        raise BadInput(f"--jobs {options.jobs}: at least 1")


def check_classes(options: argparse.Namespace) -> None:
    """Raise BadInput naming --classes if it is more than a corpus may have."""
    from mpitrain.data.validation import CLASSES

    if options.classes is not None and not 1 <= options.classes <= CLASSES:
        raise BadInput(f"--classes {options.classes}: at least 1, at most {CLASSES:,}")


def run_import(options: argparse.Namespace) -> int:
    """Import on all ranks; return the exit status."""
    check_jobs(options)
    from mpitrain.data.importing import Importing
    from mpitrain.mpi import Transport, abort_on_exception
    from mpitrain.mpi.agreement import ending_together
    from mpitrain.signals import Stop

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

    check_classes(options)
    return mnist.plan(options.source, options.classes)


def _images(options: argparse.Namespace) -> Plan:
    from mpitrain.data import picture_folders

    for name in ("size", "seed"):
        if getattr(options, name) < 0:
            raise BadInput(f"--{name} {getattr(options, name)}: at least 0")
    look = picture_folders.Look(options.size, options.grey)
    return picture_folders.plan(options.source, look, picture_folders.Split(options.dev, options.test, options.seed))


def _arrays(options: argparse.Namespace) -> Plan:
    from mpitrain.data import arrays

    kind = "images" if options.images else "frames"
    check_classes(options)
    if options.channels_first and kind == "frames":
        raise BadInput("--channels-first: features have no channels")
    said = [name for name in ("utterances", "lengths", "speakers") if getattr(options, name)]
    if said and kind == "images":
        raise BadInput(f"--{said[0]}: images have none")
    names = arrays.Names(
        kind,
        options.images or options.features,
        options.targets,
        options.utterances,
        options.lengths,
        options.speakers,
        options.channels_first,
    )
    return arrays.plan(options.source, names, options.parts.split(","), options.classes)
