"""Several meshes: a step cut into fragments, one program per (mesh, stage, kind).

    accumulate      gradients over microbatches: a scan by itself, and a mark
    graph, loop     the step as nodes; the microbatch loop and what is around it
    blocks          repeated blocks, and the stages made of them
    pieces, scans   stacked layers by stage; loops over layers cut, and taken apart into B and W
    inference       where ops live that no stage was given
    cutting, deal   the fragments of one microbatch (`fragments`)
    outer, meshes   the optimizer and all else around the loop, on its meshes
    instructions    what one controller does, in order; `script` writes it
    merging         runs of a mesh merged into one program
    partition       all of it: a step in, fragments, schedule problem and instructions out

`autoshard.lower.mpmd` makes programs of it.
"""
