"""Random programs, made of pieces of what people write: `benchmarks/programs.py`."""
