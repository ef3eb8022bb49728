"""The `debate-ask` command."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from debate_protocol.command_options import add_options, heed_options
from debate_train.commands.recipe_command import DONE, exit_code, refuse_unreadable
from debate_train.errors import UsageError

_DESCRIPTION = """\
Let agents debate one question; print each turn as it comes, then the answer and its votes.

Any engine or endpoint speaks, and each agent can have a model of its own. Without --recipe three
agents answer, and then read, criticise and compare each other's answers."""

_EPILOG = """\
examples:
  debate-ask "What is 17 * 23?" --model Qwen/Qwen3-4B --kind number
  debate-ask "What is 17 * 23?" --url http://localhost:8000/v1 --model Qwen/Qwen3-4B --json
  debate-ask "Is 91 prime?" --kind yes_no --model runs/a --model runs/b --agents 5 --topology ring
  debate-ask "make 7 Q 3 1 4 1" --recipe quickstart --model runs/quickstart

The answer stands alone on standard output with --quiet. --url takes its key from OPENAI_API_KEY
where that is set.

exit codes:
  0 done; 1 a failure while running, or no answer; 2 bad usage or recipe; 130 interrupted"""

PLAIN = str(Path(__file__).with_name("ask.yaml"))
"""The recipe where none is named: it has no model."""
DECISIONS = ("majority", "peer_vote", "bradley_terry", "confidence", "central")
KINDS = ("math", "choice", "yes_no", "number", "text")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = command_parser().parse_intermixed_args(argv)
    heed_options(arguments)
    return exit_code("debate-ask", lambda: _main(arguments))


def _main(arguments: argparse.Namespace) -> int:
    for name, value in vars(arguments).items():
        refuse_unreadable(name, value)
    if not arguments.question.strip():
        raise UsageError("QUESTION: found no text; expected a question")
    from debate_protocol.types import Question
    from debate_train.asking.asking import ask, settings_of
    from debate_train.asking.printing import Printer
    from debate_train.reading.recipe_file import load_recipe
    from debate_train.recipe import Recipe

    overrides = [*settings_of(arguments), *arguments.overrides]
    names_model = any(one.startswith(("model", "rollout.engine")) for one in overrides)
    if arguments.recipe == PLAIN and not names_model:
        raise UsageError(
            "found no --model; expected a run, a folder or a hub id, with --url what the endpoint "
            "calls the model, or a --recipe that has one"
        )
    recipe = load_recipe(arguments.recipe, overrides, model=Recipe).recipe
    meta: dict[str, Any] = {"kind": arguments.kind}
    if arguments.choice:
        meta |= {"kind": "choice", "choices": list(arguments.choice)}
    printer = Printer(recipe, shows="json" if arguments.json else arguments.shows)
    question = Question("asked", arguments.question, meta=meta)
    found = ask(
        recipe,
        question,
        printer.turn,
        decision=arguments.decision,
        until_agreed=arguments.until_agreed,
    )
    printer.end(found)
    return DONE if found.answer is not None else 1


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog="debate-ask",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("question", metavar="QUESTION", help="what is debated")
    add("overrides", nargs="*", default=[], metavar="key=value", help="settings of the recipe")
    add(
        "--recipe",
        metavar="RECIPE",
        default=PLAIN,
        help="whose model, debate and rollout are used: a file or a name of `debate-train recipes`",
    )
    add(
        "--model",
        action="append",
        default=[],
        metavar="MODEL",
        help="a run directory (its last checkpoint, or RUN@STEP), a checkpoint, a folder or "
        "hub id; given several times, agents have them in turn",
    )
    add("--url", metavar="URL", help="an OpenAI-compatible endpoint that serves the models")
    add("--agents", type=int, metavar="N", help="agents")
    add("--rounds", type=int, metavar="R", help="rounds at most, the first answers included")
    add("--topology", metavar="NAME", help="who sees whom: all, ring, sparse, central")
    add("--max-tokens", type=int, metavar="T", help="most tokens of a turn")
    add("--seed", type=int, metavar="S", help="of all sampling; 0 by default")
    add("--kind", choices=KINDS, default="text", help="of the answer, which says when two agree")
    add("--choice", action="append", metavar="TEXT", help="one of the answers to choose from")
    add("--decision", choices=DECISIONS, help="whose answer counts: by default the peers' vote")
    add("--until-agreed", action="store_true", help="end as soon as all agents agree")
    add_options(parser, "debate_train", quiet=False)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON object")
    shown.add_argument(
        "-q",
        "--quiet",
        dest="shows",
        action="store_const",
        const="answer",
        default="turns",
        help="print the answer alone",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
