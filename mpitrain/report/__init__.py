"""Reports on runs: one HTML page, and plots as files."""

from mpitrain.report.command import add_parser

__all__ = ["add_parser"]
