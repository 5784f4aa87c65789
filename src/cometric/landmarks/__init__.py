"""Methods for data too large for a full distance matrix."""
