"""Places the stages of a step on several meshes, with shardings and the order of tasks.

stage_program   all the work of a stage in a step, as one program on one mesh
price, pricer   plans and prices that program on a mesh, and splits its seconds over F, B and W
choices         the stages, placements and modes to try
block_bound     lower bound of one block; bricks: of all blocks of a step
relaxation      lower bounds of stages from their blocks; joint_bound: over all ways to share blocks
cuts, ranking   how stages share the blocks; choices with their bounds, the most promising first
bounding        the bound of all plans, and its time budget
problem         the schedule problem with these prices
stage_prices    prices of all stages of a choice; trial: cuts, prices and orders one choice
candidate       a choice with its prices and its order
one_mesh, ideal all chips as one mesh; the ideal lower bound of any plan
search          the whole search: takes a step and a cluster, returns a plan
plan, report    the plan and its file; the plan as text
lower           lowers the plan to programs that run
"""
