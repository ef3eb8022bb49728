"""`debate-train completion`: what shells complete of all commands, by shtab."""

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from debate_train.reading.shipped_recipes import recipe_names

_COMMANDS = (
    "debate_train.commands.cli",
    "debate_train.commands.rollout_cli",
    "debate_train.evaluating.command",
    "debate_train.asking.command",
    "debate_train.preflight.command",
    "debate_train.report.command",
    "debate_protocol.cli",
    "debate_rewards.cli",
)
"""Modules of commands, each with a function `command_parser`."""
_BASH = """
_debate_recipes() {{
  compgen -W "{names}" -- "$1"
  compgen -f -- "$1"
}}
"""
_ZSH = """
_debate_recipes() {{
  _alternative 'recipes:recipe:({names})' 'files:file:_files'
}}
"""


def completion(shell: str, words: Sequence[str]) -> str:
    """Return a script that a shell evaluates; `words` also stand in the place of a recipe."""
    import shtab

    recipes = {"bash": "_debate_recipes", "zsh": "_debate_recipes"}
    names = " ".join([*words, *recipe_names()])
    preamble = {"bash": _BASH.format(names=names), "zsh": _ZSH.format(names=names)}
    scripts = []
    for parser in _parsers():
        for action in parser._actions:
            kind = action.type
            if action.dest == "recipe":
                action.complete = recipes  # type: ignore[attr-defined]
            elif kind is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        scripts.append(shtab.complete(parser, shell=shell, preamble=preamble))
    return "\n".join(scripts)


def _parsers() -> list[argparse.ArgumentParser]:
    return [import_module(name).command_parser() for name in _COMMANDS]
