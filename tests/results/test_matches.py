"""The learned items nearest to new ones, by name."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from cometric import learn

rng = np.random.default_rng(3)
X = rng.poisson(1.5, (14, 9)) + np.eye(14, 9)
NEW = rng.poisson(1.5, (12, 9)) + 0.25
TEXTS, WORDS = [f"text {i}" for i in range(14)], [f"word {k}" for k in range(9)]


@pytest.fixture(scope="module")
def result():
    return learn(X)


def test_search_names_the_neighbors_of_transform(result):
    found, graph = result.search(NEW, 3), result.transform(NEW, n_neighbors=3)
    assert_array_equal(found.index.ravel(), graph.indices)
    assert_array_equal(found.distances.ravel(), graph.data)
    assert_array_equal(found.names, found.index.astype(str))
    assert len(found) == 12
    assert found[1] == [
        (str(i), d) for i, d in zip(found.index[1], found.distances[1], strict=True)
    ]


def test_a_learned_text_finds_itself_first_and_the_print_says_so():
    pd = pytest.importorskip("pandas")
    r = learn(pd.DataFrame(X, TEXTS, WORDS))
    found = r.search(pd.DataFrame(X[[4]], ["again"], WORDS), 2)
    assert found.names[0, 0] == "text 4"
    assert repr(found).splitlines()[:2] == ["Nearest to again", "  0           text 4"]
    assert r.search(pd.DataFrame(X[:, [2]], TEXTS, ["w"]), 1, of="features").names[0] == "word 2"


def test_many_are_not_all_printed(result):
    assert repr(result.search(NEW, 1)).splitlines()[-1] == "... and to 2 others"


def test_there_are_no_more_than_all(result):
    assert result.search(NEW[:1], 100).names.shape == (1, 14)
    with pytest.raises(ValueError, match="`n_neighbors` is 0"):
        result.search(NEW, 0)


@pytest.mark.filterwarnings("ignore:.X. has mass on")
def test_a_text_without_a_known_word_is_named():
    pd = pytest.importorskip("pandas")
    r = learn(pd.DataFrame(X, TEXTS, WORDS))
    new = pd.DataFrame([[1, 2], [0, 3]], ["known", "foreign"], ["word 1", "mot"])
    words = r"1 row without mass on anything learned \(first: 1, 'foreign'\). They cannot be"
    with pytest.warns(UserWarning, match="lacks 8"), pytest.raises(ValueError, match=words):
        r.search(new)
