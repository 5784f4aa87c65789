"""Which settings predict hidden data best, without labels."""
