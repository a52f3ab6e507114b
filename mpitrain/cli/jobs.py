"""`python -m mpitrain jobs [DIR]`: a copy of the batch scripts for Slurm, to be edited for a cluster and submitted."""

import argparse
import shutil

from mpitrain.errors import BadInput, naming
from mpitrain.files import shipped, write_below


def run(args: argparse.Namespace) -> None:
    """Copy the scripts and say how to submit one. Raises BadInput if they cannot be written, or would replace files."""
    out, scripts = args.dir / "jobs", shipped("jobs")
    if out.exists():
        raise BadInput(f"{out}: exists already; name another folder, or remove it")
    with naming(out):
        out.mkdir(parents=True)  # of two such commands at once, one fails here, and leaves the other's files alone
        try:
            for path in scripts.rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    write_below(out, str(path.relative_to(scripts)), path.read_bytes())
        except (BadInput, OSError):
            shutil.rmtree(out, ignore_errors=True)
            raise
    print(f"{out}: describe your cluster in site.sh; then, in the folder that holds jobs/:")
    print("    . jobs/site.sh && sbatch jobs/easgd.sbatch")
