"""`python -m mpitrain jobs [DIR]`: a copy of the batch scripts for Slurm, to be edited for a cluster and submitted."""

import argparse
import shutil

from mpitrain.errors import BadInput, naming
from mpitrain.files import shipped


def run(args: argparse.Namespace) -> None:
    """Copy the scripts and say how to submit one. Raises BadInput if they cannot be written, or would replace files."""
    out = args.dir / "jobs"
    if out.exists():
        raise BadInput(f"{out}: exists already; name another folder, or remove it")
    with naming(out):
        shutil.copytree(shipped("jobs"), out, ignore=shutil.ignore_patterns("__pycache__"))
    print(f"{out}: describe your cluster in site.sh; then, in the folder that holds jobs/:")
    print("    . jobs/site.sh && sbatch jobs/easgd.sbatch")
