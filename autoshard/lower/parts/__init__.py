"""What runs on the parts that one device holds: one op, or one collective.

cut         how an op is cut, and the error of what cannot be lowered
manual      each planned collective as one call of `jax.lax`
in_parts    one op on whole arrays, of which each device runs its part
indexed     ops that look up places in a dimension that is cut
windows     windows that slide over a dimension that every device has whole
ragged      ragged products
sent_rows   rows that parts send to each other
transforms  Fourier transforms, in the order of dimensions that XLA:CPU needs
"""
