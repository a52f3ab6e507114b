"""Spoilt files of every format: one line or sound data, no traceback, crash or hang, and never 2 GB.

`--mutations N`: how many of each format.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("mutated.py")
FORMATS = {
    "kaldiio": ["kaldi", "kaldi-scp-cmvn", "kaldi-text", "kaldi-compressed", "kaldi-packed"],
    "kaldi_native_fbank": ["wav", "wav-floats", "wav-frames", "flac", "ogg", "mp3", "aiff", "au"],
    "PIL": ["png", "jpg", "gif", "tiff", "bmp", "webp", "ppm"],
    "h5py": [
        *("mnist", "mnist-gz", "cifar", "cifar-binary", "cifar-tar", "cifar-gz", "npz", "npz-packed", "arrays-h5"),
        *("shards", "shards-images", "shards-tokens"),
        *("foreign-shards", "foreign-shards-images", "foreign-shards-tokens"),
    ],
}
MEGABYTES = 2000


@pytest.mark.parametrize("needed", FORMATS)
def test_spoilt_files_are_refused_or_sound(
    tmp_path: Path, needed: str, run_command: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    pytest.importorskip(needed)
    count, forms = request.config.getoption("--mutations"), ",".join(FORMATS[needed])
    command = [sys.executable, str(PROGRAM), forms, "0", str(count), str(tmp_path / "spoilt")]
    ended = run_command(command, 60 + 4 * count * len(FORMATS[needed]))
    last = ended.out.splitlines()[-1]
    assert ended.status == 0, f"{last}: status {ended.status}\n{ended.err[-2000:]}"
    found = json.loads(last)
    assert not found["faults"] and found["megabytes"] < MEGABYTES, found
    assert found["refused"] > count * len(FORMATS[needed]) // 4
