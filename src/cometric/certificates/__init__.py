"""Certificates (proved error bounds) and diagnoses of results."""
