"""Run an MPI program on two emulated hosts: two network namespaces of this machine, joined by a link of limited rate.

    python benchmarks/twohosts/twohosts.py [--rate 1gbit] [--ranks 2] COMMAND ...

As root, with Debian's iproute2 and an environment with MPICH (Open MPI 5 puts both ranks on one host). The ranks
alternate between the hosts. The rate is `tc`'s: 1gbit, 100mbit; `none` sets no limit. COMMAND starts as it stands; the
folder is shared. From Python: `with Link("1gbit") as link: link.mpirun(["python", "program.py"], ranks=2)`.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

AGENT = Path(__file__).with_name("agent.sh")
DEVICE = "link0"
#: UCX, below MPICH, would try the loopback device and shared memory first, and give up.
ENVIRONMENT = {"UCX_NET_DEVICES": DEVICE, "UCX_TLS": "tcp,self"}


def missing() -> str:
    """Why hosts cannot be emulated here; empty when they can."""
    if os.geteuid():
        return "network namespaces need root"
    absent = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} not installed"
    mpirun = Path(sys.executable).with_name("mpirun")
    if (
        not mpirun.exists()
        or "HYDRA" not in subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    ):
        return "this environment has no MPICH"
    return ""


class Link:
    """Two hosts while the context lasts. Raises RuntimeError naming the command that failed."""

    def __init__(self, rate: str = "1gbit") -> None:
        self.rate = rate
        self.hosts = tuple(f"host{os.getpid()}{end}" for end in "ab")

    def __enter__(self) -> "Link":
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def mpirun(self, command: Sequence[str], ranks: int = 2, timeout: float | None = None) -> int:
        """Run a command on both hosts; its exit status. Raises subprocess.TimeoutExpired."""
        return subprocess.run(self.launch(command, ranks), timeout=timeout, check=False).returncode

    def launch(self, command: Sequence[str], ranks: int = 2) -> list[str]:
        """The command line that runs a command on both hosts."""
        mpirun = Path(sys.executable).with_name("mpirun")
        first = self.hosts[0]
        # Without a name of its own each, MPI takes the hosts for one and uses shared memory.
        launch = [str(AGENT), first, str(mpirun), "-launcher", "ssh", "-launcher-exec", str(AGENT)]
        hosts = ["-hosts", ",".join(f"{host}:1" for host in self.hosts), "-n", str(ranks)]
        settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return ["env", *settings, *launch, *hosts, *command]

    def _build(self) -> None:
        names = "".join(f"10.77.0.{number} {host}\n" for number, host in enumerate(self.hosts, 1))
        for host in self.hosts:
            _do("ip", "netns", "add", host)
            folder = Path("/etc/netns") / host  # `ip netns exec` lays these files over /etc
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        a, b = self.hosts
        _do("ip", "link", "add", DEVICE, "netns", a, "type", "veth", "peer", "name", DEVICE, "netns", b)
        for number, host in enumerate(self.hosts, 1):
            inside = ("ip", "netns", "exec", host)
            _do(*inside, "ip", "address", "add", f"10.77.0.{number}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _do(*inside, "ip", "link", "set", device, "up")
            if self.rate != "none":
                limit = ("rate", self.rate, "burst", "128kb", "latency", "50ms")
                _do(*inside, "tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", *limit)

        while any(
            "state UP" not in _do("ip", "netns", "exec", host, "ip", "link", "show", DEVICE) for host in self.hosts
        ):
            time.sleep(0.05)  # MPI would not find a device that is still coming up

    def _remove(self) -> None:
        for host in self.hosts:
            left = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=False)
            for pid in map(int, left.stdout.split()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns") / host, ignore_errors=True)


def _do(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the hosts are removed
    with Link(options.rate) as link:
        return link.mpirun(options.command, options.ranks)


if __name__ == "__main__":
    sys.exit(main())
