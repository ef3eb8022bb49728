"""The command `debate`: one name for the commands of all packages.

It belongs to the package that all others need, and imports a command only when it is called.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from debate_protocol.command_line import (
    BAD_USAGE,
    DONE,
    INTERRUPTED,
    complain,
    named_as_subcommands,
    run_command,
)
from debate_protocol.suggestions import did_you_mean

NAME = "debate"


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command of a package; `debate-NAME` is its alias.

    Attributes:
        module: Where the command's function is.
        function: Takes the arguments from `sys.argv`; returns the exit code.
        summary: Its line of `debate --help`.
    """

    module: str
    function: str
    summary: str

    @property
    def package(self) -> str:
        """The import name of the package."""
        return self.module.partition(".")[0]


_TRAIN, _STUDIES = "debate_train.__main__", "debate_studies.__main__"
SUBCOMMANDS = {
    "train": Subcommand(_TRAIN, "train", "train a model as a recipe says; list and write recipes"),
    "eval": Subcommand(_TRAIN, "evaluate", "measure policies side by side, and compare them"),
    "ask": Subcommand(_TRAIN, "ask", "let agents debate one question"),
    "rollout": Subcommand(_TRAIN, "rollout", "play debates and write transcripts; train nothing"),
    "preflight": Subcommand(_TRAIN, "preflight", "measure whether a start can learn, before a run"),
    "report": Subcommand(
        "debate_report", "report_main", "write the page of a run or of another trainer's rollouts"
    ),
    "study": Subcommand(_STUDIES, "study", "run recipes over seeds; compare them"),
    "theory": Subcommand(_STUDIES, "theory", "lay debates beside SDRL's theory"),
    "protocol": Subcommand(
        "debate_protocol.cli", "main", "parse replies; validate, show and export transcripts"
    ),
    "rewards": Subcommand(
        "debate_rewards.__main__", "main", "score debates, verify answers, try other rewards"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit code, or 2 where it does not exist or is not installed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0].startswith("-"):
        return run_command(NAME, lambda: _explain(arguments))
    name, *rest = arguments
    problem = _problem(name)
    if problem is not None:
        complain(NAME, problem)
        return BAD_USAGE
    command = SUBCOMMANDS[name]
    # Commands read `sys.argv` themselves, as console scripts do.
    sys.argv = [f"{NAME}-{name}", *rest]
    try:
        with named_as_subcommands():
            return int(getattr(import_module(command.module), command.function)())
    except KeyboardInterrupt:
        return INTERRUPTED


def _problem(name: str) -> str | None:
    """Say why a subcommand cannot run here; `None` where it can."""
    if name not in SUBCOMMANDS:
        names = ", ".join(SUBCOMMANDS)
        return f"found {name!r}; expected one of {names}{did_you_mean(name, SUBCOMMANDS)}"
    package = SUBCOMMANDS[name].package
    if find_spec(package) is None:
        distribution = package.replace("_", "-")
        return (
            f"{name}: needs the package {distribution}, which is not installed; in a clone of the "
            f"repository: pip install packages/{distribution}"
        )
    return None


def _explain(arguments: Sequence[str]) -> int:
    """Print the help, which lists the subcommands, or the versions of the installed packages."""
    subcommands = [f"  {name:10}{command.summary}" for name, command in SUBCOMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog=NAME,
        usage=f"{NAME} SUBCOMMAND ...",
        description="Train and measure language models on debate.",
        epilog="\n".join(
            ["subcommands:", *subcommands, "", f"{NAME} SUBCOMMAND --help says what it takes."]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the installed packages")
    if not parser.parse_args(arguments).version:
        parser.print_help()
        return DONE
    # In the order of the subcommands, each once.
    packages = dict.fromkeys(["debate_protocol", *(c.package for c in SUBCOMMANDS.values())])
    for package in packages:
        if find_spec(package) is not None:
            print(package.replace("_", "-"), import_module(package).__version__)
    return DONE
