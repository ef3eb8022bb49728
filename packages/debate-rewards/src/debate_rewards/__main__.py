"""The command `debate-rewards`, which an interrupt ends well even while it is imported."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; see `debate_rewards.cli.main`."""
    try:
        from debate_rewards.cli import main as run
    except KeyboardInterrupt:
        return 130
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
