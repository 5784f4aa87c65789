"""The command ``cometric``; checks that its dependencies are installed before loading them."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from cometric.cli.commands import app
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("typer", "click", "rich"):
            raise
        sys.exit("The command line needs typer and rich: pip install 'cometric[cli]'.")
    app(prog_name="cometric")
