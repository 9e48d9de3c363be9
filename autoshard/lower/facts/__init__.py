"""Small facts of programs and of the modules that are made of them.

module_facts  element types of a module, and loops of constant length
loop_trips    how often the loops of a module run, as its program says
platforms     for which platforms a program can be lowered
"""
