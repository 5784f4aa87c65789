"""What could not be written is refused before any work; the command line's tests have the rest."""

import os
from pathlib import Path

import pytest

from cometric.files import writing


def test_errors_of_the_disk_name_the_file(tmp_path):
    with (
        pytest.raises(writing.WriteError, match=r"x\.npz` could not be written: No such file"),
        writing.aside(tmp_path / "gone" / "x.npz") as file,
    ):
        file.write(b"")


@pytest.mark.parametrize("ending", [".csv", ".CSV.gz", ".tsv.GZ"])
def test_tables_keep_their_name_and_ending(ending):
    """Of capital letters too whose lower case is longer: Turkish I with a dot."""
    names = [path.name for path in writing.targets(Path(f"\u0130{ending}"))]
    assert names == [f"\u0130.samples{ending}", f"\u0130.features{ending}"]


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    path = tmp_path / "x.npz"
    with pytest.raises(ValueError, match="is not writable; choose another folder"):
        writing.check(path, [".npz"], [path], force=False)
