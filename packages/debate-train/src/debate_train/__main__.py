"""`python -m debate_train` is `debate-train`."""

import sys

from debate_train.commands.cli import main

sys.exit(main())
