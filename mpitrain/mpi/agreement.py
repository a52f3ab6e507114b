"""How ranks meet bad input together: one of them says why, all leave with the same status, none hangs."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TypeVar

from mpitrain.errors import BadInput, Overdue, RankLost, TrainingFailed, WireError, printable, say, unreachable
from mpitrain.mpi import Transport
from mpitrain.mpi.enduring import EnduringCommunicator
from mpitrain.mpi.process import PRINTING, abort_on_exception

T = TypeVar("T")
ALONE = PRINTING + 4.0  # seconds for a rank to say why and to end the job, on machines with more ranks than cores too


def ending_together(transport: Transport, action: Callable[[], int]) -> int:
    """What `action` returns, or the exit status for what it raises: 2 for bad input, 1 for a failure, 130 at SIGINT."""
    try:
        status = _status(transport, action)
        outlasts = isinstance(transport.comm, EnduringCommunicator)  # from now on nothing is lost with a rank
        with suppress(RankLost, Overdue) if outlasts else nullcontext():
            transport.leave()
    except Overdue as error:
        _end(transport, str(error), 1, PRINTING * min(others_see(transport, error), 2))
        return 1
    except (TrainingFailed, WireError) as error:
        return _end_alone(transport, str(error), 1)
    except KeyboardInterrupt:
        return _end_alone(transport, "interrupted", 130)
    return status


def by_all_ranks(action: Callable[[Transport], int]) -> int:
    """What `action` returns in a command that every rank of the job runs, or the status for what it raises."""
    abort_on_exception()
    transport = Transport()
    return ending_together(transport, lambda: action(transport))


def _status(transport: Transport, action: Callable[[], int]) -> int:
    try:
        with unreachable():
            return action()
    except BadInput as error:
        if not error.agreed:
            return _end_alone(transport, str(error), 2)
        if error.spoken_here:
            say(error)
        transport.barrier("the line about bad input")
        return 2


def agreed(transport: Transport, action: Callable[[], T], what: str, calls_mpi: bool = False) -> T:
    """What `action` returns, if no rank has met bad input in it; otherwise all ranks raise BadInput, and one of them is
    to print it. Heartbeats are given meanwhile, unless `action` itself calls MPI (`calls_mpi`)."""
    result, fault = None, ""
    try:
        with nullcontext() if calls_mpi else transport.working():
            result = action()
    except BadInput as error:
        fault = printable(str(error)) or "bad input"
    faults = transport.gather_texts(fault, what)
    if not any(faults):
        return result  # type: ignore[return-value]
    first = next(rank for rank, text in enumerate(faults) if text)
    raise BadInput.known(faults[first], spoken_here=transport.rank == first)


def of_first(transport: Transport, read: Callable[[], bytes], what: str) -> bytes:
    """What `read` returns on rank 0, on every rank; BadInput everywhere where it raises that. Collective."""
    return transport.broadcast(agreed(transport, lambda: b"" if transport.rank else read(), what), what)


def odd_one(texts: list[str]) -> int:
    """The first rank whose text differs from rank 0's; 0 if there is none."""
    return next((rank for rank, text in enumerate(texts) if text != texts[0]), 0)


def told_alike(transport: Transport, text: str, what: str, line: Callable[[int, list[str]], str]) -> None:
    """Raise BadInput on all ranks unless all of them give the same text; `line` says it, of the first rank that gives
    another one, and all texts. Collective."""
    texts = transport.gather_texts(text, what)
    if odd := odd_one(texts):
        raise BadInput.known(line(odd, texts), spoken_here=transport.rank == 0)


def called_alike(transport: Transport, call: str, what: str) -> None:
    """Raise BadInput on all ranks unless all of them make the same call, arguments included. Collective."""
    told_alike(transport, call, what, lambda odd, texts: f"rank {odd} called {texts[odd]}, rank 0 {texts[0]}")


def alone(action: Callable[[], int | None], why: str) -> int:
    """In a job of one process, what `action` returns, or 0. A job of several is refused with `why` and status 2."""

    def refuse() -> int:
        if transport.size > 1:
            raise BadInput(why)
        return 0

    transport = Transport()
    return ending_together(transport, lambda: agreed(transport, refuse, "the start")) or action() or 0


def others_see(transport: Transport, error: Overdue) -> int:
    """How many ranks before this one are about to say the same."""
    beats = transport.heartbeats
    return sum(
        beats.watches or beats.waits(rank)
        for rank in transport.members
        if rank < transport.rank and rank not in error.silent
    )


def _end_alone(transport: Transport, line: str, status: int) -> int:
    """End the job because of what perhaps this rank alone has met, for which the others would wait."""
    _end(transport, line, status, ALONE * min(transport.rank, 4))
    return status


def _end(transport: Transport, line: str, status: int, later: float) -> None:
    """Say why and end the job. Where several ranks see the same fault, the first is given the time to say it alone;
    this one comes this many seconds `later`."""
    transport.sleep(later)
    say(line)
    if transport.size > 1:
        transport.runtime.abort(status)
