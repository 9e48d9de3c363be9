"""`python -m autoshard`: the command line."""

import sys

from autoshard.cli.main import main

sys.exit(main())
