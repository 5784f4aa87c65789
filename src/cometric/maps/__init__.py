"""Distance maps: histograms bound to a way of comparing them."""
