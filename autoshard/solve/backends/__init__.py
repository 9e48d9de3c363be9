"""Exact solvers as back ends, each in a process of its own."""
