"""The nodes that a training may start on, and which of them answer."""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mpitrain.api.launching import ANSWER, is_open_mpi, start, told_by
from mpitrain.errors import BadInput

Nodes = dict[str, int]  # how many ranks each node has room for, by the name of the node


def nodes_of(hosts: str) -> Nodes:
    """The nodes of `--hosts a:4,b:4`, or else those of the Slurm job that this process is in, if it has several; empty
    if none are known. Raises BadInput naming the option."""
    if hosts:
        pairs = (each.rpartition(":") if ":" in each else (each, "", "1") for each in hosts.split(","))
        with suppress(ValueError):
            found = {name.strip(): int(slots) for name, _, slots in pairs}
            if all(found) and min(found.values()) > 0 and len(found) == len(hosts.split(",")):
                return found
        raise BadInput(f"--hosts {hosts}: expected a:4,b:4, each host once")
    listed, tasks = (os.environ.get(name, "") for name in ("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"))
    if not listed or "SLURM_HET_SIZE" in os.environ:  # components of heterogeneous jobs differ in their nodes
        return {}
    # "4(x2),3" means 4 tasks on each of two nodes, and 3 on the next
    counts = [int(each) for each, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks) for _ in range(int(times or 1))]
    names = told_by(["scontrol", "show", "hostnames", listed])[0].split()
    return dict(zip(names, counts, strict=True)) if len(names) == len(counts) > 1 else {}


def answering(launch: str, nodes: Nodes) -> Nodes:
    """The nodes on which the launcher starts a process within ANSWER seconds; all are tried at once. Returns all nodes
    if that cannot be told: if none answers, fewer than two are known, or the launcher's options are not known."""
    if len(nodes) < 2 or on_nodes(launch, nodes) == launch:
        return nodes
    asked = {}
    for name in nodes:
        words = shlex.split(on_nodes(launch, {name: 1}).replace("{ranks}", "1"))
        asked[name] = start([*words, "true"], errors=subprocess.DEVNULL)
    end, found = time.monotonic() + ANSWER, {}
    for name, process in asked.items():
        try:
            answers = process.wait(max(end - time.monotonic(), 0.1)) == 0
        except subprocess.TimeoutExpired:
            answers = False
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if answers:
            found[name] = nodes[name]
    return found or nodes


def on_nodes(launch: str, nodes: Mapping[str, int]) -> str:
    """The launcher with the options that start ranks on these nodes alone; unchanged if its options are not known."""
    program, *rest = shlex.split(launch)
    hosts = ",".join(f"{name}:{slots}" for name, slots in nodes.items())
    if Path(program).name == "srun":
        # --overlap, so that the remains of a step that lost a node do not block a new step on the other nodes
        words = ["--overlap", f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]
    elif Path(program).name in ("mpirun", "mpiexec"):
        words = ["--host" if is_open_mpi(program) else "-hosts", hosts]
    else:
        return launch
    return shlex.join([program, *words, *rest])
