"""The configuration: what it accepts, what it refuses and how it says so."""

import datetime
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain import config as configuration
from mpitrain.algorithms import ALGORITHMS
from mpitrain.algorithms.optimizers import OPTIMIZERS
from mpitrain.errors import BadInput


@pytest.mark.parametrize("said", ["auto", "'auto'", ' "auto"'])
def test_a_resumed_run_keeps_what_it_has_chosen(tmp_path: Path, said: str) -> None:
    """Where the command that started it continues it; another value changes it."""
    ran = configuration.load(None, ["model.backend=torch", "run.matmul=bf16"])
    (tmp_path / "config.toml").write_text(configuration.to_toml(ran))
    again = configuration.load(tmp_path / "config.toml", [f"model.backend={said}", f"run.matmul ={said}"], resumed=True)
    assert again == ran
    assert configuration.load(tmp_path / "config.toml", ["model.backend=auto"]).model.backend == "auto"
    assert configuration.load(tmp_path / "config.toml", ["run.matmul=float32"], resumed=True).run.matmul == "float32"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_resolved_configuration_reads_back_as_itself(name: str) -> None:
    """to_toml loses nothing, for every algorithm's defaults."""
    config = configuration.load(None, [f"algorithm.name={name}"])
    assert configuration.resolve(tomllib.loads(configuration.to_toml(config))) == config


@given(
    rate=st.floats(1e-9, 1e3),
    minibatch=st.integers(1, 10**6),
    at=st.one_of(st.floats(0, 100), st.integers(0, 100).map("{}%".format)),
    workers=st.integers(1, 1000),
)
def test_any_valid_values_read_back(rate: float, minibatch: int, at: float | str, workers: int) -> None:
    """Round trip of values and stages."""
    table = {
        "training": {"learning_rate": rate, "minibatch": minibatch},
        "stages": [{"at": at, "workers": workers, "learning_rate": rate}],
    }
    config = configuration.resolve(table)
    assert config.training.learning_rate == rate and config.stages[0].at == at
    assert configuration.resolve(tomllib.loads(configuration.to_toml(config))) == config


@pytest.mark.parametrize("override", ["algorithm.look_ahead=start", "algorithm.buffers=averaged"])
def test_entries_of_averages_refuse_what_needs_whole_vectors(override: str) -> None:
    with pytest.raises(BadInput, match=override.split("=")[0]):
        configuration.load(None, ["algorithm.name=block-momentum", "algorithm.top_k=8", override])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.learnin_rate=1", ("training.learnin_rate", "learning_rate")),
        ("trainin.epochs=1", ("trainin", "training")),
        ("algorithm.name=asgdd", ("algorithm.name", "asgd")),
        ("algorithm.preset=zhang", ("algorithm.preset", "zhang2013")),
        ("training.learning_rate=-0.5", ("training.learning_rate", "> 0")),
        ("training.learning_rate=fast", ("training.learning_rate",)),
        ("training.minibatch=0", ("training.minibatch", ">= 1")),
        ("training=3", ("training",)),
        ("training", ("--set training", "key=value")),
        ("algorithm.optimizer.name=nesterov", ("algorithm.optimizer", "asgd", "allreduce", "easgd-sync")),
        ("stages=[{at = 1, worker = 2}]", ("stages[0].worker", "workers")),
        ("model.dropout=1.0", ("model.dropout",)),
        ("algorithm={minibatches = 3, minibatches_most = 2}", ("algorithm.minibatches_most = 2", "minibatches = 3")),
    ],
)
def test_a_refusal_names_the_key(override: str, words: tuple[str, ...]) -> None:
    """One line with the key, and the nearest known one where that helps."""
    with pytest.raises(BadInput) as refusal:
        configuration.load(None, [override])
    assert all(word in str(refusal.value) for word in words) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.optimizer=nesterov", ("algorithm.optimizer", "table")),
        ("algorithm.optimizer.name=nestrov", ("algorithm.optimizer.name", "nesterov")),
        ("algorithm.optimizer.momentum=0.5", ("algorithm.optimizer.name", "nesterov")),
    ],
)
def test_a_refusal_of_an_optimizer_names_the_key(override: str, words: tuple[str, ...]) -> None:
    with pytest.raises(BadInput) as refusal:
        configuration.load(None, ["algorithm.name=easgd", override])
    assert all(word in str(refusal.value) for word in words) and "\n" not in str(refusal.value)


def test_what_is_trained_without_a_configuration_starts_gently(tmp_path: Path) -> None:
    """Unless data, network or algorithm are given, or the keys themselves; a file, too, has the plain defaults."""
    (tmp_path / "own.toml").write_text("")
    gentle, plain = ("5%", 1.5), (0.0, 0.0)
    for path, keys, wanted in (
        (None, [], gentle),
        (None, ["training.epochs=0.1", "run.out=x"], gentle),
        (None, ["training.clip_norm=0"], ("5%", 0.0)),
        (None, ["algorithm.name=asgd"], plain),
        (None, ["data.crop=6"], plain),
        (None, ["model.width=2"], plain),
        (tmp_path / "own.toml", [], plain),
    ):
        training = configuration.load(path, keys).training
        assert (training.warmup, training.clip_norm) == wanted, keys


def test_training_optimizer_is_the_name_of_the_algorithm_s() -> None:
    """It reads back from the resolved configuration; two different names are refused, as is one that cannot be."""
    config = configuration.load(None, ["algorithm.name=easgd", "training.optimizer=adamw"])
    assert config == configuration.load(None, ["algorithm.name=easgd", "algorithm.optimizer.name=adamw"])
    assert config == configuration.resolve(tomllib.loads(configuration.to_toml(config)))
    both = ["algorithm.name=easgd", "training.optimizer=adamw", "algorithm.optimizer.name=sgd"]
    with pytest.raises(BadInput, match=r"training\.optimizer"):
        configuration.load(None, both)
    with pytest.raises(BadInput, match=r"algorithm\.optimizer.*asgd"):
        configuration.load(None, ["training.optimizer=adamw"])


@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if kind.any_optimizer])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_is_chosen_by_name(name: str, optimizer: str) -> None:
    """With its own defaults, its own keys, and what it implies for [training]; it reads back as itself."""
    settings = [f"algorithm.name={name}", f"algorithm.optimizer.name={optimizer}"]
    config = configuration.load(None, settings)
    assert configuration.resolve(tomllib.loads(configuration.to_toml(config))) == config
    assert config.algorithm.chosen == OPTIMIZERS[optimizer]()
    assert config.training.learning_rate == OPTIMIZERS[optimizer].training.get(
        "learning_rate", ALGORITHMS[name].training.get("learning_rate", 0.05)
    )
    with pytest.raises(BadInput, match=r"unknown key algorithm\.optimizer\.mass"):
        configuration.load(None, [*settings, "algorithm.optimizer.mass=1"])


def test_a_file_is_under_the_overrides_and_over_the_defaults(tmp_path: Path) -> None:
    """Precedence: --set, file, preset, algorithm's defaults."""
    path = tmp_path / "run.toml"
    path.write_text('[algorithm]\nname = "asgd"\npreset = "chan2014"\ngradient_decay = 0.8\n[training]\nepochs = 3\n')
    config = configuration.load(path, ["training.epochs=4"])
    assert config.training.epochs == 4 and config.algorithm.gradient_decay == 0.8
    assert config.algorithm.momentum == 0.9 and config.algorithm.until_free


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("block-momentum", "diloco", "algorithm.tau=4"), "bmuf"),
        (("block-momentum", "diloco", "algorithm.optimizer.name=adamw", "algorithm.optimizer.beta1=0.8"), "sparseloco"),
        (("block-momentum", "", "training.learning_rate=0.3", "data.crop=6"), "diloco"),
        (("sparse-delta", "strom2015", "algorithm.bits=32", "training.learning_rate=0.01"), "many-peers"),
        (("sparse-delta", "many-peers", "model.width=2"), "strom2015"),
        (("asgd", "chan2014", "run.team=1"), ""),
    ],
)
def test_another_preset_on_a_resume_is_as_in_a_new_run(tmp_path: Path, first: tuple[str, ...], then: str) -> None:
    """Its values take the place of the former preset's; what was set otherwise stays."""
    name, preset, *own = first
    settings = [f"algorithm.name={name}", *own]
    path = tmp_path / "config.toml"
    path.write_text(configuration.to_toml(configuration.load(None, [*settings, f"algorithm.preset={preset}"])))
    again = configuration.load(path, [f"algorithm.preset={then}"], resumed=True)
    assert again == configuration.load(None, [*settings, f"algorithm.preset={then}"])
    assert configuration.load(path, [f"algorithm.preset={preset}"], resumed=True) == configuration.load(path, [])


@pytest.mark.parametrize("key", ["training.optimizer", "algorithm.optimizer.name"])
@pytest.mark.parametrize("name", ["sgd", "easgd"])
def test_another_optimizer_on_a_resume_has_its_own_options(tmp_path: Path, key: str, name: str) -> None:
    """Not those of the former one, of which it has none; by either of the keys that name it."""
    path = tmp_path / "config.toml"
    first = configuration.load(None, [f"algorithm.name={name}", "training.optimizer=momentum"])
    path.write_text(configuration.to_toml(first))
    other = [f"{key}=adamw", "algorithm.optimizer.beta1=0.8"]
    new = configuration.load(None, [f"algorithm.name={name}", *other])
    assert configuration.load(path, other, resumed=True).algorithm == new.algorithm
    assert configuration.load(path, [f"{key}=momentum"], resumed=True).algorithm == first.algorithm


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    """Missing, and not TOML."""
    with pytest.raises(BadInput, match=r"none\.toml"):
        configuration.load(tmp_path / "none.toml", [])
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(BadInput, match=r"bad\.toml"):
        configuration.load(tmp_path / "bad.toml", [])


def test_a_file_of_an_editor_of_windows_is_read(tmp_path: Path) -> None:
    """With a byte order mark, and lines that end in CR LF."""
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbf[training]\r\nepochs = 3\r\n")
    assert configuration.load(path, []).training.epochs == 3


def test_a_value_of_several_lines_is_not_cut_off() -> None:
    """What follows the first line was dropped without a word."""
    with pytest.raises(BadInput, match=r"training\.epochs: Expected `float`, got `str`"):
        configuration.load(None, ["training.epochs=3\ntraining.minibatch=5"])
    assert configuration.load(None, ["data.context=[5,\n5]"]).data.context == [5, 5]


REFERENCE = Path(__file__).resolve().parents[2] / "docs/keys.md"


def keys() -> set[str]:
    """Every key of every section, and of `[algorithm]` whatever the algorithm."""
    sections = [configuration.Data, configuration.ModelOptions, configuration.Training, configuration.Pretraining]
    sections += [configuration.RunOptions, configuration.Stage, *ALGORITHMS.values(), *OPTIMIZERS.values()]
    return {field for section in sections for field in section.__struct_encode_fields__}


def test_every_key_is_explained() -> None:
    """On the page about them."""
    page = REFERENCE.read_text()
    assert sorted(key for key in keys() if f"`{key}`" not in page) == []


def test_initial_weights_have_a_seed_of_their_own() -> None:
    """`training.seed`, unless `model.seed` is given."""
    seeds = ["training.seed=3"], ["training.seed=3", "model.seed=0"]
    assert [configuration.load(None, overrides).initial_seed for overrides in seeds] == [3, 0]


SECTIONS = {"data": configuration.Data, "model": configuration.ModelOptions, "training": configuration.Training}
SECTIONS |= {"pretraining": configuration.Pretraining, "run": configuration.RunOptions}


def tables() -> list[tuple[str, str, str]]:
    """Section, key and algorithm of every key that there is."""
    found = [(section, key, "asgd") for section, kind in SECTIONS.items() for key in kind.__struct_encode_fields__]
    found += [("stages", key, "asgd") for key in configuration.Stage.__struct_fields__]
    found += [("algorithm", key, name) for name, kind in ALGORITHMS.items() for key in kind.__struct_encode_fields__]
    return [*found, ("algorithm", "name", "asgd"), ("training", "learning_rate", "sparse-delta")]


def accept_or_name(section: str, key: str, algorithm: str, value: Any) -> None:
    """A value is taken, and what is made of the configuration alone works; or one line names its key."""
    table: dict[str, Any] = {"algorithm": {"name": algorithm}}
    if section == "stages":
        table["stages"] = [{"at": 0.5} | {key: value}]
    else:
        table[section] = table.get(section, {}) | {key: value}
    try:
        config = configuration.resolve(table)
        assert config.schedule(1438).total < 2**60
    except BadInput as refusal:
        said = str(refusal)
        named = key in said or (key == "learning_rate" and "learning rate" in said)
        assert named and said.isprintable(), said
        return
    assert configuration.resolve(tomllib.loads(configuration.to_toml(config))) == config
    assert configuration.to_toml(config).encode()
    assert (
        int((config.data.memory_limit_gb or config.data.node_memory_gb) * 1e9) < 2**63
        and "\0" not in config.run.out + config.data.path
    )
    numbers = [number for number in vars_of(config) if isinstance(number, int | float)]
    assert all(abs(number) <= 1e30 for number in numbers)


def vars_of(config: configuration.Config) -> list[Any]:
    """All values of all tables."""
    parts = (config.data, config.model, config.training, config.pretraining, config.algorithm, config.run)
    return [getattr(part, name) for part in (*parts, *config.stages) for name in part.__struct_fields__]


AWKWARD = (
    float("inf"),
    -float("inf"),
    float("nan"),
    1e300,
    1e-300,
    5e-324,
    -1,
    -0.5,
    0,
    10**30,
    10**400,
    2**63,
    2**64,
    True,
)
AWKWARD_TEXTS = ("", "\0", "a\nb", "1e400%", "nan%", "inf%", "-1%", "1e308%", "%", "9" * 5000)


def test_awkward_values_of_every_key() -> None:
    """Infinite, tiny, negative and huge numbers, texts with NUL, other types."""
    others: tuple[Any, ...] = ([], {}, [1], [{}], {"name": 1}, [float("inf"), 10**30], datetime.date(2020, 1, 1))
    for (section, key, algorithm), value in product(tables(), (*AWKWARD, *AWKWARD_TEXTS, *others)):
        accept_or_name(section, key, algorithm, value)


VALUES = st.recursive(
    st.one_of(
        st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.datetimes(), st.sampled_from(AWKWARD)
    ),
    lambda values: st.one_of(st.lists(values, max_size=3), st.dictionaries(st.text(max_size=8), values, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=600)
@given(key=st.sampled_from(tables()), value=VALUES)
def test_any_value_of_any_key_is_taken_or_refused_in_one_line(key: tuple[str, str, str], value: Any) -> None:
    """Whatever TOML can say."""
    accept_or_name(*key, value)


@pytest.mark.parametrize("opening", ["[", "{a="])
@pytest.mark.parametrize("depth", [150, 10_000])
def test_nested_brackets_are_refused(tmp_path: Path, opening: str, depth: int) -> None:
    """On the command line and in a file, closed or not, deeper than Python's own stack or not."""
    for closing in ("", "1" + {"[": "]", "{a=": "}"}[opening] * depth):
        with pytest.raises(BadInput) as refusal:
            configuration.load(None, [f"training.epochs={opening * depth}{closing}"])
        assert "training.epochs" in str(refusal.value) and len(str(refusal.value)) < 200
        (tmp_path / "deep.toml").write_text(f"[training]\nepochs = {opening * depth}{closing}\n")
        with pytest.raises(BadInput, match=r"deep\.toml|training\.epochs"):
            configuration.load(tmp_path / "deep.toml", [])


def test_bytes_that_are_not_text_are_refused() -> None:
    """As in a path of another locale: config.toml could not hold them."""
    with pytest.raises(BadInput, match=r"--set run\.out=a\\udcff: not UTF-8"):
        configuration.load(None, ["run.out=a\udcff"])


@pytest.mark.parametrize("context", ["[1,-1]", "[1,2,3]"])
def test_a_context_is_one_or_two_numbers_of_frames(context: str) -> None:
    """None below 0."""
    with pytest.raises(BadInput, match=r"data\.context"):
        configuration.load(None, [f"data.context={context}"])


def test_a_list_without_brackets_is_shown_with_them() -> None:
    """What users write for it: 5,5; of how many numbers only where that is limited."""
    with pytest.raises(BadInput, match=r"data\.context: .*\[5,5\]"):
        configuration.load(None, ["data.context=5,5"])
    with pytest.raises(BadInput, match=r"algorithm\.speeds: expected numbers in brackets"):
        configuration.load(None, ["algorithm.name=block-momentum", "algorithm.speeds=0.5"])


def test_algorithms_whose_workers_can_change() -> None:
    """The line about `block-momentum`, whose number is fixed by default, named `block-momentum` without a word more."""
    with pytest.raises(BadInput, match=r"with block-momentum; it can change with .*, block-momentum \(not in its def"):
        configuration.load(None, ["algorithm.name=block-momentum", "stages=[{at=1, workers=1}]"])
    configuration.load(None, ["algorithm.name=block-momentum", "algorithm.order=free", "stages=[{at=1, workers=1}]"])
