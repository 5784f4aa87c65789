"""Checkpoints: everything a run needs to continue as if it had never stopped.

A checkpoint has the whole state: the iterate with the memory of its solver, the memory of the maps
(trees, scalings), the history, the stage. Writing one changes nothing, so it may be written after
any iteration, also at Ctrl-C; on the CPU a resumed run ends with the same bits as an uninterrupted
one. Checkpoints without the memory of solver and maps would be smaller on disk, but would slow down
every run and make its result depend on when it was saved.

A run uses :class:`Checkpoint`; :mod:`~cometric.checkpoints.folder` describes and writes the files,
:mod:`~cometric.checkpoints.saved` reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cometric.checkpoints.folder import (
    DATA,
    MANIFEST,
    STATE,
    CheckpointError,
    CheckpointWarning,
    next_number,
    numbered,
    state_name,
    temporary_files,
    write_arrays,
    write_manifest,
)
from cometric.checkpoints.saved import SCHEMA, Saved, versions
from cometric.checkpoints.state import Arrays, deserialize, serialize
from cometric.core.types import Coupled, Record, State
from cometric.core.warn import warn
from cometric.files.storage import lock, unlock
from cometric.runtime.interruption import Interruption
from cometric.runtime.progress import amount


class Checkpoint:
    """The checkpoints of one run: the one it continues from, and those it writes.

    Parameters
    ----------
    folder
        Where checkpoints are written.
    every
        Seconds between two checkpoints; 0 writes one after each iteration.
    options
        The options that change the result, by name, as JSON.
    used
        Values chosen for options that were not given; read from the checkpoint, if there is one.
    data
        Returns the arrays of data.npz; called when they are written.
    interruption
        The signals received: after one of them, the run writes a checkpoint and stops.
    saved
        The checkpoint to continue from.
    """

    def __init__(
        self,
        folder: Path,
        every: float,
        options: dict[str, Any],
        used: dict[str, Any],
        data: Callable[[], Arrays],
        interruption: Interruption,
        saved: Saved | None = None,
    ) -> None:
        self._given_folder = folder
        folder = folder.absolute()  # a callback may change the working directory
        self.folder, self.every, self.options, self.used = folder, every, options, used
        self.interruption = interruption
        self.announce: Callable[[str], Any] | None = None  # called with the size, before the first
        self._data = data
        self._saved = saved
        self._stages = 0
        self._history: list[tuple[float, ...]] = []
        self._latest: tuple[int, dict[str, Any], Arrays] | None = None  # complete, not yet written
        self._last_write = time.monotonic()
        self._intact = [saved.number] if saved else []
        self._data_recorded: dict[str, Any] | None = None  # size and checksum of data.npz
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock(folder, CheckpointError)
        except OSError as error:
            raise CheckpointError(
                f"`checkpoint` is `{folder}`, where nothing can be written ({error.strerror}). "
                "Pass another folder."
            ) from error
        self._clean()

    def close(self) -> None:
        """Release the lock of the folder."""
        unlock(self._lock)
        self._lock = None

    def stage(self, phi: Coupled) -> Stage:
        """The next stage of the run, a single solve."""
        self._stages += 1
        return Stage(self, self._stages, phi)

    def flush(self) -> bool:
        """Write the latest iterate, if not yet written; whether it is now in the folder."""
        if self._latest is not None:
            stage, iterate, arrays = self._latest
            try:
                self._write(stage, iterate, arrays)
            except OSError as error:
                warn(
                    f"No checkpoint could be written to `{self.folder}`: {error}. "
                    f"{'The previous one is intact' if self._intact else 'There is none yet'}; "
                    "the run continues.",
                    CheckpointWarning,
                )
            else:
                self._latest = None
            self._last_write = time.monotonic()
        return self._latest is None and bool(self._intact)

    def _announce_size(self) -> None:
        """Show, once, how large a checkpoint is and how often it will be written."""
        if self.announce is None or self._latest is None:
            return
        arrays = [*self._data().values(), *self._latest[2].values()]
        size = sum(getattr(array, "nbytes", 8) for array in arrays)
        often = f"every {self.every:g} s" if self.every > 0.0 else "after each iteration"
        self.announce(
            f"checkpoints in {self._given_folder}: about {amount(size)} each, {often}; two are kept"
        )
        self.announce = None

    def _write(self, stage: int, iterate: dict[str, Any], arrays: Arrays) -> None:
        number = next_number(self.folder)
        history = np.array(self._history, np.float64).reshape(-1, 1 + len(Record._fields))
        if self._data_recorded is None:
            self._data_recorded = write_arrays(self.folder, DATA, self._data())
        state = state_name(number)
        recorded = write_arrays(self.folder, state, arrays | {"history": history})
        content = {
            "schema": SCHEMA,
            "number": number,
            "versions": versions(),
            "asked": self.options,  # named so in all files of this schema
            "used": self.used,
            "stage": stage,
            "iterate": iterate,
            "files": {DATA: self._data_recorded, state: recorded},
        }
        write_manifest(self.folder, number, content)
        self._intact.append(number)
        self._clean()

    def _clean(self) -> None:
        """Remove temporary files and, once there are two intact checkpoints, older ones."""
        for path in temporary_files(self.folder):
            path.unlink(missing_ok=True)
        newest = self._intact[-2:]
        if len(newest) == 2:
            for pattern in (MANIFEST, STATE):  # never a manifest without its state
                for number, path in numbered(self.folder, pattern):
                    if number not in newest:
                        path.unlink(missing_ok=True)


class Stage:
    """One solve of a run."""

    def __init__(self, run: Checkpoint, number: int, phi: Coupled) -> None:
        self._run, self._number, self._phi = run, number, phi
        saved = run._saved
        self.history = [] if saved is None else saved.history(number)
        self.finished = saved is not None and saved.stage > number
        for record in self.history:
            run._history.append((number, *record))

    def resume(self, now: State) -> State:
        """The iterate to continue from: the one saved in this stage, or ``now``."""
        saved = self._run._saved
        if saved is None or saved.stage != self._number:
            return now
        try:
            state = deserialize(now, self._phi, saved.iterate, saved.arrays)
        except (KeyError, TypeError, ValueError) as error:
            path = self._run.folder / state_name(saved.number)
            raise CheckpointError(f"`{path}` does not fit this run: {error}") from error
        self._run._saved = None
        return state

    def begin_step(self) -> None:
        """A step begins: during a step there is no complete state to save."""
        self._run._latest = None

    def end_step(self, now: State, record: Record) -> bool:
        """Save the completed step if it is time; return whether the run should stop now."""
        run = self._run
        run._history.append((self._number, *record))
        run._latest = self._number, *serialize(now, self._phi)
        run._announce_size()
        if run.interruption.number is not None:
            return True
        if time.monotonic() - run._last_write >= run.every:
            run.flush()
        return False
