"""Checks of arguments: results and labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cometric.answers.result import Result
from cometric.core.arguments import shown


def check_is_result(value: Any) -> None:
    """Raise unless ``value`` is a :class:`Result`."""
    if isinstance(value, Result):
        return
    kind = type(value).__name__
    if isinstance(getattr(value, "result", None), Result):  # a Sketch, or Modules
        remedy = "pass its attribute `result`"
    elif hasattr(value, "obs_names"):
        remedy = "pass `cometric.scverse.get.result(adata)`, after `cometric.scverse.tl.learn`"
    else:
        remedy = "pass what `learn` returned"
    raise ValueError(f"`result` is of class {kind}; {remedy}.")


def check_labels(labels: Any) -> None:
    """Raise unless ``labels`` are many; a single string is probably a column name."""
    if isinstance(labels, str):
        raise ValueError(
            f"`labels` is {labels!r}; pass the label of each sample, such as "
            f"`adata.obs[{labels!r}]`, not a name."
        )
    if not isinstance(labels, Iterable) or getattr(labels, "ndim", 1) == 0:
        raise ValueError(f"`labels` is {shown(labels)}; pass the label of each sample.")


def without_dropped(argument: str, of: str) -> str:
    """Advice for values that still include dropped samples or features."""
    return f"If empty {of} were dropped: `{argument}[result.problem.{of}.kept]`."
