"""What a solve gives back, and what can be asked of it."""
