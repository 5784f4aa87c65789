"""Archives are measured before they are read."""

import io
import zipfile

import numpy as np
import pytest

from cometric import load
from cometric.files import archive
from cometric.files.hdf5 import TooLarge


def npy(shape, descr="<f8", data=b""):
    """An array file with an arbitrary header."""
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


def packed(compression=zipfile.ZIP_DEFLATED, **members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as zipped:
        for name, data in members.items():
            zipped.writestr(f"{name}.npy", data)
    file.seek(0)
    return file


def test_arrays_come_back():
    file = io.BytesIO()
    np.savez_compressed(file, a=np.arange(3.0), names=np.array(["x", ""]))
    found = archive.read_arrays(file, "x.npz", 1e6)
    assert found["a"].tolist() == [0.0, 1.0, 2.0]
    assert found["names"].tolist() == ["x", ""]


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (npy((2**40, 2**40)), "an array is not as long as its header says"),
        (npy((-2, -4), data=bytes(64)), r"is damaged: an array has shape \(-2, -4\) of float64"),
        (npy((-1,), data=bytes(8)), r"is damaged: an array has shape \(-1,\) of float64"),
        (npy((10**12,), "<U0"), r"is damaged: an array has shape \(1000000000000,\) of <U0"),
        (npy((10**12,), "|V0"), "is damaged: an array has shape"),
        (npy((1,), "|O", bytes(8)), "holds Python objects, which could run code"),
        (npy((1,), "<U100000000"), "an array is not as long as its header says"),
        (b"\x93NUMPY\x03\x00", r"is in version \(3, 0\) of the npy format"),
        (b"not an array", "magic string is not correct"),
    ],
)
def test_arrays_that_contradict_their_header(member, words):
    with pytest.raises(ValueError, match=words):
        archive.read_arrays(packed(a=member), "x.npz", 1e6)


def test_what_unpacks_to_too_much():
    bomb = packed(a=npy((10**7,), "|i1", bytes(10**7)))
    assert len(bomb.getvalue()) < 20_000
    with pytest.raises(TooLarge, match="x.npz` holds 0.01 GB or more once unpacked"):
        archive.read_arrays(bomb, "x.npz", 1e6)


def test_too_many_arrays(monkeypatch):
    monkeypatch.setattr(archive, "MAX_ARRAYS", 2)
    member = npy((1,), data=bytes(8))
    with pytest.raises(ValueError, match="x.npz` holds 3 arrays; at most 2 are read"):
        archive.read_arrays(packed(a=member, b=member, c=member), "x.npz", 1e6)


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compressions(compression):
    with pytest.raises(ValueError, match="uses a compression that NumPy does not write"):
        archive.read_arrays(packed(compression, a=npy((1,), data=bytes(8))), "x.npz", 1e6)


def test_a_saved_result_has_a_limit(tmp_path):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, header=np.zeros(10**7, np.uint8))
    with pytest.raises(ValueError, match="bomb.npz` holds 0.01 GB or more.* raise `limit`"):
        load(path, limit=1e6)
