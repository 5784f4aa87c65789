"""Warnings point at the first frame outside the package."""

import warnings
from pathlib import Path

import pytest

from cometric.core import warn as module
from cometric.core.warn import warn

SRC = Path(module.__file__).parents[1]
CODE = """
def inside(depth):
    return inside(depth - 1) if depth else warn("far inside")
"""


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_a_warning_points_at_the_caller_of_the_package(depth):
    names = {"warn": warn}
    exec(compile(CODE, module.PACKAGE + "somewhere.py", "exec"), names)
    with pytest.warns(UserWarning, match="far inside") as caught:
        names["inside"](depth)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_warning_has_the_given_category():
    with pytest.warns(DeprecationWarning, match="old"):
        warn("old", DeprecationWarning)


def test_without_a_frame_outside_there_is_still_one_warning(monkeypatch):
    monkeypatch.setattr(module, "PACKAGE", "")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn("everything is inside")
    assert len(caught) == 1


def test_no_module_counts_frames_by_hand():
    users = [path for path in SRC.rglob("*.py") if "stacklevel" in path.read_text()]
    assert users == [Path(module.__file__)]
