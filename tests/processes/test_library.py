"""Loading MPI: what a library cannot do on this machine is left out."""

import os
from types import SimpleNamespace

import pytest

from mpitrain.mpi import launcher, segments


@pytest.mark.parametrize(
    ("vendor", "infiniband", "chosen"),
    [
        (("Open MPI", (4, 1, 4)), False, "^ucx,rdma"),
        (("Open MPI", (4, 1, 4)), True, "^rdma"),
        (("Open MPI", (5, 0, 11)), False, "^ucx"),
        (("Open MPI", (5, 0, 11)), True, None),
        (("MPICH", (4, 0, 2)), False, None),
    ],
)
def test_one_sided_access_that_would_crash_is_left_out(
    monkeypatch: pytest.MonkeyPatch, vendor: tuple[str, tuple[int, ...]], infiniband: bool, chosen: str | None
) -> None:
    """Open MPI 4 ended elastic averaging and DOWNPOUR on one node by signal 11."""
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(launcher, "MPI", SimpleNamespace(get_vendor=lambda: vendor))
    monkeypatch.setattr(launcher.Path, "exists", lambda path: infiniband)
    launcher.choose_windows()
    assert list(os.environ.items()) == ([] if chosen is None else [("OMPI_MCA_osc", chosen)])


def test_the_choice_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"OMPI_MCA_osc": "rdma"})
    monkeypatch.setattr(launcher, "MPI", SimpleNamespace(get_vendor=lambda: ("Open MPI", (4, 1, 4))))
    launcher.choose_windows()
    assert os.environ == {"OMPI_MCA_osc": "rdma"}


def test_mpich_3_is_not_asked_about_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPICH 3.4 ended each rank by an assertion in that function, without a GPU, too."""
    world = SimpleNamespace(Get_info=lambda: SimpleNamespace(Get=lambda name: None))
    monkeypatch.setattr(launcher, "MPI", SimpleNamespace(get_vendor=lambda: ("MPICH", (3, 4, 3)), COMM_WORLD=world))
    monkeypatch.setattr(launcher.ctypes, "CDLL", lambda path: pytest.fail("asked"))
    assert launcher.cuda_aware() == (False, "MPICH before version 4 cannot be asked")


@pytest.mark.parametrize("name", ["mpich_shm_331e_0", "sm_segment.vm.0.312e0001.1", "vader_segment.vm.0.2e8d0001.0"])
def test_segments_of_every_library_are_known(name: str) -> None:
    """MPICH's, those of Open MPI 5, and those of Open MPI 4."""
    assert segments.is_segment(segments.MEMORY + name)
