"""A result as one HTML file that works offline: two linked maps, convergence, certificate."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from cometric import baselines, scores
from cometric.answers.groups import SHRINK, enrichment
from cometric.answers.result import Result
from cometric.core.kinds import check_path
from cometric.core.nearest import nearest_to
from cometric.core.sides import Side
from cometric.core.text import storable
from cometric.core.types import Index, Matrix
from cometric.drawing.layout import COLORS, by_size, checked, coordinates, metric_of, names_of
from cometric.files.atomic import replacing
from cometric.machine.progress import bar_of_pairs, duration
from cometric.proofs.certificate import Certificate
from cometric.proofs.diagnosis import Diagnosis, describe_triangle
from cometric.proofs.lifting import LiftCheck

try:
    import jinja2
    from plotly.offline import get_plotlyjs
except ImportError:
    raise ImportError(
        "the report needs plotly and jinja2: pip install 'cometric[report]'."
    ) from None

__all__ = ["write"]


def __dir__() -> list[str]:
    return __all__


MAX_POINTS = 2_000
"""Most points per map; more are slow to draw and to select."""

MAX_ENTRIES = 1_000_000
"""Most nonzero entries of the data in the page, six bytes each."""

NEAREST = 8
"""Neighbors listed for each item."""

SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down")
"""When colors repeat, the symbol changes."""

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
) -> Path:
    """Write the report of a result to one HTML file, and return its path.

    The page shows a map of the samples and one of the features. A selection on one map is
    explained on the other: there, items are colored by how much larger their mean mass is in the
    selection than in the rest. The page loads nothing; the file takes about 5 MB, and a few bytes
    per entry of the data.

    Parameters
    ----------
    labels
        A label per sample, for colors and to compare the learned distance with others. By default
        the samples are clustered.
    sample_names, feature_names
        Names to show instead of those in the data.
    force
        Overwrite a file that exists.
    certificate
        What ``result.certify()`` returned, to be described; it is not computed here.
    method, random_state
        The embedding: "tsne", or "umap" (needs umap-learn), and its random seed.
    progress
        Show a bar with the time left.
    """
    target = check_path(path)
    if target.exists() and not force:
        raise FileExistsError(f"`path` is {os.fspath(path)!r}, which exists; pass force=True.")
    n = len(result.problem.samples.labels)
    given_labels = None if labels is None else checked(labels, "labels", n, "samples")
    names = (
        _names(result, "samples", sample_names, "sample_names"),
        _names(result, "features", feature_names, "feature_names"),
    )
    A, B = (_histograms(side) for side in (result.problem.samples, result.problem.features))
    rows, columns = _choose_items(A, random_state)
    A, B = A[rows][:, columns], B[columns][:, rows]
    with bar_of_pairs(progress, len(rows) + len(columns), "item", "drawing maps") as tell:
        samples = _map(result, "samples", rows, names[0], method, random_state, given_labels)
        tell(len(rows), len(rows))
        features = _map(result, "features", columns, names[1], method, random_state)
        tell(len(columns), len(columns))
    page = _render(
        data={
            "samples": samples.payload(),
            "features": features.payload(),
            "mass": _pack(A, B),
            "history": [
                [record.iteration, _round(record.residual), _round(record.seconds)]
                for record in result.history
                if np.isfinite(record.residual)
            ],
            "tol": result.parameters.tol,
        },
        title=storable(title or f"Distances learned from {n} samples"),
        result=result,
        samples=samples,
        features=features,
        labeled=given_labels is not None,
        method={"umap": "UMAP", "tsne": "t-SNE"}[method],
        status=_status(result),
        certificate=None if certificate is None else _sentences(certificate),
        proved=isinstance(certificate, Certificate),
        details=str(certificate),
        typical=_typical(A, samples, features),
        silhouettes=[] if given_labels is None else _silhouettes(A, samples),
    )
    with replacing(target) as file:
        file.write(page.encode("utf-8"))
    return target


@dataclass(frozen=True)
class _Map:
    """The map of one side."""

    of: str
    total: int  # number of items, drawn or not
    names: list[str]  # of the items drawn, as in all that follows
    places: Matrix
    distances: Matrix
    groups: list[str]
    group: Index  # the group of each item

    def nearest(self, item: int) -> list[tuple[int, float]]:
        """The nearest items and their distances."""
        row = self.distances[item]
        count = min(NEAREST, len(row) - 1)
        return [(int(k), float(row[k])) for k in nearest_to(row, count, item)]

    def payload(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "x": self.places[:, 0].round(3).tolist(),
            "y": self.places[:, 1].round(3).tolist(),
            "group": self.group.tolist(),
            "groups": [{"name": name, **_style(g)} for g, name in enumerate(self.groups)],
            "nearest": [
                [[k, round(away, 4)] for k, away in self.nearest(item)]
                for item in range(len(self.names))
            ],
        }


def _map(
    result: Result,
    of: str,
    chosen: Index,
    names: list[str],
    method: str,
    random_state: int,
    labels: NDArray[Any] | None = None,
) -> _Map:
    whole = metric_of(result, of)
    metric = whole[np.ix_(chosen, chosen)]
    shown = [storable(names[k]) for k in chosen]
    if labels is not None:
        clusters = by_size([storable(str(label)) for label in labels[chosen]])
        groups = [label for label, _ in clusters]
    else:
        clusters = by_size(_clusters(metric))
        sums = [metric[np.ix_(members, members)].sum(axis=0) for _, members in clusters]
        centers = [members[row.argmin()] for (_, members), row in zip(clusters, sums, strict=True)]
        groups = [f"around {shown[center]}" for center in centers]
    group = np.empty(len(metric), np.int64)
    for g, (_, members) in enumerate(clusters):
        group[members] = g
    places = coordinates(metric, method, random_state)
    places = places - places.mean(axis=0)
    return _Map(of, len(whole), shown, 100 * places / np.abs(places).max(), metric, groups, group)


def _names(result: Result, of: str, names: Sequence[Any] | None, argument: str) -> list[str]:
    """The names given, or those of the data; numbers get "sample" or "feature" before them."""
    shown = names_of(result, of, names, argument)
    numbers = names is None and getattr(result.problem, of).names is None
    return [f"{of[:-1]} {name}" for name in shown] if numbers else shown


def _style(group: int) -> dict[str, str]:
    turn, color = divmod(group, len(COLORS))
    return {"color": COLORS[color], "symbol": SYMBOLS[turn % len(SYMBOLS)]}


def _histograms(side: Side) -> sparse.csr_array:
    """One row per item, repeats included."""
    return side.full if len(side.labels) == side.full.shape[0] else side.full[side.labels]


def _choose_items(A: sparse.csr_array, random_state: int) -> tuple[Index, Index]:
    """The items to draw, if there are too many: random samples, features with the most mass."""
    columns = np.sort(np.argsort(-A.sum(axis=0), kind="stable")[:MAX_POINTS])
    rows = np.random.default_rng(random_state).permutation(A.shape[0])[:MAX_POINTS]
    entries = np.cumsum(np.diff(A[rows][:, columns].indptr))
    rows = rows[: max(10, int(np.searchsorted(entries, MAX_ENTRIES, side="right")))]
    used = np.diff(A[rows][:, columns].indptr) > 0
    return np.sort(rows[used]), columns


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


def _typical(A: sparse.csr_array, samples: _Map, features: _Map) -> list[dict[str, Any]]:
    """For each group of samples, its most enriched feature, and the neighbors of that feature."""
    rows: list[dict[str, Any]] = []
    for g, name in enumerate(samples.groups):
        members = samples.group == g
        if members.all():
            continue
        score = enrichment(A, members)
        best = int(score.argmax())
        rows.append(
            {
                "group": name,
                "feature": features.names[best],
                "times": 2.0 ** score[best],
                "nearest": [
                    (features.names[k], f"{away:.3f}") for k, away in features.nearest(best)
                ],
            }
        )
    return rows


def _silhouettes(A: sparse.csr_array, samples: _Map) -> list[tuple[str, float]]:
    """Silhouettes of the labels under the learned distance and others, best first."""
    if not 2 <= len(samples.groups) < len(samples.names):
        return []
    parts = min(PCA_COMPONENTS, *A.shape)
    distances = {
        "Learned distance": samples.distances,
        "l1 distance": baselines.l1(A),
        "Euclidean distance": baselines.l2(A),
        "Cosine distance": baselines.cosine(A),
        f"Euclidean after PCA ({parts} components)": baselines.pca(A, parts),
    }
    widths = {name: scores.silhouette(of, samples.group) for name, of in distances.items()}
    return sorted(widths.items(), key=lambda item: -item[1])


def _status(result: Result) -> tuple[str, str]:
    """How the solve ended: a heading, and a sentence or two."""
    sentence = f"{_capitalize(result.status.reason)}."
    if result.history:
        last = result.history[-1]
        sentence += (
            f" It took {last.iteration} iterations and {duration(last.seconds)}; one more would "
            f"change ratios of distances by at most {_percent(np.expm1(last.residual))}."
        )
    return _capitalize(result.status.outcome), sentence


def _capitalize(text: str) -> str:
    """The text with its first letter, and no other, made upper case."""
    return text[:1].upper() + text[1:]


def _percent(share: float) -> str:
    """A percentage of two digits, without exponent, with a nonbreaking space."""
    digits = np.format_float_positional(100 * share, 2, unique=False, fractional=False, trim="-")
    return f"{digits}\u00a0%"


def _sentences(certificate: Certificate | Diagnosis | LiftCheck) -> list[str]:
    """A certificate in sentences."""
    if isinstance(certificate, LiftCheck):
        return [f"{_capitalize(' '.join(line.split()))}." for line in str(certificate).split("\n")]
    triangle = describe_triangle(max(certificate.triangle), indent=0).replace("\n", " ")
    triangle = f"{_capitalize(triangle)}."
    if isinstance(certificate, Diagnosis):
        residual = 100 * np.expm1(max(certificate.residuals))
        words = [
            "These distances are not certified: for eps > 0 no theorem bounds the error by the "
            "residual.",
            f"Recomputed on {certificate.pairs:,} pairs, each distance is the lift of the other up "
            f"to a common factor and {residual:.2g} %.",
        ]
        if certificate.bracket is not None:
            words.append(
                f"Each of these transport problems is proved to be solved to within "
                f"{certificate.bracket:.1g} of the largest distance."
            )
        if certificate.negatives:
            words.append(f"{certificate.negatives} of the divergences are negative.")
        return [*words, triangle]
    low, high = certificate.value
    words = [f"The product of the singular values lies between {low:.12g} and {high:.12g}."]
    if np.isfinite(certificate.samples_error):
        samples, features = (
            100 * np.expm1(bound)
            for bound in (certificate.samples_error, certificate.features_error)
        )
        words.append(
            f"The relative error of distances is at most {samples:.1g} % between samples, and at "
            f"most {features:.1g} % between features."
        )
    elif certificate.contracts:
        words.append("The residual is too large for a bound on the error of the distances.")
    else:
        words.append("At tau = 0 no bound on the error of the distances exists.")
    verdict = {
        True: "The solution is unique",
        False: "The solution is not unique",
        None: "Whether the solution is unique is undecided",
    }[certificate.uniqueness.unique]
    words.append(f"{verdict} ({certificate.uniqueness.reason}).")
    words.append(
        f"All {certificate.pairs:,} transport problems are solved to a relative gap of "
        f"{certificate.gap:.1e}."
    )
    return [*words, triangle]


# --------------------------------------------------------------------------- the page


def _render(*, data: dict[str, Any], **context: Any) -> str:
    page = resources.files("cometric.drawing") / "page"
    style, script = ((page / name).read_text("utf-8") for name in ("report.css", "report.js"))
    plotly = get_plotlyjs().replace("</script", "<\\/script")  # equivalent in JavaScript
    text = _embeddable_json(data)
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string((page / "report.html").read_text("utf-8"))
    return template.render(
        **context,
        data=_unescaped(text),
        style=_unescaped(style),
        script=_unescaped(script),
        plotly=_unescaped(plotly),
        policy=_policy(plotly, script),
        megabytes=sum(map(len, (text, style, script, plotly))) / 1e6,
    )


def _unescaped(text: str) -> Any:
    """Text to insert without escaping: trusted, or escaped already."""
    from markupsafe import Markup

    return Markup(text)


def _policy(*scripts: str) -> str:
    """A content security policy: only these scripts run, and nothing is loaded."""
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    # Plotly writes style attributes and a style element that differ between versions, so that no
    # hash covers them. Without images and fonts, styles cannot load anything.
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


def _embeddable_json(data: Any) -> str:
    """JSON that can stand in a script element: it contains no end tag and no comment."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # all ASCII
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _round(number: float) -> float:
    return float(f"{number:.4g}")


def _pack(A: sparse.csr_array, B: sparse.csr_array) -> dict[str, Any]:
    """Both families of histograms on their common support, row by row, 16 bits per number."""
    both = sparse.csr_array((A != 0) + (B.T != 0)).astype(np.float64)
    both.sort_indices()
    row = np.repeat(np.arange(both.shape[0]), np.diff(both.indptr))
    packed: dict[str, Any] = {
        "start": _base64(both.indptr, np.uint32),
        "index": _base64(both.indices, np.uint16),
        "floor": [SHRINK / A.shape[1], SHRINK / B.shape[1]],
    }
    for name, hist in (("samples", A), ("features", B.T.tocsr())):
        values = np.asarray(hist[row, both.indices]).ravel()
        top = float(values.max())
        packed[name] = _base64(np.rint(values / top * 65535), np.uint16)
        packed[f"{name}_unit"] = top / 65535
    return packed


def _base64(values: Any, dtype: Any) -> str:
    little = np.asarray(values).astype(np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(little.tobytes()).decode()
