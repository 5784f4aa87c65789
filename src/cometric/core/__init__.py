"""What everything else is made of: arrays, the problem, checks, errors."""
