"""`python -m autoshard`: the command line."""

import sys

from autoshard.cli.entry import main

sys.exit(main())
