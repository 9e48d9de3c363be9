"""Several meshes: a step cut into fragments, one program per (mesh, stage, kind).

    accumulate      gradients over microbatches: a scan by itself, and a mark
    graph, flat     the step as nodes, made of a jaxpr; `loop`: microbatches and what is around them
    blocks, stages  repeated blocks, and the stages made of them
    pieces, rows    stacked layers by stage, and which ops work on them
    scans           loops over layers cut, and taken apart into B and W
    inference       where ops live that no stage was given
    cutting, deal   the fragments of one microbatch (`fragments`)
    outer, meshes   the optimizer and all else around the loop, on its meshes
    instructions    what one controller does, in order; `script` writes it
    merging         runs of a mesh merged into one program
    partition       all of it: a step in, fragments, schedule problem and instructions out

`autoshard.lower.mpmd.place` makes programs of it.
"""
