"""What no linter sees in the source: one name for a number and for a truth value, imports in a circle, hidden ones."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for room in ("mpitrain", "kernels") for path in (ROOT / room).rglob("*.py"))


def kind(value: ast.expr) -> str:
    """What an expression is, as far as its form tells: "bool", "number" or ""."""
    match value:
        case ast.Constant(bool()) | ast.Compare() | ast.UnaryOp(ast.Not()):
            return "bool"
        case ast.Constant(int() | float()):
            return "number"
        case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
            return kind(operand)
        case ast.BoolOp(values=values) if len(kinds := {kind(each) for each in values}) == 1:
            return kinds.pop()
        case ast.IfExp(body=body, orelse=other) if kind(body) == kind(other):
            return kind(body)
    return ""


def assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    """The names that an assignment gives a value, with its kind."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, its in zip(target.elts, value.elts, strict=False):
            yield from assigned(each, its)
    elif isinstance(target, ast.Name | ast.Attribute) and kind(value):
        yield ast.unparse(target), kind(value)


def bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that a statement gives a value, with its kind. What is added is counted, a truth value too."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from assigned(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from assigned(target, value)
        case ast.AugAssign(target=target, op=ast.BitOr() | ast.BitAnd(), value=value):
            yield from assigned(target, value)


def of_two_kinds(tree: ast.AST) -> list[str]:
    """The attributes of a class, and the variables of a function, that are once a number and once a truth value."""
    found = []
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.ClassDef | ast.FunctionDef):
            continue
        kinds: dict[str, set[str]] = {}
        for name, its in (each for node in ast.walk(scope) for each in bound(node)):
            if isinstance(scope, ast.FunctionDef) or name.startswith("self."):
                kinds.setdefault(name, set()).add(its)
        found += [f"{scope.name}: {name}" for name, of_it in kinds.items() if len(of_it) > 1]
    return found


def test_no_name_is_a_number_and_a_truth_value() -> None:
    """bool is an int, so that no type checker objects, and False >= 0 holds."""
    found = [
        f"{path.relative_to(ROOT)}: {name}" for path in FILES for name in of_two_kinds(ast.parse(path.read_text()))
    ]
    assert len(FILES) > 100 and found == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class A:\n def f(self):\n  self.a, self.b = 0, -1\n def g(self):\n  self.b = False", ["A: self.b"]),
        ("class A:\n def f(self):\n  self.b = -1\n def g(self, x):\n  self.b |= x > 0", ["A: self.b"]),
        ("def f(x):\n a = x < 1\n a = 1 if x else 2", ["f: a"]),
        ("def f(x):\n a = 1.0\n b = not x\n return a, b", []),
    ],
)
def test_such_a_name_is_found(source: str, expected: list[str]) -> None:
    """In a class, in a function."""
    assert of_two_kinds(ast.parse(source)) == expected


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "mpitrain").rglob("*.py")
}
#: What a function may import: packages that need not be installed, modules that need one, what a training loads, and
#: what one rank needs: what prints.
OPTIONAL = {"PIL", "cudnn", "cupy", "kaldiio", "matplotlib", "rich", "tensorboardX", "torch"}
OPTIONAL |= {"mpitrain.console"}
OPTIONAL |= {f"mpitrain.models.torch{name}" for name in (".layers", ".module", ".place", ".state")}
OPTIONAL |= {"mpitrain.device.gpu", "mpitrain.device.gpu_place", "mpitrain.trained.onnx_torch"}
OPTIONAL |= {"mpitrain.api.train", "mpitrain.api.going_on"}


def imported(tree: ast.AST) -> Iterator[str]:
    """All that is imported, by whole names, also within functions and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def module_of(name: str) -> str:
    """The module that a name is of; "" for one of another package."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def room_of(module: str) -> str:
    """The package directly below mpitrain/, or the module there."""
    return ".".join(module.split(".")[:2])


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of those that import each other; nothing if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_neither_modules_nor_rooms_import_in_a_circle() -> None:
    """Imports for types alone and within functions count too: who reads a module follows them all."""
    trees = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}
    graph = {module: {module_of(name) for name in imported(tree)} - {module, ""} for module, tree in trees.items()}
    rooms: dict[str, set[str]] = {}
    for module, below in graph.items():
        rooms.setdefault(room_of(module), set()).update({room_of(each) for each in below} - {room_of(module)})
    graph = {module: below - {"mpitrain"} for module, below in graph.items()}  # __init__.py names what it loads later
    rooms = {room: below - {"mpitrain"} for room, below in rooms.items()}
    assert len(rooms) > 20 and circle(graph) == [] and circle(rooms) == []


def test_a_circle_is_found() -> None:
    """Of three, beside a module that is in none."""
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert list(imported(ast.parse("def f():\n from a import b\nimport c"))) == ["c", "a.b"]


def test_functions_import_only_what_may_be_missing() -> None:
    """Elsewhere imports are at the top, where they are looked for."""
    found = {
        (module, name)
        for module, path in MODULES.items()
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        for name in imported(function)
        if not OPTIONAL & {module_of(name), name.partition(".")[0]}
    }
    assert found == set()


def test_a_class_name_stands_for_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "mpitrain").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_no_serial_test_lies_in_a_folder_called_mpi() -> None:
    """pytest-mpi would skip it: it takes the folder's name for its mark."""
    for path in (ROOT / "tests").rglob("mpi/test_*.py"):
        for test in ast.parse(path.read_text()).body:
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
                marks = [ast.unparse(decorator) for decorator in test.decorator_list]
                assert any(mark.startswith("pytest.mark.mpi") for mark in marks), f"{path}: {test.name}"
