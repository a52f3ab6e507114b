"""Tokens of text: samples are windows, one after the other, across documents; each token's target is the next one."""

import numpy as np

from mpitrain.data.kinds import InputKind, Reading
from mpitrain.data.reader import ShardFile
from mpitrain.data.rows import Rows
from mpitrain.data.validation import Attributes
from mpitrain.errors import BadInput
from mpitrain.flat import Array
from mpitrain.sampling.batch import Batch, Place, SampleForm


class Tokens(InputKind):
    """Windows of tokens [window], whose targets are the tokens that follow."""

    def __init__(self, files: list[ShardFile], attributes: Attributes, reading: Reading) -> None:
        reading.augmentation.refuse(files[0].kind)
        tokens, path, window = sum(file.inputs[0] for file in files), files[0].path.parent, reading.window
        if any(reading.context):
            context = list(reading.context)
            raise BadInput(f"data.context = {context}: tokens have no frames; data.window is their number")
        if reading.normalise not in ("corpus", "none"):
            raise BadInput(f"data.normalise = {reading.normalise}: tokens are not normalised")
        if not window:
            raise BadInput(f"data.window: {path} holds tokens; say how many of them a sample has")
        if tokens <= window:
            part = f"part {reading.part} of {path}"
            raise BadInput(f"data.window = {window}: {part} has {tokens:,} tokens; one more is needed")
        self.samples = (tokens - 1) // window
        told = [file.small.get("bytes", np.zeros(1)) for file in files]
        nbytes = sum(int(own.sum()) for own in told) if all(own.any() for own in told) else 0
        self.form = SampleForm((window,), (window,), np.int32, nbytes / tokens)

    def gather(self, rows: Rows, indices: Array, out: Batch, place: Place) -> None:
        window = self.form.shape[0]
        for base, tokens, starts, places in rows.spans(indices * window, (0, window)):
            gather_tokens(tokens, base, starts, places, out.inputs, out.targets)


def gather_tokens(rows: Array, base: int, starts: Array, places: Array, inputs: Array, targets: Array) -> None:
    """inputs[places[k]] = the tokens from starts[k] on, and targets[places[k]] those from starts[k] + 1 on.

    `rows` [m] begins at token `base` of the corpus; `inputs` and `targets` [n, window].
    """
    window = inputs.shape[1]
    for start, place in zip(starts - base, places, strict=True):
        inputs[place] = rows[start : start + window]
        targets[place] = rows[start + 1 : start + window + 1]
