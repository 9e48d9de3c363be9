"""Plans for people to look at, and in the formats of tools that display them.

    profile         what the program and the machine add to a plan: seconds and bytes, op by op
    page            one HTML file: verdict, proof, memory, collectives, layouts, sources
    trace           the step for Perfetto and chrome://tracing
    model_explorer  the planned program as a graph for Model Explorer, and data that colour it
    shardings       layouts as plain data, and as logical axis rules
    layout          which devices hold which part of an array, as text and as SVG

Every figure is the plan's own, or what the evaluator says of it; nothing is modelled here.
"""
