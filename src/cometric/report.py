"""A result as one HTML file that works offline: two linked maps, a summary, accuracy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cometric import baselines, scores
from cometric.answers.checks import check_is_result
from cometric.answers.groups import SHRINK, distances_to_some, enrichment
from cometric.answers.modules import BACKGROUND, Modules
from cometric.answers.result import Result
from cometric.certificates.certificate import Certificate
from cometric.certificates.diagnosis import Diagnosis
from cometric.certificates.lifting import LiftCheck
from cometric.core.arguments import check_ending
from cometric.core.nearest import nearest_to
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
from cometric.drawing.values import Values, read_values
from cometric.drawing.words import Words, read_words
from cometric.files.storage import check_target, replacing
from cometric.machine.progress import bar_of_pairs

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

Embed = Callable[[Matrix, Callable[[float], None]], Matrix]
"""Positions in the plane from distances; its second argument is called with the fraction done."""


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
    result, path
        What :func:`learn` returned, and the file to write, ``.html`` or ``.htm``.
    labels
        A label per sample, for colors and to compare the learned distance with others; or several
        columns of them: a dictionary, or a data frame such as ``adata.obs[["cell_type"]]``.
        Columns with many different numbers become a color scale. Groups are in the order of
        pandas categories, otherwise sorted. Samples without a label (None, NaN) are gray, and
        take no part in comparisons. Labels should come from an independent source; pass those
        computed from this result as ``clusters``.
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
    check_target(target)
    if target.exists() and not force:
        raise FileExistsError(f"`path` is {os.fspath(path)!r}, which exists; pass force=True.")
    called, problem = read_words(words), result.problem
    names = {
        "samples": _names(result, "samples", sample_names, "sample_names", called),
        "features": _names(result, "features", feature_names, "feature_names", called),
    }
    given = _Given(
        called,
        names,
        {
            "samples": read_columns(labels, "labels", problem.samples, "samples"),
            "features": read_columns(
                feature_labels, "feature_labels", problem.features, "features"
            ),
        },
        read_columns(clusters, "clusters", problem.samples, "samples"),
        None if X is None else read_values(X, problem, names["features"]),
        *find_modules(result, modules),
    )
    with_trees = hasattr(result.parameters.transport, "linkage") if trees is None else trees

    def embed(distances: Matrix, on_progress: Callable[[float], None]) -> Matrix:
        return coordinates(distances, method, random_state, on_progress)

    chosen = _choose_items(problem.samples.item_histograms, random_state)
    samples, features = _draw_maps(result, given, chosen, embed, with_trees, progress)
    page = _page(result, given, samples, features, certificate, title, method)
    with replacing(target) as file:
        file.write(page.encode("utf-8"))
    return target


@dataclass(frozen=True)
class _Given:
    """Names, labels, clusters and values passed by the user, checked, and the modules."""

    words: Words
    names: dict[str, list[str]]  # by side, as are the labels
    labels: dict[str, list[Groups | Numbers]]
    clusters: list[Groups | Numbers]  # of samples
    values: Values | None
    modules: Modules | None
    no_modules: str  # why there are none


CLUSTERS = "clusters of the learned distance"


@dataclass(frozen=True)
class _Map:
    """The map of one side."""

    of: str
    total: int  # number of items, drawn or not
    items: Index  # numbers of the items drawn, which the fields below are for
    names: list[str]
    places: Matrix
    distances: Matrix
    columns: list[Groups | Numbers]
    tree: MetricTree | None

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


def _draw_maps(
    result: Result,
    given: _Given,
    chosen: tuple[Index, Index],
    embed: Embed,
    with_trees: bool,
    progress: bool,
) -> list[_Map]:
    """The maps of the ``chosen`` samples and features; ``embed`` places items by distances."""
    maps, total = [], sum(map(len, chosen))
    with bar_of_pairs(progress, total, "item", "drawing maps") as report:
        for of, items in zip(("samples", "features"), chosen, strict=True):
            whole = metric_of(result, of)
            metric = whole[np.ix_(items, items)] if len(items) < len(whole) else whole
            names = [storable(given.names[of][k]) for k in items]
            columns = _columns(result, of, given, items, metric)
            places = _places(metric, embed, report)
            tree = tree_layout.prune(result.tree(of), items) if with_trees else None
            maps.append(_Map(of, len(whole), items, names, places, metric, columns, tree))
    return maps


def _places(metric: Matrix, embed: Embed, report: OnProgress) -> Matrix:
    """Places of items in the plane, around 0 and at most 100 away in each direction."""
    count = len(metric)
    places = embed(metric, lambda share: report(int(share * (count - 1)), count))
    report(count, count)
    places = places - places.mean(axis=0)
    scaled: Matrix = 100 * places / np.abs(places).max()
    return scaled


def _columns(
    result: Result, of: str, given: _Given, items: Index, metric: Matrix
) -> list[Groups | Numbers]:
    """The columns by which these items of a side can be colored."""
    clusters = given.clusters if of == "samples" else []
    columns = [column.take(items) for column in given.labels[of] + clusters]
    found = given.clusters if of == "samples" else given.modules
    if not found:
        columns.append(_cluster_column(metric))
    columns += _module_columns(of, given.modules, given.names["features"], items)
    if of == "features":
        mass = np.asarray(result.problem.samples.item_histograms.sum(axis=0))
        columns.append(Numbers("share of all data (log10)", np.log10(mass[items] / mass.sum())))
    return columns


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


def _choose_items(A: sparse.csr_array, random_state: int) -> tuple[Index, Index]:
    """The items to draw, if there are too many: random samples, features with the most mass."""
    columns = np.sort(np.argsort(-A.sum(axis=0), kind="stable")[:MAX_POINTS])
    rows = np.random.default_rng(random_state).permutation(A.shape[0])[:MAX_POINTS]
    used = np.diff(A[rows][:, columns].indptr) > 0
    return np.sort(rows[used]), columns


def _embedded(A: sparse.csr_array) -> Index:
    """The features with masses in the page: the heaviest, up to ``MAX_ENTRIES`` entries."""
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


# ----------------------------------------------------------------------------- the page


def _page(
    result: Result,
    given: _Given,
    samples: _Map,
    features: _Map,
    certificate: Certificate | Diagnosis | LiftCheck | None,
    title: str | None,
    method: str,
) -> str:
    """The report as HTML."""
    A = result.problem.samples.item_histograms[samples.items][:, features.items]
    B = result.problem.features.item_histograms[features.items][:, samples.items]
    known, values, words = _embedded(A), given.values, given.words
    colors = None if values is None else values.take(samples.items, features.names, MAX_ENTRIES)
    main = next((column for column in samples.columns if isinstance(column, Groups)), None)
    labeled = any(isinstance(column, Groups) for column in given.labels["samples"])
    labels = main if labeled else None  # labels come before clusters
    widths = [] if labels is None else _silhouettes(A, samples.distances, labels)
    facts = _facts(given, samples, main, labels, widths)
    return render(
        data={
            "words": words.payload(),
            "samples": samples.payload(),
            "features": features.payload(),
            "mass": pack_masses(A, B, known),
            "floor": [SHRINK / A.shape[1], SHRINK / B.shape[1]],
            "values": None
            if colors is None
            else {"names": colors.names, **pack_values(colors.matrix)},
        },
        title=storable(title or f"Distances learned from {samples.total:,} {words.samples}"),
        result=result,
        words=words,
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
        typical=[] if main is None else _typical(result, A, main, samples, features),
        module_rows=module_rows(given.modules, given.names["features"]),
        background=facts.background,
        silhouettes=widths,
        compared=MAX_COMPARED,
        curve=_curve(result),
    )


def _typical(
    result: Result, A: sparse.csr_array, main: Groups, samples: _Map, features: _Map
) -> list[dict[str, Any]]:
    """For each group of samples, its nearest feature, and the neighbors of that feature.

    If distances to groups cannot be computed, its most enriched feature.
    """
    rows: list[dict[str, Any]] = []
    known, codes = main.known, main.codes[main.known]
    if main.count < 2:
        return rows
    away = distances_to_some(result, samples.items[known], codes, main.count)
    for g in range(main.count):
        score = enrichment(A[known], codes == g)
        best = int(score.argmax() if away is None else away[g, features.items].argmin())
        near = [
            (features.names[k], f"{features.distances[best, k]:.3f}")
            for k in features.nearest(best)[:6]
        ]
        rows.append(
            {
                "group": main.groups[g],
                "feature": features.names[best],
                "nearest_to_group": away is not None,
                "times": sentences.times(2.0 ** score[best]),
                "nearest": near,
            }
        )
    return rows


def _silhouettes(A: sparse.csr_array, metric: Matrix, main: Groups) -> list[tuple[str, float]]:
    """Silhouettes of the labels under the learned distance and others, best first."""
    some = np.random.default_rng(0).permutation(main.known)[:MAX_COMPARED]
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
    given: _Given,
    samples: _Map,
    main: Groups | None,
    labels: Groups | None,
    widths: list[tuple[str, float]],
) -> sentences.Facts:
    shared = chance = None
    if labels is not None and labels.count > 1 and len(labels.known) > 2:
        shared, chance = _agreement(samples.distances, labels)
    ranks = [k for k, (name, _) in enumerate(widths, 1) if name.startswith("Learned")]
    found, names = given.modules, given.names["features"]
    return sentences.Facts(
        labels=None if labels is None else labels.name,
        groups=0 if main is None else main.count,
        shared=shared,
        chance=chance,
        rank=ranks[0] if ranks else None,
        module_names=None
        if found is None
        else tuple(central(found, g, names) for g in range(len(found))),
        background=0 if found is None else int((found.labels == BACKGROUND).sum()),
        no_modules=given.no_modules,
        words=given.words,
    )


def _agreement(distances: Matrix, labels: Groups) -> tuple[float, float]:
    """Mean share of the nearest labeled items with the label of the item; the same by chance."""
    known, count = labels.known, min(NEAREST, len(labels.known) - 1)
    codes = labels.codes[known]
    near = np.array([nearest_to(distances[i][known], count, k) for k, i in enumerate(known)])
    sizes = np.bincount(codes)
    chance = (sizes * (sizes - 1)).sum() / (sizes.sum() * (sizes.sum() - 1))
    return float((codes[near] == codes[:, None]).mean()), float(chance)


def _curve(result: Result) -> dict[str, Any] | None:
    records = [
        (record.iteration, significant(record.residual), significant(record.seconds))
        for record in result.history
        if np.isfinite(record.residual)
    ]
    return convergence(records, result.parameters.tol)
