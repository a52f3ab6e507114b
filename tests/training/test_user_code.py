"""The user's files, and the modules beside them."""

import sys
from pathlib import Path

import pytest

from mpitrain.training.user_code import function

NET = """
import parts

def build():
    import late
    return parts.NAME, late.NAME
"""


def write(folder: Path, name: str) -> str:
    """A file that imports two modules beside it, which have this name; its function."""
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(NET)
    for module in ("parts", "late"):
        (folder / f"{module}.py").write_text(f"NAME = {name!r}\n")
    return f"{folder / 'net.py'}:build"


def test_each_file_imports_the_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of another file, nor those of the program, which keeps its own."""
    write(tmp_path / "program", "program")
    monkeypatch.syspath_prepend(tmp_path / "program")
    import parts  # type: ignore[import-not-found]

    path, first, second = list(sys.path), write(tmp_path / "one", "one"), write(tmp_path / "two", "two")
    one, two = function("model.import", first), function("model.import", second)
    assert (one(), two(), one()) == (("one", "one"), ("two", "two"), ("one", "one"))
    assert set(one.texts()) == set(two.texts()) == {"net.py", "parts.py", "late.py"}
    assert "'two'" in two.texts()["late.py"]
    assert sys.modules["parts"] is parts and parts.NAME == "program" and "late" not in sys.modules
    assert sys.path == path
    del sys.modules["parts"]


def test_an_edited_module_is_imported_anew(tmp_path: Path) -> None:
    """And an unchanged file is executed once."""
    before = function("model.import", write(tmp_path, "before"))
    assert function("model.import", write(tmp_path, "before")).function is before.function
    after = function("model.import", write(tmp_path, "afterwards"))
    assert (before()[0], after()) == ("before", ("afterwards", "afterwards"))
