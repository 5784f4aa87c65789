"""Warnings that point at the user's code, however deep inside the package they arise."""

from __future__ import annotations

import os
import sys
import warnings

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""Frames of files below this folder are ours."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the innermost frame outside the package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
