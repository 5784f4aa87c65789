"""Where Numba keeps compiled kernels.

Numba reads its cache with pickle, which runs whatever code the files hold. So a folder that
somebody else could have written to must never be used. This module imports nothing of Numba: it
has to be done before Numba is loaded.
"""

import atexit
import os
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

KERNELS = Path(__file__).parent


def ensure_cache_folder() -> None:
    """Set ``NUMBA_CACHE_DIR`` to a private folder where Numba would find no folder by itself.

    Numba tries ``NUMBA_CACHE_DIR``, ``__pycache__`` beside the source, then a folder of the user,
    and refuses to compile if it can write to none of them, as on a shared cluster installation
    or in a container without a home.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    own = [KERNELS / "__pycache__", _user_folder()]
    if any(map(_is_writable, [Path(given) if given else None, *own])):
        return
    try:
        if given:
            raise FileNotFoundError(f"NUMBA_CACHE_DIR is `{given}`, which is not writable")
        os.environ["NUMBA_CACHE_DIR"] = str(_private_folder())
    except OSError as problem:
        raise RuntimeError(
            f"cometric found no folder for its compiled kernels ({problem}). Set NUMBA_CACHE_DIR "
            "to a folder that you can write to."
        ) from problem


def _user_folder() -> Path | None:
    """Where Numba caches for a user; None without a home, which Numba would take for ``./~``."""
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():
        return None
    if sys.platform == "win32":
        return home
    caches = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME", caches)) / "numba"


def _is_writable(folder: Path | None) -> bool:
    """Whether files can be made in a folder, or the folder itself where it is missing."""
    if folder is None or not folder.is_absolute():
        return False
    for place in (folder, *folder.parents):
        if os.path.lexists(place):
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


def _private_folder() -> Path:
    """A folder that only this user can write to: the one of earlier processes, or a new one.

    In a temporary folder that all users share, anybody may have made the first. Then it is left
    alone, and a new one serves this process and is removed at its end.
    """
    if hasattr(os, "getuid"):  # elsewhere temporary folders belong to a user
        shared = Path(tempfile.gettempdir()) / f"cometric-cache-{os.getuid()}"
        with suppress(OSError):  # a file, or a link to nowhere
            shared.mkdir(mode=0o700, exist_ok=True)
        if _is_private(shared):
            return shared
    return _passing_folder()


def _is_private(folder: Path) -> bool:
    """Whether this is a folder, not a link, of this user, closed to all others."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    closed = stat.S_IMODE(found.st_mode) & 0o077 == 0
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and closed


def _passing_folder() -> Path:
    folder, process = Path(tempfile.mkdtemp(prefix="cometric-cache-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # a forked child ends before its parent
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
