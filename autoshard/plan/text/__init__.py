"""A plan as text: the report, layouts, moves, trees."""
