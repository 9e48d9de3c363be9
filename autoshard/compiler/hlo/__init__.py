"""What a compiled program says of itself: XLA's HLO text, read into records.

module       computations, instructions, the lines of source behind them
text         reads them from the text of a module
shapes       types such as `bf16[8,128]{1,0}`, and the bytes that they take
groups       replica groups and permutes in every notation
axes         the mesh axes that device numbers lie along
places       computations where they are called, how often; values followed through the calls
uses         what becomes of a value
scalars      integers that an expression has on each device
events       where a collective starts and where it ends
collectives  every collective, in the words of a plan's moves
rings        rings of permutes as the collective that they implement
"""
