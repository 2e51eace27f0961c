"""Which leaders a node obeys."""

from pathlib import Path

import pytest

from gnomon_coordinator.node.pod_sockets import Epochs, file_of
from gnomon_core.errors import GnomonError


def test_an_older_leader_is_refused_also_by_a_successor(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path / "epoch")
    for epoch in (3, 3, 7):
        epochs.obey(epoch)

    for later in (epochs, Epochs(tmp_path / "epoch")):
        with pytest.raises(GnomonError) as caught:
            later.obey(6)
        assert (caught.value.status, caught.value.code) == (409, "stale_epoch")
        later.obey(7)


def test_a_file_that_is_no_number_is_no_epoch(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_text("x")
    assert Epochs(tmp_path / "epoch").newest == 0


def test_another_installation_counts_anew(tmp_path: Path) -> None:
    """Its Lease begins at 1, on nodes that have obeyed an earlier installation's ninth leader."""
    Epochs(file_of(tmp_path, "of the first")).obey(9)
    Epochs(file_of(tmp_path, "of the second")).obey(1)
    with pytest.raises(GnomonError):
        Epochs(file_of(tmp_path, "of the first")).obey(8)
