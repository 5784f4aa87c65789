"""A result as one HTML file that works offline: two linked maps, a summary, accuracy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cometric import baselines, scores
from cometric.certificates.certificate import Certificate
from cometric.certificates.diagnosis import Diagnosis
from cometric.certificates.lifting import LiftCheck
from cometric.core.arguments import check_ending
from cometric.core.cached import cached_property
from cometric.core.labels import NO_GROUP
from cometric.core.nearest import nearest
from cometric.core.text import storable
from cometric.core.trees import MetricTree
from cometric.core.types import Index, Matrix
from cometric.drawing import sentences
from cometric.drawing.columns import (
    Column,
    Groups,
    Numbers,
    Values,
    central,
    find_modules,
    fitting,
    module_columns,
    read_columns,
    read_values,
)
from cometric.drawing.layout import coordinates, metric_of, names_of
from cometric.drawing.packing import pack, pack_masses, pack_tree, pack_values, prune
from cometric.drawing.rendering import convergence, render
from cometric.drawing.sentences import Words, read_words
from cometric.files.storage import check_target, replacing
from cometric.results.groups import SHRINK, group_distances, group_shares
from cometric.results.modules import BACKGROUND, Modules, by_size
from cometric.results.result import Result, check_is_result
from cometric.runtime.progress import bar_of_pairs
from cometric.transports.tree import Tree

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
"""Most samples for which plain distances, and distances to groups, are computed."""

PCA_COMPONENTS = 10


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
        isinstance(result.parameters.transport, Tree) if trees is None else trees,
    )
    chosen = _choose_items(problem.samples.item_histograms, random_state)
    samples, features = _draw_maps(result, given, chosen, method, random_state, progress)
    page = _page(result, given, samples, features, certificate, title, method)
    with replacing(target) as file:
        file.write(page.encode("utf-8"))
    return target


@dataclass(frozen=True)
class _Given:
    """Names, labels, clusters and values passed by the user, checked, and the modules."""

    words: Words
    names: dict[str, list[str]]  # by side, as are the labels
    labels: dict[str, list[Column]]
    clusters: list[Column]  # of samples
    values: Values | None
    modules: Modules | None
    no_modules: str  # why there are none
    with_trees: bool


CLUSTERS = "clusters of the learned distance"


@dataclass(frozen=True)
class _Map:
    """The map of one side."""

    of: str
    total: int  # number of items, drawn or not
    items: Index  # numbers of the items drawn, which the fields below are for
    names: list[str]
    positions: Matrix
    distances: Matrix
    columns: list[Column]
    tree: MetricTree | None

    @cached_property
    def nearest(self) -> tuple[Index, Matrix]:
        """The nearest of each item, and their distances."""
        return nearest(self.distances, min(NEAREST, len(self.names) - 1), skip_self=True)

    def payload(self) -> dict[str, Any]:
        (near, away), largest = self.nearest, float(self.distances.max())
        return {
            "names": self.names,
            "x": pack(np.rint(300 * self.positions[:, 0]), np.int16),
            "y": pack(np.rint(300 * self.positions[:, 1]), np.int16),
            "columns": [column.payload() for column in self.columns],
            "nearest": {
                "count": near.shape[1],
                "items": pack(near, np.uint16),
                "away": pack(np.rint(65535 * away / largest) if largest > 0 else away, np.uint16),
                "largest": largest,
            },
            "tree": None if self.tree is None else pack_tree(self.tree),
        }


def _draw_maps(
    result: Result,
    given: _Given,
    chosen: tuple[Index, Index],
    method: str,
    random_state: int,
    progress: bool,
) -> list[_Map]:
    """The maps of the ``chosen`` samples and features, placed by their distances."""
    maps, total = [], sum(map(len, chosen))
    with bar_of_pairs(progress, total, "item", "drawing maps") as report:
        for of, items in zip(("samples", "features"), chosen, strict=True):
            whole, n = metric_of(result, of), len(items)
            metric = whole[np.ix_(items, items)] if n < len(whole) else whole
            names = [storable(given.names[of][k]) for k in items]
            columns = _columns(result, of, given, items, metric)
            positions = coordinates(metric, method, random_state, report)
            report(n, n)
            positions = positions - positions.mean(axis=0)
            positions = 100 * positions / np.abs(positions).max()
            tree = prune(result.tree(of), items) if given.with_trees else None
            maps.append(_Map(of, len(whole), items, names, positions, metric, columns, tree))
    return maps


def _columns(result: Result, of: str, given: _Given, items: Index, metric: Matrix) -> list[Column]:
    """The columns by which these items of a side can be colored."""
    clusters = given.clusters if of == "samples" else []
    columns = [column.take(items) for column in given.labels[of] + clusters]
    if not (given.clusters if of == "samples" else given.modules):
        columns.append(_clusters(metric))
    found = module_columns(of, given.modules, given.names["features"])
    columns += [column.take(items) for column in found]
    if of == "features":
        mass = np.asarray(result.problem.samples.item_histograms.sum(axis=0))
        columns.append(Numbers("share of all data (log10)", np.log10(mass[items] / mass.sum())))
    return columns


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


def _clusters(metric: Matrix) -> Groups:
    """Ward's clusters, 2 to 8: the largest number whose silhouette is 0.9 of the best or more."""
    n, codes = len(metric), np.zeros(len(metric), np.int64)
    if n >= 4 and metric.any():
        tree = hierarchy.linkage(squareform(metric, checks=False), "ward")
        cuts = [hierarchy.fcluster(tree, k, "maxclust") for k in range(2, min(9, n))]
        cuts = [cut for cut in cuts if 2 <= len(np.unique(cut)) < n]
        widths = [scores.silhouette(metric, cut) for cut in cuts]
        good = [k for k, width in enumerate(widths) if width >= 0.9 * max(widths)]
        if cuts:
            codes = by_size(cuts[good[-1] if good else 0], 1)
    return Groups(CLUSTERS, [f"cluster {g}" for g in range(codes.max() + 1)], codes)


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
    known = fitting(A.tocsc(), np.argsort(-A.sum(axis=0), kind="stable"), MAX_ENTRIES)
    values, words, modules = given.values, given.words, given.modules
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
        typical=[] if main is None else _typical(result, main, samples, features),
        module_rows=[]
        if modules is None
        else [
            (g, len(own), [storable(given.names["features"][k]) for k in own[:10]])
            for g, own in enumerate(modules.members)
        ],
        background=facts.background,
        silhouettes=widths,
        compared=MAX_COMPARED,
        curve=convergence(result),
    )


def _typical(result: Result, main: Groups, samples: _Map, features: _Map) -> list[dict[str, Any]]:
    """For each group of samples, its nearest feature, and the neighbors of that feature.

    At most ``MAX_COMPARED`` samples are compared, evenly from the groups. If there are no distances
    from groups, because those between features were given, or R is a matrix, takes the most
    enriched feature.
    """
    rows: list[dict[str, Any]] = []
    if main.count < 2:
        return rows
    number = np.full(len(result.problem.samples.labels), NO_GROUP)
    drawn = np.random.default_rng(0).permutation(main.known)
    for g in range(main.count):
        own = drawn[main.codes[drawn] == g][: max(1, MAX_COMPARED // main.count)]
        number[samples.items[own]] = g
    times = group_shares(result, number, main.count)[2][:, features.items]
    try:
        away = group_distances(result, number, main.count)[:, features.items]
    except ValueError:
        away = None
    for g, ratios in enumerate(times):
        best = int(ratios.argmax() if away is None else away[g].argmin())
        rows.append(
            {
                "group": main.groups[g],
                "feature": features.names[best],
                "nearest_to_group": away is not None,
                "times": sentences.times(ratios[best]),
                "nearest": [
                    (features.names[k], f"{features.distances[best, k]:.3f}")
                    for k in features.nearest[0][best, :6]
                ],
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
    distances = {
        "Learned distance": metric,
        "l1 distance": baselines.l1(A),
        "Euclidean distance": baselines.l2(A),
        "Cosine distance": baselines.cosine(A),
        f"Euclidean after PCA ({parts} components)": baselines.pca(A, parts),
    }
    widths = {name: scores.silhouette(matrix, codes) for name, matrix in distances.items()}
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
        known, count = labels.known, min(NEAREST, len(labels.known) - 1)
        codes = labels.codes[known]
        near = nearest(samples.distances[np.ix_(known, known)], count, skip_self=True)[0]
        shared = float((codes[near] == codes[:, None]).mean())
        sizes = np.bincount(codes)
        chance = float((sizes * (sizes - 1)).sum() / (sizes.sum() * (sizes.sum() - 1)))
    ranks = [k for k, (name, _) in enumerate(widths, 1) if name.startswith("Learned")]
    found = given.modules
    return sentences.Facts(
        labels=None if labels is None else labels.name,
        groups=0 if main is None else main.count,
        shared=shared,
        chance=chance,
        rank=ranks[0] if ranks else None,
        module_names=None if found is None else central(found, given.names["features"]),
        background=0 if found is None else int((found.labels == BACKGROUND).sum()),
        no_modules=given.no_modules,
        words=given.words,
    )
