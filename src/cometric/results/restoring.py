"""Results read from files."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np

from cometric.core.arguments import check_path
from cometric.core.errors import UnknownKind
from cometric.core.problem import Problem
from cometric.core.types import Metrics, Record, Status
from cometric.core.validation import check_metric, require
from cometric.files.reading import missing
from cometric.files.storage import TooLarge, read_arrays
from cometric.results.parameters import Parameters, number
from cometric.results.result import SCHEMA, Result
from cometric.runtime.devices import free_memory


def load(path: str | os.PathLike[str], *, limit: float | None = None) -> Result:
    """Read a result written by :meth:`Result.save`.

    Raises if the file is damaged, or its parts are inconsistent.

    Parameters
    ----------
    path
        The ``.npz`` file.
    limit
        Largest number of bytes that the result may take; by default, the memory that is free.

    Returns
    -------
    Result
        The saved one, without its ``bases``. What is prepared for new items is not saved: the first
        call of :meth:`Result.transform` or :meth:`Result.search` computes it.

    Examples
    --------
    >>> import cometric as cm
    >>> result = cm.learn(cm.datasets.torus("unimodal", 12, 10), eps=0, tau=0.1)
    >>> result.save("metrics.npz")
    >>> cm.load("metrics.npz").values == result.values
    True
    """
    name = str(check_path(path))
    if not os.path.exists(path):
        raise missing(check_path(path))
    with open(path, "rb") as file:
        try:
            arrays = read_arrays(file, name, free_memory() if limit is None else limit)
            if "header" not in arrays:
                raise ValueError("it holds no learned metrics; learn from it first")
            json.loads(bytes(arrays["header"]))["schema"]
        except (TooLarge, MemoryError):
            raise
        except Exception as problem:
            raise ValueError(
                f"`{name}` is not a saved result, or is damaged ({problem})."
            ) from problem
    return from_arrays(arrays, name)


def from_arrays(arrays: dict[str, Any], name: str) -> Result:
    """The result that :meth:`Result.to_arrays` stored; messages call it ``name``."""
    header = json.loads(bytes(arrays["header"]))
    schema = header["schema"]
    if schema != SCHEMA:
        raise ValueError(
            f"`{name}` has schema {schema}; this version reads {SCHEMA}. Read it with the version "
            "of cometric that wrote it."
        )
    try:
        return _build(arrays, header)
    except MemoryError:
        raise
    except UnknownKind as error:
        raise UnknownKind(f"`{name}`: {error}.") from error
    except Exception as problem:
        reason = str(problem) if type(problem) is ValueError else repr(problem)
        raise ValueError(f"`{name}` is damaged: {reason.rstrip('.')}.") from problem


def _build(arrays: dict[str, Any], header: dict[str, Any]) -> Result:
    low, high = header["bracket"]
    lam, mu = header["values"]
    norms = None
    if "samples_norm" in arrays:
        norms = (arrays["samples_norm"], arrays["features_norm"])
    parameters = Parameters.from_json(header["parameters"])
    formula = parameters.formula if norms is None else replace(parameters.formula, norm=norms)
    result = Result(
        samples=arrays["samples"],
        features=arrays["features"],
        values=(lam, mu),
        status=Status[header["status"]],
        history=[Record.from_row(row) for row in arrays["history"].tolist()],
        bracket=(low, high),
        parameters=parameters,
        problem=replace(Problem.from_arrays(arrays), formula=formula),
        norms=norms,
        change=None if header.get("change") is None else number(header, "change"),
    )
    check_result(result)
    return result


def check_result(result: Result) -> None:
    """Raise a ``ValueError`` unless a solve could have returned this result."""
    options, problem = result.parameters, result.problem
    sides, indefinite = (problem.samples, problem.features), result.status is Status.NOT_PSD
    for name, metric, side in zip(Metrics._fields, result.metrics, sides, strict=True):
        check_metric(np.asarray(metric), name, len(side.labels), negative=indefinite)
    for norm, side in zip(result.norms or (), sides, strict=False):
        check_metric(np.asarray(norm), "a norm", len(side.labels))
    for name in ("eps", "tau", "tol", "restart", "saturate", "overlap"):
        value = getattr(options, name)
        unknown = name == "eps" and math.isnan(options.transport.eps)
        unknown |= name == "overlap" and value is None
        valid = isinstance(value, Real) and float(value) >= 0.0
        require(valid or unknown, f"{name} is {value!r}")
    (lam, mu), (low, high) = result.values, result.bracket
    numbers = lam, mu, low, high
    real = all(isinstance(number, Real) for number in numbers)
    require(real, f"the singular values and their bracket are {numbers!r}")
    if not result.converged:
        return
    require(
        result.residual <= options.tol,
        f"its status is converged, but the residual {result.residual:.3g} is not "
        f"below the tolerance {options.tol:.3g}",
    )
    if problem.fixed:
        return
    require(0.0 < lam < math.inf and 0.0 < mu < math.inf, f"its singular values are {lam}, {mu}")
    require(low <= high, f"its bracket is [{low}, {high}]")
    for name, metric in zip(Metrics._fields, result.metrics, strict=True):
        largest = float(metric.max())
        require(abs(largest - 1.0) <= 1e-6, f"the largest of {name} is {largest:.3g}, not 1")
