"""Ranks that start in an eighth of the time: a process that has loaded the program and its compiled loops forks them.

    python tests/warm.py serve SOCKET [MODULE ...]      fork ranks, with these modules loaded, until standard input ends
    mpirun -n 3 python -IS tests/warm.py rank SOCKET WORD ...      do what `mpirun -n 3 python WORD ...` does

A rank that trains for a twentieth of an epoch takes 0.13 s of an EPYC's core so, and 1.1 s where it loads all itself.
What mpirun starts here hands its descriptors, cores, environment and folder to a child of the server, and ends as that
does; when it is killed, so is the child. Each rank starts MPI itself. Not for tests of how processes start, stop and
die.
"""

import array
import fcntl
import json
import os
import select
import signal
import socket
import sys

SIZE = 8  # bytes of the length of a message
FREE = 200  # descriptors from here on are nobody's
#: What a rank loads.
LIBRARIES = ("mpitrain.cli.train", "mpitrain.api.train", "rich.table", "numpy.ma")


def rank(path: str, words: list[str]) -> int:
    """Let a child of the server be this process; its exit status. A signal that has killed it kills this one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        fds = [int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
        fds.remove(connection.fileno())
        cores = sorted(os.sched_getaffinity(0))
        told = json.dumps([words, fds, cores, os.getcwd(), dict(os.environ)]).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        connection.sendmsg([len(told).to_bytes(SIZE, "little")], rights)
        connection.sendall(told)
        status = int(connection.recv(SIZE) or b"1")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def load(modules: list[str]) -> None:
    """Load them, and what every rank needs. Raises RuntimeError where that starts threads: a fork has none."""
    from importlib import import_module

    from mpitrain.start import prepare_environment

    prepare_environment()
    os.environ["MPI_LOCALNRANKS"] = "1"  # as under MPICH, where PyTorch's MKL computes with one thread: other bits
    from numba.core.registry import cpu_target

    cpu_target.target_context.refresh()  # as at the first call of a loop
    for name in (*LIBRARIES, *modules):
        import_module(name)
    compile_loops()
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("threads have been started")


def compile_loops() -> None:
    """Load the compiled loops of the training that most tests have."""
    import numpy as np

    from mpitrain.config import resolve
    from mpitrain.data.sharing import ALONE
    from mpitrain.device import CPU
    from mpitrain.models.network import warm
    from mpitrain.training.inputs import network_of
    from mpitrain.training.parts import source_of

    config, dtype = resolve({}), np.dtype(np.float32)
    corpus = source_of(config, {}).training(threads=1, statistics=None)
    corpus.hold(ALONE, partly=False)
    corpus.gather(np.zeros(1, np.int64), corpus.form.room(1, dtype))
    warm(network_of(config, corpus.form, corpus.classes, CPU, {}, None), dtype)
    CPU.compile_rules(dtype)


def serve(path: str) -> list[str]:
    """Fork a child for each connection; returns in the child, with the words of its command line."""
    listener, (woken, waking) = socket.socket(socket.AF_UNIX), socket.socketpair()
    listener.bind(path)
    listener.listen(64)
    waking.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking.fileno())
    children: dict[int, socket.socket] = {}
    while True:
        for each in select.select([listener, woken, sys.stdin], [], [])[0]:
            if each is sys.stdin:
                os._exit(0)
            elif each is woken:
                woken.recv(4096)
                _tell_ends(children)
            else:
                connection, _ = listener.accept()
                if not (child := os.fork()):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in (woken, waking, listener, *children.values()):
                        other.close()
                    return _become(connection)
                children[child] = connection


def _tell_ends(children: dict[int, socket.socket]) -> None:
    """Say how the children that have ended did."""
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            break
        with children.pop(child) as connection:
            try:
                connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            except OSError:  # it was killed before
                continue


def _become(connection: socket.socket) -> list[str]:
    """Take over what the process at the other end has; its words after "python"."""
    length, rights, *_ = connection.recvmsg(SIZE, socket.CMSG_SPACE(1024))
    told, given = b"", array.array("i", b"".join(data for *_, data in rights))
    while len(told) < int.from_bytes(length, "little"):
        if not (piece := connection.recv(1 << 20)):
            os._exit(1)
        told += piece
    words, fds, cores, folder, environment = json.loads(told)
    held = fcntl.fcntl(connection.detach(), fcntl.F_DUPFD_CLOEXEC, FREE)
    fcntl.fcntl(held, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGKILL)  # of what can come from there, which is its end
    fcntl.fcntl(held, fcntl.F_SETFL, fcntl.fcntl(held, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([held], [], [], 0)[0]:  # it has come already
        os._exit(1)
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FREE) for fd in given]
    for fd, place in zip(moved, fds, strict=True):
        os.dup2(fd, place)
        os.close(fd)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    os.sched_setaffinity(0, cores)
    os.chdir(folder)
    if loaded := sys.modules.get("multiprocessing.process"):
        loaded.ORIGINAL_DIR = folder  # as where it is loaded after the start
    os.environ.clear()
    os.environ.update(environment)
    return list(words)


def run(words: list[str]) -> None:
    """As `python -m MODULE ...` and `python FILE ...` do."""
    import runpy

    is_module = words[0] == "-m"
    sys.argv = words[is_module:]
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(words[0]))
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    what, path, *words = sys.argv[1:]
    if what == "rank":
        sys.exit(rank(path, words))
    load(words)
    print("ready", flush=True)
    run(serve(path))
