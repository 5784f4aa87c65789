"""The page docs/usefulness.md, from the rows of benchmarks/usefulness.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]

SCORES = {
    "silhouette": "silhouette",
    "knn": "10-NN",
    "ari": "ARI",
    "ari_best": "best ARI",
    "nmi_best": "its NMI",
    "auroc": "AUROC",
    "shared": "nearest 10 share a set",
}
SUMMARY = ("knn", "silhouette", "ari", "ari_best")
SAMPLE_SCORES = ("knn", "silhouette", "ari", "ari_best", "nmi_best")
FEATURE_SCORES = ("auroc", "shared")
R = "R alone"

HEAD = """# Usefulness

Learned distances compared with simple baselines on labeled data; no method sees the labels.
This page is written by

```sh
python benchmarks/usefulness.py
python benchmarks/usefulness.py --clusters
python benchmarks/usefulness.py --only --page
```

Between samples:

- **10-NN**: leave-one-out accuracy of the 10-nearest-neighbor classifier.
- **silhouette**: average silhouette width of the labels.
- **ARI**: adjusted Rand index of Leiden clusters (modularity, resolution 1) of the 15-nearest-
  neighbor graph with the weights of `cm.smooth`, as in `cm.modules`: the mean of ten seeds.
- **best ARI**: the same at that of eight resolutions, 0.1 to 2, with the largest mean of three
  seeds; **its NMI**: normalized mutual information there. Of the baselines only PCA 15 and 30, LSA
  10 and 30, and CA 10 and 30 are clustered.

Between features, by known gene sets:

- **AUROC**: neighbor voting by ranks in three folds: the probability that a held-out gene of a set
  is closer to the rest of the set than a gene outside it. Mean over the sets.
- **nearest 10 share a set**: share of the 10 nearest genes that have a set in common with a gene,
  among the genes that are in some set.

Methods:

- *default* is `cm.learn(X)`. *R alone* is its reference at many resolutions without transport,
  `baselines.reference(X)`; between features it is that of version 0.2. *defaults of 0.2* is
  `tau="0.2"`, *R alone, 0.2* its reference. *eps inf* and *eps 0.1*, where they were run, have the
  reference and the share of R of the default. *paper* is `tau="paper"`.
- Baselines get counts scaled to their median depth and log-transformed, `baselines.log_normalized`,
  or, where it says "counts", as they are; data that are not counts are used as they are. Pearson
  residuals are always of the counts if there are any. LSA is tf-idf, truncated SVD and scaling to
  length 1; CA is correspondence analysis; numbers are components. Each line has the best variants
  of a baseline, and the best baseline is the best of these, **per column by the labels, which no
  user can do**.

Thin sets have few counts per sample. In those drawn down, the counts of each of 1,000 samples were
listed and shuffled, and so many kept at most; features then in fewer than two samples, and samples
with fewer than two features, were left out. Draws are averaged before the best baseline is chosen.

Seconds are for the distances alone and only indicative: several processes shared the machine;
[how long](howlong.md) has times on two cores.
"""


class Group(NamedTuple):
    """The rows of one table, by method."""

    title: str
    rows: dict[str, Row]

    def best(self, column: str, family: str | None = None) -> Row | None:
        """The best baseline, or variant of one baseline, by a column."""
        scored = (
            row
            for row in self.rows.values()
            if row["kind"] == "baseline" and column in row and family in (None, row["family"])
        )
        return max(scored, key=lambda row: row[column], default=None)

    def gain(self, method: str, other: Row | None, column: str) -> float | None:
        """A method minus another row; None if one has no such score."""
        row = self.rows.get(method, {})
        return row[column] - other[column] if other and column in row and column in other else None


def write(path: Path, rows: list[Row], methods: list[str]) -> None:
    """Write the page, with the methods in this order; others that have rows come last."""
    rank = {name: i for i, name in enumerate(dict.fromkeys(methods))}
    rows = sorted(rows, key=lambda row: rank.get(row["method"], len(rank)))
    samples = [row for row in rows if row["side"] == "samples"]
    parts = [HEAD]
    for part, name in (("deep", "Deep samples"), ("thin", "Thin samples")):
        groups = grouped(row for row in samples if row["part"] == part)
        if groups:
            tables = (details(group, SAMPLE_SCORES) for group in groups)
            parts += [f"## {name}\n", *summaries(groups, SUMMARY), *tables]
    features = grouped(row for row in rows if row["side"] != "samples")
    if features:
        tables = (details(group, FEATURE_SCORES) for group in features)
        parts += ["## Features\n", *summaries(features, FEATURE_SCORES), *tables]
    path.write_text("\n".join([*parts, "## Machines\n", machines(rows)]), "utf-8")


def grouped(rows: Iterable[Row]) -> list[Group]:
    """The rows of each table, averaged over the draws."""
    draws: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        draws.setdefault((row["set"], row["side"]), {}).setdefault(row["method"], []).append(row)
    return [
        Group(title(name, side, of), {method: averaged(drawn) for method, drawn in of.items()})
        for (name, side), of in sorted(draws.items(), key=by_numbers)
    ]


def by_numbers(group: tuple[tuple[str, str], Any]) -> list[Any]:
    """The order of a set: 8 words come before 20 words."""
    words = re.split(r"(\d+)", " ".join(group[0]))
    return [int(word) if i % 2 else word for i, word in enumerate(words)]


def title(name: str, side: str, of: dict[str, list[Row]]) -> str:
    drawn = max(of.values(), key=len)
    words = f"{name} ({drawn[0]['samples']} x {drawn[0]['features']}"
    words += f", {len(drawn)} draws)" if len(drawn) > 1 else ")"
    return words if side == "samples" else f"{words}, {drawn[0]['sets']} sets: {side}"


def averaged(drawn: list[Row]) -> Row:
    """The mean over draws; a score that is missing in one is missing."""
    means = {
        name: sum(row[name] for row in drawn) / len(drawn)
        for name in (*SCORES, "seconds", "eps", "restart")
        if all(name in row for row in drawn)
    }
    worst = max(drawn, key=lambda row: ("error" in row, row.get("status") != "CONVERGED"))
    return {name: value for name, value in worst.items() if name not in SCORES} | means


# Over all sets


def summaries(groups: list[Group], columns: tuple[str, ...]) -> list[str]:
    return [
        *default_by_set(groups, columns),
        *each_learned(groups, columns),
        *each_baseline(groups, columns),
    ]


def default_by_set(groups: list[Group], columns: tuple[str, ...]) -> list[str]:
    """The default on each set, minus the best baseline and minus R alone."""
    lines = []
    gains: dict[tuple[str, str], list[float]] = {}
    for group in groups:
        default = group.rows.get("default", {})
        cells = [group.title]
        for column in columns:
            words = [f"{default[column]:.3f}" if column in default else ""]
            for name, other in (("best", group.best(column)), (R, group.rows.get(R))):
                gain = group.gain("default", other, column)
                words.append("" if gain is None else f"**{gain:+.3f}**")
                if gain is not None:
                    gains.setdefault((column, name), []).append(gain)
            cells.append(", ".join(words).strip(", "))
        lines.append([*cells, *(seconds(group.rows.get(name)) for name in ("default", R))])
    for name, of in (("mean", lambda x: sum(x) / len(x)), ("least", min)):
        cells = [f"*{name}*"]
        for column in columns:
            both = (gains.get((column, other)) for other in ("best", R))
            cells.append(", ".join(f"**{of(found):+.3f}**" for found in both if found))
        lines.append([*cells, "", ""])
    head = ["data", *(SCORES[column] for column in columns), "seconds", "seconds of R alone"]
    words = "The default; in bold, the default minus the best baseline, and minus R alone.\n"
    return [words, table(head, lines)] if gains else []


def each_learned(groups: list[Group], columns: tuple[str, ...]) -> list[str]:
    """Each learned method, and R alone, minus the best baseline and minus R alone."""
    names = dict.fromkeys(
        method
        for group in groups
        for method, row in group.rows.items()
        if row["kind"] != "baseline"
    )
    lines = []
    for name in names:
        cells = [name]
        for column in columns:
            of = [
                gain for g in groups if (gain := g.gain(name, g.best(column), column)) is not None
            ]
            alone = [
                gain for g in groups if (gain := g.gain(name, g.rows.get(R), column)) is not None
            ]
            words = []
            if of:
                ahead = sum(gain >= 0 for gain in of)
                words.append(f"{mean(of)}, {min(of):+.3f}, {ahead} of {len(of)}")
            if alone and name != R:
                words.append(mean(alone))
            cells.append("; ".join(words))
        lines.append(cells)
    head = ["method", *(SCORES[column] for column in columns)]
    words = (
        "Each learned method minus the best baseline: mean, minimum, and on how many sets it is "
        "not below; then minus R alone: mean.\n"
    )
    return [words, table(head, lines)] if lines else []


def each_baseline(groups: list[Group], columns: tuple[str, ...]) -> list[str]:
    """The default minus each baseline, with the one variant that is best over all sets."""
    groups = [group for group in groups if "default" in group.rows]
    everywhere = [
        name
        for name, row in (groups[0].rows.items() if groups else ())
        if row["kind"] == "baseline" and all(name in group.rows for group in groups)
    ]
    best: dict[str, tuple[float, str]] = {}
    for name in everywhere:
        total = sum(group.rows[name].get(columns[0], 0.0) for group in groups)
        family = groups[0].rows[name]["family"]
        best[family] = max(best.get(family, (-1.0, "")), (total, name))
    lines = []
    for _, name in best.values():
        cells = [name]
        for column in columns:
            of = [
                gain
                for group in groups
                if (gain := group.gain("default", group.rows[name], column)) is not None
            ]
            cells.append(f"{mean(of)}, {sum(x >= 0 for x in of)} of {len(of)}" if of else "")
        lines.append(cells)
    head = ["baseline", *(SCORES[column] for column in columns)]
    words = (
        "The best baseline differs from one set to the next. The default minus the same baseline "
        "on all sets, each with the variant that is best on average by the first column: mean, and "
        "on how many sets the default is not below.\n"
    )
    return [words, table(head, lines)] if lines else []


def mean(gains: list[float]) -> str:
    return f"{sum(gains) / len(gains):+.3f}"


# One set


def details(group: Group, columns: tuple[str, ...]) -> str:
    """All methods on one set; the best value of each column is bold."""
    rows = group.rows
    top = {column: max(row.get(column, -2.0) for row in rows.values()) for column in columns}

    def cell(row: Row | None, column: str, words: str = "") -> str:
        if row is None or column not in row:
            return "failed" if row and "error" in row else ""
        text = f"{row[column]:.3f}"
        return f"{f'**{text}**' if row[column] == top[column] else text}{words}"

    lines = []
    for name, row in rows.items():
        if row["kind"] == "baseline":
            continue
        cells = [f"*{name}*"]
        for column in columns:
            gain = group.gain(name, rows.get(R), column) if row["kind"] == "learned" else None
            cells.append(cell(row, column, "" if gain is None else f" ({gain:+.3f})"))
        lines.append([*cells, f"{seconds(row)}{remark(row)}"])
    families = dict.fromkeys(row["family"] for row in rows.values() if row["kind"] == "baseline")
    for family in families:
        found = {column: group.best(column, family) for column in columns}
        cells = [
            cell(row, column, variant(row["method"], family) if row else "")
            for column, row in found.items()
        ]
        slowest = [row for row in rows.values() if row.get("family") == family]
        lines.append([family, *cells, seconds(max(slowest, key=lambda row: row["seconds"]))])
    head = ["method (minus R alone)", *(SCORES[column] for column in columns), "seconds"]
    default, chosen = rows.get("default", {}), ""
    if "restart" in default:
        share = f"{100.0 * default['restart']:.0f} %"
        chosen = f"The default has a share of R of {share}, and eps = {default['eps']:.2g}.\n\n"
    return f"### {group.title}\n\n{chosen}{table(head, lines)}"


def variant(method: str, family: str) -> str:
    """What distinguishes a variant of a baseline, in parentheses."""
    words = method.removeprefix(family).removeprefix(",").strip()
    return f" ({words})" if words else ""


def seconds(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['seconds']:.0f}" if row["seconds"] >= 10.0 else f"{row['seconds']:.2g}"


def remark(row: Row) -> str:
    if "error" in row:
        return f" ({row['error'].splitlines()[0]})"
    return "" if row.get("status", "CONVERGED") == "CONVERGED" else f" ({row['status']})"


def machines(rows: list[Row]) -> str:
    """What ran where."""
    places: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        words = f"{row['machine']}, Python {row['python']}, cometric {row['version']}"
        places.setdefault(words, {}).setdefault(row["kind"], set()).add(row["set"])
    lines = []
    for words, kinds in places.items():
        ran = (f"{kind} on {len(names)} sets" for kind, names in kinds.items())
        lines.append(f"- {words}: {'; '.join(ran)}.")
    return "\n".join(lines) + "\n"


def table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"
