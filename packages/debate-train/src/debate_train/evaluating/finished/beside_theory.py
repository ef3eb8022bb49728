"""`debate-eval theory`: drift, ρ and effective voters of an evaluation beside SDRL's theory."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from debate_protocol.command_options import add_options, heed_options
from debate_protocol.roles import agents_by_policy
from debate_protocol.transcripts.fields import TranscriptError
from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import Transcript
from debate_train.commands.recipe_command import DONE, exit_code
from debate_train.errors import UsageError
from debate_train.evaluating.finished.comparison import Side, sides_of
from debate_train.theory.command import as_text, of_debates

_DESCRIPTION = """\
Lay the debates of a finished evaluation beside SDRL's theory: for each policy and mode whose agents
are all of one policy, accuracy, drift, ρ and the effective number of voters of each round, with
95 % intervals over questions, and in words what the theory predicts and what was seen. ρ needs two
debates on a question (evaluation.runs of 2 or more). docs/theory.md has the formulas."""


def theory_main(argv: Sequence[str]) -> int:
    """Run `debate-eval theory`; return its exit code."""
    parser = command_parser()
    arguments = parser.parse_args(argv)
    heed_options(arguments)
    return exit_code(parser.prog, lambda: _lay_beside(arguments))


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog="debate-eval theory",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("evaluation", metavar="FOLDER[:POLICY]")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    add_options(parser, "debate_train")
    return parser


def _lay_beside(arguments: argparse.Namespace) -> int:
    found: dict[str, dict[str, Any]] = {}
    for side in sides_of([arguments.evaluation]):
        for mode, debates in _debates(side):
            try:
                found[f"{side.policy}, {mode}"] = of_debates(debates, mode)
            except UsageError:
                raise
            except ValueError as error:
                raise UsageError(f"{arguments.evaluation}, mode {mode}: {error}") from error
    if not found:
        raise UsageError(
            f"{arguments.evaluation}: found no debates of several rounds among agents of one "
            "policy; expected a mode of type debate with max_rounds of 2 or more"
        )
    if arguments.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print("\n\n".join(f"{name}\n\n{as_text(own)}" for name, own in found.items()))
    return DONE


def _debates(side: Side) -> Iterator[tuple[str, list[Transcript]]]:
    """Yield the modes whose debates the theory is about, with their debates."""
    folder: Path = side.evaluation.path / "transcripts" / side.policy
    for mode in side.evaluation.results["modes"]:
        try:
            debates = list(read_transcripts(folder / f"{mode}.jsonl"))
        except (OSError, TranscriptError) as error:
            raise UsageError(f"{folder / mode}.jsonl: cannot be read: {error}") from error
        rules = [one.protocol for one in debates]
        if rules and all(one.max_rounds > 1 and not agents_by_policy(one) for one in rules):
            yield mode, debates
