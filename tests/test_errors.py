"""What is said of optional packages: those that are missing, half there, or broken."""

import errno
import os
import sys
from pathlib import Path

import pytest

from mpitrain.device.choice import MISSING, choose
from mpitrain.errors import BadInput, library, unreachable
from mpitrain.models.torch.start import require

HELP = "this needs it: pip install mpitrain[extra]"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ""),
        ("import missing_below", " (what is installed fails: No module named 'missing_below')"),
        ("raise ImportError('libx.so.3: no such file')", " (what is installed fails: libx.so.3: no such file)"),
        ("raise AttributeError('numpy has no attribute x')", " (what is installed fails: numpy has no attribute x)"),
    ],
)
def test_a_library_that_is_not_whole(
    content: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mere folder of its name, as of the user's, is none; of one that fails to load the reason is told."""
    (tmp_path / "half_there").mkdir()
    if content is not None:
        (tmp_path / "half_there" / "__init__.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput) as refused:
        library("half_there", "this needs it", "extra")
    assert str(refused.value) == HELP + said
    sys.modules.pop("half_there", None)


@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_a_folder_with_the_name_of_a_package_is_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the working directory, where the package is not installed: Python takes it for a package without content."""
    (tmp_path / name).mkdir()
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    if name == "cupy":
        with pytest.raises(BadInput, match=MISSING):
            choose("gpu", "float32", 0)
    else:
        with pytest.raises(BadInput, match=r"needs PyTorch: pip install mpitrain\[torch\]$"):
            require("model.backend = 'torch'")
    sys.modules.pop(name, None)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ENOTCONN, errno.ESTALE])
def test_a_file_that_cannot_be_reached_is_named(number: int) -> None:
    """As on a mount whose server is gone. What the system says of no file is left as it is."""
    with pytest.raises(BadInput, match=f"^runs/a: {os.strerror(number)}$"), unreachable():
        raise OSError(number, os.strerror(number), "runs/a")
    with pytest.raises(OSError, match=os.strerror(number)), unreachable():
        raise OSError(number, os.strerror(number))
