"""`python -m mpitrain jobs [DIR]`: a copy of the batch scripts for Slurm, to be edited for a cluster and submitted."""

import argparse
import shutil

from mpitrain.errors import BadInput
from mpitrain.files import shipped


def run(args: argparse.Namespace) -> None:
    """Copy the scripts and say how to submit one. Raises BadInput if they cannot be written, or would replace files."""
    out = args.dir / "jobs"
    try:
        shutil.copytree(shipped("jobs"), out, ignore=shutil.ignore_patterns("__pycache__"))
    except FileExistsError:
        raise BadInput(f"{out}: exists already; name another folder, or remove it") from None
    except (OSError, shutil.Error) as error:
        raise BadInput(f"{out}: {error.strerror or error}") from None
    print(f"{out}: describe your cluster in site.sh; then, in the folder that holds jobs/:")
    print("    . jobs/site.sh && sbatch jobs/easgd.sbatch")
