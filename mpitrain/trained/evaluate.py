"""`evaluate RUN [DATA]`: loss and error of a trained network on held-out parts, with the code that training uses."""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from mpitrain.data.corpus import Corpus
from mpitrain.errors import BadInput, printable
from mpitrain.models import torch_start
from mpitrain.monitoring.evaluation import Evaluation, share_of
from mpitrain.mpi import Transport, abort_on_exception
from mpitrain.mpi.agreement import agreed, ending_together
from mpitrain.trained.model import TrainedModel, built, find_together
from mpitrain.training import inputs


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate and return the exit status. Collective: the samples are divided over the ranks."""
    abort_on_exception()
    transport = Transport()
    return ending_together(transport, lambda: _evaluate(transport, options))


def _evaluate(transport: Transport, options: argparse.Namespace) -> int:
    def prepare() -> tuple[TrainedModel, dict[str, Corpus]]:
        model = built(stored, code)
        return model, open_parts(model, options.data, options.part)

    stored, code = find_together(transport, options)
    model, corpora = agreed(transport, prepare, "the run and the data")
    transport.deadline = model.config.run.deadline
    shares = {part: share_of(corpus, transport.rank, transport.size) for part, corpus in corpora.items()}
    torch_start.limit_threads(transport.threads(model.config.run.threads))
    with threadpool_limits(transport.threads(model.config.run.threads)):
        evaluation = Evaluation(
            model.network,
            shares,
            model.parameters.dtype,
            time.monotonic,
            slices=False,
            total=lambda sums: transport.sum(sums, "the evaluation"),
        )
        results = evaluation.run(model.parameters)
    if transport.rank == 0:
        samples = {part: corpus.samples for part, corpus in corpora.items()}
        data = printable(str(options.data or model.config.data.path or "embedded digits"))
        if options.json:
            print(json.dumps({**model.described(), "data": data, "samples": samples, **results}))
        else:
            _print(model, data, samples, results)
    transport.barrier("the end")
    return 0


def open_parts(model: TrainedModel, path: Path | None, names: list[str] | None) -> dict[str, Corpus]:
    """The named parts, or all held-out ones. Raises BadInput naming a folder without any."""
    folder = model.folder(path)
    wanted = names or inputs.held_out(folder)
    if not wanted:
        raise BadInput(f"{folder}: has no held-out part; --part train evaluates what it has")
    return {part: model.open(folder, part) for part in wanted}


def _print(model: TrainedModel, data: str, samples: dict[str, int], results: dict[str, float]) -> None:
    epochs = model.samples / inputs.epoch_of(model.config, model.origin)
    print(f"{printable(str(model.run))}, checkpoint {model.checkpoint.name} (epoch {epochs:.2f}), on {data}")
    table = Table("part", box=None, pad_edge=False)
    of_text = any(name.endswith("_bits_per_byte") for name in results)
    for heading in ("samples", "loss", "error", *(["bits a byte"] if of_text else [])):
        table.add_column(heading, justify="right")
    for part, count in samples.items():
        key = part.replace("-", "_")
        bits = [f"{results[name]:.4f}"] if (name := f"{key}_bits_per_byte") in results else []
        table.add_row(part, f"{count:,}", f"{results[f'{key}_loss']:.4f}", f"{results[f'{key}_error']:.2%}", *bits)
    Console(highlight=False).print(table)
