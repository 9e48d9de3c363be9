"""No example of a property may fail for being slow: the machine that runs it may be busy."""

from hypothesis import settings

settings.register_profile("patient", deadline=None, derandomize=True)
settings.load_profile("patient")
