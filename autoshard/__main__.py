"""`python -m autoshard`: the command line."""

import sys

from autoshard.cli import main

sys.exit(main())
