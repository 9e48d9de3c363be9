"""A user's `jax.shard_map` as ordinary ops on whole arrays, with a dimension for its parts.

collectives  what each collective of a body is
body         the equations of a body, run on a part
in_place     the call, replaced
vmapped      collectives over axes of `jax.vmap`, likewise
"""
