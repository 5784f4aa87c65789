"""Runs: from the arguments of ``learn`` to a result, and estimates of time and memory."""
