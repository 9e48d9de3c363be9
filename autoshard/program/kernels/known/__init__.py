"""Kernels of libraries that do not say themselves how they may be cut, with rules that do.

Data says how large the grid of a grouped product is, and paged attention copies by itself. What is
known of such functions beside their kernels stands in a table:

table       which functions, of which modules
record      what the table says of one, and how one of its calls is read
calls       finds their calls in a step, and puts calls with rules in place of them
attention   attention kernels that can be run as rings, known by their own functions
joinable    what is known of these
flash, splash     JAX's flash and splash attention for TPUs
grouped     products of rows that lie in groups (megablox)
ragged_dot, ragged_forms, ragged_plain     the same of tokamax
surroundings     under what a function is traced anew
paged       attention over pages of keys and values
"""
