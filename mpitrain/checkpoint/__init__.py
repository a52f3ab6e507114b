"""Checkpoints: each is a folder that is written under a temporary name, checksummed, and renamed last.

`checkpoints/000000012800/` holds `state.h5` (vectors with fletcher32, counters), a `rank-00003.h5` for each rank with
vectors of its own, the run's `config.toml` and `corpus.json` at that time, and `manifest.json` with the size and xxh3
of every file. The name is the number of samples trained on. `checkpoints/best/` holds the model with the smallest error
on dev, or on test if there is no dev, to evaluate and export.

A checkpoint gets its name last and loses it first, each by a rename, so that the checkpoint that was committed last
exists at every instant. A folder that does not match its manifest is torn: it is skipped and reported.
"""

from mpitrain.checkpoint.draft import BEST, Draft, FileContent, clear, delete, file_of
from mpitrain.checkpoint.files import CONFIG, maker, require_intact, require_replaceable, sealed
from mpitrain.checkpoint.reading import best_error, find, load_kept, load_local, load_model, load_state, newest, pieces
