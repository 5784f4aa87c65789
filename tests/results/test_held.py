"""What is prepared for new items: computed once, by any thread, and no part of the result."""

import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import cometric.maps.norms
from cometric import Entropic, Exact, Limit, Mahalanobis, Tree, Unbalanced, learn
from cometric.landmarks.neighbors import nearest_known
from cometric.results.extension import HeldDistances
from cometric.results.held import Kept
from cometric.transports.entropic import Entropic as EntropicTransport

rng = np.random.default_rng(5)
X = rng.poisson(0.8, (45, 30)) + np.eye(45, 30)
NEW = np.concatenate([rng.poisson(0.8, (4, 30)) + np.eye(4, 30), X[7:9]])

NORMS = ("local", "local-0.2", "lsa", "cosine", "hellinger", "l1", "l2", "discrete")
TRANSPORTS = (
    Exact(),
    Entropic(0.1),
    Entropic(0.004),  # in the log domain
    Unbalanced(0.1, rho=1.0),
    Limit(),
    Mahalanobis(),
    Tree(),
)
KINDS = [{"norm": norm} for norm in NORMS] + [{"transport": kind} for kind in TRANSPORTS]

pytestmark = pytest.mark.filterwarnings("ignore::cometric.ConvergenceWarning")


@pytest.fixture(scope="module", params=KINDS, ids=str)
def result(request):
    return learn(X, max_iter=30, **request.param)


@pytest.fixture(scope="module")
def default():
    return learn(X, transport=Limit())


@pytest.mark.parametrize(("of", "new"), [("samples", NEW), ("features", X[:, 3:6] + NEW[0, :3])])
def test_later_calls_give_what_is_computed_anew(result, of, new):
    first = result.transform(new, of=of)
    assert_array_equal(result.transform(new, of=of), first)
    assert_array_equal(replace(result).transform(new, of=of), first)
    side, known = result.problem.read_new(new, of), getattr(result.problem, of)
    stacked = [sparse.vstack(parts, format="csr") for parts in
               ((side.hist, known.hist), (side.full, known.full))]  # fmt: skip
    # All items are placed as new ones, and all of the transport is computed.
    anew = HeldDistances(replace(result), of, *stacked)
    count = side.hist.shape[0]
    expected = anew.between(slice(0, count), slice(count, stacked[0].shape[0]), lambda *_: None)
    expected = expected if count == len(side.labels) else expected[side.labels]
    assert_allclose(first, expected[:, known.labels], rtol=1e-10, atol=1e-12)


def test_a_new_item_does_not_depend_on_those_beside_it(result):
    whole = result.transform(NEW)
    for i, row in enumerate(whole):
        assert_allclose(result.transform(NEW[[i]])[0], row, rtol=1e-9, atol=1e-12)


def test_the_reference_is_fitted_once_by_all_threads(default, monkeypatch):
    r, calls, barrier = replace(default), [], Barrier(4)
    original = cometric.maps.norms.fit
    monkeypatch.setattr(
        cometric.maps.norms, "fit", lambda *given: calls.append(given) or original(*given)
    )

    def place(number):
        barrier.wait(60)
        return r.transform(NEW[[number]])

    with ThreadPoolExecutor(4) as pool:
        rows = np.concatenate(list(pool.map(place, range(4))))
    assert len(calls) == 1
    assert_allclose(rows, default.transform(NEW[:4]), rtol=1e-9, atol=1e-12)
    calls.clear()
    r.transform(NEW)
    r.search(NEW)
    assert not calls


def test_self_terms_of_learned_samples_are_computed_once(monkeypatch):
    r, sizes = learn(X, transport=Entropic(0.1)), []
    original = EntropicTransport.hold
    monkeypatch.setattr(
        EntropicTransport,
        "hold",
        lambda self, hist, *given: sizes.append(hist.shape[0]) or original(self, hist, *given),
    )
    r.transform(NEW[:2])
    r.transform(NEW[:1])
    assert sorted(sizes) == [1, 2, len(X)]
    graph = r.transform(NEW, n_neighbors=5)
    assert_array_equal(nearest_known(r, NEW, 5).indices, graph.indices)


def test_the_result_stays_the_same_value(default):
    r = replace(default)
    before, identity = pickle.dumps(r), r.identity
    r.transform(NEW)
    assert "_kept" in vars(r)
    assert pickle.dumps(r) == before
    assert r.identity == identity
    for other in (replace(r), pickle.loads(before)):
        assert "_kept" not in vars(other)


def test_nothing_is_kept_for_all_pairs_of_samples(result):
    r = replace(result)
    r.transform(NEW)
    own = {id(r.samples), id(r.features)}
    sizes = [part.size for part in _arrays(vars(r.kept), set()) if id(part) not in own]
    assert len(sizes) > 3
    assert max(sizes) < len(X) ** 2


def _arrays(value, seen):
    """All arrays that a value refers to."""
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    else:
        parts = getattr(value, "__dict__", {}).values()
    return [array for part in parts for array in _arrays(part, seen)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent():
    kept, begun, end = Kept(), Event(), Event()

    def compute():
        begun.set()
        return end.wait(30)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(kept.once, "slow", compute)
        begun.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(kept.once("quick", int))
        end.set()
    assert os.waitpid(child, 0)[1] == 0
