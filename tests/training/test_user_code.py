"""The user's files, and the modules beside them."""

import sys
from pathlib import Path

import pytest

from mpitrain.errors import BadInput
from mpitrain.training import user_code
from mpitrain.training.user_code import Code

NET = """
import parts

def build():
    import late
    return parts.NAME, late.NAME
"""


def code(folder: Path, others: dict[str, str] | None = None, **texts: str) -> Code:
    """What "FOLDER/net.py:build" names once these modules lie there, and others by their paths without .py."""
    for name, text in {**texts, **(others or {})}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return user_code.read(user_code.parse("model.import", f"{folder / 'net.py'}:build"))


def named(name: str) -> str:
    """A module that has this name."""
    return f"NAME = {name!r}\n"


def test_each_file_imports_the_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of another file, nor those of the program, which keeps its own; also those imported in the function."""
    code(tmp_path / "program", net=NET, parts=named("program"), late=named("program"))
    monkeypatch.syspath_prepend(tmp_path / "program")
    import parts  # type: ignore[import-not-found]

    before = list(sys.path), set(sys.modules)
    codes = [code(tmp_path / name, net=NET, parts=named(name), late=named(name)) for name in ("one", "two")]
    one, two = (each.function() for each in codes)
    assert (one(), two(), one()) == (("one", "one"), ("two", "two"), ("one", "one"))
    assert [set(each.texts) for each in codes] == [{"net.py", "parts.py", "late.py"}] * 2
    assert "'two'" in codes[1].texts["late.py"]
    assert sys.modules["parts"] is parts and parts.NAME == "program" and "late" not in sys.modules
    assert sys.path == before[0]
    assert all(name.startswith("_mpitrain_") for name in set(sys.modules) - before[1])
    del sys.modules["parts"]


def test_an_edited_module_is_imported_anew(tmp_path: Path) -> None:
    """Also where its size and its times are the same, and an unchanged file is executed once."""
    before = code(tmp_path, net=NET, parts=named("one"), late=named("one"))
    function = before.function()
    again = code(tmp_path, net=NET, parts=named("one"), late=named("one"))
    assert again.function() is function
    assert code(tmp_path, parts=named("two")).function()() == ("two", "one")
    assert function() == ("one", "one")


def test_what_is_executed_is_what_was_read(tmp_path: Path) -> None:
    """Though it changes afterwards: it is what the run folder keeps."""
    kept = code(tmp_path, net=NET, parts=named("kept"), late=named("kept"))
    code(tmp_path, net=NET, parts=named("other"), late=named("other"))
    assert kept.function()() == ("kept", "kept")
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_file_that_changes_the_working_folder_leaves_it_to_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is executed it has its own way: such as to where it lies, for what it reads."""
    monkeypatch.chdir(tmp_path)
    lines = "import os\nos.chdir(os.path.dirname(__file__))\nNAME = open('name.txt').read()\ndef build(): return NAME\n"
    made = code(tmp_path / "there", net=lines)
    (tmp_path / "there" / "name.txt").write_text("one")
    assert made.function()() == "one" and Path.cwd() == tmp_path


IMPORTS = """
import json
import pack.deep.leaf as leaf
from pack import one, NUMBER
from . import two
from space.three import THREE

def build():
    from pack.deep import leaf as again
    import pack
    assert again is leaf and pack.one is one and json.__name__ == "json"
    return leaf.FOUR, one.ONE, NUMBER, two.TWO, THREE, pack.late()
"""


def test_every_kind_of_import_statement(tmp_path: Path) -> None:
    """Of packages, of folders without __init__.py, relative ones, circular ones, and those in functions."""
    texts = {
        "pack/__init__": "from . import one\nNUMBER = 7\ndef late():\n    from .five import FIVE\n    return FIVE\n",
        "pack/one": "from pack.deep import leaf\nONE = 1\n",
        "pack/five": "FIVE = 5\n",
        "pack/other": "raise SystemExit('nobody imports it')\n",
        "pack/deep/__init__": "",
        "pack/deep/leaf": "from ..deep import leaf as me\nFOUR = 4\n",
        "space/three": "import net\nTHREE = 3\n",
        "two": "TWO = 2\n",
        "json": "raise SystemExit('it stands in for nothing')\n",
    }
    found = code(tmp_path, texts, net=IMPORTS)
    assert found.function()() == (4, 1, 7, 2, 3, 5)
    assert set(found.texts) == {
        "net.py",
        "pack/__init__.py",
        "pack/one.py",
        "pack/five.py",
        "pack/deep/__init__.py",
        "pack/deep/leaf.py",
        "space/three.py",
        "two.py",
    }


def test_a_python_below_the_file_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its library, nor what is installed in it, nor modules that its folder's name leads to."""
    library = tmp_path / "env" / "lib" / "python3.11"
    for path in (library / "librarian.py", library / "site-packages" / "installed.py", tmp_path / "env" / "inside.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def build():\n    return __name__\n")
        monkeypatch.syspath_prepend(path.parent)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "env" / "conda-meta").mkdir()
    text = (
        "import librarian, installed, env.inside, parts\ndef build(): return librarian.__name__, env.inside.__name__\n"
    )
    found = code(tmp_path, net=text, parts="")
    assert found.function()() == ("librarian", "env.inside")
    assert set(found.texts) == {"net.py", "parts.py"}
    assert user_code.read(user_code.parse("model.import", "installed:build")).texts == {}
    for name in ("librarian", "installed", "env", "env.inside"):
        del sys.modules[name]


def test_a_module_is_found_without_executing_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the files of the user's own are known before, from the top of its package."""
    code(tmp_path, {"nets/__init__": "raise SystemExit('executed')", "nets/wide": "from nets import narrow\n"}, net="")
    (tmp_path / "nets" / "narrow.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    found = user_code.read(user_code.parse("model.import", "nets.wide:build"))
    assert set(found.texts) == {"nets/__init__.py", "nets/wide.py", "nets/narrow.py"}
    assert user_code.place(found) == tmp_path / "nets" / "wide.py"
    with pytest.raises(BadInput, match=r"model\.import = 'nets\.wide:build': cannot be imported: SystemExit: executed"):
        found.function()


BAD = {
    "not UTF-8": b"\xff",
    "cannot be imported: SyntaxError": b"def",
    "cannot be imported: ModuleNotFoundError: No module named 'nowhere'": b"import nowhere",
    "cannot be imported: ModuleNotFoundError: No module named 'pack.unnamed' beside": (
        b"import pack, importlib\nimportlib.import_module(pack.__name__ + '.unnamed')"
    ),
    "cannot be imported: SystemExit: no": b"raise SystemExit('no')",
    "there is no function build": b"build = 3",
}


@pytest.mark.parametrize("reason", BAD)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, reason: str) -> None:
    """And can be loaded again once it is corrected."""
    code(tmp_path, {"pack/__init__": "", "pack/unnamed": ""}, net="")
    (tmp_path / "net.py").write_bytes(BAD[reason])
    with pytest.raises(BadInput, match=r"^model\.import = ") as refused:
        user_code.read(user_code.parse("model.import", f"{tmp_path / 'net.py'}:build")).function()
    assert reason in str(refused.value)
    assert code(tmp_path, net="def build(): return 1").function()() == 1


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "net.py").symlink_to("/dev/zero")
    with pytest.raises(BadInput, match=r"net\.py: not a regular file"):
        user_code.read(user_code.parse("model.import", f"{tmp_path / 'net.py'}:build"))
