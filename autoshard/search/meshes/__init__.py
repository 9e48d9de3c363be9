"""Stages of a step on several meshes, with their shardings and the order of their tasks.

stage_program   all that a stage does in a step, as one program of one mesh
price, pricer   that program planned and priced on a mesh, its seconds split over F, B and W
choices         stages, placements and modes that are tried
block_bound     what a block takes at least; bricks: all blocks of a step
relaxation      what stages take at least, by their blocks; joint_bound: however those are shared
cuts, ranking   how blocks are shared; choices with their bounds, the most promising first
bounding        the bound of all plans, and the time that it may take
problem         a schedule problem with these prices
stage_prices    prices of all stages of a choice; trial: a choice cut, priced and ordered
candidate       a choice with its prices and its order
one_mesh, ideal all chips as one mesh; what no plan undercuts
search          all of it: a step and a cluster in, a plan out
plan, report    the plan and its file; the plan as text
lower           the plan as programs that run
"""
