"""Data too large for a matrix of all distances."""
