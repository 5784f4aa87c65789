"""A result as one HTML file that works offline: two linked maps, a summary, accuracy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cometric import baselines, scores
from cometric.answers.checks import check_is_result
from cometric.answers.groups import SHRINK, enrichment
from cometric.answers.modules import BACKGROUND, Modules
from cometric.answers.result import Result
from cometric.core.kinds import check_ending
from cometric.core.nearest import nearest_to
from cometric.core.sides import Side
from cometric.core.text import storable
from cometric.core.trees import MetricTree
from cometric.core.types import Index, Matrix
from cometric.drawing import sentences, tree_layout
from cometric.drawing.columns import Groups, Numbers, read_columns
from cometric.drawing.convergence import convergence
from cometric.drawing.layout import by_size, coordinates, metric_of, names_of
from cometric.drawing.module_columns import (
    central,
    find_modules,
    module_columns,
    module_rows,
    score_columns,
)
from cometric.drawing.packing import pack, pack_masses, pack_values, significant
from cometric.drawing.rendering import render
from cometric.drawing.values import read_values
from cometric.drawing.words import Words, read_words
from cometric.files.atomic import replacing
from cometric.machine.progress import bar_of_pairs
from cometric.proofs.certificate import Certificate
from cometric.proofs.diagnosis import Diagnosis
from cometric.proofs.lifting import LiftCheck

try:
    import jinja2  # noqa: F401 (render uses it; if it is missing, say so here)
except ImportError:
    raise ImportError("the report needs jinja2: pip install 'cometric[report]'.") from None

__all__ = ["write"]


def __dir__() -> list[str]:
    return __all__


MAX_POINTS = 5_000
"""Most points per map."""

MAX_ENTRIES = 1_000_000
"""Most nonzero entries of the data in the page, about three bytes each, and as many of ``X``."""

NEAREST = 10
"""Neighbors listed for each item."""

MAX_COMPARED = 2_000
"""Most samples for which plain distances are computed, to compare silhouettes."""

PCA_COMPONENTS = 10

OnProgress = Callable[[int, int], None]


def write(
    result: Result,
    path: str | os.PathLike[str],
    *,
    labels: Any = None,
    sample_names: Sequence[Any] | None = None,
    feature_names: Sequence[Any] | None = None,
    title: str | None = None,
    force: bool = False,
    certificate: Certificate | Diagnosis | LiftCheck | None = None,
    method: str = "tsne",
    random_state: int = 0,
    progress: bool = False,
    feature_labels: Any = None,
    X: Any = None,
    modules: Modules | bool | None = None,
    trees: bool | None = None,
    clusters: Any = None,
    words: Sequence[str] = ("samples", "features"),
) -> Path:
    """Write the report of a result to one HTML file, and return its path.

    The page shows a map of the samples and one of the features, colored by labels, clusters,
    modules, or the values of a feature. A selection on one map is explained on the other: there,
    items are colored by how much larger their mean mass is in the selection than in the rest. The
    page loads nothing; the file takes 0.1 to 4 MB.

    Parameters
    ----------
    labels
        A label per sample, for colors and to compare the learned distance with others; or several
        columns of them: a dictionary, or a data frame such as ``adata.obs[["cell_type"]]``.
        Columns with many different numbers become a color scale. Groups are in the order of
        pandas categories, otherwise sorted. Labels should come from an independent source; pass
        those computed from this result as ``clusters``.
    sample_names, feature_names
        Names to show instead of those in the data.
    title
        The title of the page.
    force
        Overwrite a file that exists.
    certificate
        What ``result.certify()`` returned, to be described; it is not computed here.
    method, random_state
        The embedding: "tsne", or "umap" (needs umap-learn), and its random seed.
    progress
        Show a bar with the time left.
    feature_labels
        The same as ``labels`` for features.
    X
        Values to color samples by, instead of the share of a feature in the mass of each sample:
        a matrix with a column per feature, or a data frame or AnnData with any named features, for
        example log-normalized expression of all genes. Nonnegative.
    modules
        What ``cm.modules(result)`` returned, to color the features by. By default they are
        computed, if igraph is installed; False: no modules.
    trees
        Whether to offer dendrograms. By default, if the result was learned with trees.
    clusters
        The same as ``labels`` for clusters computed from this result, such as Leiden clusters of
        its distances: used for colors and to compare groups of samples, but not for
        scores, since a distance always agrees with its own clusters. By default up to eight
        clusters are computed (Ward linkage).
    words
        What samples and features are called in the page, for example ``("cells", "genes")``.
    """
    check_is_result(result)
    target = check_ending(path, (".html", ".htm"), "The report is a page for browsers.")
    if target.exists() and not force:
        raise FileExistsError(f"`path` is {os.fspath(path)!r}, which exists; pass force=True.")
    problem = result.problem
    called = read_words(words)
    own = read_columns(clusters, "clusters", problem.samples, "samples")
    given = {
        "samples": read_columns(labels, "labels", problem.samples, "samples") + own,
        "features": read_columns(feature_labels, "feature_labels", problem.features, "features"),
    }
    names = {
        "samples": _names(result, "samples", sample_names, "sample_names", called),
        "features": _names(result, "features", feature_names, "feature_names", called),
    }
    values = None if X is None else read_values(X, problem, names["features"])
    found, no_modules = find_modules(result, modules)
    whole = _histograms(problem.samples), _histograms(problem.features)
    chosen = dict(zip(names, _choose_items(whole[0], random_state), strict=True))
    A = whole[0][chosen["samples"]][:, chosen["features"]]
    B = whole[1][chosen["features"]][:, chosen["samples"]]
    with_trees = hasattr(result.parameters.transport, "linkage") if trees is None else trees
    maps = {}
    count = sum(map(len, chosen.values()))
    with bar_of_pairs(progress, count, "item", "drawing maps") as on_progress:
        for of, items in chosen.items():
            columns = [column.take(items) for column in given[of]]
            columns += _module_columns(of, found, names["features"], items)
            cut = not own if of == "samples" else not found
            cut_at = len(given[of]) if cut else None
            maps[of] = _map(
                result, of, items, names[of], columns, cut_at, method, random_state, on_progress
            )
            if with_trees:
                tree = tree_layout.prune(result.tree(of), items)
                maps[of] = replace(maps[of], tree=tree)
    samples, features = maps["samples"], maps["features"]
    known = _embedded(A)
    colors = None if values is None else values.take(chosen["samples"], features.names, MAX_ENTRIES)
    main = next((column for column in samples.columns if isinstance(column, Groups)), None)
    known_labels = given["samples"][: len(given["samples"]) - len(own)]
    labeled = any(isinstance(column, Groups) for column in known_labels)
    widths = _silhouettes(A, samples.distances, main) if labeled and main is not None else []
    facts = _facts(samples, main, labeled, widths, found, no_modules, names["features"], called)
    page = render(
        data={
            "words": called.payload(),
            "samples": samples.payload(),
            "features": features.payload(),
            "mass": pack_masses(A, B, known),
            "floor": [SHRINK / A.shape[1], SHRINK / B.shape[1]],
            "values": None
            if colors is None
            else {"names": colors.names, **pack_values(colors.matrix)},
        },
        title=storable(title or f"Distances learned from {samples.total:,} {called.samples}"),
        result=result,
        words=called,
        capital=sentences.capitalize,
        maps=(samples, features),
        embedded=len(known),
        valued=None if colors is None or values is None else (len(colors.names), len(values.names)),
        main=main,
        method={"umap": "UMAP", "tsne": "t-SNE"}[method],
        status=sentences.status(result),
        learned=sentences.learned(result, facts),
        certainty=sentences.certainty(result, facts, certificate),
        advice=sentences.advice(result, facts, certificate),
        certificate=None if certificate is None else sentences.of_check(certificate),
        proved=isinstance(certificate, Certificate),
        details=str(certificate),
        typical=[] if main is None else _typical(A, main, features),
        module_rows=module_rows(found, names["features"]),
        background=facts.background,
        silhouettes=widths,
        compared=min(MAX_COMPARED, len(samples.names)),
        curve=_curve(result),
    )
    with replacing(target) as file:
        file.write(page.encode("utf-8"))
    return target


CLUSTERS = "clusters of the learned distance"


@dataclass(frozen=True)
class _Map:
    """The map of one side."""

    of: str
    total: int  # number of items, drawn or not
    names: list[str]  # of the items drawn, as in all that follows
    places: Matrix
    distances: Matrix
    columns: list[Groups | Numbers]
    tree: MetricTree | None = None

    def nearest(self, item: int) -> Index:
        """The nearest items."""
        row = self.distances[item]
        return nearest_to(row, min(NEAREST, len(row) - 1), item)

    def payload(self) -> dict[str, Any]:
        near = np.array([self.nearest(k) for k in range(len(self.names))], np.int64)
        near = near.reshape(len(self.names), -1)
        away = np.take_along_axis(self.distances, near, axis=1)
        largest = float(self.distances.max())
        return {
            "names": self.names,
            "x": pack(np.rint(300 * self.places[:, 0]), np.int16),
            "y": pack(np.rint(300 * self.places[:, 1]), np.int16),
            "columns": [column.payload() for column in self.columns],
            "nearest": {
                "count": near.shape[1],
                "items": pack(near, np.uint16),
                "away": pack(np.rint(65535 * away / largest) if largest > 0 else away, np.uint16),
                "largest": largest,
            },
            "tree": None if self.tree is None else tree_layout.payload(self.tree),
        }


def _map(
    result: Result,
    of: str,
    chosen: Index,
    names: list[str],
    columns: list[Groups | Numbers],
    cut_at: int | None,
    method: str,
    random_state: int,
    on_progress: OnProgress,
) -> _Map:
    whole = metric_of(result, of)
    metric = whole[np.ix_(chosen, chosen)] if len(chosen) < len(whole) else whole
    shown = [storable(names[k]) for k in chosen]
    if cut_at is not None:
        columns.insert(cut_at, _cluster_column(metric))
    if of == "features":
        mass = np.asarray(_histograms(result.problem.samples).sum(axis=0))[chosen]
        columns.append(Numbers("share of all data (log10)", np.log10(mass / mass.sum())))
    count = len(chosen)
    places = coordinates(
        metric, method, random_state, lambda share: on_progress(int(share * (count - 1)), count)
    )
    on_progress(count, count)
    places = places - places.mean(axis=0)
    return _Map(of, len(whole), shown, 100 * places / np.abs(places).max(), metric, columns)


def _module_columns(
    of: str, found: Modules | None, names: list[str], chosen: Index
) -> list[Groups | Numbers]:
    """The modules of features, or the scores of samples for them."""
    if found is None or not len(found):
        return []
    if of == "samples":
        return score_columns(found, names, chosen)
    return [column.take(chosen) for column in module_columns(found, names)]


def _names(
    result: Result, of: str, names: Sequence[Any] | None, argument: str, words: Words
) -> list[str]:
    """The names given, or those of the data; numbers get "sample" or "feature" before them."""
    shown = names_of(result, of, names, argument)
    numbers = names is None and getattr(result.problem, of).names is None
    return [f"{words.one(of)} {name}" for name in shown] if numbers else shown


def _histograms(side: Side) -> sparse.csr_array:
    """One row per item, repeats included."""
    return side.full if len(side.labels) == side.full.shape[0] else side.full[side.labels]


def _choose_items(A: sparse.csr_array, random_state: int) -> tuple[Index, Index]:
    """The items to draw, if there are too many: random samples, features with the most mass."""
    columns = np.sort(np.argsort(-A.sum(axis=0), kind="stable")[:MAX_POINTS])
    rows = np.random.default_rng(random_state).permutation(A.shape[0])[:MAX_POINTS]
    used = np.diff(A[rows][:, columns].indptr) > 0
    return np.sort(rows[used]), columns


def _embedded(A: sparse.csr_array) -> Index:
    """The features whose masses are in the page, those with the most mass if there is a limit."""
    order = np.argsort(-A.sum(axis=0), kind="stable")
    entries = np.cumsum(np.diff(A.tocsc().indptr)[order])
    return np.sort(order[: int(np.searchsorted(entries, MAX_ENTRIES, side="right"))])


# --------------------------------------------------------------------------- columns


def _cluster_column(metric: Matrix) -> Groups:
    """Clusters of the items, the largest first."""
    found = by_size(_clusters(metric))
    codes = np.empty(len(metric), np.int64)
    for g, (_, members) in enumerate(found):
        codes[members] = g
    return Groups(CLUSTERS, [f"cluster {g}" for g in range(len(found))], codes)


def _clusters(metric: Matrix) -> Index:
    """Ward's clusters, 2 to 8: the largest number whose silhouette is 0.9 of the best or more."""
    n = len(metric)
    if n < 4 or not metric.any():
        return np.zeros(n, np.int64)
    tree = hierarchy.linkage(squareform(metric, checks=False), "ward")
    cuts = [hierarchy.fcluster(tree, k, "maxclust") for k in range(2, min(9, n))]
    cuts = [cut for cut in cuts if 2 <= len(np.unique(cut)) < n]
    if not cuts:
        return np.zeros(n, np.int64)
    widths = [scores.silhouette(metric, cut) for cut in cuts]
    good = [cut for cut, width in zip(cuts, widths, strict=True) if width >= 0.9 * max(widths)]
    return np.asarray((good or cuts[:1])[-1], np.int64)


# --------------------------------------------------------------------------- tables


def _typical(A: sparse.csr_array, main: Groups, features: _Map) -> list[dict[str, Any]]:
    """For each group of samples, its most enriched feature, and the neighbors of that feature."""
    rows: list[dict[str, Any]] = []
    for g, name in enumerate(main.groups):
        members = main.codes == g
        if members.all():
            continue
        score = enrichment(A, members)
        best = int(score.argmax())
        near = [
            (features.names[k], f"{features.distances[best, k]:.3f}")
            for k in features.nearest(best)[:6]
        ]
        rows.append(
            {
                "group": name,
                "feature": features.names[best],
                "times": sentences.times(2.0 ** score[best]),
                "nearest": near,
            }
        )
    return rows


def _silhouettes(A: sparse.csr_array, metric: Matrix, main: Groups) -> list[tuple[str, float]]:
    """Silhouettes of the labels under the learned distance and others, best first."""
    some = np.random.default_rng(0).permutation(len(metric))[:MAX_COMPARED]
    codes, metric, A = main.codes[some], metric[np.ix_(some, some)], A[some]
    if not 2 <= len(np.unique(codes)) < len(metric):
        return []
    parts = min(PCA_COMPONENTS, *A.shape)
    distances: dict[str, Callable[[], Matrix]] = {
        "Learned distance": lambda: metric,
        "l1 distance": lambda: baselines.l1(A),
        "Euclidean distance": lambda: baselines.l2(A),
        "Cosine distance": lambda: baselines.cosine(A),
        f"Euclidean after PCA ({parts} components)": lambda: baselines.pca(A, parts),
    }
    widths = {name: scores.silhouette(of(), codes) for name, of in distances.items()}
    return sorted(widths.items(), key=lambda item: -item[1])


def _facts(
    samples: _Map,
    main: Groups | None,
    labeled: bool,
    widths: list[tuple[str, float]],
    found: Modules | None,
    no_modules: str,
    names: list[str],
    words: Words,
) -> sentences.Facts:
    shared = chance = None
    if labeled and main is not None and len(main.groups) > 1 and len(main.codes) > 2:
        near = np.array([samples.nearest(k) for k in range(len(main.codes))])
        shared = float((main.codes[near] == main.codes[:, None]).mean())
        sizes = np.bincount(main.codes)
        chance = float((sizes * (sizes - 1)).sum() / (sizes.sum() * (sizes.sum() - 1)))
    ranks = [k for k, (name, _) in enumerate(widths, 1) if name.startswith("Learned")]
    return sentences.Facts(
        labels=main.name if labeled and main is not None else None,
        groups=0 if main is None else main.count,
        shared=shared,
        chance=chance,
        rank=ranks[0] if ranks else None,
        module_names=None
        if found is None
        else tuple(central(found, g, names) for g in range(len(found))),
        background=0 if found is None else int((found.labels == BACKGROUND).sum()),
        no_modules=no_modules,
        words=words,
    )


def _curve(result: Result) -> dict[str, Any] | None:
    records = [
        (record.iteration, significant(record.residual), significant(record.seconds))
        for record in result.history
        if np.isfinite(record.residual)
    ]
    return convergence(records, result.parameters.tol)
