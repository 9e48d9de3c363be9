"""What-if: one program over many clusters and sizes, a row for each, and what follows from them.

`autoshard.whatif(program, sweep)` is `autoshard.study.whatif.sweep.whatif`.
"""
