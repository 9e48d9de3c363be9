"""Bounds by branching, where the memory limit leaves the relaxation weak."""
