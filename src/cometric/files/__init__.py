"""Reading users' data, and writing results and checkpoints."""
