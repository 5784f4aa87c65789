"""Checkpoints: where a run stands, on disk."""
