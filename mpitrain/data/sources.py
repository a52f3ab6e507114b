"""The command line of the importers: `prepare cifar10 | cifar100 | mnist | images | arrays SOURCE DIR`."""

import argparse
from collections.abc import Callable
from pathlib import Path

from mpitrain.data import arrays, cifar, mnist, picture_folders
from mpitrain.data.plan import CorpusPlan
from mpitrain.data.validation import CLASSES
from mpitrain.errors import BadInput
from mpitrain.start import Subparsers


def add_sources(sources: Subparsers) -> None:
    """Add the importers of images and arrays to `prepare`."""
    for name in ("cifar10", "cifar100"):
        parser = sources.add_parser(name, help=f"CIFAR-{name[5:]}: the python or the binary archive")
        parser.add_argument(
            "source", type=Path, metavar="SOURCE", help="the tar.gz, or the folder into which it was unpacked"
        )
        if name == "cifar100":
            parser.add_argument("--labels", choices=("fine", "coarse"), default="fine", help="100 or 20; default: fine")
        parser.set_defaults(name=name)
        add_common(parser, _cifar)
    parser = sources.add_parser("mnist", help="MNIST, Fashion-MNIST and others in their format: IDX files")
    parser.add_argument("source", type=Path, metavar="SOURCE", help="the folder with the four files, gzipped or not")
    parser.add_argument("--classes", type=int, default=10, help="number of classes; default: 10")
    add_common(parser, _mnist)
    _add_images(sources)
    _add_arrays(sources)


def _add_images(sources: Subparsers) -> None:
    images = sources.add_parser("images", help="images in one folder per class")
    images.add_argument("source", type=Path, metavar="SOURCE", help="CLASS/..., or train/CLASS/..., val/..., test/...")
    images.add_argument(
        "--size",
        type=int,
        default=0,
        metavar="N",
        help="resize the shorter side to N pixels and crop the central N x N",
    )
    images.add_argument("--grey", action="store_true", help="one channel instead of three")
    images.add_argument(
        "--dev", type=float, default=0.0, metavar="SHARE", help="fraction of each class to hold out as dev; default: 0"
    )
    images.add_argument("--test", type=float, default=0.0, metavar="SHARE", help="the same for test; default: 0")
    images.add_argument("--seed", type=int, default=1, help="seed of the split and the order; default: 1")
    add_common(images, _images)


def _add_arrays(sources: Subparsers) -> None:
    parser = sources.add_parser(
        "arrays",
        help="arrays of an npz archive or an HDF5 file",
        description="In SOURCE and in the names of arrays, {part} stands for each part's name.",
    )
    parser.add_argument("source", metavar="SOURCE", help="the file, or {part}.npz and the like")
    inputs = parser.add_mutually_exclusive_group(required=True)
    inputs.add_argument("--images", metavar="NAME", help="uint8 [n, h, w] or [n, h, w, channels]")
    inputs.add_argument("--features", metavar="NAME", help="numbers [frames, dims]")
    parser.add_argument("--targets", metavar="NAME", default="targets", help="class of each sample; default: targets")
    utterances = parser.add_mutually_exclusive_group()
    utterances.add_argument(
        "--utterances", metavar="NAME", default="", help="offsets at which utterances begin, and their end"
    )
    utterances.add_argument("--lengths", metavar="NAME", default="", help="frames of each utterance")
    parser.add_argument("--speakers", metavar="NAME", default="", help="name or number of each utterance's speaker")
    parser.add_argument("--parts", default="train", help="the splits, such as train,dev,test; default: train")
    parser.add_argument("--classes", type=int, help="number of classes; default: the largest target plus one")
    parser.add_argument("--channels-first", action="store_true", help="images are [n, channels, h, w]")
    add_common(parser, _arrays)


def add_common(parser: argparse.ArgumentParser, planning: Callable[[argparse.Namespace], CorpusPlan]) -> None:
    """Add the arguments that all importers share, after their own: the folder and the number of processes."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder for the shards")
    parser.add_argument(
        "--jobs", type=int, help="number of processes; default: the rank's share of the cores it may use"
    )
    parser.set_defaults(run="mpitrain.data.importing:run", planning=planning)


def require_least(options: argparse.Namespace, **least: int) -> None:
    """Raise BadInput naming an option that is smaller than this, or --classes if a corpus may not have so many."""
    for name, value in least.items():
        given = getattr(options, name)
        if given is not None and given < value:
            raise BadInput(f"--{name} {given}: at least {value}")
    if getattr(options, "classes", None) is not None and not 1 <= options.classes <= CLASSES:
        raise BadInput(f"--classes {options.classes}: at least 1, at most {CLASSES:,}")


def _cifar(options: argparse.Namespace) -> CorpusPlan:
    coarse = getattr(options, "labels", "") == "coarse"
    return cifar.plan(options.source, options.name + ("-coarse" if coarse else ""))


def _mnist(options: argparse.Namespace) -> CorpusPlan:
    require_least(options, classes=1)
    return mnist.plan(options.source, options.classes)


def _images(options: argparse.Namespace) -> CorpusPlan:
    require_least(options, size=0, seed=0)
    look = picture_folders.Look(options.size, options.grey)
    return picture_folders.plan(options.source, look, picture_folders.Split(options.dev, options.test, options.seed))


def _arrays(options: argparse.Namespace) -> CorpusPlan:
    require_least(options, classes=1)
    kind = "images" if options.images else "frames"
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
