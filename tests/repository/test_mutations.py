"""The faults that can be put into the program fit the program."""

import pytest

from ..mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_s_text_stands_once_in_its_file(mutation: Mutation) -> None:
    """And its tests are there."""
    assert (ROOT / "mpitrain" / mutation.path).read_text().count(mutation.old) == 1 and mutation.new != mutation.old
    assert (ROOT / mutation.tests).exists()
