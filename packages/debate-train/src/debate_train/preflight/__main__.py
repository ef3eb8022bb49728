"""`python -m debate_train.preflight` is `debate-preflight`."""

import sys

from debate_train.preflight.command import main

sys.exit(main())
