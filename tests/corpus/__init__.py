"""The corpus: plans that are kept, so that a change of prices or of the solver shows as a diff.

    cases.py        which program on which machine and mesh
    plans/*.json    a kept plan each: price, layouts, collectives, decisions
    kept.py         how they are read, written and compared
    make.py         `python -m tests.corpus.make` writes them anew
    test_corpus.py  prices all of them again, and solves the sample again
    versions/       random plans by the oldest and by the newest version of JAX that is tested
    test_other_versions.py  reads, prices and lowers them

A change that is wanted is accepted by writing the corpus anew and committing what differs.
"""
