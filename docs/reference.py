"""Write keys.md and commands.md from the program itself: `python docs/reference.py`.

A key is explained where it is declared, by the comment at the end of its line or the string under it; a command by its
parser. Both pages are kept in the repository, where they are read, too; a test fails when they are not current, or when
something is not explained.
"""

import argparse
import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from mpitrain import config
from mpitrain.__main__ import parser
from mpitrain.algorithms import ALGORITHMS
from mpitrain.algorithms.optimizers import OPTIMIZERS
from mpitrain.models.layers import LAYERS
from mpitrain.models.presets import PRESETS

HERE = Path(__file__).resolve().parent
SECTIONS = {"data": config.Data, "model": config.ModelOptions, "training": config.Training}
SECTIONS |= {"pretraining": config.Pretraining, "stages": config.Stage, "run": config.RunOptions}
#: Where the guides say more.
MORE = {
    "data": "Guide: [augmentation and normalisation](images.md#augmentation-and-normalisation).",
    "model": "Guides: [lists of layers](networks.md), [PyTorch modules](pytorch.md).",
    "pretraining": "Rank 0 pre-trains before the algorithm starts.",
    "stages": "Any number of tables `[[stages]]`; keys that a stage omits keep their values.",
    "run": "Guides: [GPUs](gpus.md), [checkpoints and signals](checkpoints.md), [clusters](clusters.md).",
    "training": "`optimizer` is short for `name` in the table `[algorithm.optimizer]`, below.",
}


def meanings(kind: type) -> dict[str, str]:
    """What the source says about each key that a class declares or inherits, by the key's attribute."""
    found: dict[str, str] = {}
    for each in reversed([base for base in kind.__mro__ if base.__module__.startswith("mpitrain")]):
        source = textwrap.dedent(inspect.getsource(each))
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
        (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
        for node, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                said = comments.get(node.end_lineno or 0, "")
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    said = " ".join(str(following.value.value).split())
                found[node.target.id] = said or found.get(node.target.id, "")
    return found


def fields(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, str]]:
    """Key, values, default and meaning of each key of a table."""
    said = meanings(kind)
    (info,) = msgspec.inspect.multi_type_info([kind])
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        yield field.encode_name, values(field.type), toml(default), said[field.name]


def values(kind: Any) -> str:
    """The values that a type accepts."""
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(dict.fromkeys(said for each in types if (said := values(each))))
        case msgspec.inspect.LiteralType(values=choices):
            return ", ".join(toml(each) for each in choices)
        case msgspec.inspect.BoolType():
            return "true, false"
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return f"{'integer' if isinstance(kind, msgspec.inspect.IntType) else 'number'}{bounds(kind)}"
        case msgspec.inspect.StrType():
            return "text"
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            return "tables" if isinstance(item, msgspec.inspect.UnionType) else f"list, each: {values(item)}"
        case msgspec.inspect.DictType() | msgspec.inspect.StructType():
            return "table"
    return ""


def bounds(kind: Any) -> str:
    """Those of a number, without upper ones that only exclude what no computation could hold."""
    least = f" ≥ {kind.ge:g}" if kind.ge is not None else f" > {kind.gt:g}" if kind.gt is not None else ""
    most = f" ≤ {kind.le:g}" if kind.le is not None else f" < {kind.lt:g}" if kind.lt is not None else ""
    if (kind.le or 0) > 10_000:
        most = ""
    return (least if (kind.ge or 0) > -1e30 else "") + (f"{',' if least else ''}{most}" if most else "")


def toml(value: object) -> str:
    """A value as it stands in a configuration; nothing for None."""
    if value is None:
        return ""
    value = list(value) if isinstance(value, tuple) else value
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    return f'`"{text}"`' if isinstance(value, str) else f"`{text}`"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    return text.replace("<", "&lt;") + "\n"


def first_line(kind: Any) -> str:
    """The docstring's first paragraph in one line."""
    return " ".join(str(inspect.getdoc(kind)).split("\n\n")[0].split())


def algorithm_keys() -> list[tuple[str, ...]]:
    """The keys of [algorithm]: those that several algorithms mean in the same way share a row."""
    rows: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for name, kind in ALGORITHMS.items():
        for key, accepted, default, said in fields(kind):
            if key != "optimizer" or kind.any_optimizer:
                rows.setdefault((key, accepted, said), {}).setdefault(default, []).append(f"`{name}`")
    return [
        (f"`{key}`", ", ".join(chain(*defaults.values())), accepted, _defaults(defaults), said)
        for (key, accepted, said), defaults in sorted(rows.items())
    ]


def _defaults(found: dict[str, list[str]]) -> str:
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{default} ({', '.join(names)})" for default, names in found.items())


def keys_page() -> str:
    """keys.md."""
    head = ("key", "values", "default", "")
    parts = [
        "# Every key\n",
        "Set a key with `--set section.key=value` or in the TOML file. The defaults suit the embedded digits, for "
        "which `epochs`, `minibatch` and `learning_rate` differ between algorithms ([below](#algorithms)): set all "
        "three for your data. Where neither a file nor a key of `[data]`, `[model]`, `[algorithm]` or `[[stages]]` is "
        f"given, as in README's first command, `training.warmup` is {toml(config.FIRST['warmup'])} and "
        f"`training.clip_norm` {toml(config.FIRST['clip_norm'])}. `--print-config` shows the keys of a run with their "
        "values. This page is written by `docs/reference.py` from the program itself.\n",
    ]
    for name, kind in SECTIONS.items():
        title = f"[[{name}]]" if name == "stages" else f"[{name}]"
        rows = [(f"`{key}`", *rest) for key, *rest in fields(kind)]
        parts += [f"## `{title}`\n", f"{first_line(kind)} {MORE[name]}\n", table(head, rows)]
        if name == "model":
            networks = [(f"`{key}`", first_line(preset.layers)) for key, preset in PRESETS.items()]
            parts += ["### Presets\n", table(("`preset`", ""), networks)]
            layers = [(f"`{tag}`", _layer_keys(kind), first_line(kind)) for tag, kind in LAYERS.items()]
            parts += ["### Layers\n", "[Networks of your own](networks.md) explains initial values and order.\n"]
            parts += [table(("`kind`", "keys and defaults", ""), layers)]
    parts += [
        "## `[algorithm]`\n",
        "`name` chooses the algorithm, by default `asgd`; [the algorithms](algorithms.md) has the equations. All ranks "
        "that `mpirun` starts are workers but a server, or a centre's rank 0.\n",
    ]
    parts += [table(("key", "algorithms", "values", "default", ""), algorithm_keys())]
    parts += ["### Algorithms\n", table(("`name`", "", *TRAINED, "`preset`"), [*algorithms()])]
    parts += [
        "## `[algorithm.optimizer]`\n",
        "The local step of algorithms that let one choose it; `momentum` and `nesterov` of `allreduce` are then "
        "ignored. `easgd` with `nesterov` is `eamsgd`.\n",
        table(("`name`", "key", *head[1:]), [*optimizers()]),
        "Choose `adamw` when the scale of gradients differs much between layers, or when there is no time to tune the "
        "learning rate: on the digits every rate from 0.001 to 0.005 gives 1 to 4 % error after 5 epochs with "
        "`allreduce` on 2, 4 and 8 ranks, and 2 to 8 % with `easgd` and `easgd-sync` on 2 and 4 (three seeds each). It "
        "keeps two more vectors than `sgd`; workers of `easgd` each have their own moments, which the centre does not "
        "average.\n",
    ]
    return "\n".join(parts)


TRAINED = ("epochs", "minibatch", "learning_rate")


def algorithms() -> Iterator[tuple[str, ...]]:
    """Name, what it is, its defaults of [training], its presets."""
    for name, kind in ALGORITHMS.items():
        trained = [toml(kind.training.get(key, getattr(config.Training(), key))) for key in TRAINED]
        yield (f"`{name}`", first_line(kind), *trained, ", ".join(f"`{each}`" for each in kind.presets if each))


def optimizers() -> Iterator[tuple[str, ...]]:
    """Name, key and so on of every optimizer."""
    for name, kind in OPTIMIZERS.items():
        rate = kind.training.get("learning_rate")
        said = first_line(kind) + (f" The default of `training.learning_rate` is {toml(rate)}." if rate else "")
        yield (f"`{name}`", "", "", "", said)
        for key, *rest in fields(kind):
            yield ("", f"`{key}`", *rest)


def _layer_keys(kind: type[msgspec.Struct]) -> str:
    return ", ".join(f"`{key}`{f' = {default}' if default else ''}" for key, _, default, _ in fields(kind))


def commands() -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """Every command and subcommand, with its parser and the line that says what it does."""
    yield from _below("python -m mpitrain", parser())


def _below(prefix: str, above: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    for action in above._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                yield f"{prefix} {name}", below, helps.get(name, "")
                yield from _below(f"{prefix} {name}", below)


def arguments(command: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """The arguments of a command and what they mean."""
    rows = []
    for action in command._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        shown = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
        shown = shown or (action.dest.upper() if action.nargs != 0 else "")
        shown += " ..." if action.nargs in ("+", "*") else ""
        names = ", ".join(action.option_strings)
        rows.append((f"`{f'{names} {shown}'.strip() if names else shown}`", action.help or ""))
    return rows


def commands_page() -> str:
    """commands.md."""
    parts = [
        "# Every command\n",
        "`python -m mpitrain COMMAND`, or `mpitrain COMMAND`; the default command is `train`. Under `mpirun`, "
        "`train`, `evaluate`, `predict`, `calibrate`, `info` and `prepare` (but `digits` and `speech`) use all ranks. "
        "Exit status: 0 done, 1 a failed training, 2 bad input (one line that names the file or key), 75 stopped "
        "before its end: start it again; 130 interrupted (a `prepare` by SIGTERM, too: start it again). This page is "
        "written by `docs/reference.py` from the program itself.\n",
        "After `pip install '.[completion]'` and once `activate-global-python-argcomplete --user`, bash and zsh "
        "complete commands, options, files, keys and their values, also of `python -m mpitrain`: `--set "
        "training.sch` becomes `--set training.schedule=`, and Tab then lists `constant`, `cosine` and `linear`.\n",
    ]
    for name, command, help_line in commands():
        if not any(isinstance(action, argparse._SubParsersAction) for action in command._actions):
            parts += [f"## {name.removeprefix('python -m mpitrain ')}\n", f"{help_line[:1].upper()}{help_line[1:]}.\n"]
            parts += [table(("argument", ""), arguments(command))] if arguments(command) else []
    return "\n".join(parts)


PAGES = {"keys.md": keys_page, "commands.md": commands_page}

if __name__ == "__main__":
    for page, write in PAGES.items():
        (HERE / page).write_text(write())
