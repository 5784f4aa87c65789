"""Every plot looks as it did: compared with saved pictures (``python tests/pictures.py``)."""

import numpy as np
import pytest

mpl = pytest.importorskip("matplotlib")

import pictures  # noqa: E402
from cometric import plot  # noqa: E402

NAMES = [
    "changes", "choice", "convergence", "distances", "distances_features", "embedding",
    "embedding_feature", "embedding_features", "embedding_labels", "embedding_numbers", "flows",
    "modules", "nearest", "tree",
]  # fmt: skip


@pytest.fixture(scope="module")
def drawings():
    return pictures.drawings(*pictures.make_result())


@pytest.fixture(autouse=True)
def _places(monkeypatch):
    monkeypatch.setattr(plot, "coordinates", pictures.positions)


@pytest.fixture
def _same_version():
    if mpl.__version_info__[0] != pictures.MAJOR:
        pytest.skip(f"the pictures are of Matplotlib {pictures.MAJOR}, not {mpl.__version__}")


def test_there_is_a_picture_of_each(drawings):
    assert sorted(drawings) == NAMES == sorted(p.stem for p in pictures.FOLDER.glob("*.png"))


@pytest.mark.usefixtures("_same_version")
@pytest.mark.parametrize("name", NAMES)
def test_a_plot_looks_as_it_did(drawings, name):
    away = pictures.difference(pictures.picture(drawings[name]), pictures.saved(name))
    assert away < pictures.TOLERANCE, f"differs from the saved picture by {away:.1f}"


@pytest.mark.usefixtures("_same_version")
def test_the_comparison_sees_what_is_missing_or_recolored(drawings):
    """One color changed, or one part left out, is farther off than the tolerance allows."""

    def other_colors(ax):
        drawings["embedding_labels"](ax)
        ax.collections[0].set_color("black")

    def without_a_part(ax):
        drawings["nearest"](ax)
        ax.collections[0].remove()
        ax.get_lines()[0].remove()

    for name, draw in (("embedding_labels", other_colors), ("nearest", without_a_part)):
        away = pictures.difference(pictures.picture(draw), pictures.saved(name))
        assert away > pictures.TOLERANCE
    for name in NAMES[1:]:  # and no picture could be taken for another
        away = pictures.difference(pictures.saved(name), pictures.saved(NAMES[0]))
        assert away > 2 * pictures.TOLERANCE
    image = pictures.saved("embedding_labels")
    assert pictures.difference(image, np.roll(image, 1, axis=1)) < 0.1
    assert pictures.difference(image, np.roll(image, 5, axis=1)) > 2 * pictures.TOLERANCE
