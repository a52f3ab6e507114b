"""A communicator whose ranks may die: what raises, and when. MPI is played by the tests."""

from typing import Any

import pytest

from mpitrain.errors import RankLost
from mpitrain.mpi.enduring import EnduringCommunicator, Family
from mpitrain.mpi.launcher import MPI

DEAD = MPI.Exception(MPI.ERR_PROC_FAILED)
HEARD = MPI.Exception(MPI.ERR_REVOKED)


class Plain:
    """A communicator in which every call raises what it is told to."""

    rank, size = 0, 2

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if self.error is not None:
                raise self.error
            return self

        return call

    def Test(self, *arguments: Any) -> bool:
        if self.error is not None:
            raise self.error
        return True


def of(plain: Plain, family: Family | None = None) -> EnduringCommunicator:
    return EnduringCommunicator(plain, family or Family())  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [DEAD, HEARD, MPI.Exception(MPI.ERR_PROC_FAILED_PENDING)])
def test_what_comes_from_others_raises(error: Exception) -> None:
    communicator = of(Plain(error))
    with pytest.raises(RankLost):
        communicator.Iprobe()
    with pytest.raises(RankLost):
        communicator.Improbe(1, 0, MPI.Status())
    with pytest.raises(RankLost):
        communicator.Iallreduce(b"", b"")
    with pytest.raises(RankLost):
        communicator.Split(0)


def test_a_send_to_a_dead_rank_raises_at_the_next_look() -> None:
    """Whoever sends is in the middle of something; and the send is over. All communicators of a family know."""
    plain, family = Plain(DEAD), Family()
    communicator, other = of(plain, family), of(Plain(), family)
    request = communicator.Isend(b"", 1, 0)
    assert request.Test()
    assert communicator.Isend(b"", 1, 0).Test()
    for each in (communicator, other):
        with pytest.raises(RankLost):
            each.Iprobe()
        with pytest.raises(RankLost):
            each.Ibarrier()


def test_a_send_whose_receiver_dies_has_gone() -> None:
    plain = Plain()
    communicator = of(plain)
    request = communicator.Isend(b"", 1, 0)
    plain.error = DEAD
    assert request.Test()
    with pytest.raises(RankLost):
        communicator.Iprobe()


def test_a_message_whose_sender_dies_raises() -> None:
    plain = Plain()
    communicator = of(plain)
    message, request = communicator.Improbe(1, 0, MPI.Status()), communicator.Iallgather(b"", b"")
    plain.error = DEAD
    assert message is not None
    with pytest.raises(RankLost):
        message.Recv(b"")
    with pytest.raises(RankLost):
        request.Test()


class Told(Plain):
    """A communicator that says what it knows of losses, while a collective ends with another error."""

    revoked, failed = False, MPI.GROUP_EMPTY

    def Is_revoked(self) -> bool:
        return self.revoked

    def Get_failed(self) -> MPI.Group:
        return self.failed


@pytest.mark.parametrize(("revoked", "failed"), [(True, MPI.GROUP_EMPTY), (False, MPI.COMM_SELF.Get_group())])
def test_a_collective_that_is_broken_in_a_later_round_raises(revoked: bool, failed: MPI.Group) -> None:
    """With Open MPI its error is none of those of lost ranks."""
    plain = Told()
    request = of(plain).Iallreduce(b"", b"")
    plain.error = MPI.Exception(MPI.ERR_OTHER)
    with pytest.raises(MPI.Exception):
        request.Test()
    plain.revoked, plain.failed = revoked, failed
    with pytest.raises(RankLost):
        request.Test()


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(MPI.Exception):
        of(Plain(MPI.Exception(MPI.ERR_TRUNCATE))).Iprobe()
