"""Faults put into the program one by one: which of them the search for faults finds, and which the tests.

    python -m tests.mutations [NAME...] [--seeds N] [--record FILE]

Each mutation is a text of a file and what replaces it, in a copy of the source. First some seeds of the algorithms that
it concerns are searched (`tests/search`), then, if nothing was found, the tests of its room. Exit status 1 when more
than a tenth were not found.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("mpitrain", "kernels", "jobs", "tests", "setup.cfg", "pyproject.toml")
SEARCHING = """
import sys, tempfile, time
from pathlib import Path
from tests import search
names, seeds = sys.argv[1].split(), int(sys.argv[2])
tried = 0
for seed in range(search.EXACT, search.EXACT + 100_000):
    if search.name_of(seed) not in names or tried == seeds:
        continue
    tried += 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        wrong = search.fault(seed, Path(folder))
    if wrong:
        print(f"seed {seed}, {tried} tried: {wrong[:200]}")
        sys.exit(1)
    if tried == seeds:
        break
"""
SEARCH_DEADLINE, SUITE_DEADLINE = 600, 900  # seconds
NO_TESTS = 5  # pytest's exit status where there are none, as for several ranks in some rooms

SERVERS = "asgd mdownpour adownpour mvadownpour"
ELASTIC = "easgd eamsgd downpour admm"
AVERAGING = "easgd-sync eamsgd-sync block-momentum"


class Mutation(NamedTuple):
    """`old` becomes `new` in a file of mpitrain/, where it stands once; `names` are the algorithms to search."""

    name: str
    path: str
    old: str
    new: str
    names: str
    tests: str = "tests/protocols"


SERVER, PEERS = "protocols/server", "protocols/peers"
MUTATIONS = [
    # ---- a centre that only adds
    Mutation(
        "the last push is dropped",
        f"{SERVER}/adding.py",
        "        if not self.stopping and self.t:\n            self._push_pending()\n",
        "",
        ELASTIC,
    ),
    Mutation(
        "a delta is added twice",
        f"{SERVER}/adding.py",
        "            if d is not None:\n                centre.push(piece, d)\n",
        "            if d is not None:\n                centre.push(piece, d)\n                centre.push(piece, d)\n",
        ELASTIC,
    ),
    Mutation(
        "began is not reset at a restart",
        f"{SERVER}/adding.py",
        "            self.began = self.t\n",
        "            pass\n",
        "easgd",
    ),
    Mutation(
        "pushes are not completed at a checkpoint",
        f"{SERVER}/adding.py",
        "        self.centre.complete()\n        if self.phase is not Phase.DONE:\n",
        "        if self.phase is not Phase.DONE:\n",
        ELASTIC,
    ),
    Mutation(
        "a turn ends before its push is complete",
        f"{SERVER}/adding.py",
        "            self.centre.complete()\n            self._order.end_turn(",
        "            self._order.end_turn(",
        ELASTIC,
    ),
    Mutation(
        "turns are not restored",
        f"{SERVER}/adding.py",
        "self.t, self.turns, self.began = past.t, past.turns, past.began",
        "self.t, self.turns, self.began = past.t, 0, past.began",
        ELASTIC,
    ),
    Mutation(
        "a worker's clock is not restored",
        f"{SERVER}/adding.py",
        "self.t, self.turns, self.began = past.t, past.turns, past.began",
        "self.t, self.turns, self.began = 0, past.turns, past.began",
        ELASTIC,
    ),
    Mutation(
        "the common rate that a worker has heard of is not restored",
        f"{SERVER}/adding.py",
        "        self.session.state.rate.hear(past.falls)\n",
        "        pass\n",
        ELASTIC,
    ),
    Mutation(
        "a worker's rest of a period is not restored",
        f"{SERVER}/adding.py",
        "self.rest, self.stock = of_rows(past.rest, samples), of_rows(past.stock, samples)",
        "self.rest, self.stock = [], of_rows(past.stock, samples)",
        ELASTIC,
    ),
    Mutation(
        "an idle worker does not restart at the centre",
        f"{SERVER}/adding.py",
        "            self.phase = Phase.IDLE\n",
        "            self.phase = Phase.BETWEEN\n",
        ELASTIC,
    ),
    Mutation(
        "a move is given up at every step",
        f"{SERVER}/adding.py",
        "        self.phase = Phase.STEPPING if self.rest or self._whole else Phase.BETWEEN\n",
        "",
        "easgd eamsgd",
    ),
    Mutation(
        "a move is changed while it travels",
        f"{SERVER}/adding.py",
        "        centre.settle()\n        self._tell_losses()\n",
        "        self._tell_losses()\n",
        ELASTIC,
    ),
    Mutation(
        "two workers may claim the same samples",
        f"{SERVER}/windows.py",
        "            if seen == place:\n",
        "            if True:\n",
        ELASTIC,
    ),
    Mutation(
        "a copy of x̃ is sent before the one before has left",
        f"{SERVER}/by_messages.py",
        "        if not self.asked or self._vectors.leaving():\n",
        "        if not self.asked:\n",
        f"{ELASTIC} {SERVERS}",
    ),
    Mutation(
        "moves are taken for those of other pieces",
        f"{SERVER}/by_messages.py",
        "self._pushed[sender] = (self._pushed[sender] + 1) % len(self.pieces)",
        "self._pushed[sender] = 0",
        ELASTIC,
    ),
    # ---- a server
    Mutation(
        "workers take no own steps",
        "algorithms/server.py",
        "        if not last:\n            self.local.step(b, g, eta, 0)\n",
        "",
        SERVERS,
    ),
    Mutation(
        "the last gradient replaces the sum",
        "algorithms/server.py",
        "            np.add(s, g, out=s)",
        "            np.copyto(s, g)",
        SERVERS,
    ),
    Mutation(
        "Θ may lack the worker's own update",
        f"{SERVER}/merged.py",
        "            if index is not None and index >= self._at_least:\n",
        "            if index is not None:\n",
        SERVERS,
    ),
    Mutation(
        "unused samples are not taken back",
        f"{SERVER}/merging_master.py",
        "            self.state.queue.give_back(rest)\n",
        "            pass\n",
        SERVERS,
    ),
    Mutation(
        "turns skip a worker",
        f"{SERVER}/merging_master.py",
        "        self._next = (self.workers.index(worker) + 1) % len(self.workers)",
        "        self._next = (self.workers.index(worker) + 2) % len(self.workers)",
        SERVERS,
    ),
    Mutation(
        "a gradient is merged before all have read Θ",
        f"{SERVER}/merging_master.py",
        "        if not self.gradients or self.pulling is not None or (self.in_order and self._missing()):",
        "        if not self.gradients or (self.in_order and self._missing()):",
        SERVERS,
    ),
    Mutation(
        "the rate is that of the start",
        f"{SERVER}/updates.py",
        "now = self.state, self.schedule.at(self.counters.trained_all)",
        "now = self.state, self.schedule.at(0)",
        SERVERS,
    ),
    Mutation(
        "staleness is off by one",
        f"{SERVER}/updates.py",
        "stale, vectors = state.index - told.index, state.vectors()",
        "stale, vectors = state.index - told.index + 1, state.vectors()",
        SERVERS,
    ),
    Mutation(
        "workers' samples are not in a checkpoint",
        f"{SERVER}/merging_master.py",
        "[*self.assigned.values(), *self.stocks.values()]",
        "[*self.stocks.values()]",
        SERVERS,
    ),
    Mutation(
        "a gradient that is too stale is applied all the same",
        f"{SERVER}/updates.py",
        "        if self.options.too_stale(self.state.index - told.index):\n",
        "        if self.options.too_stale(self.state.index - told.index) and not worker:\n",
        "asgd",
        "tests/algorithms",
    ),
    Mutation(
        "DANA's sum of velocities keeps the worker's old one",
        "algorithms/staleness.py",
        "        np.subtract(total, own, out=total)\n",
        "",
        "asgd",
        "tests/algorithms",
    ),
    Mutation(
        "the gap of a gradient is measured from its worker's first Θ",
        f"{SERVER}/updates.py",
        "            np.copyto(seen, self.state.theta)\n",
        "            np.copyto(seen, seen)\n",
        "asgd",
        "tests/algorithms",
    ),
    Mutation(
        "after a resume each of DANA's workers has the whole sum of velocities",
        "algorithms/server.py",
        '{"own": vectors["velocity"] / workers}',
        '{"own": vectors["velocity"].copy()}',
        "asgd",
        "tests/algorithms",
    ),
    Mutation(
        "differences that were merged are merged into the momentum again",
        "algorithms/delayed.py",
        "        moved.fill(0)\n",
        "",
        "block-momentum",
        "tests/algorithms",
    ),
    Mutation(
        "a worker's optimizer counts its steps from each round's start",
        "algorithms/delayed.py",
        "        self._t += 1\n",
        "        self._t = 1\n",
        "block-momentum",
        "tests/algorithms",
    ),
    Mutation(
        "slow workers take as many steps as fast ones",
        f"{SERVER}/merging_master.py",
        "        return known.get(worker, fastest), fastest\n",
        "        return fastest, fastest\n",
        "block-momentum",
        "tests/algorithms",
    ),
    Mutation(
        "a round's last difference lacks the last step",
        "algorithms/delayed.py",
        "        self.local.step(b, g, eta, self._t)\n        if last:\n",
        "        if not last:\n            self.local.step(b, g, eta, self._t)\n        if last:\n",
        "block-momentum",
        "tests/algorithms",
    ),
    # ---- the queue and the stages
    Mutation(
        "a position is off by one",
        "sampling/queue.py",
        "        return self.position + place\n",
        "        return self.position + place + 1\n",
        f"{ELASTIC} sparse-delta",
        "tests/sampling",
    ),
    Mutation(
        "what is left of a returned range is all of it",
        "sampling/queue.py",
        "                left.append(work.rest(used))",
        "                left.append(work)",
        f"{ELASTIC} {SERVERS}",
        "tests/sampling",
    ),
    Mutation(
        "rests of one sample are dropped",
        "sampling/queue.py",
        "        if work.count > 0:\n            self.returned.append(work)",
        "        if work.count > 1:\n            self.returned.append(work)",
        SERVERS,
        "tests/sampling",
    ),
    Mutation(
        "minibatches cross the begin of a stage",
        "sampling/queue.py",
        "min(most, self.samples - start, self.total - position, limit or most)",
        "min(most, self.samples - start, self.total - position)",
        f"{SERVERS} allreduce",
        "tests/sampling",
    ),
    Mutation(
        "a stage begins one sample late",
        "sampling/stages.py",
        "self.all[bisect(self._begins, served) - 1]",
        "self.all[bisect(self._begins, max(served, 1) - 1) - 1]",
        f"{SERVERS} {ELASTIC}",
        "tests/sampling",
    ),
    # ---- peers
    Mutation(
        "a barrier is left out",
        f"{PEERS}/deltas.py",
        "        self.until(lambda: bool(barrier.Test()), what)\n",
        "",
        "sparse-delta",
    ),
    Mutation(
        "messages that have come are left unapplied",
        f"{PEERS}/deltas.py",
        '        self.receive()\n        self.until(lambda: not self.inbox.held, "the last messages to arrive")\n',
        "",
        "sparse-delta",
    ),
    Mutation(
        "the round of a stop is handed out again",
        f"{PEERS}/rounds.py",
        "enumerate(places) if next_place <= place]",
        "enumerate(places) if next_place <= now.after]",
        "sparse-delta",
    ),
    Mutation(
        "the residual's sign",
        "compression/residual.py",
        "                value += threshold if negative else -threshold",
        "                value -= threshold if negative else -threshold",
        "sparse-delta",
        "tests/compression/test_thresholds.py",
    ),
    Mutation(
        "an adapted threshold is not restored",
        f"{PEERS}/peer.py",
        'if not (options.target_density and "threshold" in numbers):',
        "if True:",
        "sparse-delta",
    ),
    Mutation(
        "a resumed peer forgets the residuals of others",
        "compression/thresholds.py",
        "        for residual in residuals:\n            total += residual[block]",
        "        for residual in residuals[:ranks]:\n            total += residual[block]",
        "sparse-delta",
        "tests/compression",
    ),
    Mutation(
        "minibatches without emission do not count",
        "compression/compressor.py",
        "        self._since_last += 1\n",
        "        self._since_last = 1\n",
        "sparse-delta",
        "tests/compression",
    ),
    Mutation(
        "own entries are not applied",
        f"{PEERS}/deltas.py",
        "        self.replica.apply_own(entries, step)\n",
        "",
        "sparse-delta",
    ),
    # ---- steps together
    Mutation(
        "a bucket is used before it is summed",
        "protocols/synchronous.py",
        '            self.transport.wait(request, "the other ranks\' gradients")\n',
        "",
        "allreduce",
    ),
    Mutation(
        "uneven shares count alike",
        "protocols/synchronous.py",
        "else share.count / work.count",
        "else 1.0 / ranks",
        "allreduce",
    ),
    Mutation(
        "steps since an average are not restored",
        "protocols/model_averaging.py",
        "self.t, self.since = past.t, past.since",
        "self.t, self.since = past.t, 0",
        AVERAGING,
        "tests/simulation/test_training.py",
    ),
    Mutation(
        "the last average keeps its whole momentum",
        "algorithms/block_momentum.py",
        "        self.outer.momentum *= min(steps / self._tau, 1.0)",
        "        pass",
        "block-momentum",
        "tests/algorithms",
    ),
    Mutation(
        "momentum is kept at a restart",
        "algorithms/optimizers/interface.py",
        "            np.copyto(self.buffers[name][part], buffer)\n",
        "            pass\n",
        "eamsgd easgd block-momentum",
        "tests/algorithms/optimizers",
    ),
    Mutation(
        "the mean loss that lowers the rate is one rank's",
        "protocols/model_averaging.py",
        "mean = float(self._small[0] / self._small[1])",
        "mean = loss / max(share.count, 1)",
        AVERAGING,
    ),
    Mutation(
        "a sum over ranks is used too early",
        "protocols/model_averaging.py",
        '            self._transport.wait(request, "the other ranks\' parameters")\n',
        "            pass\n",
        AVERAGING,
    ),
    Mutation(
        "convolutions count a rank's share",
        "protocols/hybrid/__init__.py",
        "        self._batch = work.count\n",
        "        self._batch = share.count\n",
        "hybrid",
    ),
    Mutation(
        "biases take the weights' rate",
        "algorithms/hybrid.py",
        '{"eta": rate * self.options.bias_rate * bias_scale, "decay"',
        '{"eta": rate * bias_scale, "decay"',
        "hybrid",
    ),
    Mutation(
        "a team's last follower is left out",
        "protocols/team.py",
        "                _add(out, team.rows[1:], part)",
        "                _add(out, team.rows[1:-1], part)",
        "",
    ),
    Mutation(
        "a user's threads go before a job's",
        "start.py",
        'THREADS = ("SLURM_CPUS_PER_TASK", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")',
        'THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK")',
        "",
        "tests/mpi",
    ),
    # ---- checkpoints
    Mutation(
        "the updates' number is not restored",
        "checkpoint/state.py",
        "self.index, self.trained, self.seconds = past.index, past.trained",
        "self.index, self.trained, self.seconds = 0, past.trained",
        f"{SERVERS} allreduce {AVERAGING}",
        "tests/checkpoint",
    ),
    Mutation(
        "where an optimizer began is not restored",
        "checkpoint/state.py",
        "self.began, self.queue.position = past.began, past.position",
        "self.began, self.queue.position = past.index, past.position",
        "allreduce",
        "tests/checkpoint",
    ),
    Mutation(
        "vectors are not copied before they are written",
        "checkpoint/writer.py",
        '            out[name] = self._copies.setdefault(f"{owner}/{name}", np.empty_like(host))\n'
        "            np.copyto(out[name], host)\n",
        "            out[name] = host\n",
        f"{ELASTIC} {SERVERS} sparse-delta allreduce",
        "tests/checkpoint",
    ),
    Mutation(
        "ranges to hand out again are lost at a resume",
        "api/shared.py",
        "    state.queue.returned = msgspec.json.decode(",
        "    state.queue.returned = [] and msgspec.json.decode(",
        f"{SERVERS} {ELASTIC}",
        "tests/checkpoint",
    ),
]


def main() -> int:
    """Try the mutations that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a part of a mutation's name")
    parser.add_argument("--seeds", type=int, default=60, help="of the search, for each mutation")
    parser.add_argument("--record", type=Path, help="append a line of JSON for each mutation; go on behind them")
    options = parser.parse_args()
    chosen = [each for each in MUTATIONS if not options.names or any(name in each.name for name in options.names)]
    record = options.record
    found = [json.loads(line) for line in record.read_text().splitlines()] if record and record.exists() else []
    before = {each["name"] for each in found}
    for mutation in chosen:
        if mutation.name in before:
            continue
        found.append({"name": mutation.name, "by": tried(mutation, options.seeds)})
        print(f"{mutation.name}: {found[-1]['by'] or 'NOT FOUND'}", flush=True)
        if record:
            with record.open("a") as file:
                file.write(json.dumps(found[-1]) + "\n")
    missed = [each["name"] for each in found if not each["by"]]
    print(f"{len(found) - len(missed)} of {len(found)} found; not found: {', '.join(missed) or 'none'}")
    return int(10 * len(missed) > len(found))


def tried(mutation: Mutation, seeds: int) -> str:
    """What finds a mutation; "" if nothing does."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tree = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, tree / name, **({"ignore": LEFT_OUT} if copy is shutil.copytree else {}))
        path = tree / "mpitrain" / mutation.path
        text = path.read_text()
        if text.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.name}: {mutation.path} has its text {text.count(mutation.old)} times")
        path.write_text(text.replace(mutation.old, mutation.new))
        began = time.monotonic()
        searched = run(tree, ["-c", SEARCHING, mutation.names, str(seeds)], SEARCH_DEADLINE)
        if searched is not None:
            return f"search, {time.monotonic() - began:.0f} s: {searched}"
        tested = run(tree, ["-m", "pytest", "-q", "-x", "-n", "2", mutation.tests], SUITE_DEADLINE)
        if tested is None:  # those for several ranks were skipped
            mpirun = Path(sys.executable).with_name("mpirun")
            of_ranks = ["-m", "pytest", "-q", "-x", "--with-mpi", "-m", "mpi", "-p", "no:cacheprovider", mutation.tests]
            tested = run(tree, of_ranks, SUITE_DEADLINE, [str(mpirun), "-n", "4"])
        return "" if tested is None else f"{mutation.tests}: {tested}"


LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.nbi", "*.nbc")


def run(tree: Path, arguments: list[str], deadline: float, launcher: Sequence[str] = ()) -> str | None:
    """The last telling line of a Python program that failed; None if it did not."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    command = [*launcher, sys.executable, *arguments]
    try:
        ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=deadline)
    except subprocess.TimeoutExpired:
        return f"no end within {deadline} s"
    if ended.returncode in (0, NO_TESTS):
        return None
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.startswith(("seed ", "FAILED", "E  "))]
    return (lines or (ended.stdout + ended.stderr).splitlines() or ["status"])[-1][:160]


if __name__ == "__main__":
    sys.exit(main())
