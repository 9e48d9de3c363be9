"""Kernels that people write, on the parts that one device holds.

run         a Pallas call on a smaller grid
attention   cuDNN's attention, and the same in plain JAX
"""
