"""Several meshes: the step cut into fragments, one program per (mesh, stage, kind).

`accumulate` marks the microbatches of a step.
"""
