"""The site: `sphinx-build -W docs site` (the extra mpitrain[docs])."""

from mpitrain import __version__

project = "mpitrain"
author = "the mpitrain authors"
copyright = "2026, the mpitrain authors"
release = version = __version__
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"mpitrain {release}"
myst_heading_anchors = 3  # links such as images.md#augmentation-and-normalisation, as on the repository's own pages
#: Files outside this folder are read in the repository.
suppress_warnings: list[str] = []
exclude_patterns: list[str] = []
