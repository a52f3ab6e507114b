"""`predict RUN DATA OUT`: write the outputs of a trained network for all samples of a part, for other programs.

Ranks compute pieces of rows in turn, and rank 0 receives them in order and writes: piece k is computed by rank
k mod size. A rank computes its next piece while the previous one waits to be received, but no more, so that memory is
bounded. Only rank 0 needs access to the output file.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mpitrain.data.corpus import Corpus
from mpitrain.data.shards import class_names
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

HEAD = 1024  # bytes before the rows: empty, or an error message


def predict(options: argparse.Namespace) -> int:
    """Predict and return the exit status. Collective: the samples are divided over the ranks, and rank 0 writes."""
    return by_all_ranks(lambda transport: _predict(transport, options))


def _predict(transport: Transport, options: argparse.Namespace) -> int:
    def prepare(model: TrainedModel) -> tuple[Corpus, Array | None]:
        model.require_rows("predict")
        part = options.part or next(iter(held_out(model.shards(options.data).parts())), "train")
        corpus = model.open(options.data, part, memory_limit=0)  # read once, sequentially
        return corpus, priors_of(model, options)

    agreed(transport, lambda: require_known(options.out), "the file to write")
    with opened(transport, options, prepare) as (model, (corpus, priors)):
        compute, classes = computing(model, corpus, options.output, priors), corpus.classes
        parts = list(blocks(corpus.samples, TOGETHER))
        if transport.rank == 0:
            with open_writer(options.out, content(model, corpus, options)) as write:
                for rows in lead(transport, parts, classes, compute):
                    write(rows)
            print(f"{options.out}: {options.output} of {corpus.samples:,} samples of part {corpus.part}")
        else:
            follow(transport, parts, classes, compute)
    transport.barrier("the end")
    return 0


def content(model: TrainedModel, corpus: Corpus, options: argparse.Namespace) -> Content:
    """The content of the file in addition to the rows."""
    offsets = np.arange(corpus.samples + 1) if corpus.utterances is None else corpus.utterances
    # unnamed utterances by their numbers, in alphabetical order
    keys = corpus.keys or [f"{corpus.part}-{number:07d}" for number in range(len(offsets) - 1)]
    data = printable(str(Path(options.data)))
    about = {**model.described(), "data": data, "part": corpus.part, "output": options.output}
    names = model.origin.class_names or class_names(corpus.attributes)
    kind, offsets = options.output.replace("-", "_"), offsets.astype(np.int64)
    return Content(kind, corpus.classes, corpus.targets, offsets, keys, about, names)


def lead(transport: Transport, parts: list[slice], classes: int, compute: Compute) -> Iterator[Array]:
    """Yield all rows in order. Rank 0 calls this. Raises BadInput for a fault on another rank."""
    longest = max(part.stop - part.start for part in parts)
    room = np.empty(HEAD + 4 * longest * classes, np.uint8)
    for number, part in enumerate(parts):
        rank = number % transport.size
        if rank == 0:
            yield compute(part)
            continue
        message = room[: HEAD + 4 * (part.stop - part.start) * classes]
        transport.receive_into(rank, Tag.ROWS, message, f"the predictions of rank {rank}")
        if fault := bytes(message[:HEAD]).rstrip(b"\0"):
            raise BadInput(fault.decode(errors="replace"))
        yield message[HEAD:].view(np.float32).reshape(-1, classes)


def follow(transport: Transport, parts: list[slice], classes: int, compute: Compute) -> None:
    """Compute this rank's pieces and send them. The other ranks call this. A fault is sent to rank 0, which ends the
    job."""
    own = parts[transport.rank :: transport.size]
    longest = max((part.stop - part.start for part in own), default=0)
    rooms = [np.empty(HEAD + 4 * longest * classes, np.uint8) for _ in range(2)]
    before = None
    for number, part in enumerate(own):
        message, fault = rooms[number % 2][: HEAD + 4 * (part.stop - part.start) * classes], b""
        try:
            message[HEAD:].view(np.float32).reshape(-1, classes)[:] = compute(part)
        except BadInput as error:
            fault = str(error).encode()[:HEAD]
        message[:HEAD] = np.frombuffer(fault.ljust(HEAD, b"\0"), np.uint8)
        if before is not None:
            transport.wait(before, "the first rank to take predictions")
        before = transport.send_matched(0, Tag.ROWS, message)
        if fault:
            break
    if before is not None:
        transport.wait(before, "the first rank to take predictions")
