"""The command line inside this process, and a table for it to read."""

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import numpy as np
import pandas as pd


class Outcome(NamedTuple):
    """What a command printed, and its exit code."""

    stdout: str
    stderr: str
    exit_code: int

    @property
    def output(self):
        """All that was printed."""
        return self.stdout + self.stderr


def run(*words, code=0):
    """The outcome of a command, which must end with this exit code."""
    from cometric.cli import main

    out, said = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(said):
        try:
            main(list(map(str, words)))
        except SystemExit as end:
            found = Outcome(out.getvalue(), said.getvalue(), end.code)
    assert found.exit_code == code, found.output
    return found


def write_table(n, m):
    """Counts of n samples and m features, written to x.csv in the current folder."""
    counts = np.random.default_rng(0).poisson(3.0, (n, m)) + np.eye(n, m)
    table = pd.DataFrame(counts, [f"s{i}" for i in range(n)], [f"g{k}" for k in range(m)])
    table.to_csv("x.csv")
    return table
