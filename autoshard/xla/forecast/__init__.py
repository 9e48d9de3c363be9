"""Forecast a plan's memory and exposed time in the order in which its compiler runs it."""
