"""`predict RUN DATA OUT`: write the outputs of a trained network for all samples of a part, for other programs.

Ranks compute pieces of rows in turn, and rank 0 receives them in order and writes: piece k is computed by rank
k mod size. While rank 0 writes, a rank whose piece was received computes its next one, but no more, so that memory is
bounded. Only rank 0 needs access to the output file.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from mpitrain.data.corpus import Corpus
from mpitrain.data.shards import class_names, folder_parts
from mpitrain.errors import BadInput, printable
from mpitrain.flat import Array, blocks
from mpitrain.monitoring.evaluation import TOGETHER
from mpitrain.mpi import Transport
from mpitrain.mpi.agreement import agreed, by_all_ranks
from mpitrain.mpi.tags import Tag
from mpitrain.trained.model import TrainedModel, opened
from mpitrain.trained.posteriors import Compute, computing, priors_of
from mpitrain.trained.writers import Content, open_writer, require_known
from mpitrain.training.parts import held_out


def predict(options: argparse.Namespace) -> int:
    """Predict and return the exit status. Collective: the samples are divided over the ranks, and rank 0 writes."""
    return by_all_ranks(lambda transport: _predict(transport, options))


def _predict(transport: Transport, options: argparse.Namespace) -> int:
    def prepare(model: TrainedModel) -> tuple[Corpus, Array | None]:
        model.require_rows("predict")
        shards = model.shards(options.data)
        _require_apart(options.out, shards.path)
        part = options.part or next(iter(held_out(shards.parts())), "train")
        corpus = model.open(options.data, part, memory_limit=0)  # read once, sequentially
        return corpus, priors_of(model, options)

    agreed(transport, lambda: require_known(options.out), "the file to write")
    with opened(transport, options, prepare) as (model, (corpus, priors)):
        compute, classes = computing(model, corpus, options.output, priors), corpus.classes

        def numbers(part: slice) -> Array:
            rows = compute(part)
            if (found := np.isnan(rows).any(axis=1)).any():
                where = f"sample {part.start + found.argmax()} of part {corpus.part}"
                raise BadInput(f"{model.checkpoint}: has no finite outputs for {where}")
            return rows

        parts = list(blocks(corpus.samples, TOGETHER))
        rows = in_order(transport, parts, classes, numbers)
        if transport.rank == 0:
            with open_writer(options.out, content(model, corpus, options)) as write:
                for piece in rows:
                    write(piece)
            print(f"{options.out}: {options.output} of {corpus.samples:,} samples of part {corpus.part}")
        else:
            list(rows)  # sends this rank's rows; the iterator yields none here
    transport.barrier("the end")
    return 0


def _require_apart(out: Path, folder: Path) -> None:
    """Raise BadInput if the file to write is a shard of the folder that is read."""
    shards = {path.name for paths in folder_parts(folder).values() for path in paths}
    if out.name in shards and out.exists() and out.samefile(folder / out.name):
        raise BadInput(f"{out}: is a shard of the data that are read")


def content(model: TrainedModel, corpus: Corpus, options: argparse.Namespace) -> Content:
    """The content of the file in addition to the rows."""
    offsets = np.arange(corpus.samples + 1) if corpus.utterances is None else corpus.utterances
    # utterances without names get numbers of equal length, which sort as text
    keys = corpus.keys or [f"{corpus.part}-{number:07d}" for number in range(len(offsets) - 1)]
    data = printable(str(Path(options.data)))
    about = {**model.described(), "data": data, "part": corpus.part, "output": options.output}
    names = model.origin.class_names or class_names(corpus.attributes)
    kind, offsets = options.output.replace("-", "_"), offsets.astype(np.int64)
    return Content(kind, corpus.classes, corpus.targets, offsets, keys, about, names)


def in_order(transport: Transport, parts: list[slice], classes: int, compute: Compute) -> Iterator[Array]:
    """Yield all rows in order on rank 0, and none on the others. Raises BadInput on all ranks if a rank cannot compute
    its rows. Collective."""
    for start in range(0, len(parts), transport.size):
        together = parts[start : start + transport.size]
        own = map(compute, together[transport.rank : transport.rank + 1])
        mine: list[Array] = agreed(transport, partial(list, own), "the predictions")
        if transport.rank:
            for rows in mine:
                transport.wait(transport.send(0, Tag.ROWS, rows), "the first rank to take predictions")
            continue
        yield from mine
        for rank, part in enumerate(together[1:], 1):
            rows = np.empty((part.stop - part.start, classes), np.float32)
            transport.receive_into(rank, Tag.ROWS, rows, f"the predictions of rank {rank}")
            yield rows
