"""The computer: memory, threads, devices, signals, progress."""
