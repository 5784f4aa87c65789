"""Compiled kernels are cached where no other user can write: loading them runs code."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cometric.kernels import caching

SRC = Path(__file__).parents[2] / "src"
posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="no users on this system")


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A process that can write to temporary folders only."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(caching, "_is_writable", lambda folder: False)
    monkeypatch.setattr(caching.atexit, "register", lambda function: None)
    yield temporary
    os.environ.pop("NUMBA_CACHE_DIR", None)


def chosen():
    caching.ensure_cache_folder()
    return Path(os.environ["NUMBA_CACHE_DIR"])


@posix
def test_a_folder_of_ones_own_is_made_and_used_again(nowhere):
    first = chosen()
    assert first.parent == nowhere
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    del os.environ["NUMBA_CACHE_DIR"]
    assert chosen() == first


def open_to_all(path):
    path.mkdir()
    path.chmod(0o777)


def open_to_the_group(path):
    path.mkdir()
    path.chmod(0o750)


def link(path):
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)


def link_to_nowhere(path):
    path.symlink_to("nothing")


@posix
@pytest.mark.parametrize(
    "trap",
    [open_to_all, open_to_the_group, link, link_to_nowhere, Path.touch],
    ids=lambda trap: trap.__name__,
)
def test_a_folder_that_others_may_have_created_is_left_alone(nowhere, trap):
    known = nowhere / f"cometric-cache-{os.getuid()}"
    trap(known)
    folder = chosen()
    assert folder != known
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == []


@posix
def test_a_folder_of_another_user_is_left_alone(nowhere, monkeypatch):
    own = os.getuid()
    (nowhere / f"cometric-cache-{own + 1}").mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    assert chosen().name != f"cometric-cache-{own + 1}"


def test_where_there_are_no_users_the_folder_is_new(nowhere, monkeypatch):
    monkeypatch.delattr(os, "getuid", raising=False)
    folder = chosen()
    assert folder.parent == nowhere
    assert folder.is_dir()


def test_a_new_folder_is_removed_by_the_process_that_made_it(nowhere, monkeypatch):
    ends = []
    monkeypatch.setattr(caching.atexit, "register", ends.append)
    folder = caching._temporary_folder()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        ends[0]()
        assert folder.is_dir()
    ends[0]()
    assert not folder.exists()


def test_the_users_choice_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "theirs"))
    assert chosen() == tmp_path / "theirs"


def test_an_unwritable_choice_raises(nowhere, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/none")
    with pytest.raises(RuntimeError, match="NUMBA_CACHE_DIR is `/proc/none`, which is not writ"):
        caching.ensure_cache_folder()


def test_no_folder_at_all_raises_with_a_remedy(nowhere, monkeypatch):
    def none(**options):
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(caching, "_private_folder", none)
    with pytest.raises(RuntimeError, match="no folder for its compiled kernels .*Set NUMBA_CACHE"):
        caching.ensure_cache_folder()


def test_folders_that_can_be_made_count_as_writable(tmp_path):
    (tmp_path / "file").touch()
    assert caching._is_writable(tmp_path / "new" / "newer")
    assert not caching._is_writable(tmp_path / "file" / "new")
    assert not caching._is_writable(Path("relative"))
    assert not caching._is_writable(None)


@pytest.mark.parametrize(
    ("platform", "end"),
    [("linux", ".cache/numba"), ("darwin", "Library/Caches/numba"), ("win32", "")],
)
def test_numba_has_a_folder_of_the_user(monkeypatch, tmp_path, platform, end):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(os.path, "expanduser", lambda path: str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert caching._user_folder() == tmp_path / end


CHILD = """
import os, cometric as cm
os.chdir("/tmp")
print(cm.learn([[3, 1, 1], [1, 3, 2]], eps=0, tau=0.1).converged, os.environ["NUMBA_CACHE_DIR"])
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv on this system")
@pytest.mark.skipif(hasattr(os, "getuid") and os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize("home", [None, "/proc", "/nonexistent"])
def test_a_user_without_a_home_can_learn(home, tmp_path):
    """As in a container that runs under some number: no name, no home, a package of root's."""
    installed = Path(tempfile.mkdtemp())  # tmp_path is closed to others
    try:
        installed.chmod(0o755)
        shutil.copytree(SRC, installed / "src", ignore=shutil.ignore_patterns("__pycache__"))
        temporary = installed / "tmp"
        temporary.mkdir()
        temporary.chmod(0o1777)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(installed / "src"),
            "TMPDIR": str(temporary),
            **({} if home is None else {"HOME": home}),
        }
        said = subprocess.run(
            ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
            + [sys.executable, "-P", "-c", CHILD],
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
        )
        if "Permission denied" in said.stderr and "cometric" not in said.stderr:
            pytest.skip("Python itself is closed to other users")
        assert said.stdout.split() == ["True", str(temporary / "cometric-cache-54321")], said.stderr
        assert not Path("/tmp/~").exists()
    finally:
        shutil.rmtree(installed)
