"""The page docs/usefulness.md, from the rows of benchmarks/usefulness.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Row = dict[str, Any]

SCORES = {
    "silhouette": "silhouette",
    "knn": "10-NN",
    "ari": "ARI",
    "auroc": "AUROC",
    "shared": "nearest 10 share a set",
}
SAMPLE_SCORES = ("silhouette", "knn", "ari")
FEATURE_SCORES = ("auroc", "shared")
GIVEN = ", as given"
"""The end of the names of baselines of data that are not log-normalized."""

HEAD = """# Usefulness

Learned distances compared with simple baselines on labeled data; no method sees the labels.
This page is written by

```sh
python benchmarks/usefulness.py --page
```

Between samples:

- **silhouette**: average silhouette width of the labels.
- **10-NN**: leave-one-out accuracy of the 10-nearest-neighbor classifier.
- **ARI**: adjusted Rand index of spectral clusters of the symmetrized 15-nearest-neighbor graph,
  with as many clusters as labels.

Between features, by known gene sets:

- **AUROC**: neighbor voting by ranks in three folds: the probability that a held-out gene of a set
  is closer to the rest of the set than a gene outside it. Mean over the sets.
- **nearest 10 share a set**: share of the 10 nearest genes that have a set in common with a gene,
  among the genes that are in some set.

Learned distances are those of `cm.learn(X, ...)` on the data as given. Counts are scaled to their
median depth and log-transformed for the baselines (`baselines.log_normalized`), except in rows
"as given"; data that are not counts are used as they are. LSA is tf-idf, truncated SVD and
scaling to length 1; CA is correspondence analysis; numbers are components. Seconds are for
the distances alone and only indicative: some machines were busy, and many learned distances were
computed on a GPU; [how long](howlong.md) has times on two cores. "CHANGING" marks runs whose
trees had not settled. The best baseline is chosen per column by the labels, which no user can do.
"""


def write(path: Path, rows: list[Row], methods: list[str]) -> None:
    """Write the page, with the methods in this order; others that have rows come last."""
    rank = {name: i for i, name in enumerate(dict.fromkeys(methods))}
    rows = sorted(rows, key=lambda row: rank.get(row["method"], len(rank)))
    groups = grouped([row for row in rows if row["side"] == "samples"])
    features = grouped([row for row in rows if row["side"] != "samples"])
    parts = [
        HEAD,
        "## Summary\n",
        *summary(groups, SAMPLE_SCORES),
        *against_each(groups, SAMPLE_SCORES),
        *comparison(groups, SAMPLE_SCORES),
        "## Between samples\n",
        *(details(title, of, SAMPLE_SCORES) for title, of in groups.items()),
        "## Between features\n",
        *(summary(features, FEATURE_SCORES) if features else []),
        *(details(title, of, FEATURE_SCORES) for title, of in features.items()),
        "## Machines\n",
        machines(rows),
    ]
    path.write_text("\n".join(parts), "utf-8")


def grouped(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each table, by its title."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        title = f"{row['set']} ({row['samples']} x {row['features']}"
        title += ")" if row["drawn"] is None else ", samples drawn at random)"
        if row["side"] != "samples":
            title += f", {row['sets']} sets: {row['side']}"
        groups.setdefault(title, []).append(row)
    return dict(sorted(groups.items()))


def best(rows: list[Row], column: str, kind: str) -> Row | None:
    scored = [row for row in rows if row["kind"] == kind and column in row]
    return max(scored, key=lambda row: row[column], default=None)


def summary(groups: dict[str, list[Row]], columns: tuple[str, ...]) -> list[str]:
    """The default compared with the best baseline of each column, and how often it is ahead."""
    lines, gains = [], {column: [] for column in columns}
    for title, rows in groups.items():
        default = next((row for row in rows if row["method"] == "default"), {})
        cells = [title]
        for column in columns:
            other = best(rows, column, "baseline")
            cells.append(versus(default.get(column), other, column))
            if other and column in default:
                gains[column].append(default[column] - other[column])

        lines.append(cells)
    head = ["data", *(f"{SCORES[column]}: default, best baseline" for column in columns)]
    ahead = [
        f"{SCORES[column]} on {sum(gain >= 0 for gain in of)} of {len(of)}"
        for column, of in gains.items()
        if of
    ]
    words = f"The default is at least as good as every baseline: {', '.join(ahead)}.\n"
    return [table(head, lines), *([words] if ahead else [])]


def versus(value: float | None, other: Row | None, column: str) -> str:
    if other is None:
        return "" if value is None else f"{value:.3f}"
    words = f"{other[column]:.3f} ({other['method']})"
    return words if value is None else f"{value:.3f}, {words}: **{value - other[column]:+.3f}**"


def comparison(groups: dict[str, list[Row]], columns: tuple[str, ...]) -> list[str]:
    """Each learned method against the best baseline, over all data."""
    names = dict.fromkeys(
        row["method"] for rows in groups.values() for row in rows if row["kind"] == "learned"
    )
    lines = []
    for name in names:
        cells = [name]
        for column in columns:
            gains = [
                row[column] - other[column]
                for rows in groups.values()
                for row in rows
                if row["method"] == name
                and column in row
                and (other := best(rows, column, "baseline"))
            ]
            mean = f"{sum(gains) / len(gains):+.3f}, {min(gains):+.3f}" if gains else ""
            cells.append(f"{mean}, {sum(gain >= 0 for gain in gains)} of {len(gains)}")
        lines.append(cells)
    head = ["method", *(SCORES[column] for column in columns)]
    words = (
        "Each learned method minus the best baseline: mean, minimum, and on how many data sets "
        "it is not below.\n"
    )
    return [words, table(head, lines)] if lines else []


def against_each(groups: dict[str, list[Row]], columns: tuple[str, ...]) -> list[str]:
    """The default against one baseline on all data, for each baseline that applies to all."""
    named = [{row["method"]: row for row in rows} for rows in groups.values()]
    named = [rows for rows in named if "default" in rows]
    names = dict.fromkeys(
        row["method"] for rows in named for row in rows.values() if row["kind"] == "baseline"
    )
    lines = []
    for name in names:
        pairs = [(rows["default"], rows[name]) for rows in named if name in rows]
        cells = [name]
        for column in columns:
            gains = [ours[column] - other[column] for ours, other in pairs]
            ahead = sum(gain >= 0 for gain in gains)
            cells.append(f"{sum(gains) / len(gains):+.3f}, {ahead} of {len(gains)}")
        if not name.endswith(GIVEN):
            lines.append(cells)
    head = ["baseline", *(SCORES[column] for column in columns)]
    words = (
        "The best baseline differs from one data set to the next. The default minus the same "
        "baseline on all data: mean, and on how many data sets the default is not below.\n"
    )
    return [words, table(head, lines)] if lines else []


def details(title: str, rows: list[Row], columns: tuple[str, ...]) -> str:
    """All methods on one data set; the best value of each column is bold."""
    top = {column: max((row.get(column, -2.0) for row in rows), default=0.0) for column in columns}
    lines = []
    for row in rows:
        cells = [row["method"] if row["kind"] == "baseline" else f"*{row['method']}*"]
        for column in columns:
            text = f"{row[column]:.3f}" if column in row else "failed"
            cells.append(f"**{text}**" if row.get(column) == top[column] else text)
        lines.append([*cells, f"{seconds(row)}{remark(row)}"])
    head = ["method", *(SCORES[column] for column in columns), "seconds"]
    return f"### {title}\n\n{table(head, lines)}"


def seconds(row: Row) -> str:
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
        ran = (f"{kind} on {', '.join(sorted(names))}" for kind, names in kinds.items())
        lines.append(f"- {words}: {'; '.join(ran)}.")
    return "\n".join(lines) + "\n"


def table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"
