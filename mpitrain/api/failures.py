"""Record why a training failed, and say from where it can be resumed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from mpitrain.checkpoint.files import REPLACED, folders
from mpitrain.checkpoint.lease import token_of
from mpitrain.errors import BadInput, Overdue, RankLost, TrainingFailed, WireError, first_line, printable
from mpitrain.monitoring.records import append
from mpitrain.mpi.agreement import others_see
from mpitrain.training.context import Session

PATIENCE = 2.0  # seconds


@contextmanager
def failures_recorded(session: Session) -> Iterator[None]:
    """Record in metrics.jsonl why a training failed, and the ranks that were silent; say where it can be resumed.

    The rank that prints the failure records it: the first rank may be the silent one, or not hear of it in time.
    """
    try:
        yield
    except RankLost as error:
        error.held = session
        raise
    except Overdue as error:
        if session.goes_on and error.silent:
            raise RankLost(error.silent, session) from error
        known = Overdue(f"{error}; {how_to_resume(session)}", error.silent)
        if not others_see(session.transport, error):
            _record(session, str(known), error.silent)
        raise known from error
    except Exception as error:
        if getattr(error, "spoken_here", True):
            ours = isinstance(error, BadInput | TrainingFailed | WireError)
            _record(session, first_line(error) if ours else f"{type(error).__name__}: {first_line(error)}")
        raise


def _record(session: Session, text: str, silent: Sequence[int] = ()) -> None:
    # A rank that was cut off from the others may fail when they have started again, in the same folder.
    if session.saver is not None and token_of(session.saver.folder.parent) in (session.token, ""):
        append(session.saver.folder.parent / "metrics.jsonl", "failed", text=printable(text), silent=silent)


def how_to_resume(session: Session) -> str:
    """A clause that says from where, and by what command, a run that has lost a rank can be resumed. A thread looks for
    checkpoints, for PATIENCE at most, since the storage may not answer."""
    saver = session.saver
    if saver is None:
        return "it leaves no checkpoint"
    found: list[Path] = []
    with suppress(BadInput):
        looking = Thread(target=lambda: found.extend(folders(saver.folder)), daemon=True)
        looking.start()
        looking.join(PATIENCE)
    run = saver.folder.parent
    if not found:
        return f"there is no checkpoint in {run} yet"
    epoch = int(found[-1].name.rstrip(REPLACED)) / session.learner.corpus.samples
    return f"to resume from epoch {epoch:.2f}: {session.command_to_resume(run)}"
