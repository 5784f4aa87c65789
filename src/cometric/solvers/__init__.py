"""Solvers: frozen hyperparameters with ``init`` and ``step``; the loop is in ``solve``."""
