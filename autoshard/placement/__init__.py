"""Stages of a step on several meshes, with their shardings and the order of their tasks.

stage_program   all that a stage does in a step, as one program of one mesh
price           that program planned and priced on a mesh, its seconds split over F, B and W
choices         stages, placements and modes that are tried
instance        a schedule problem with these prices
ideal           what no plan undercuts
search          all of it: a step and a cluster in, a plan out
plan            the plan, and its file
lower           the plan as programs that run
report          the plan as text
"""
