"""The commands as they are typed; each is imported once its arguments can be read."""

import sys
from importlib import import_module

from debate_studies.options import study_parser, theory_parser


def study() -> int:
    """Run `debate-study`; return its exit code."""
    # Help and a mistyped option need not wait for libraries, which take seconds to import.
    study_parser().parse_intermixed_args()
    return int(import_module("debate_studies.command").main())


def theory() -> int:
    """Run `debate-theory`; return its exit code."""
    theory_parser().parse_args()
    return int(import_module("debate_studies.theory").main())


if __name__ == "__main__":
    sys.exit(study())
