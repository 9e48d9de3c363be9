"""The fewest lines of user code with which Shardy makes a plan."""
