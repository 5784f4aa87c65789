"""Scripts written for ``wsingular`` run, give the same numbers, and meet none of its faults."""

import inspect
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

torch = pytest.importorskip("torch")

from cometric import ConvergenceWarning  # noqa: E402
from cometric.compat import wsingular  # noqa: E402

FORM = {"dtype": torch.double, "device": "cpu"}
SOLVERS = [
    "wasserstein_singular_vectors",
    "sinkhorn_singular_vectors",
    "stochastic_wasserstein_singular_vectors",
    "stochastic_sinkhorn_singular_vectors",
]
FUNCTIONS = {
    "": SOLVERS,
    "distance": ["wasserstein_map", "sinkhorn_map"],
    "utils": ["random_distance", "regularization_matrix", "hilbert_distance", "normalize_dataset",
              "check_uniqueness", "silhouette"],
}  # fmt: skip


def torus(n, m, width=0.05):
    shift = torch.arange(n)[:, None] / n - torch.arange(m)[None] / m
    return torch.exp(-((shift - shift.round()) ** 2) / width).double()


@pytest.fixture(scope="module")
def data():
    return torus(9, 12)


@pytest.fixture(scope="module")
def histograms(data):
    return wsingular.utils.normalize_dataset(data, **FORM)


@pytest.fixture(scope="module")
def original():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it imports is not ours to judge
        return pytest.importorskip("wsingular")


def find(package, path, name):
    return getattr(getattr(package, path) if path else package, name)


class Writer:
    """Records the calls to a tensorboard writer."""

    def __init__(self):
        self.told = []

    def add_scalar(self, name, value, k):
        self.told.append((name, float(value), k))


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path in FUNCTIONS for name in FUNCTIONS[path]]
)
def test_names_order_and_defaults_are_those_of_the_original(original, path, name):
    theirs = inspect.signature(find(original, path, name)).parameters
    ours = inspect.signature(find(wsingular, path, name)).parameters
    assert list(ours) == list(theirs)
    for key, parameter in theirs.items():
        if key == "step_fn":
            assert [ours[key].default(k) for k in (1, 2, 9)] == [1, 1 / np.sqrt(2), 1 / 3]
        else:
            assert ours[key].default == parameter.default, key


def test_the_version_is_that_of_the_original(original):
    assert wsingular.__version__ == original.__version__


@pytest.mark.filterwarnings("ignore:Sinkhorn did not converge")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wasserstein_singular_vectors", {"tau": 0.1}),
        ("wasserstein_singular_vectors", {}),
        ("wasserstein_singular_vectors", {"tau": 0.1, "p": 2, "normalization_steps": 3}),
        ("wasserstein_singular_vectors", {"tau": 0.1, "small_value": 1e-3}),
        ("sinkhorn_singular_vectors", {"tau": 0.1, "eps": 0.2}),
        ("sinkhorn_singular_vectors", {"tau": 0.01}),
    ],
)
def test_power_iterations_give_the_numbers_of_the_original(original, data, name, options):
    theirs, ours = Writer(), Writer()
    refs = {"C_ref": torus(12, 12), "D_ref": torus(9, 9)}
    expected = find(original, "", name)(data, n_iter=3, writer=theirs, **refs, **options, **FORM)
    found = find(wsingular, "", name)(data, n_iter=3, writer=ours, **refs, **options, **FORM)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, atol=1e-6)
    assert [told[::2] for told in ours.told] == [told[::2] for told in theirs.told]
    assert_allclose([told[1] for told in ours.told], [told[1] for told in theirs.told], atol=1e-4)


@pytest.mark.filterwarnings("ignore:Sinkhorn did not converge")
@pytest.mark.parametrize("kind", ["wasserstein", "sinkhorn"])
@pytest.mark.parametrize(
    "options",
    [{}, {"mult_update": True}, {"sample_prop": 0.4, "step_fn": lambda k: 0.5 / k}],
    ids=["additive", "multiplicative", "own steps"],
)
def test_stochastic_steps_give_the_numbers_of_the_original(original, data, kind, options):
    name = f"stochastic_{kind}_singular_vectors"
    theirs, ours = Writer(), Writer()
    np.random.seed(1)  # noqa: NPY002
    expected = find(original, "", name)(data, n_iter=6, tau=0.1, writer=theirs, **options, **FORM)
    np.random.seed(1)  # noqa: NPY002
    found = find(wsingular, "", name)(data, n_iter=5, tau=0.1, writer=ours, **options, **FORM)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, atol=1e-4)
    assert [told[::2] for told in ours.told] == [told[::2] for told in theirs.told]
    assert_allclose([told[1] for told in ours.told], [told[1] for told in theirs.told], atol=1e-3)


def test_maps_give_the_numbers_of_the_original(original, histograms):
    A, _ = histograms
    torch.manual_seed(0)
    C = 2 * wsingular.utils.random_distance(12, **FORM)  # not scaled: eps and tau are absolute
    R = wsingular.utils.regularization_matrix(A, 1, **FORM)
    calls = {
        "wasserstein_map": ((A, C), {"R": R, "tau": 0.2, **FORM}),
        "sinkhorn_map": ((A, C, 0.3), {"R": R, "tau": 0.2, **FORM}),
    }
    for name, (given, options) in calls.items():
        expected = find(original, "distance", name)(*given, **options)
        found = find(wsingular, "distance", name)(*given, **options)
        assert_allclose(found, expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("steps", [1, 3])
def test_helpers_give_the_numbers_of_the_original(original, data, steps):
    options = {"normalization_steps": steps, **FORM}
    ours = wsingular.utils.normalize_dataset(data, **options)
    theirs = original.utils.normalize_dataset(data, **options)
    for one, other in zip(ours, theirs, strict=True):
        assert_allclose(one, other, rtol=1e-12)
    for p in (1, 2, 3):
        one = wsingular.utils.regularization_matrix(ours[0], p, **FORM)
        assert_allclose(one, original.utils.regularization_matrix(ours[0], p, **FORM), atol=1e-7)
    C, D = (wsingular.utils.random_distance(7, **FORM) for _ in range(2))
    assert_allclose(
        wsingular.utils.hilbert_distance(C, D), original.utils.hilbert_distance(C, D), rtol=1e-12
    )
    labels = [0, 0, 1, 1, 1, 0, 1]
    assert wsingular.utils.silhouette(C, labels) == original.utils.silhouette(C, labels)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("form", ["dataset", "tuple", "list", "NumPy"])
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_every_solver_takes_every_form(data, histograms, name, form, dtype):
    pair = {"tuple": histograms, "list": list(histograms)}
    given = {**pair, "dataset": data, "NumPy": data.numpy()}[form]
    C, D = find(wsingular, "", name)(given, dtype, "cpu", 2, tau=0.1)
    for matrix, size in ((C, 12), (D, 9)):
        assert matrix.shape == (size, size)
        assert matrix.dtype is dtype
        assert matrix.max() == 1
        assert torch.equal(matrix, matrix.T)
        assert not matrix.diagonal().any()
        assert (matrix >= 0).all()


def test_a_random_distance_looks_like_one():
    D = wsingular.utils.random_distance(6, torch.float, "cpu")
    assert D.dtype is torch.float
    assert torch.equal(D, D.T)
    assert not D.diagonal().any()
    assert D.max() == 1


def test_exact_distances_keep_their_digits(histograms):
    A, _ = histograms
    C = wsingular.utils.random_distance(12, **FORM)
    D = wsingular.distance.wasserstein_map(A, C, **FORM)
    assert not torch.equal(D.float().double(), D)
    R = wsingular.utils.regularization_matrix(A, 1, **FORM)  # the default
    assert torch.equal(
        wsingular.distance.wasserstein_map(A, C, tau=0.3, **FORM),
        wsingular.distance.wasserstein_map(A, C, tau=0.3, R=R, **FORM),
    )


def test_uniqueness_can_be_denied_and_proved():
    block = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.double)
    X = torch.block_diag(block, block)
    A = B = X / X.sum(1, keepdim=True)
    C = torch.ones(4, 4) - torch.block_diag(torch.ones(2, 2), torch.ones(2, 2))
    assert wsingular.utils.check_uniqueness(A, B, C, C) is False
    X = torch.as_tensor(np.random.default_rng(0).random((4, 4)) + 0.1)
    A, B = wsingular.utils.normalize_dataset(X, **FORM)
    C, D = wsingular.wasserstein_singular_vectors((A, B), n_iter=40, **FORM)
    assert wsingular.utils.check_uniqueness(A, B, C, D) is True


def test_losses_need_no_writer(data):
    refs = wsingular.wasserstein_singular_vectors(data, n_iter=20, tau=0.1, **FORM)
    C, D, loss_C, loss_D = wsingular.wasserstein_singular_vectors(
        data, n_iter=4, tau=0.1, C_ref=refs[0], D_ref=refs[1], log_loss=True, **FORM
    )
    for losses in (loss_C, loss_D):
        assert len(losses) == 4
        assert losses == sorted(losses, reverse=True)
    assert wsingular.utils.hilbert_distance(C, refs[0]) < loss_C[-1]
    assert wsingular.utils.hilbert_distance(D, refs[1]) < loss_D[-1]
    short = {"n_iter": 4, "tau": 0.1, "log_loss": True, **FORM}  # without a reference: the steps
    *_, loss_C, loss_D = wsingular.sinkhorn_singular_vectors(data, **short)
    assert len(loss_C) == len(loss_D) == 4
    assert loss_C[-1] < 0.1 * loss_C[0]
    steps = []
    C, _ = wsingular.stochastic_wasserstein_singular_vectors(
        data, n_iter=1, tau=0.1, step_fn=lambda k: steps.append(k) or 1.0, **FORM
    )
    assert steps == [1]
    assert C.max() == 1


def test_no_eps_is_exact_transport(data):
    exact = wsingular.wasserstein_singular_vectors(data, n_iter=2, tau=0.1, **FORM)
    entropic = wsingular.sinkhorn_singular_vectors(data, n_iter=2, tau=0.1, eps=0, **FORM)
    for one, other in zip(entropic, exact, strict=True):
        assert_array_equal(one, other)


def test_small_eps_is_near_exact_transport(histograms):
    A, _ = histograms
    C = wsingular.utils.regularization_matrix(torch.arange(12.0)[:, None] / 11, 1, **FORM)
    exact = wsingular.distance.wasserstein_map(A, C, **FORM)
    near = wsingular.distance.sinkhorn_map(A, C, 0.005, num_iter_max=50_000, **FORM)
    assert_allclose(near, exact, atol=0.02)


def test_repeated_rows_do_not_spoil_the_hilbert_distance():
    D = torch.tensor([[0, 0, 1], [0, 0, 1], [1, 1, 0]], dtype=torch.double)
    assert wsingular.utils.hilbert_distance(D, 3 * D) == pytest.approx(0.0, abs=1e-15)


def test_an_unfinished_map_says_so(histograms):
    A, _ = histograms
    C = wsingular.utils.regularization_matrix(torch.arange(12.0)[:, None] / 11, 1, **FORM)
    with pytest.warns(ConvergenceWarning, match="marginal error of .*, above 1.0e-08"):
        wsingular.distance.sinkhorn_map(A, C, 0.02, stop_threshold=1e-8, num_iter_max=3, **FORM)


def test_an_interruption_returns_what_was_reached_and_says_so(data):
    class Impatient(Writer):
        def add_scalar(self, name, value, k):
            if k == 2:
                raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted after 2 of 9 iterations"):
        C, D = wsingular.wasserstein_singular_vectors(
            data, n_iter=9, tau=0.1, writer=Impatient(), **FORM
        )
    expected = wsingular.wasserstein_singular_vectors(data, n_iter=2, tau=0.1, **FORM)
    assert torch.equal(C, expected[0])
    assert torch.equal(D, expected[1])


def test_bars_are_drawn_when_asked_for(data, capfd, monkeypatch):
    monkeypatch.setattr("cometric.runtime.progress.EVERY", 0.0)
    wsingular.wasserstein_singular_vectors(data, n_iter=3, tau=0.1, progress_bar=True, **FORM)
    assert "of 3 iterations" in capfd.readouterr().err


def with_hole(data, where):
    holed = data.clone()
    holed[where] = 0
    return holed


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X: X - 0.5, "`dataset` has [0-9]+ negative entries"),
        (lambda X: X * torch.nan, "`dataset` has 108 NaN entries"),
        (lambda X: X[0], "`dataset` has 1 dimension; pass a matrix"),
        (lambda X: with_hole(X, 3), r"`dataset` has 1 empty row \(first: 3\)"),
        (lambda X: with_hole(X.T, [2, 4]).T, r"`dataset` has 2 empty columns \(first: 2\)"),
        (lambda X: torch.ones(4, 5), "does not tell the histograms apart"),
        (lambda X: (torch.eye(3), 2 * torch.eye(3)), "3 rows that do not sum to 1 .*sum 2"),
        (lambda X: (X, X), "9 rows that do not sum to 1"),
    ],
)
def test_bad_data_are_refused(data, name, change, message):
    with pytest.raises(ValueError, match=message):
        find(wsingular, "", name)(change(data), n_iter=1, **FORM)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("n_iter", 0, "`n_iter` is 0; pass a whole number, at least 1"),
        ("tau", -1, "`tau` is -1; it must not be negative"),
        ("p", 0, "`p` is 0; pass a positive number"),
        ("eps", -0.1, "`eps` is -0.1; it must not be negative"),
        ("sample_prop", 2, "`sample_prop` is 2; pass a number above 0 and at most 1"),
        ("small_value", -1, "`small_value` is -1; it must not be negative"),
        ("normalization_steps", 0, "`normalization_steps` is 0; pass a whole number, at least 1"),
    ],
)
def test_bad_options_are_refused(data, option, value, message):
    with pytest.raises(ValueError, match=message):
        wsingular.stochastic_sinkhorn_singular_vectors(
            data, **({"n_iter": 1, **FORM} | {option: value})
        )


def test_other_bad_arguments_are_refused(histograms):
    A, _ = histograms
    for cost, words in (
        (torch.ones(12, 12), "`cost` has a non-zero diagonal"),
        (torch.triu(torch.ones(12, 12), 1), "`cost` is not symmetric"),
        (1 - torch.eye(5), r"`cost` has shape \(5, 5\); the histograms have 12 bins"),
    ):
        with pytest.raises(ValueError, match=words):
            wsingular.distance.wasserstein_map(A, cost, **FORM)
    C, D = (wsingular.utils.random_distance(size, **FORM) for size in (12, 9))
    with pytest.raises(ValueError, match=r"`R` has shape \(12, 12\); pass 9 x 9"):
        wsingular.distance.wasserstein_map(A, C, R=C, tau=0.1, **FORM)
    with pytest.raises(ValueError, match=r"`D_2` has shape \(9, 9\); pass 12 x 12"):
        wsingular.utils.hilbert_distance(C, D)
    with pytest.raises(ValueError, match="`labels` has 3 entries for 9 items"):
        wsingular.utils.silhouette(D, [0, 1, 2])


@pytest.mark.gpu
@pytest.mark.parametrize("name", SOLVERS)
def test_the_requested_device_is_that_of_the_result(data, name):
    np.random.seed(3)  # noqa: NPY002
    expected = find(wsingular, "", name)(data, torch.double, "cpu", 2, tau=0.1)
    np.random.seed(3)  # noqa: NPY002
    found = find(wsingular, "", name)(data.cuda(), torch.double, "cuda", 2, tau=0.1)
    for one, other in zip(found, expected, strict=True):
        assert one.is_cuda
        assert_allclose(one.cpu(), other, atol=1e-6)


def test_negative_divergences_are_no_distances():
    rng = np.random.default_rng(0)
    A = rng.random((6, 5))
    A = torch.tensor(A / A.sum(axis=1, keepdims=True))
    C = np.triu(rng.random((5, 5)) ** 3, 1)
    C = torch.tensor(C + C.T)
    with pytest.raises(ValueError, match=r"pairs have negative distances \(lowest -0.*smaller"):
        wsingular.distance.sinkhorn_map(A, C, 1.0, torch.double, "cpu")
