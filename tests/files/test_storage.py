"""Archives are measured before they are read."""

import io
import zipfile

import numpy as np
import pytest

from cometric import load
from cometric.files import storage
from cometric.results import restoring


def npy(shape, descr="<f8", data=b""):
    """An array file with an arbitrary header."""
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


def packed(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, data in members.items():
            zipped.writestr(f"{name}.npy", data)
    file.seek(0)
    return file


def test_arrays_come_back():
    file = io.BytesIO()
    np.savez_compressed(file, a=np.arange(3.0), names=np.array(["x", ""]))
    found = storage.read_arrays(file, "x.npz", 1e6)
    assert found["a"].tolist() == [0.0, 1.0, 2.0]
    assert found["names"].tolist() == ["x", ""]


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (npy((2**40, 2**40)), "an array is not as long as its header says"),
        (npy((-2, -4), data=bytes(64)), r"is damaged: an array has shape \(-2, -4\) of float64"),
        (npy((10**12,), "<U0"), r"is damaged: an array has shape \(1000000000000,\) of <U0"),
        (npy((1,), "|O", bytes(8)), "holds Python objects, which could run code"),
        (npy((1,), "<U100000000"), "an array is not as long as its header says"),
        (b"\x93NUMPY\x03\x00", r"is in version \(3, 0\) of the npy format"),
        (b"not an array", "magic string is not correct"),
    ],
)
def test_arrays_that_contradict_their_header(member, words):
    with pytest.raises(ValueError, match=words):
        storage.read_arrays(packed(a=member), "x.npz", 1e6)


def test_what_unpacks_to_too_much():
    bomb = packed(a=npy((10**7,), "|i1", bytes(10**7)))
    assert len(bomb.getvalue()) < 20_000
    with pytest.raises(storage.TooLarge, match="x.npz` takes 0.01 GB once unpacked"):
        storage.read_arrays(bomb, "x.npz", 1e6)


def test_a_saved_result_has_a_limit_by_default_the_free_memory(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, header=np.zeros(10**7, np.uint8))
    with pytest.raises(ValueError, match="bomb.npz` takes 0.01 GB once .* Pass a larger `limit`"):
        load(path, limit=1e6)
    monkeypatch.setattr(restoring, "free_memory", lambda: 1e6)
    with pytest.raises(ValueError, match="`limit` is 0.001 GB"):
        load(path)
