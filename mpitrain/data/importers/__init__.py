"""The sources of `prepare`, one module each, and how their corpora are imported."""
