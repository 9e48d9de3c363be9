"""The judge of numbers: a lowered step beside the unsharded one.

double      both run in double precision
rounding    what rounding can make is no difference
starts      arguments at which slices of cut dimensions start at, beyond and below the ends
"""
