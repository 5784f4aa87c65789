"""Checkpoints: the state of a run, written to disk and read back."""
