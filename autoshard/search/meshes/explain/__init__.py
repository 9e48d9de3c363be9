"""Explains a plan for several meshes: its stages by what explains plans of one mesh, and the step.

staged       the step of a plan with one stage otherwise: its schedule, priced again
names        the values of stages, called as in the step
explain      why a value has its layout in a stage, and what of the step another layout costs
otherwise    what saving, computing again or sending to the host another value costs
against      how another plan differs
answers      the records of all answers, and their texts
"""
