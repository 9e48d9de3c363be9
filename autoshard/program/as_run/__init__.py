"""A step as it is run, before it is laid out flat: equivalent equations in place of others.

calls   what holds more than runs
equal   equal sums and products are one
loops   `while` loops compute what they need, and hide nothing
"""
