"""`python -m debate_train.theory` prints the checks of a grid."""

import sys

from debate_train.theory.run_comparison import main

sys.exit(main())
