"""Plans held to the real compilers, without their devices.

target    what a machine is to a compiler: topology, device order, options
targets/  XLA's descriptions of GPUs
request   a module with its target, and the hash under which the answer is kept
cache     answers on disk
child     `python -m autoshard.compiler.child`: compiles one request
compiled  what the compiler said: memory, collectives, timeline; `compile_plan`
prices    the machine's prices where the compiler gives no time
moves     a plan's moves beside the collectives right after partitioning
verdict   predicted beside compiled, with what is wrong
run       the step on devices that are there
"""
