"""Windows are made together: whoever does not come is named before anything blocks."""

import pytest

from mpitrain.errors import Overdue
from mpitrain.mpi import Transport
from mpitrain.mpi.windows import Segments


@pytest.mark.mpi(min_size=2)
def test_windows_wait_for_ranks_by_name(transport: Transport) -> None:
    """All goes on when it comes."""
    mine = Transport(transport.comm.Dup(), deadline=0.5)
    if mine.rank:
        for shared in (True, False):
            with pytest.raises(Overdue, match=r"for rank 0 \(a window\)"):
                Segments(mine, 64, shared)
    transport.barrier("all to have waited")
    for _ in range(2 if mine.rank == 0 else 0):
        mine.comm.Ibarrier().Wait()
    transport.barrier("the end")
