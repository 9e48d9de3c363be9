"""Kernels that people write, on the parts that one device holds.

run         a Pallas call on a smaller grid
ruled       a function of which the user says how it may be cut, and an FFI call
attention   cuDNN's attention, and the same in plain JAX
ring        attention over keys and values that go round
known       Pallas kernels of attention that are run so
"""
