"""Reading files that may be damaged or hostile, and writing files that are complete."""
