"""`python -m debate_studies.theory` is `debate-theory`."""

import sys

from debate_studies.theory.run_comparison import main

sys.exit(main())
