"""Reports on runs: one HTML page, and plots as files."""
