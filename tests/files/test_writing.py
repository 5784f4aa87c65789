"""What could not be written is refused before any work; the command line's tests have the rest."""

import os

import pytest

from cometric.files import writing


def test_errors_of_the_disk_name_the_file(tmp_path):
    with (
        pytest.raises(writing.WriteError, match=r"x\.npz` could not be written: No such file"),
        writing.aside(tmp_path / "gone" / "x.npz") as file,
    ):
        file.write(b"")


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    path = tmp_path / "x.npz"
    with pytest.raises(ValueError, match="is not writable; choose another folder"):
        writing.check(path, [".npz"], [path], force=False)
