"""The folder where Numba caches compiled kernels.

Numba reads its cache with pickle, which can run any code that the files contain. So a folder that
other users can write to must never be used. This module must run before Numba is loaded, and does
not import it.
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
    """Set ``NUMBA_CACHE_DIR`` to a private folder if Numba has no folder that it can write to.

    Numba tries ``NUMBA_CACHE_DIR``, ``__pycache__`` beside the source, then a folder of the user,
    and raises if it can write to none of them, as on a shared cluster installation or in a
    container without a home.
    """
    configured = os.environ.get("NUMBA_CACHE_DIR")
    defaults = [KERNELS / "__pycache__", _user_folder()]
    if any(map(_is_writable, [Path(configured) if configured else None, *defaults])):
        return
    try:
        if configured:
            raise FileNotFoundError(f"NUMBA_CACHE_DIR is `{configured}`, which is not writable")
        os.environ["NUMBA_CACHE_DIR"] = str(_private_folder())
    except OSError as error:
        raise RuntimeError(
            f"cometric found no folder for its compiled kernels ({error}). Set NUMBA_CACHE_DIR "
            "to a folder that you can write to."
        ) from error


def _user_folder() -> Path | None:
    """Numba's cache folder of the user; None without a home, where Numba would use ``./~``."""
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():
        return None
    if sys.platform == "win32":
        return home
    caches = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME", caches)) / "numba"


def _is_writable(folder: Path | None) -> bool:
    """Whether files can be created in the folder, or the folder itself if it does not exist."""
    if folder is None or not folder.is_absolute():
        return False
    for place in (folder, *folder.parents):
        if os.path.lexists(place):
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


def _private_folder() -> Path:
    """A folder that only this user can write to: the one of earlier processes, or a new one.

    In a temporary folder shared by all users, another user may have created that name. Then a new
    folder is created for this process and removed when it exits.
    """
    if hasattr(os, "getuid"):  # on other systems every user has a temporary folder
        shared = Path(tempfile.gettempdir()) / f"cometric-cache-{os.getuid()}"
        with suppress(OSError):  # a file or a dangling link has this name
            shared.mkdir(mode=0o700, exist_ok=True)
        if _is_private(shared):
            return shared
    return _temporary_folder()


def _is_private(folder: Path) -> bool:
    """Whether this is a folder, not a link, owned by this user and without access for others."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    closed = stat.S_IMODE(status.st_mode) & 0o077 == 0
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and closed


def _temporary_folder() -> Path:
    """A new folder that this process removes when it exits."""
    folder, process = Path(tempfile.mkdtemp(prefix="cometric-cache-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not in a forked child, which may exit earlier
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
