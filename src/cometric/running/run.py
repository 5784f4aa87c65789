"""One call of ``learn``: from a problem and its settings to a result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from signal import SIGTERM
from typing import Any

from cometric.answers.result import Parameters, Result
from cometric.core.problem import Problem
from cometric.core.types import Matrix, Metrics, Status
from cometric.core.warn import warn
from cometric.machine.devices import free_memory, usable_memory
from cometric.machine.progress import Bar
from cometric.machine.threads import workers
from cometric.maps.norms import norm_name
from cometric.running.memory import check_memory
from cometric.running.settings import Settings
from cometric.saving.checkpoint import Checkpoint, digest
from cometric.solvers.loop import Solution
from cometric.transports.base import Lifts
from cometric.transports.solving import Solving
