"""Results that no solve could have given are refused, however well they are packed."""

import json

import numpy as np
import pytest

from cometric import learn, load

X = np.array([[3.0, 1.0, 1.0], [1.0, 2.0, 5.0], [2.0, 1.0, 7.0], [0.0, 4.0, 1.0]])


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """All arrays of a saved result with names, scales and norms."""
    import pandas as pd

    path = tmp_path_factory.mktemp("result") / "saved.npz"
    names = pd.DataFrame(X, index=list("abcd"), columns=list("xyz"))
    norms = 2.0 - 2.0 * np.eye(4), 1.0 - np.eye(3)
    learn(names, eps=0, tau=0.1, normalization_steps=2, norm=norms).save(path)
    with np.load(path) as file:
        return dict(file)


def changed(array, place, value):
    copy = array.copy()
    copy[place] = value
    return copy


def with_header(arrays, **changes):
    header = json.loads(bytes(arrays["header"]))
    for key, value in changes.items():
        parts = header["parameters"] if key in header["parameters"] else header
        parts[key] = value
    return np.frombuffer(json.dumps(header).encode(), np.uint8)


FORGERIES = {
    "NaN": ("samples", lambda a: changed(a, (0, 1), np.nan), "samples has entries that are not f"),
    "infinite": ("features", lambda a: changed(a, (0, 1), np.inf), "features has entries that"),
    "negative": ("samples", lambda a: -a, "samples has negative distances"),
    "asymmetric": ("samples", lambda a: changed(a, (0, 1), 0.5), "samples is not symmetric"),
    "diagonal": ("features", lambda a: a + np.eye(3), "features has a diagonal that is not zero"),
    "text": ("samples", lambda a: a.astype(str), "samples holds <U.*, not numbers"),
    "scaled": ("samples", lambda a: 2 * a, "the largest of samples is 2, not 1"),
    "label": ("samples_labels", lambda a: changed(a, 0, 99), "the labels of samples do not number"),
    "below": ("samples_labels", lambda a: changed(a, 0, -1), "the labels of samples do not number"),
    "float": ("samples_labels", lambda a: a.astype(float), "the labels of samples do not number"),
    "kept": ("samples_kept", lambda a: a[:-1], "samples has 3 kept items, but labels of 4"),
    "kept ints": ("samples_kept", lambda a: a.astype(int), "samples has 4 kept items"),
    "names": ("samples_names", lambda a: a[:2], r"samples has names of shape \(2,\)"),
    "names bomb": ("features_names", lambda a: np.zeros(3), "features has names of .* float64"),
    "scale": ("samples_scale", lambda a: -a, "the scale of samples is not a nonnegative number"),
    "sum": ("samples_hist_data", lambda a: 2 * a, "the histograms of samples are not positive wi"),
    "zero": ("features_hist_data", lambda a: 0 * a, "the histograms of features are not positive"),
    "NaN mass": ("samples_hist_data", lambda a: a * np.nan, "the histograms of samples are not"),
    "float32": ("samples_hist_data", lambda a: a.astype("f4"), "the histograms of samples are not"),
    "bins": ("samples_hist_shape", lambda a: a + [0, 1], "samples has histograms of shape"),
    "twice": (
        "samples_hist_indices",
        lambda a: 0 * a,
        "the histograms of samples are not in canonical order",
    ),
    "outside": ("samples_hist_indices", lambda a: a + 9, "(indices|index values) must be"),
    "smoothing": ("smoothing", lambda a: a * np.nan - 1, "smoothing is nan"),
    "norm": ("samples_norm", lambda a: -a, "a norm has negative distances"),
    "history": ("history", lambda a: a[:0], "status is converged, but the residual inf is not"),
    "residual": (
        "history",
        lambda a: a + 1,
        "status is converged, but the residual .* is not below the tol",
    ),
    "NaN residual": ("history", lambda a: changed(a, (-1, 1), np.nan), "the residual nan is not"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_arrays_are_refused(arrays, tmp_path, forgery):
    part, forge, words = FORGERIES[forgery]
    path = tmp_path / "forged.npz"
    np.savez(path, **{**arrays, part: forge(arrays[part])})
    with pytest.raises(ValueError, match=f"forged.npz` is damaged: .*{words}"):
        load(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"values": [float("nan"), 1.0]}, "its singular values are nan, 1.0"),
        ({"values": [-1.0, 1.0]}, "its singular values are -1.0, 1.0"),
        ({"values": ["a", 1.0]}, "the singular values and their bracket are"),
        ({"bracket": [2.0, 1.0]}, r"its bracket is \[2.0, 1.0\]"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"eps": None}, "eps is None"),
        ({"tau": float("nan")}, "tau is nan"),
        ({"status": "PERFECT"}, "KeyError"),
    ],
)
def test_forged_headers_are_refused(arrays, tmp_path, changes, words):
    path = tmp_path / "forged.npz"
    np.savez(path, **{**arrays, "header": with_header(arrays, **changes)})
    with pytest.raises(ValueError, match=f"forged.npz` is damaged: .*{words}"):
        load(path)


def test_what_did_not_converge_may_have_any_residual(arrays, tmp_path):
    path = tmp_path / "honest.npz"
    honest = {**arrays, "header": with_header(arrays, status="MAX_ITER")}
    np.savez(path, **{**honest, "history": arrays["history"] + 1})
    assert not load(path).converged
    negative = {**arrays, "header": with_header(arrays, status="NOT_PSD")}
    np.savez(path, **{**negative, "samples": -arrays["samples"]})
    assert load(path).samples.min() < 0
