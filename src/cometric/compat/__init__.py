"""The names of other packages on our engines."""
