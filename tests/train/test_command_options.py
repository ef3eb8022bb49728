"""What all commands take: --version, -q, -v, and completion in shells."""

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from debate_protocol import cli as protocol
from debate_protocol.command_line import add_options, heed_options, is_quiet
from debate_report import report_command as report
from debate_rewards import cli as rewards
from debate_studies.options import study_parser, theory_parser
from debate_train.commands import cli
from debate_train.commands.options import (
    PARSERS,
    SPLITS,
    TRAIN_PARTS,
    compare_parser,
    part_parser,
)
from debate_train.data.source import Split
from debate_train.monitoring.progress import Progress

BUILDERS = (
    *PARSERS.values(),
    *(compare_parser, study_parser, theory_parser),
    *(module.command_parser for module in (report, protocol, rewards)),
)
DEBATES = Path(__file__).resolve().parents[2] / "examples/data/debates.jsonl"


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    heed_options(argparse.Namespace(quiet=False, verbose=0))


def parsers() -> Iterator[argparse.ArgumentParser]:
    """Those of every command and of every part of one."""
    for build in BUILDERS:
        parser = build()
        yield parser
        for action in parser._actions:
            if isinstance(action.choices, dict):
                yield from action.choices.values()
    yield from map(part_parser, TRAIN_PARTS)


def test_options_name_the_parts_and_splits_that_there_are() -> None:
    assert TRAIN_PARTS.keys() == cli.PARTS.keys()
    assert get_args(Split) == SPLITS


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.prog)
def test_every_command_and_part_has_the_options(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.count(".") == 2
    assert {"-q", "-v"} <= set(parser._option_string_actions)


def test_quiet_command_prints_no_counts_and_no_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert protocol.main(["validate", "-q", str(DEBATES)]) == 0
    assert protocol.main(["-q", "validate", str(DEBATES)]) == 0
    assert cli.main(["quickstart", "--check", "-q"]) == 0
    assert is_quiet()
    with Progress(live=False) as progress:
        progress.start("quiet", 1)
        progress.step(1, {"loss": 1.0})
        progress.note("noted")
    assert capsys.readouterr() == ("", "")
    assert protocol.main(["validate", str(DEBATES)]) == 0
    assert capsys.readouterr().out.startswith("4 debates")


@pytest.mark.parametrize(("words", "level"), [([], 30), (["-v"], 20), (["-vv"], 10)])
def test_verbose_command_logs_more(words: list[str], level: int) -> None:
    logging.getLogger().setLevel(30)
    parser = argparse.ArgumentParser()
    add_options(parser, "debate_protocol")
    heed_options(parser.parse_args(words))
    assert logging.getLogger("debate_train").getEffectiveLevel() == level
