"""The tables of the configuration. What is said of a key here stands in `docs/keys.md`, too."""

from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from mpitrain.algorithms import AnyAlgorithm, name_of
from mpitrain.keys import (
    Amount,
    AmountOrNone,
    Count,
    Few,
    Fraction,
    Handful,
    Large,
    NotNegative,
    Number,
    Positive,
    Section,
    Text,
)
from mpitrain.models.layers import AnyLayer
from mpitrain.sampling.stages import Schedule, Stage, Training
from mpitrain.start import DEADLINE

#: Keys whose "auto" is replaced by a definite value when a run starts.
CHOSEN = ("model.backend", "run.matmul")


class Data(Section, frozen=True):
    """Where the shards are and how they are read."""

    path: Text = ""
    """A folder of shards; empty: the embedded digits. A relative path is resolved from the folder where the run
    began, so that `--resume`, `evaluate` and the other commands work from anywhere."""
    import_: Text | None = msgspec.field(default=None, name="import")
    """Instead of shards, `FILE.py:function` or `package.module:function` that returns a table of data sets, "train",
    "dev", "test" or "test-NAME": pairs of arrays, or any objects with `__len__` and `__getitem__`
    ([guide](data.md))."""
    options: dict[str, object] | None = None  # the keyword arguments of the function of `import`
    classes: Count | None = None
    """With `import`, the number of classes, where the targets are classes and the data sets do not tell."""
    context: Annotated[list[Few], msgspec.Meta(max_length=2)] = msgspec.field(default_factory=list)
    """frames left and right of the one to classify; one number counts for both sides"""
    window: Number = 0
    """Tokens of a sample, each of which is the target of those before it; a sample begins where the last one ended."""
    node_memory_gb: Amount = 4.0
    """Parts whose inputs take more than this are read from disk during training. Of the training part as many shards
    as fit are kept in memory nevertheless. The ranks of a node share what is in memory of the training part."""
    memory_limit_gb: Amount | None = None
    """The same limit for each rank, in place of `node_memory_gb`; each rank then keeps its own copy of a smaller part,
    and nothing of a larger one."""
    normalise: Literal["corpus", "speaker", "utterance", "mean", "unit", "none"] = "corpus"
    """Whose mean and standard deviation; for images also `"mean"`, the corpus's mean alone; `"unit"`: pixels ÷ 255."""
    crop: Number = 0  # side of the square crop in pixels: random in training, central in evaluation
    flip: bool = False  # reflect each training image with probability ½
    colour_shift: NotNegative = 0.0  # standard deviation of Krizhevsky's α; 0: none


class ModelOptions(Section, frozen=True):
    """The network: a preset, scaled, or a list of layers. What is not given is as the preset has it."""

    preset: Text | None = None  # one of the networks below; by default `digits-cnn`
    width: Annotated[float, msgspec.Meta(gt=0, le=1e4)] | None = None
    """Multiplies the number of units and filters of every hidden layer of a preset; by default 1."""
    hidden_layers: Handful | None = None  # number of hidden layers of the `-dnn` presets
    seed: Large | None = None
    """Determines the initial weights; by default `training.seed` does. Runs with one `model.seed` and different
    `training.seed` start from the same point (Figure 2 of the EASGD paper)."""
    output: Literal["softmax", "logistic"] | None = None  # the function of the outputs, and with it the loss
    l2: NotNegative | None = None  # λ of the penalty λ/2·‖x‖²; by default the preset's
    l2_biases: bool | None = None
    """Whether the penalty acts on all parameters, as in the EASGD paper and by default in its networks `easgd-cifar`
    and `easgd-imagenet`, or on weights without biases, the default elsewhere."""
    dropout: Fraction | None = None  # the fraction of units dropped; by default the preset's
    layers: Annotated[list[AnyLayer], msgspec.Meta(max_length=1000)] | None = None
    """Instead of a preset, a list of layers: tables `[[model.layers]]`, whose keys are below."""
    import_: Text | None = msgspec.field(default=None, name="import")
    """Instead of a preset, a PyTorch module: `FILE.py:function` or `package.module:function` that builds it."""
    options: dict[str, object] | None = None  # the keyword arguments of the function of `import`
    backend: Literal["numpy", "torch", "auto"] = "numpy"
    """What computes the network; with `import`, always `"torch"`. `"auto"`: the faster one, by a few steps that are
    timed before the training ([guide](pytorch.md#which-one))."""
    loss: Text | None = None
    """With `import`, a function of outputs and targets instead of the loss of `output`, named in the same way."""
    metric: Text | None = None
    """With `import`, a function of outputs and targets instead of the share of wrong classes: the mean over a
    minibatch's samples of a figure of merit, of which less is better, reported under the function's name."""


class Pretraining(Section, frozen=True):
    """Pre-training of the initial weights on rank 0."""

    method: Literal["none", "layerwise", "contrastive-divergence"] = "none"
    """`"layerwise"`: supervised, a layer at a time (Strom 2015). `"contrastive-divergence"`: restricted Boltzmann
    machines by CD-1, without momentum or weight decay, for the sigmoid networks (Zhang 2013)."""
    epochs: Amount = 1.0  # for each layer
    minibatch: Count = 64  # samples of a step
    learning_rate: Positive = 0.05
    """Multiplies mean gradients. A machine of contrastive divergence starts from weights of 0.01: it wants
    `learning_rate` × updates of 100 and more a layer (digits, `zhang2013-dnn` with `model.width = 0.1`, then 12 epochs
    of `sgd` with minibatches of 8 at a rate of 0.1: 91% error after 11, 10% after 45, 6% after 135)."""
    samples: Large = 0  # how many samples of the training split; 0: all of it


class RunOptions(Section, frozen=True):
    """Where and how the program runs."""

    out: Text = "runs"  # folder that contains the run folders
    device: Literal["auto", "cpu", "gpu"] = "auto"  # auto: a GPU if there is one
    matmul: Literal["float32", "tf32", "bf16", "auto"] = "float32"
    """Precision of products on a GPU, and of PyTorch's; weights and sums are float32. `"auto"`: `"bf16"` where PyTorch
    is faster with it, by a few steps that are timed before the training, and otherwise `"float32"`."""
    cuda_aware: Literal["auto", "yes", "no"] = "auto"  # whether MPI accepts GPU memory; auto: ask MPI
    team: Annotated[int, msgspec.Meta(ge=1, le=1000)] | Literal["node"] = 1
    """With `sparse-delta` and the elastic family: how many neighbouring ranks form a team that acts as one worker, or
    `"node"` for one team per node; a centre's rank is in none. The ranks of a team share each minibatch, so that
    `training.minibatch` counts the whole team's samples, and only the leader exchanges anything with other teams."""
    threads: Few = 0  # threads per rank; 0: what Slurm or OMP_NUM_THREADS says, else its share of the cores
    evaluate_every: AmountOrNone = 1.0  # epochs between evaluations; 0: only at the end
    evaluate_late: bool = False
    """Keep copies of the parameters on the disk instead, and evaluate these after the training, so that evaluations
    take no time from it, whatever the algorithm: for comparisons ([guide](compare.md))."""
    train_subset: Number = 0  # number of training samples that are also evaluated
    checkpoint_every: AmountOrNone | Literal["auto"] = "auto"
    """Minutes between checkpoints; 0: not by the clock; `"auto"`: the first one at the first evaluation, then as often
    as they take at most 2% of the time ([guide](checkpoints.md))."""
    checkpoint_samples: Large = 0  # samples between checkpoints; 0: not by samples
    checkpoints_kept: Count = 3  # how many of the newest to keep; one is always written at the end and on a signal
    checkpoint_best: bool = True  # also keep the model with the smallest error on dev, or on test without dev
    fallback: Text = ""
    """An existing folder where the last checkpoint goes if the run folder has no room for it, or is gone; empty: the
    system's folder for temporary files."""
    deadline: Amount = DEADLINE
    """Seconds to wait for a rank that sends no heartbeat; it is then named, and the job ends."""
    least_ranks: Count = 1
    """With fewer ranks, because nodes no longer answer or ranks were lost, a training ends with status 75 and does not
    go on ([guide](faults.md))."""
    lost_ranks: Literal["end", "continue"] = "end"
    """`"continue"`: where a rank dies, or is silent for `deadline`, the others go on without it, in place of ending the
    job ([guide](faults.md#going-on-without-a-rank)). Needs Open MPI 5 and `mpirun --with-ft ulfm`; vectors travel by
    messages."""
    spares: Few = 0
    """How many of the ranks wait until others are lost, and then take their places ([guide](faults.md#spare-ranks))."""
    exchange: Literal["auto", "shared", "one-sided", "messages"] = "auto"
    """How vectors travel to and from a server; auto: as measured."""
    nonfinite_limit: Count = 10  # how many gradients of one worker in a row may not be finite; then a server's run ends
    gradient_statistics: bool = False
    """Record figures of the gradients: the norm and the fraction of exact zeros of each that a rank computes (with
    `allreduce` and teams, of its share of a minibatch; not with `hybrid`), and the cosine between the sums that workers
    send (Chan & Lane §3.4); costs a pass over each gradient."""
    progress: Literal["auto", "plain", "none"] = "auto"  # auto: a live line on a terminal; none: nothing but errors
    tensorboard: bool = False  # also write event files for TensorBoard
    callback: Text = ""
    """`FILE.py:function` or `package.module:function` that rank 0 calls with each record, as a dict
    ([guide](report.md#records-to-a-logger-of-your-own))."""
    trace: bool = False
    """Also write `trace.json`, what every rank did when, for ui.perfetto.dev and the report
    ([guide](simulate.md#a-trace-of-every-rank))."""
    record_order: bool = False
    """Also write `order/`, the order of every rank's events, which `mpitrain simulate --replay` repeats to the bit
    ([guide](simulate.md#a-recorded-run-to-the-bit)); vectors then travel by messages."""


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration."""

    data: Data = Data()
    model: ModelOptions = ModelOptions()
    training: Training = Training()
    pretraining: Pretraining = Pretraining()
    algorithm: AnyAlgorithm
    run: RunOptions = RunOptions()
    stages: list[Stage] = msgspec.field(default_factory=list)

    @property
    def by_torch(self) -> bool:
        """Whether PyTorch computes the network."""
        return self.model.backend == "torch"

    @property
    def by_error(self) -> bool:
        """Whether the figure of merit is sure to be the share of wrong classes."""
        return not (self.data.window or self.data.import_ or self.model.metric)

    @property
    def initial_seed(self) -> int:
        """The seed of the initial parameters."""
        return self.training.seed if self.model.seed is None else self.model.seed

    def new_folder(self) -> Path:
        """The run folder, named after the time and the algorithm, of a run for which the user names none."""
        return Path(self.run.out) / f"{datetime.now():%Y%m%d-%H%M%S}-{name_of(self.algorithm)}"

    def schedule(self, samples: int, ranks: int = 1) -> Schedule:
        """The learning rate, the minibatch and the number of workers over a training on this many samples by this many
        ranks. Raises BadInput naming a stage or the warm-up."""
        step = partial(self.algorithm.samples_of_step, ranks=ranks)
        return Schedule(self.training, self.stages, samples, step)
