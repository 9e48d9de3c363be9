"""Files that are spoilt at random, and the commands that read them: `benchmarks/mutations.py`."""
