"""All options of ``learn``: one list, from which the estimator and the command line are derived.

A new option is a field here, a parameter of :func:`cometric.learn`, and the line that uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np

from cometric import transports
from cometric.core.arguments import (
    check_client,
    check_count,
    check_device,
    check_dtype,
    check_flag,
    check_folder,
    check_function,
    check_metric,
    check_number,
    check_values,
    shown,
)
from cometric.core.formula import Formula
from cometric.core.types import Traits, traits_of
from cometric.maps.norms import NAMES
from cometric.results.parameters import CAREFUL
from cometric.runtime.devices import torch_device
from cometric.solvers import SOLVERS, solver_from_json, solver_to_json
from cometric.transports.base import Transport
from cometric.transports.entropic import Entropic
from cometric.transports.exact import Exact
from cometric.transports.limit import Limit

DEFAULT_TOL = 1e-3
"""Default of the library and the command line. Scores by labels at this tolerance agree with
those at 1e-6 to three digits, in half the time (docs/choosing.md)."""

AUTO = "auto"
"""The default of ``eps`` and of ``tau``."""

PLAIN_EPS = CAREFUL
"""The value of eps = "auto" where the data do not choose the share of R."""

OLD_TAU, OLD_NORM = "0.2", "local-0.2"
"""The ``tau`` that selects the defaults of version 0.2, and their reference."""

AUTO_NORM = "local"
"""The value of norm = "auto", except where bounds are proved for l1 only."""

AUTO_RESTART = 0.5
"""The share of R for tau = "auto" with another norm, and in version 0.2."""

PAPER_TAU, AUTO_TAU = 1e-3, 1e-2
"""The values of tau = "paper", and of "auto" without a restart (stochastic iteration)."""


def _check_transport(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, Transport):
        raise ValueError(
            f"`{name}` is {shown(value)}; pass an object such as cm.Exact() or "
            "cm.Unbalanced(0.1, rho=1), or one of your own class that extends cm.Transport."
        )


def _check_solver(name: str, value: Any) -> None:
    if isinstance(value, str):
        if value not in ("auto", *SOLVERS):
            choices = ", ".join(map(repr, ("auto", *SOLVERS)))
            raise ValueError(f"`{name}` is {value!r}; choose {choices}, or pass an instance.")
    elif isinstance(value, type) or not (hasattr(value, "init") and hasattr(value, "step")):
        raise ValueError(
            f"`{name}` is {shown(value)}; pass a name or an instance with `init` and `step`."
        )


def _option(
    default: Any,
    check: Callable[[str, Any], None] | None,
    help: str = "",
    *,
    answer: bool = True,
    compared: bool = True,
) -> Any:
    """A field of :class:`Settings`.

    ``check`` gets the name and the value, and raises if it is wrong. ``help`` is the text of the
    command line, which has no option without it. ``answer``: the value changes the result.
    ``compared``: checkpoints store it; not if it may change when a run continues, or if other
    options determine it.
    """
    metadata: dict[str, Any] = {"check": check, "help": help, "answer": answer}
    metadata["compared"] = answer and compared
    return field(default=default, metadata=metadata)


@dataclass
class Settings:
    """The options of :func:`cometric.learn`, checked: see there for what they mean.

    After construction ``transport`` is an object, ``eps`` its regularization, and ``tau`` and
    ``restart`` are numbers. Values that the data choose are set by ``learn.read``: before,
    ``eps`` or ``tau`` is "auto", and ``transport`` may be None.
    """

    eps: Any = _option(
        AUTO,
        partial(check_number, finite=False, names=(AUTO,)),
        "Entropic regularization, relative to the largest distance. 0: exact transport; "
        "inf: the linear limit. auto: with --tau auto by how many features samples share, "
        "otherwise 0.1.",
        compared=False,  # the transport is
    )
    tau: Any = _option(
        AUTO,
        partial(check_number, names=(AUTO, "paper", OLD_TAU)),
        "Weight of the norm. Positive values make the answer unique; auto is a --restart by how "
        "many features samples share, with --norm local, paper 0.001 with l1.",
    )
    transport: Any = _option(
        None,
        None,
        "How histograms are compared, instead of --eps: exact, 'entropic(0.1)', limit, or "
        "'unbalanced(0.1, rho=1)', which may leave mass unmatched at the price rho.",
    )
    restart: float = _option(
        0.0,
        partial(check_number, below=1.0),
        "Share of the norm in every distance, instead of --tau.",
    )
    saturate: float = _option(
        0.0,
        check_number,
        "Distances of this fraction of the largest one, and longer ones, count as nearly equal "
        "in transport. 0: off.",
    )
    norm: Any = _option(
        "auto",
        None,
        f"l1, l2, linf, discrete, a power such as 3, or a reference: {', '.join(NAMES)}. "
        "auto: local; l1 with --tau paper, for --eps 0 with a number --tau, and for stochastic "
        "iteration.",
    )
    samples: Any = _option(
        None,
        check_metric,
        "Distances between the samples (.npy, .npz, .csv, .tsv), not to be learned: those between "
        "features are computed from them.",
    )
    features: Any = _option(
        None,
        check_metric,
        "Distances between the features (.npy, .npz, .csv, .tsv), not to be learned: those between "
        "samples are computed from them.",
    )
    solver: Any = _option(
        "auto",
        None,
        f"auto (policy for --eps 0, anderson otherwise), {', '.join(SOLVERS)}.",
    )
    tol: float = _option(
        DEFAULT_TOL,
        partial(check_number, finite=False),
        "Stop when the residual (in the Hilbert metric) is at most this.",
    )
    max_iter: int = _option(
        1000, partial(check_count, floats=True), "Largest number of iterations.", compared=False
    )
    sweeps: int = _option(1, check_count, "Sinkhorn sweeps per iteration.")
    device: Any = _option(
        "cpu", check_device, "cpu, or a GPU: cuda, cuda:1. Several GPUs: cuda:0,cuda:1."
    )
    dtype: Any = _option(
        "auto",
        check_dtype,
        "Precision of the iterations down to a residual of 1e-3. auto: float32 for large data.",
    )
    start: Any = _option(
        None,
        None,
        "Start from random metrics. Default: the l1 distances, or R with a restart.",
    )
    random_state: int | None = _option(
        None, partial(check_count, least=0, optional=True), "Seed for `--start random`."
    )
    n_threads: int | None = _option(
        None,
        partial(check_count, optional=True),
        "Number of threads. Default: all cores.",
        answer=False,
    )
    memory_limit: float | None = _option(
        None,
        partial(check_number, finite=False, optional=True),
        "Memory in GB for data stored between iterations. Default: half of the free memory.",
    )
    client: Any = _option(None, check_client)
    progress: bool = _option(False, check_flag, answer=False)
    callback: Any = _option(None, check_function, answer=False)
    checkpoint: Any = _option(
        None,
        check_folder,
        "Folder for checkpoints. The same command continues from them.",
        answer=False,
    )
    checkpoint_every: float = _option(
        300.0,
        check_number,
        "Seconds between checkpoints. 0: after each iteration.",
        answer=False,
    )
    normalization_steps: int = _option(
        1,
        check_count,
        "Number of normalizations. Above 1, rows and columns are balanced first.",
        compared=False,  # the histograms are
    )
    smoothing: float = _option(
        0.0,
        check_number,
        "Mass added to every entry of the histograms.",
        compared=False,
    )
    drop_empty: bool = _option(
        False, check_flag, "Leave out empty rows and columns.", compared=False
    )

    # Not options: how the data chose `eps` and `restart`, see Parameters.
    overlap: float | None = None
    chosen: bool = False

    def __post_init__(self) -> None:
        check_values(self, options())
        _check_transport("transport", self.transport)
        _check_solver("solver", self.solver)
        several = isinstance(self.device, list | tuple)
        self.device = [str(name) for name in self.device] if several else str(self.device)
        self.dtype = "auto" if str(self.dtype) == "auto" else np.dtype(self.dtype).name
        automatic = isinstance(self.solver, str) and self.solver == "auto"
        named = isinstance(self.solver, str) and not automatic
        solver = SOLVERS[self.solver] if named else self.solver
        self.traits = Traits() if automatic else traits_of(solver)
        self.fixed = self._find_fixed()  # the side whose metric is given
        eps = self._find_eps()
        tau, share, self.norm = self._find_weights(eps)
        if eps is None and share is not None:
            eps = PLAIN_EPS
        # The checks have the same outcome for all transports that the data may choose.
        transport = self.transport or from_eps(PLAIN_EPS if eps is None else eps)
        restart = AUTO_RESTART if share is None else share
        self.formula = Formula(tau, restart, self.norm, float(self.saturate))
        if eps is not None:
            self.transport = transport
            self.eps = self.eps if math.isnan(transport.eps) else transport.eps
        if share is not None:
            self.tau, self.restart = tau, share
        stores = transport.stores_history if automatic else self.traits.keeps_history
        closed = automatic and transport.closed_form and self.formula.is_plain
        self.kind_of_memory = "closed" if closed else transport.history if stores else "plain"
        if self.fixed:
            self.kind_of_memory = "lift"
        names = tuple(self.device) if several else (self.device,)
        self.devices = () if names == ("cpu",) else names
        self._check_together(transport)
        self.torch_devices = self._find_devices(transport)
        # Where the metrics are; None for NumPy.
        self.torch_device = self.torch_devices[0] if self.devices else None

    @property
    def careful(self) -> Settings | None:
        """Settings to retry with if distances become negative; None if ``eps`` was given."""
        if not self.chosen or self.eps == PLAIN_EPS:
            return None
        return replace(self, eps=PLAIN_EPS, transport=None)

    def to_json(self, which: str = "compared") -> dict[str, Any]:
        """The options that checkpoints compare, or with "answer" all that change the result.

        Matrices are named only.
        """
        values = {
            part.name: _as_json(getattr(self, part.name), int if "int" in str(part.type) else float)
            for part in options()
            if part.metadata[which]
        }
        values["solver"] = solver_to_json(self.solver)
        values["transport"] = self.transport and transports.to_json(self.transport)
        values["client"] = self.client is not None
        return {**values, "overlap": self.overlap, "chosen": self.chosen}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], **others: Any) -> Settings:
        """The settings that :meth:`to_json` stored, with ``others`` that it does not store."""
        names = [part.name for part in options() if part.metadata["compared"]]
        known = {
            **{name: stored[name] for name in names},
            "transport": transports.from_json(stored["transport"]),
            "solver": solver_from_json(stored["solver"]),
            "client": "local" if stored["client"] else None,
            "start": None,  # a run that continues needs no starting metrics
            "overlap": stored["overlap"],
            "chosen": stored["chosen"],
        }
        return cls(**known | others)

    def _find_eps(self) -> float | None:
        """The regularization; None for "auto"."""
        given = self.transport
        if given is None:
            return None if self.eps == AUTO else float(self.eps)
        if self.eps not in (AUTO, given.eps):
            raise ValueError(
                f"`eps` is {self.eps:g} and `transport` is {given}; both determine how "
                "histograms are compared. Pass one of them."
            )
        return PLAIN_EPS if math.isnan(given.eps) else given.eps

    def _find_weights(self, eps: float | None) -> tuple[float, float | None, Any]:
        """The numbers that ``tau`` and ``restart`` stand for, and R.

        The share of R (``restart``) is None where the data choose it. R is l1, for which bounds
        are proved, for stochastic iteration, for exact transport with a number ``tau``, and for
        ``tau="paper"``. With a given metric, R has weight 0 unless ``tau``, ``restart`` or ``norm``
        is passed.
        """
        tau, norm, sampled = self.tau, self.norm, self.traits.samples_pairs
        automatic, is_auto = tau in (AUTO, OLD_TAU), isinstance(norm, str) and norm == "auto"
        if self.restart > 0.0:
            self._check_restart()
            number, share = 0.0, float(self.restart)
        elif not automatic:
            number, share = PAPER_TAU if tau == "paper" else float(tau), 0.0
        elif self.fixed and is_auto:
            number = share = 0.0
        else:
            number, share = (AUTO_TAU, 0.0) if sampled else (0.0, AUTO_RESTART)
        name = AUTO_NORM if tau != OLD_TAU else OLD_NORM
        if sampled or tau == "paper" or (share == 0.0 and (eps == 0.0 or number == 0.0)):
            name = "l1"
        if isinstance(norm, tuple | list) and len(norm) == 2:
            norm = tuple(name if part is None else part for part in norm)
        elif is_auto:
            norm = name
        by_data = tau == AUTO and self.restart == 0.0 and share > 0.0 and not self.fixed
        if by_data and isinstance(norm, str) and norm == AUTO_NORM:
            return number, None, norm
        return number, share, norm

    def _check_restart(self) -> None:
        """Raise if a ``restart`` is not possible, or ``tau`` is given, too."""
        if self.traits.samples_pairs:
            raise ValueError(
                "`restart` needs the largest of all distances in each step, and stochastic "
                "iteration computes a part of them. Pass `tau`, or another `solver`."
            )
        if self.tau != AUTO and self.tau != 0.0:
            raise ValueError(
                f"`restart` is {float(self.restart)} and `tau` is {self.tau}; both determine the "
                "weight of the norm. Pass one of them."
            )

    def _check_together(self, transport: Transport) -> None:
        """Raise if options exclude one another."""
        if self.traits.freezes and not transport.freezes:
            raise ValueError(
                f"`solver` is policy iteration, which freezes the plans of exact transport; "
                f"{transport.name} ({transport}) has none. Leave `solver` out, or pass `eps=0`."
            )
        if self.devices and self.traits.samples_pairs:
            raise ValueError(
                f"`device` is {self.device!r}, but stochastic iteration runs on the CPU: "
                "leave `device` out, or pass another `solver`."
            )
        if self.client is None:
            return
        if self.devices:
            raise ValueError(
                f"`device` is {self.device!r}, but the workers of a `client` compute on their "
                "CPUs: leave one of the two out. Several GPUs of one machine are a list of devices."
            )
        if not transport.on_clusters:
            raise ValueError(
                f"`client` has no effect for {transport.name}, a product of matrices: leave it out."
            )
        if transport.freezes and self.formula.is_plain and not self.fixed:
            raise ValueError(
                "`client` needs tau > 0 at eps = 0, or a positive `restart` or `saturate`: "
                "uniqueness is decided on one machine."
            )

    def _find_fixed(self) -> str:
        """The side whose metric is given, or ""."""
        if self.samples is not None and self.features is not None:
            raise ValueError(
                "`samples` and `features` are both given, so nothing is left to compute. Pass one."
            )
        if self.samples is None and self.features is None:
            return ""
        fixed = "features" if self.samples is None else "samples"
        for name, default in (("solver", "auto"), ("start", None), ("checkpoint", None)):
            value = getattr(self, name)
            if value is not default and not (isinstance(value, str) and value == default):
                raise ValueError(
                    f"`{name}` has no effect with `{fixed}`: the other metric is computed from it "
                    f"in one step. Leave `{name}` out."
                )
        return fixed

    def _find_devices(self, transport: Transport) -> tuple[Any, ...]:
        """The torch devices; none on the CPU."""
        if self.devices and not transport.on_devices:
            raise ValueError(
                f"`device` is {self.device!r}, but {transport.name} runs on the CPU: "
                "leave `device` out, or pass a positive, finite `eps`."
            )
        try:
            return tuple(map(torch_device, self.devices))
        except RuntimeError as problem:
            raise ValueError(f"`device` is {self.device!r}; pass 'cpu' or 'cuda'.") from problem


WITHOUT_EPS: Mapping[float, Transport] = {0.0: Exact(), math.inf: Limit()}
"""The transports for the two ends of the regularization."""


def from_eps(eps: float) -> Transport:
    """The transport for a regularization: exact for 0, the linear limit for infinity."""
    return WITHOUT_EPS.get(eps) or Entropic(float(eps))


def options(*, without: Collection[str] = ()) -> list[Field[Any]]:
    """The fields of :class:`Settings` that are options, except some."""
    return [part for part in fields(Settings) if part.metadata and part.name not in without]


def _as_json(value: Any, number: Callable[[Any], Any] = float) -> Any:
    """A value as JSON; matrices are only named, except in a pair with a name or a number."""
    if value is None or isinstance(value, str | bool | np.bool_):
        return bool(value) if isinstance(value, np.bool_) else value
    if isinstance(value, Real):
        return number(value)
    if isinstance(value, tuple | list) and any(isinstance(part, str | Real) for part in value):
        return [_as_json(part) for part in value]
    return "matrix"
