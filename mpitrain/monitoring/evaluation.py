"""Loss and error on held-out data, in slices short enough that a server can answer between them. If a model normalises
by statistics, those of the evaluated parameters are measured first."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log, log2, prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from mpitrain.device.cpu import CPU, Cpu
from mpitrain.flat import Array, on_host, share
from mpitrain.models.model import Model
from mpitrain.sampling.batch import Batch, Place, SampleForm, Samples
from mpitrain.sampling.rng import stream

Value = TypeVar("Value", float, Array)
Results = dict[str, Any]  #: of an evaluation: numbers by name, and the name of the figure of merit unless it is "error"
SLICE = 4e-3  # target duration of a slice in seconds
MOST = 1024  # largest number of targets in a slice
TOGETHER = 256  # targets in a slice if nobody waits for its end
MEASURED = 1024  # training samples on which statistics of normalisation are measured, the same ones every time
MINIBATCH = 32  # most samples of a minibatch among these; the minibatches' moments are averaged


class Selection:
    """Samples of a corpus, always gathered as in an evaluation."""

    def __init__(self, corpus: Samples, chosen: Array) -> None:
        self._corpus, self._chosen, self.part, self.samples = corpus, chosen, corpus.part, len(chosen)
        self.form, self.classes, self.in_memory = corpus.form, corpus.classes, corpus.in_memory

    def gather(self, indices: Array, out: Batch, place: Place = None) -> Batch:
        """Fill `out` with these samples of the selection."""
        return self._corpus.gather(self._chosen[indices], out)


def random_subset(corpus: Samples, samples: int, seed: int) -> Selection:
    """A fixed random subset, such as the one on which the training loss is evaluated."""
    return Selection(corpus, np.sort(stream(seed, "subset").permutation(corpus.samples)[:samples]))


def share_of(corpus: Samples, rank: int, ranks: int) -> Selection:
    """A rank's contiguous share of the samples; some shares are empty if there are more ranks than samples."""
    own = share(corpus.samples, rank, ranks)
    return Selection(corpus, np.arange(own.start, own.stop))


class Measuring:
    """Measures statistics of normalisation, on fixed samples of `corpus`, the training part, on the model's device."""

    def __init__(self, model: Model, corpus: Samples, seed: int, dtype: DTypeLike, device: Cpu = CPU) -> None:
        chosen = stream(seed, "statistics").permutation(corpus.samples)[:MEASURED]
        self._model, self._corpus, self._device = model, corpus, device
        # Of equal size, since their moments count alike: a last one of few samples would count as much as the others.
        self._slices = [np.sort(part) for part in np.array_split(chosen, -(-len(chosen) // MINIBATCH))]
        self._batch = corpus.form.room(MINIBATCH, dtype)

    def steps(self, parameters: Array) -> Iterator[str]:
        """Measure slice by slice, unless the statistics belong to these parameters already; yields before each."""
        for number, part in enumerate([] if self._model.measured(parameters) else self._slices):
            yield "measure"
            batch = self._corpus.gather(part, self._batch.first(len(part)))
            self._model.measure(parameters, self._device.to_device(batch.inputs), number, len(self._slices))

    def run(self, parameters: Array) -> None:
        """Measure all slices."""
        for _ in self.steps(parameters):
            pass


def has_bits(network: Model, form: SampleForm) -> bool:
    """Whether the loss is also given in bits a byte: for text whose bytes are known, unless the loss is a user's, which
    need not be the logarithm of a probability."""
    return bool(form.bytes) and not network.own_loss


def figures(network: Model, form: SampleForm, loss: Value, merit: Value) -> dict[str, Value]:
    """Loss and figure of merit by name, and bits a byte if `has_bits`."""
    found = {"loss": loss, network.merit: merit}
    return found | ({"bits_per_byte": loss / (log(2) * form.bytes)} if has_bits(network, form) else {})


@dataclass(eq=False)
class Evaluation:
    """Evaluates a copy of the parameters on corpora named "test", "dev", "test-noisy", …, all of one shape.

    The results are `dev_loss` (mean), `dev_error` (fraction) or another figure of merit of the network's,
    `test_noisy_loss` and so on; for text also `dev_bits_per_byte`. `test_loss` and `test_error` are those of the first
    test set. `merit` names the figure by which models are compared, unless that is
    the error. If the samples are divided over ranks, `total` sums [loss, figure of merit, samples] over the ranks, in
    place. `measuring` provides the statistics of normalisation that belong to the parameters first.
    """

    network: Model
    corpora: Mapping[str, Samples]
    dtype: np.dtype
    clock: Callable[[], float]
    slices: bool = True
    total: Callable[[Array], None] = lambda sums: None
    device: Cpu = CPU
    measuring: Measuring | None = None
    #: Lets the time pass that a simulated rank takes for this many samples.
    pace: Callable[[int], None] = lambda samples: None

    def __post_init__(self) -> None:
        network, form = self.network, next(iter(self.corpora.values())).form
        #: The copy of the parameters that is, or was last, evaluated.
        self.parameters = self.device.to_device(np.empty(network.layout.size, self.dtype))
        self.samples = {part: corpus.samples for part, corpus in self.corpora.items()}
        self.merit = "bits_per_byte" if has_bits(network, form) and network.merit == "error" else network.merit
        self._most = max(1, (MOST if self.slices else TOGETHER) // prod(form.targets))
        self._batch = form.room(self._most, self.dtype)
        self._size = min(32, self._most) if self.slices else self._most
        self._next = ""  # what the next step does; "" if there is none

    @property
    def active(self) -> bool:
        """Whether an evaluation is in progress."""
        return bool(self._next)

    @property
    def measures(self) -> bool:
        """Whether the evaluation still measures the statistics that belong to the parameters."""
        return self._next == "measure"

    def is_of(self, parameters: Array) -> bool:
        """Whether the copy is equal to these parameters."""
        return bool(np.array_equal(on_host(self.parameters), on_host(parameters)))

    def begin(self, parameters: Array) -> None:
        """Begin an evaluation of a copy of these parameters."""
        if type(parameters) is type(self.parameters):
            np.copyto(self.parameters, parameters)
        else:
            self.device.upload(self.parameters, on_host(parameters))
        self._results = Results() if self.merit == "error" else Results(merit=self.merit)
        self._running = self._steps()
        self._next = next(self._running, "")

    def step(self) -> Results | None:
        """Evaluate a slice, or measure one before; returns the results after the last one."""
        self._next = next(self._running, "")
        return None if self._next else self._results

    def run(self, parameters: Array) -> Results:
        """Evaluate these parameters completely; returns the results."""
        self.begin(parameters)
        while self.active:
            self.step()
        return self._results

    def _steps(self) -> Iterator[str]:
        """The evaluation of all parts, which yields before each slice."""
        if self.measuring is not None:
            yield from self.measuring.steps(self.parameters)
        for name, corpus in self.corpora.items():
            sums = np.zeros(3)  # of the loss, of the figure of merit, and of samples
            while (done := int(sums[2])) < corpus.samples:
                yield "evaluate"
                began, count = self.clock(), min(self._size, corpus.samples - done)
                batch = corpus.gather(np.arange(done, done + count), self._batch.first(count))
                found = self.network.evaluate(self.parameters, Batch(*map(self.device.to_device, batch)))
                sums += (*found, count)
                self.pace(count)
                self._adapt(self.clock() - began)
            self._add(name, sums)

    def _add(self, name: str, sums: Array) -> None:
        """Add the results of a part."""
        key = name.replace("-", "_")
        self.total(sums)
        loss, merit = map(float, sums[:2] / sums[2])
        for figure, value in figures(self.network, self.corpora[name].form, loss, merit).items():
            self._results[f"{key}_{figure}"] = value
            if key.startswith("test"):
                self._results.setdefault(f"test_{figure}", value)

    def _adapt(self, seconds: float) -> None:
        if self.slices:
            wanted = self._size * SLICE / max(seconds, 1e-6)
            wanted = min(max(wanted, 1, self._size / 2), 2 * self._size, self._most)
            self._size = 1 << int(log2(wanted))  # few different sizes, because cuDNN makes a plan for each
