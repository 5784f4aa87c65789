"""The command line inside this process, and a table for it to read."""

import numpy as np
import pandas as pd
from typer.testing import CliRunner


def run(*words, code=0):
    """The outcome of a command, which must end with this exit code."""
    from cometric.cli.commands import app

    found = CliRunner().invoke(app, list(map(str, words)))
    assert found.exit_code == code, found.output
    return found


def write_table(n, m):
    """Counts of n samples and m features, written to x.csv in the current folder."""
    counts = np.random.default_rng(0).poisson(3.0, (n, m)) + np.eye(n, m)
    table = pd.DataFrame(counts, [f"s{i}" for i in range(n)], [f"g{k}" for k in range(m)])
    table.to_csv("x.csv")
    return table
