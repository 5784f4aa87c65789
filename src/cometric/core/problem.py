"""The problem: histograms of rows and columns, and the formula of distances between them.

Invalid data raise errors here, before any work; maps and solvers do not check again. Sparse input
is never made dense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from cometric.core.formula import PLAIN, Formula
from cometric.core.histograms import (
    NORMALIZED,
    SMOOTHED,
    Side,
    make_side,
    make_sides,
    mass_errors,
    normalize,
    place_repeats,
    smooth,
    stored_side,
)
from cometric.core.inputs import (
    COARSEST,
    COUNT_SAME_WORDS,
    BadData,
    Fault,
    check_not_empty,
    counted,
    read_names,
    read_precise,
)
from cometric.core.matching import describe_differences, describe_scales, find_bins, select
from cometric.core.validation import check_problem, require
from cometric.core.warn import warn


@dataclass(frozen=True, eq=False)
class Problem:
    """Histograms and the formula of the distances between them.

    The two sides of the data are A, the rows of X, and B, its columns, all summing to 1.
    """

    samples: Side
    features: Side
    smoothing: float = 0.0  # mass added to every bin
    mass_error: float = NORMALIZED  # bound on the relative error of every mass in `full`
    formula: Formula = PLAIN
    fixed: str = ""  # "samples" or "features" if their metric is given: repeats are not merged
    rounding: float = 0.0  # unit roundoff of rounded data; rows closer than that are equal

    def __repr__(self) -> str:
        n, m = len(self.samples.labels), len(self.features.labels)
        parts = [f"{n} samples x {m} features"]
        for side, item, bins in (
            (self.samples, "sample", "features"),
            (self.features, "feature", "samples"),
        ):
            k = side.hist.shape[0]
            parts.append(f"{round(side.full.nnz / k, 2):.12g} {bins} per {item}")
            if k < len(side.labels):
                parts.append(f"{counted(len(side.labels) - k, f'repeated {item}')} merged")
            if not side.kept.all():
                parts.append(f"{counted(int((~side.kept).sum()), f'empty {item}')} dropped")
        return f"Problem({', '.join(parts)})"

    @classmethod
    def from_data(
        cls,
        X: Any,
        *,
        normalization_steps: int = 1,
        smoothing: float = 0.0,
        drop_empty: bool = False,
        formula: Formula | None = None,
        fixed: str = "",
    ) -> Problem:
        """The histograms of the rows and of the columns of ``X``.

        ``A_ik = X_ik / sum_l X_il`` and ``B_ki = X_ik / sum_j X_jk``, always in float64.

        Parameters
        ----------
        X
            Nonnegative, samples by features: a NumPy array, nested lists, any SciPy sparse
            format (never densified), a pandas DataFrame, a torch tensor, an AnnData (its
            ``.X``), or anything NumPy can read. A tuple of length two is ``(A, B)``, the
            histograms themselves: A is n x m, B is m x n, and every row sums to 1.
        normalization_steps
            1 only normalizes rows and columns. Each further step first scales the rows of ``X``
            to equal sums, then its columns, so that after many steps A and B come from a matrix
            whose rows sum to 1 and whose columns sum to n / m, if such a scaling exists.
        smoothing
            Mass added to every bin: ``a -> (a + smoothing) / (1 + d * smoothing)`` for a
            histogram of d bins. With a positive value no bin is empty, so histograms are dense.
        drop_empty
            Leave out empty rows and columns, which are an error otherwise (subsampled data often
            have some); ``kept`` of each side masks the remaining ones.
        formula
            The formula of distances; transport alone by default.
        fixed
            "samples" or "features" if the metric of this side is given. Its repeats are not merged.

        Notes
        -----
        Rows (or columns) that are proportional, up to ``MERGE_TOLERANCE``, are merged with a
        warning; ``Side.expand`` restores them at distance 0. If ``X`` is float32 or float16, so are
        rows that differ by less than its rounding, unless all entries are whole numbers.
        """
        _check_options(normalization_steps, smoothing)
        *sides, unit = make_sides(X, normalization_steps, smoothing, drop_empty, fixed)
        samples, features = sides
        error = SMOOTHED if smoothing else NORMALIZED
        return cls(samples, features, float(smoothing), error, formula or PLAIN, fixed, unit)

    def mass_errors(self) -> tuple[float, float]:
        """Bounds on the relative error of the masses of samples and of features in ``hist``.

        The exact masses are X divided by its sums; after balancing, the balanced X as rounded.
        Merging bins adds their masses, with one rounding error per addition.
        """
        sides = self.samples, self.features
        most = [int(np.bincount(side.labels).max()) for side in sides]
        samples, features = (self.mass_error + (k - 1) * 2.0**-53 for k in reversed(most))
        return samples, features

    @property
    def is_disconnected(self) -> bool:
        """Whether the data are more than two blocks, or two blocks both larger than 1 x 1."""
        shared = self.samples.hist + self.features.hist.T  # samples x features
        adjacency = sparse.block_array([[None, shared], [shared.T, None]])
        blocks, label = sparse.csgraph.connected_components(adjacency, directed=False)
        inner = sum(np.bincount(label) > 2)  # blocks of more than one sample and one feature
        return bool(blocks > 2 or inner > 1)

    @property
    def merged(self) -> tuple[int, int]:
        """How many samples and how many features repeat others and were merged with them."""
        sides = self.samples, self.features
        samples, features = (len(side.labels) - side.hist.shape[0] for side in sides)
        return samples, features

    def read_new(self, X: Any, of: str = "samples") -> Side:
        """The histograms of new items, computed in the same way as those of the data.

        Parameters
        ----------
        X
            New samples as rows, over the features of the original data; with ``of="features"``
            new features as columns, over its samples. In any form that :meth:`from_data` reads,
            except histograms as a tuple.
        of
            "samples" or "features".

        Notes
        -----
        If the features of the original data and of ``X`` both have names (AnnData, pandas), they
        are matched by name, in any order and number: learned features that ``X`` lacks count as
        zero, and features that were not learned, or were empty and dropped, are ignored. A warning
        tells which, and how much mass is ignored. Every sample must have some mass on learned
        features. Without names, ``X`` must have all features of the original data, dropped ones
        included, in the same order. With ``of="features"`` the same holds for samples.
        """
        rows, columns = read_names(X)
        if of == "samples":
            item, bins, item_names, bin_names = "row", self.features, rows, columns
        elif of == "features":
            item, bins, item_names, bin_names = "column", self.samples, columns, rows
        else:
            raise ValueError(f"`of` is {of!r}; choose 'samples' or 'features'.")
        matrix, precision = read_precise(X, "X", least=(1, 1), texts=COUNT_SAME_WORDS)
        errors = precision.errors
        if of == "features":
            matrix = matrix.T.tocsr()
            errors = None if errors is None else errors.T.tocsr()
        places = find_bins(matrix.shape[1], bin_names, bins.kept, bins.names, of, across=item_names)
        check_not_empty(np.diff(matrix.indptr) > 0, "X", item, "Drop them: they hold no mass.")
        differences = describe_differences(matrix, places, bin_names, bins.item_names, of)
        if differences:
            warn(differences)
        matrix = select(matrix, places)
        errors = None if errors is None else select(errors, places)
        unknown = np.flatnonzero(np.diff(matrix.indptr) == 0)
        if len(unknown):
            remedy = "They cannot be compared; leave them out."
            first = int(unknown[0])
            row, column = (first, None) if item == "row" else (None, first)
            label = None if item_names is None else item_names[first]
            raise BadData("X", Fault.UNKNOWN, len(unknown), remedy, row, column, label)
        plain = bins.scale is None and self.smoothing == 0.0
        scales = describe_scales(getattr(self, of).full, matrix) if plain else ""
        if scales:
            warn(scales)
        hist = normalize(bins.scaled(matrix))
        errors = mass_errors(hist, precision._replace(errors=errors), self.smoothing)
        hist = smooth(hist, self.smoothing)
        known: sparse.csr_array = getattr(self, of).full
        hist, labels = place_repeats(hist, errors, known, self.rounding)
        all_kept = np.ones(hist.shape[0], dtype=bool)
        return make_side(hist, labels, bins.labels, all_kept, item_names)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The problem, except for its formula, as named arrays for saving."""
        arrays: dict[str, NDArray[Any]] = {
            "smoothing": np.array(self.smoothing),
            "mass_error": np.array(self.mass_error),
        }
        if self.fixed:
            arrays["fixed"] = np.array(self.fixed)
        if self.rounding:
            arrays["rounding"] = np.array(self.rounding)
        for name in ("samples", "features"):
            side: Side = getattr(self, name)
            arrays |= {f"{name}_labels": side.labels, f"{name}_kept": side.kept}
            if side.names is not None:
                arrays[f"{name}_names"] = np.array(side.names, dtype=np.str_)
            if side.scale is not None:
                arrays[f"{name}_scale"] = side.scale
            for part in ("hist", "full"):
                hist = getattr(side, part)
                arrays |= {
                    f"{name}_{part}_indptr": hist.indptr,
                    f"{name}_{part}_indices": hist.indices,
                    f"{name}_{part}_data": hist.data,
                    f"{name}_{part}_shape": np.array(hist.shape),
                }
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Problem:
        """The problem that :meth:`to_arrays` stored."""
        samples, features = stored_side(arrays, "samples"), stored_side(arrays, "features")
        # Version 0.1 stored no bound; it rounded sums once per entry.
        entries = max(np.diff(side.full.indptr).max() for side in (samples, features))
        error = arrays.get("mass_error", SMOOTHED + 4 * entries * 2.0**-53)
        fixed = str(arrays.get("fixed", ""))
        require(fixed in ("", "samples", "features"), f"its fixed side is {fixed!r}")
        smoothing = float(arrays["smoothing"])
        unit = float(arrays.get("rounding", 0.0))
        require(0.0 <= unit <= COARSEST, f"its rounding is {unit}")
        problem = cls(samples, features, smoothing, float(error), fixed=fixed, rounding=unit)
        check_problem(problem)
        require(NORMALIZED <= problem.mass_error < 1e-6, "its masses are too far from exact")
        return problem


def _check_options(normalization_steps: Any, smoothing: Any) -> None:
    steps = normalization_steps
    if isinstance(steps, bool) or not isinstance(steps, Integral) or int(steps) < 1:
        raise ValueError(f"`normalization_steps` is {steps!r}; pass a whole number, at least 1.")
    if not isinstance(smoothing, Real) or not 0 <= float(smoothing) < math.inf:
        raise ValueError(f"`smoothing` is {smoothing!r}; pass a finite number, at least 0.")
