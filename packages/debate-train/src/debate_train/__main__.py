"""`python -m debate_train` is `debate-train`."""

import sys

from debate_train.start import train

sys.exit(train())
