"""Results, and what is computed from them: explanations, distances of new items."""
