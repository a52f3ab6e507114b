"""How well `prepare kaldi` uses two cores: compressed features and alignments with --jobs 1 and 2, in turns.

OPENBLAS_NUM_THREADS=1 python benchmarks/prepare/kaldi.py [--hours H] [--turns N]
"""

import argparse
import tempfile
from pathlib import Path

import kaldiio
import numpy as np
from turns import compare

DIMS, CLASSES, FRAMES = 40, 2000, 1500  # a frame, of the alignment, an utterance
SECOND = 100  # frames


def write(folder: Path, hours: float) -> None:
    """Features as Kaldi compresses them, and an alignment, of utterances that are all different."""
    rng = np.random.default_rng(0)
    keys = [f"utterance-{number:06d}" for number in range(round(3600 * hours * SECOND / FRAMES))]
    (folder / "data").mkdir()
    features = ((key, rng.normal(size=(FRAMES, DIMS)).astype(np.float32)) for key in keys)
    ark, scp = str(folder / "feats.ark"), str(folder / "data" / "feats.scp")
    kaldiio.save_ark(ark, dict(features), scp=scp, compression_method=2)
    aligned = {key: rng.integers(0, CLASSES, FRAMES, np.int32) for key in keys}
    kaldiio.save_ark(str(folder / "pdf.ark"), aligned, scp=str(folder / "pdf.scp"))


def main() -> None:
    """Print each turn, the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=5)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, options.hours)
        words = ["kaldi", str(folder / "data"), "--alignments", str(folder / "pdf.scp"), "--classes", str(CLASSES)]
        compare([*words, "--cmvn", "utterance"], folder / "out", options.turns)


if __name__ == "__main__":
    main()
