"""Every door that stores, with every option that changes a result: refused, or computed anew.

A door is called once, then again with another option and what the first call stored. The second
answer must be that of a call without anything stored. ``python tests/doors.py`` prints the table.
"""

import tempfile
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

import cometric as cm

X = cm.datasets.simulate_counts(90, 16, types=3, density=0.6, random_state=3).X.toarray() + 0.01
KNOWN, LATER, NEW = X[:24], X[24:48], X[48:]
LABELS = np.arange(len(NEW)) % 9


def metric(n, seed):
    points = np.random.default_rng(seed).uniform(size=(n, 3))
    return np.linalg.norm(points[:, None] - points[None], axis=2)


C, OTHER_C = metric(16, 0), metric(16, 1)
D, OTHER_D = metric(24, 2), metric(24, 3)

# What is learned: for each option two sets of options. All results have the same feature metric C
# where it is given, so that it does not tell them apart.
UNBALANCED = [{"transport": cm.Unbalanced(0.1, rho=rho)} for rho in (1.0, 2.0)]
LEARNED = {
    "eps": ({"eps": 0.1}, {"eps": 0.4}),
    "transport": ({"eps": 0.1}, {"transport": cm.Unbalanced(0.1, rho=2.0)}),
    "transport, rho": (UNBALANCED[0], UNBALANCED[1]),
    "tau": ({"tau": 0.1}, {"tau": 0.3}),
    "restart": ({"restart": 0.2, "norm": "lsa"}, {"restart": 0.4, "norm": "lsa"}),
    "saturate": ({"tau": 0.1}, {"tau": 0.1, "saturate": 0.3}),
    "norm": ({"tau": 0.1, "norm": "l1"}, {"tau": 0.1, "norm": "l2"}),
    "tol": ({"tau": 0.1, "tol": 1e-1}, {"tau": 0.1, "tol": 1e-6}),
    "smoothing": ({"tau": 0.1}, {"tau": 0.1, "smoothing": 0.01}),
    "normalization_steps": ({"tau": 0.1}, {"tau": 0.1, "normalization_steps": 3}),
}

# Options of a run that learns, beside these: checkpoints and landmarks.
TAU = {"tau": 0.1, "solver": "anderson"}
RUNS = {
    **LEARNED,
    "features": ({"features": C}, {"features": OTHER_C}),
    "norm, matrix": ({"tau": 0.1, "norm": (None, C)}, {"tau": 0.1, "norm": (None, OTHER_C)}),
    "solver": (TAU, {"tau": 0.1, "solver": "power"}),
    "max_iter": ({**TAU, "max_iter": 1}, TAU),
    "sweeps": (TAU, {**TAU, "sweeps": 3}),
    "dtype": (TAU, {**TAU, "dtype": "float32"}),
    "start": (TAU, {**TAU, "start": "random"}),
    "memory_limit": ({**TAU, "memory_limit": 1e8}, {**TAU, "memory_limit": 2e8}),
    "client": (TAU, {**TAU, "client": "local"}),
    "drop_empty": (TAU, {**TAU, "drop_empty": True}),
}


def quiet(function, *given, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*given, **options)


def changed(matrix, entry=(0, 0)):
    matrix = np.array(matrix)
    matrix[entry] *= 1.5
    return matrix


def given(data, **options):
    """A result with the feature metric C, whatever else it depends on."""
    return quiet(cm.learn, data, features=C, **options)


# ------------------------------------------------------------------------------------ doors


def graph(search, result, data, folder, **options):
    options = {"n_neighbors": 4, "check": 5, **options}
    found = quiet(cm.neighbor_graph, result, data, search=search, folder=folder, **options)
    return [found.graph.indices, found.graph.data, found.proved, np.array(found.recall)]


def zarr(result, data, folder):
    with tempfile.TemporaryDirectory() as place:
        return [quiet(cm.distances_to_zarr, result, data, folder or place)[:]]


def landmarks(data, folder, **options):
    options = {"landmarks": 24, "n_neighbors": 4, "check": 5, **options}
    found = quiet(cm.learn_landmarks, data, folder=folder, **options)
    chosen = np.zeros(0) if found.landmarks is None else found.landmarks
    return [found.features, found.graph.indices, found.graph.data, chosen,
            np.array(found.neighbors.recall)]  # fmt: skip


def checkpoint(data, folder, **options):
    found = quiet(cm.learn, data, checkpoint=folder, **options)
    return [found.samples, found.features]


def reference(**options):
    """Learned cells of an AnnData; learning depends on ``options``."""
    import anndata

    import cometric.scverse as cms

    data, metric = options.pop("data", KNOWN), options.pop("metric", C)
    cells = quiet(anndata.AnnData, np.array(data))
    cells.varp["metric"] = metric
    quiet(cms.tl.learn, cells, features="metric", **options)
    return cells


def place(cells, new, n_neighbors=4):
    """Distances that a vote of new cells uses; those stored in them, if they fit."""
    import anndata

    import cometric.scverse as cms

    new = new if hasattr(new, "obsm") else quiet(anndata.AnnData, np.array(new))
    cells.obs["kind"] = pd.Categorical(np.arange(cells.n_obs) % 3)
    quiet(cms.tl.transfer_labels, new, cells, "kind", n_neighbors=n_neighbors)
    return new


def cells(change, folder, store={}):  # noqa: B006 - what is stored: by folder
    """Distances stored in an AnnData; ``change`` is (options, data, neighbors)."""
    options, data, count = change
    known = reference(**options)
    new = place(known, np.array(data), count) if folder not in store else store[folder]
    if folder in store:
        new.X = np.array(data)
        new = place(known, new, count)
    elif folder is not None:
        store[folder] = new
    return [new.obsm["cometric_distances"].toarray(), new.obs["cometric_kind_confidence"]]


def data_of_cells(change, folder, store={}):  # noqa: B006
    """The result stored in an AnnData whose data, or layer, change afterwards."""
    import cometric.scverse as cms

    options, data, _ = change
    if folder not in store:
        store[folder] = reference(**options)
    store[folder].X = np.array(data)
    return [quiet(cms.get.result, store[folder]).samples]


# ------------------------------------------------------------------------------------ cases


def cases():
    """(door, option) -> two calls, each a function of the folder."""
    table = {}
    results = {name: [partial(given, KNOWN, **part) for part in both]
               for name, both in LEARNED.items()}  # fmt: skip
    for norm in ("local", "lsa", "cosine", "hellinger"):
        options = {"tau": 0.3, "norm": norm}
        results[f"fitted to, {norm}"] = [partial(given, part, **options) for part in (KNOWN, LATER)]
    names = [f"g{k}" for k in range(16)]
    turned = pd.DataFrame(KNOWN, columns=names), pd.DataFrame(KNOWN, columns=names[::-1])
    results["names"] = [partial(given, part, tau=0.1) for part in turned]
    results["given metric"] = [partial(cm.learn, KNOWN, features=part) for part in (C, OTHER_C)]
    results["learned metric"] = [partial(cm.learn, part, tau=0.1) for part in (KNOWN, LATER)]
    plain = partial(given, KNOWN, tau=0.1)
    searches = {"n_neighbors": 5, "max_candidates": 6, "check": 0}
    doors = {"neighbor_graph, exhaustive": partial(graph, "exhaustive"),
             "neighbor_graph, index": partial(graph, "index"),
             "distances_to_zarr": zarr}  # fmt: skip
    table_of_names = pd.DataFrame(NEW, columns=names)
    for door, call in doors.items():
        for name, both in results.items():
            data = table_of_names if name == "names" else NEW
            table[door, name] = [partial(_with_result, call, part, data) for part in both]
        for name, data in (("X, an entry", changed(NEW)), ("X, order", NEW[::-1])):
            table[door, name] = [partial(_with_result, call, plain, part) for part in (NEW, data)]
        for name, value in searches.items() if door != "distances_to_zarr" else ():
            other = partial(call, **{name: value})
            table[door, name] = [partial(_with_result, part, plain, NEW) for part in (call, other)]
    table["neighbor_graph", "search"] = [
        partial(_with_result, partial(graph, name), plain, NEW) for name in ("exhaustive", "index")
    ]
    for name, (one, other) in RUNS.items():
        calls = [partial(landmarks, NEW, **part) for part in (one, other)]
        table["learn_landmarks", name] = calls
        if not name.startswith("features"):
            calls = [partial(checkpoint, KNOWN, **part) for part in (one, other)]
            table["checkpoint", name] = calls
    own = {
        **searches,
        "random_state": 1,
        "search": "index",
        "landmarks": 25,
        "landmarks, labels": LABELS,
        "landmarks, metacells": KNOWN,
        "method": "kmeans++",
    }
    for name, value in own.items():
        option = {name.split(",")[0]: value}
        table["learn_landmarks", name] = [
            partial(landmarks, NEW, **TAU, **part) for part in ({}, option)
        ]
    for name, (one, other) in {
        "n_landmarks": ({"n_landmarks": 20}, {"n_landmarks": 21}),
        "labels": ({"landmarks": LABELS}, {"landmarks": np.roll(LABELS, 1)}),
    }.items():
        one, other = ({"landmarks": LABELS, **part} for part in (one, other))
        table["learn_landmarks", name] = [
            partial(landmarks, NEW, **TAU, **part) for part in (one, other)
        ]
    for name, data in (("X, an entry", changed(NEW)), ("X, order", NEW[::-1])):
        table["learn_landmarks", name] = [partial(landmarks, part, **TAU) for part in (NEW, data)]
        table["checkpoint", name] = [partial(checkpoint, part, **TAU) for part in (NEW, data)]
    table["checkpoint", "random_state"] = [
        partial(checkpoint, KNOWN, **TAU, start="random", random_state=seed) for seed in (0, 1)
    ]
    table["checkpoint", "start, matrix"] = [
        partial(checkpoint, KNOWN, **TAU, start=part) for part in (D, OTHER_D)
    ]
    for name, both in LEARNED.items():
        table["AnnData, transform", name] = [partial(cells, (part, NEW, 4)) for part in both]
    fitted = {"tau": 0.3, "norm": "lsa"}
    changes = {
        "fitted to, lsa": [({**fitted, "data": part}, NEW, 4) for part in (KNOWN, LATER)],
        "given metric": [({"tau": 0.1, "metric": part}, NEW, 4) for part in (C, OTHER_C)],
        "X, an entry": [({"tau": 0.1}, part, 4) for part in (NEW, changed(NEW))],
        "n_neighbors": [({"tau": 0.1}, NEW, part) for part in (4, 6)],
    }
    for name, both in changes.items():
        table["AnnData, transform", name] = [partial(cells, part) for part in both]
    table["AnnData, result", "X, an entry"] = [
        partial(data_of_cells, ({"tau": 0.1}, part, 4)) for part in (KNOWN, changed(KNOWN))
    ]
    return table


def _with_result(call, make, data, folder):
    return call(make(), data, folder)


def same(one, other):
    return len(one) == len(other) and all(map(_equal, one, other))


def _equal(one, other):
    return np.shape(one) == np.shape(other) and np.array_equal(one, other, equal_nan=True)


REFUSALS = (
    "holds a run with other data or other settings",
    "is an array of other samples, or of another result",
    "holds a checkpoint of another run",
    "has other data than the metrics",
)


def outcome(calls, folder):
    """What the second call does with what the first has stored, in a word."""
    first, second = calls
    first(folder)
    try:
        found = second(folder)
    except ValueError as error:
        return "refused" if any(text in str(error) for text in REFUSALS) else f"raises {error!r}"
    return "anew" if same(found, second(None)) else "ANOTHER RESULT"


def main():
    table = {}
    for (door, option), calls in cases().items():
        with tempfile.TemporaryDirectory() as place:
            try:
                table[door, option] = outcome(calls, Path(place) / "stored")
            except Exception as error:
                table[door, option] = f"raises {error!r}"
    doors = list(dict.fromkeys(door for door, _ in table))
    print("| option | " + " | ".join(doors) + " |\n|" + " --- |" * (len(doors) + 1))
    for option in dict.fromkeys(option for _, option in table):
        print(f"| {option} | " + " | ".join(table.get((door, option), "") for door in doors) + " |")


if __name__ == "__main__":
    main()
