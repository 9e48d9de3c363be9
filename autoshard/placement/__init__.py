"""Stages of a step on several meshes, with their shardings and the order of their tasks.

stage_program   all that a stage does in a step, as one program of one mesh
price           that program planned and priced on a mesh, its seconds split over F, B and W
choices         stages, placements and modes that are tried
problem         a schedule problem with these prices
candidate       a choice with its prices and its order
one_mesh, ideal all chips as one mesh; what no plan undercuts
search          all of it: a step and a cluster in, a plan out
plan, report    the plan and its file; the plan as text
lower           the plan as programs that run
"""
