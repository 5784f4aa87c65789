"""How far it is from a call to the first step of a solver: calls from one module to another.

python tests/jumps.py          the count for every way in
python tests/jumps.py exact    and each of the jumps, for one of them

A jump is a call of a function of the package by a function in another of its modules, on any
thread, from the call of ``learn`` (or a command) to the first ``step``. The same call made twice,
for samples and for features, is one jump.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import cometric as cm

CACHED = "core/cached.py"  # whose properties stand in for those of Python, which do not count
PACKAGE = str(Path(cm.__file__).parent)
X = np.random.default_rng(0).poisson(1.0, (12, 10)) + np.eye(12, 10)


class Jump(NamedTuple):
    caller: str
    calling: str
    module: str
    function: str


class FirstStep(BaseException):
    """The solver takes its first step."""


def jumps(call: Callable[[], object]) -> list[Jump]:
    """The jumps of a call, made once before so that nothing is imported or compiled."""
    found: dict[Jump, None] = {}
    start = len(PACKAGE) + 1

    def watch(frame, event, _):
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(PACKAGE) or frame.f_code.co_name[0] == "<":
            return
        if name.endswith(CACHED):
            return
        back = frame.f_back
        while back is not None and "<" in back.f_code.co_name:  # comprehensions
            back = back.f_back
        caller = back.f_code.co_filename if back else ""
        function = frame.f_code.co_qualname
        if not caller.endswith(CACHED) and caller != name and caller.startswith(PACKAGE):
            places = (caller[start:], back.f_code.co_qualname, name[start:], function)
            found[Jump(*places)] = None
        if function.endswith(".step") and "/solvers/" in name:
            raise FirstStep

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
        _profile(watch)
        try:
            call()
        except FirstStep:
            pass
        finally:
            _profile(None)
    return list(found)


def _profile(watch):
    """Set the profile function of all threads; before Python 3.12, not of those in a pool."""
    sys.setprofile(watch)
    getattr(threading, "setprofile_all_threads", threading.setprofile)(watch)


def learn_from_the_shell():
    from cometric.cli.program import run

    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder, "x.npy"), Path(folder, "y.npz")
        np.save(path, X)
        run(["learn", str(path), "-o", str(output), "--quiet"])


def learn_from_anndata():
    from anndata import AnnData

    import cometric.scverse as cms

    cms.tl.learn(AnnData(X))


WAYS = {
    "exact": lambda: cm.learn(X, eps=0),
    "entropic": lambda: cm.learn(X, eps=0.1),
    "limit": lambda: cm.learn(X, eps=float("inf")),
    "device": lambda: cm.learn(X, device="torch:cpu"),
    "tiles": lambda: cm.learn(X, client="local"),
    "shell": learn_from_the_shell,
    "anndata": learn_from_anndata,
    "landmarks": lambda: cm.learn_landmarks(X, 8, 5),
}


def main() -> None:
    shown = sys.argv[1:]
    for name in shown or WAYS:
        try:
            found = jumps(WAYS[name])
        except ImportError as error:
            print(f"{name:10} {error}")
            continue
        modules = {jump.module for jump in found}
        print(f"{name:10} {len(found)} jumps between {len(modules)} modules")
        for jump in found if shown else ():
            print(f"    {jump.caller} {jump.calling} -> {jump.module} {jump.function}")


if __name__ == "__main__":
    main()
