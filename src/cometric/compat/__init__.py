"""Interfaces of other packages, computed by this one."""
