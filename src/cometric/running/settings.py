"""All options of ``learn``: one list, from which the estimator and the command line are derived.

A new option is a field here, a parameter of :func:`cometric.learn`, and the line that uses it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from cometric import transports
from cometric.core.formula import Formula
from cometric.core.kinds import (
    Choice,
    Cluster,
    Count,
    Device,
    Flag,
    Folder,
    Function,
    Kind,
    Metric,
    Named,
    Number,
    Object,
    Precision,
    check_kinds,
)
from cometric.core.problem import Problem
from cometric.core.types import Traits, traits_of
from cometric.machine.devices import device_names, torch_device
from cometric.maps.references import NAMES
from cometric.running.weights import (
    AUTO,
    AUTO_RESTART,
    OLD_TAU,
    PLAIN_EPS,
    Weights,
    chosen,
    weights_of,
)
from cometric.solvers import SOLVERS, solver_from_json, solver_to_json
from cometric.transports.base import Resources, Transport

DEFAULT_TOL = 1e-3
"""Default of the library and the command line. Scores by labels at this tolerance agree with
those at 1e-6 to three digits, in half the time (docs/choosing.md)."""

LEARNING, HISTOGRAMS = "Learning", "Histograms"
"""Headings under which the help of the command line lists options."""


def _setting(
    default: Any,
    kind: Kind,
    help: str = "",
    *,
    answer: bool = True,
    compared: bool = True,
    panel: str = LEARNING,
) -> Any:
    """A field of :class:`Settings`.

    ``help`` is the text of the command line, which has no option without it. ``answer``: the value
    changes the result. ``compared``: checkpoints store it; not if it may change when a run
    continues, or if other options determine it.
    """
    metadata = {"kind": kind, "help": help, "panel": panel}
    metadata |= {"answer": answer, "compared": answer and compared}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The options of :func:`cometric.learn`, checked: see there for what they mean.

    After construction ``transport`` is an object, ``eps`` its regularization, and ``tau`` and
    ``restart`` are numbers. Values that the data choose are set by :meth:`fitted`: before, ``eps``
    or ``tau`` is "auto", and ``transport`` may be None.
    """

    eps: Any = _setting(
        AUTO,
        Number(finite=False, names=(AUTO,)),
        "Entropic regularization, relative to the largest distance. 0: exact transport; "
        "inf: the linear limit. auto: with --tau auto by how many features samples share, "
        "otherwise 0.1.",
        compared=False,  # the transport is
    )
    tau: Any = _setting(
        AUTO,
        Number(names=(AUTO, "paper", OLD_TAU)),
        "Weight of the norm. Positive values make the answer unique; auto is a --restart by how "
        "many features samples share, with --norm local, paper 0.001 with l1.",
    )
    transport: Any = _setting(
        None,
        Object(
            kind=Transport,
            examples="an object such as cm.Exact() or cm.Unbalanced(0.1, rho=1), or one of your "
            "own class that extends cm.Transport",
            describe=transports.to_json,
        ),
        "How histograms are compared, instead of --eps: exact, 'entropic(0.1)', limit, or "
        "'unbalanced(0.1, rho=1)', which may leave mass unmatched at the price rho.",
    )
    restart: float = _setting(
        0.0,
        Number(below=1.0),
        "Share of the norm in every distance, instead of --tau.",
    )
    saturate: float = _setting(
        0.0,
        Number(),
        "Distances of this fraction of the largest one, and longer ones, count as nearly equal "
        "in transport. 0: off.",
    )
    norm: Any = _setting(
        "auto",
        Choice(),
        f"l1, l2, linf, discrete, a power such as 3, or a reference: {', '.join(NAMES)}. "
        "auto: local; l1 with --tau paper, for --eps 0 with a number --tau, and for stochastic "
        "iteration.",
    )
    samples: Any = _setting(
        None,
        Metric(),
        "Distances between the samples (.npy, .npz, .csv, .tsv), not to be learned: those between "
        "features are computed from them.",
    )
    features: Any = _setting(
        None,
        Metric(),
        "Distances between the features (.npy, .npz, .csv, .tsv), not to be learned: those between "
        "samples are computed from them.",
    )
    solver: Any = _setting(
        "auto",
        Named(choices=("auto", *SOLVERS), methods=("init", "step"), describe=solver_to_json),
        f"auto (policy for --eps 0, anderson otherwise), {', '.join(SOLVERS)}.",
    )
    tol: float = _setting(
        DEFAULT_TOL,
        Number(finite=False),
        "Stop when the residual (in the Hilbert metric) is at most this.",
    )
    max_iter: int = _setting(
        1000, Count(floats=True), "Largest number of iterations.", compared=False
    )
    sweeps: int = _setting(1, Count(), "Sinkhorn sweeps per iteration.")
    device: Any = _setting(
        "cpu", Device(), "cpu, or a GPU: cuda, cuda:1. Several GPUs: cuda:0,cuda:1."
    )
    dtype: Any = _setting(
        "auto",
        Precision(),
        "Precision of the iterations down to a residual of 1e-3. auto: float32 for large data.",
    )
    start: Any = _setting(
        None,
        Choice(),
        "Start from random metrics. Default: the l1 distances, or R with a restart.",
    )
    random_state: int | None = _setting(None, Count(0, optional=True), "Seed for `--start random`.")
    n_threads: int | None = _setting(
        None,
        Count(optional=True),
        "Number of threads. Default: all cores.",
        answer=False,
    )
    memory_limit: float | None = _setting(
        None,
        Number(finite=False, optional=True),
        "Memory in GB for data stored between iterations. Default: half of the free memory.",
    )
    client: Any = _setting(None, Cluster())
    progress: bool = _setting(False, Flag(), answer=False)
    callback: Any = _setting(None, Function(), answer=False)
    checkpoint: Any = _setting(
        None,
        Folder(),
        "Folder for checkpoints. The same command continues from them.",
        answer=False,
    )
    checkpoint_every: float = _setting(
        300.0,
        Number(),
        "Seconds between checkpoints. 0: after each iteration.",
        answer=False,
    )
    normalization_steps: int = _setting(
        1,
        Count(),
        "Number of normalizations. Above 1, rows and columns are balanced first.",
        compared=False,  # the histograms are
        panel=HISTOGRAMS,
    )
    smoothing: float = _setting(
        0.0,
        Number(),
        "Mass added to every entry of the histograms.",
        compared=False,
        panel=HISTOGRAMS,
    )
    drop_empty: bool = _setting(
        False, Flag(), "Leave out empty rows and columns.", compared=False, panel=HISTOGRAMS
    )

    # Not options: how the data chose `eps` and `restart`, see Parameters.
    overlap: float | None = None
    chosen: bool = False

    # Computed from the options.
    fixed: str = field(init=False, repr=False, compare=False)  # the side whose metric is given
    formula: Formula = field(init=False, repr=False, compare=False)
    devices: tuple[str, ...] = field(init=False, repr=False, compare=False)  # none on the CPU
    torch_devices: tuple[Any, ...] = field(init=False, repr=False, compare=False)
    torch_device: Any = field(init=False, repr=False, compare=False)  # of the metrics; None: NumPy
    solver_traits: Traits = field(init=False, repr=False, compare=False)
    kind_of_memory: str = field(init=False, repr=False, compare=False)  # see ``memory.NEEDS``

    def __post_init__(self) -> None:
        check_kinds(self, options())
        self._set(solver_traits=self._find_traits(), fixed=self._find_fixed())
        given: Transport | None = self.transport
        weights = self._find_weights(given)
        # The checks have the same outcome for all transports that the data may choose.
        transport = given or transports.from_eps(PLAIN_EPS if weights.eps is None else weights.eps)
        restart = AUTO_RESTART if weights.restart is None else weights.restart
        formula = Formula(weights.tau, restart, weights.norm, float(self.saturate))
        self._set(norm=weights.norm, formula=formula)
        if weights.eps is not None:
            self._set(transport=transport)
            if not math.isnan(transport.eps):
                self._set(eps=transport.eps)
        if weights.restart is not None:
            self._set(tau=weights.tau, restart=weights.restart)
        automatic = isinstance(self.solver, str) and self.solver == "auto"
        self._set(
            kind_of_memory="lift"
            if self.fixed
            else transport.kind_of_memory(
                formula.is_plain, automatic, self.solver_traits.keeps_history
            ),
        )
        names = device_names(self.device)
        self._set(devices=() if names == ("cpu",) else names)
        self._check_together(transport)
        devices = self._find_devices(transport)
        self._set(torch_devices=devices, torch_device=devices[0] if devices else None)

    def fitted(self, problem: Problem) -> Settings:
        """These settings with ``eps`` and ``restart`` chosen by the features that samples share.

        On devices and clusters the linear limit (infinite ``eps``) is not available.
        """
        if self.tau != AUTO:
            return self
        found = chosen(problem.samples.full, limit=not self.devices and self.client is None)
        if self.transport is not None:
            return replace(self, tau=0.0, restart=found.restart, overlap=found.overlap)
        return replace(self, **found._asdict(), tau=0.0, chosen=True)

    @property
    def careful(self) -> Settings | None:
        """Settings to retry with if distances become negative; None if ``eps`` was given."""
        if not self.chosen or self.eps == PLAIN_EPS:
            return None
        return replace(self, eps=PLAIN_EPS, transport=None)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _find_traits(self) -> Traits:
        """The traits of the solver; the defaults for "auto"."""
        if not isinstance(self.solver, str):
            return traits_of(self.solver)
        return Traits() if self.solver == "auto" else traits_of(SOLVERS[self.solver])

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

    def resources(self, memory: float | None = None) -> Resources:
        """Computing resources of maps; ``memory`` is the number of bytes that they may store.

        If one metric is given, a map is called once: this call solves all pairs in float64, and
        stores nothing for later calls.
        """
        device = self.devices if len(self.devices) > 1 else (*self.devices, "cpu")[0]
        resources = Resources(
            self.n_threads, memory, device, self.client, self.dtype, self.sweeps, self.tol
        )
        if not self.fixed:
            return resources
        memory = 0.0 if self.torch_device is None else memory
        return replace(resources, memory_limit=memory, dtype=np.float64, sweeps=None)

    def to_json(self, which: str = "compared") -> dict[str, Any]:
        """The options that checkpoints compare, or with "answer" all that change the result."""
        values = {
            part.name: part.metadata["kind"].to_json(getattr(self, part.name))
            for part in options()
            if part.metadata[which]
        }
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

    def _find_weights(self, transport: Transport | None) -> Weights:
        """The weights that ``eps``, ``tau``, ``restart`` and ``norm`` stand for."""
        eps = self.eps
        if transport is not None:
            if eps not in (AUTO, transport.eps):
                raise ValueError(
                    f"`eps` is {eps:g} and `transport` is {transport}; both determine how "
                    "histograms are compared. Pass one of them."
                )
            eps = PLAIN_EPS if math.isnan(transport.eps) else transport.eps
        return weights_of(
            eps,
            self.tau,
            float(self.restart),
            self.norm,
            sampled=self.solver_traits.samples_pairs,
            exact=eps == 0.0,
            fixed=bool(self.fixed),
        )

    def _check_together(self, transport: Transport) -> None:
        """Raise if options exclude one another."""
        if self.solver_traits.freezes and not transport.freezes:
            raise ValueError(
                f"`solver` is policy iteration, which freezes the plans of exact transport; "
                f"{transport.name} ({transport}) has none. Leave `solver` out, or pass `eps=0`."
            )
        if self.devices and self.solver_traits.samples_pairs:
            raise ValueError(
                f"`device` is {self._device_text}, but stochastic iteration runs on the CPU: "
                "leave `device` out, or pass another `solver`."
            )
        if self.client is None:
            return
        if self.devices:
            raise ValueError(
                f"`device` is {self._device_text}, but the workers of a `client` compute on their "
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

    @property
    def _device_text(self) -> str:
        """``device`` for messages."""
        return repr(Device().to_json(self.device))

    def _find_devices(self, transport: Transport) -> tuple[Any, ...]:
        """The torch devices; none on the CPU."""
        if self.devices and not transport.on_devices:
            raise ValueError(
                f"`device` is {self._device_text}, but {transport.name} runs on the CPU: "
                "leave `device` out, or pass a positive, finite `eps`."
            )
        try:
            return tuple(map(torch_device, self.devices))
        except RuntimeError as problem:
            raise ValueError(f"`device` is {self._device_text}; pass 'cpu' or 'cuda'.") from problem


POSITIONAL = ("eps", "tau")
"""Options that may be passed without their names."""

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])


def options(*, without: Collection[str] = ()) -> list[Field[Any]]:
    """The fields of :class:`Settings` that are options, except some."""
    return [part for part in fields(Settings) if part.metadata and part.name not in without]


def mirrors_settings(*, without: Collection[str] = ()) -> Callable[[Wrapped], Wrapped]:
    """Give a function the signature of ``learn``, except some options.

    Other parameters of the function come first if they have no default, else last. The function
    is called with all options by name, defaults included.
    """

    def mirror(function: Wrapped) -> Wrapped:
        named = {part.name: part for part in options(without=without)}
        others = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.name not in named and p.kind is not p.VAR_KEYWORD
        ]
        middle = [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD
                if name in POSITIONAL
                else inspect.Parameter.KEYWORD_ONLY,
                default=part.default,
                annotation=part.type,
            )
            for name, part in named.items()
        ]
        first = [p for p in others if p.default is p.empty]
        last = [p.replace(kind=p.KEYWORD_ONLY) for p in others if p.default is not p.empty]
        signature = inspect.Signature([*first, *middle, *last])

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            bound.apply_defaults()
            return function(**bound.arguments)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return mirror
