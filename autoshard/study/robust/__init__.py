"""Plans under ranges: where a plan stays best, what to measure, and the plan of least regret.

`autoshard.robust(program, machine)` is `autoshard.study.robust.answer.robust`.
"""
