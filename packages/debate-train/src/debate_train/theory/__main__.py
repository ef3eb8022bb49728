"""`python -m debate_train.theory` prints the checks of a grid."""

import sys

from debate_train.theory.command import main

sys.exit(main())
