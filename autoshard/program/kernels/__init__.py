"""Pallas calls, read from outside: which axes of their grids can be cut over a mesh, and what for.

scalars      arithmetic of the scalars by which kernels find their place, in numpy
along        how the scalars of a kernel and of its index maps depend on one axis of the grid
carried      what of its scratch a kernel carries from step to step
cuts         which axes may be cut, how far, and why others stay whole
rule         the sharding rule that follows
records      what kernels compute and move, as records
work         what a call computes and moves
ruled        functions of which the user says how they may be cut
ruled_work   what these compute and move
attention    what cuDNN's attention computes and moves
ring         which attention may be cut along its sequence, and what it sends then
"""
