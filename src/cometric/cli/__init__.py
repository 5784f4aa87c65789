"""The command ``cometric``: each subcommand calls the function of the same name."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line, by default that of this process, and exit with its code."""
    from cometric.cli.program import run

    sys.exit(run(sys.argv[1:] if words is None else list(words)))
