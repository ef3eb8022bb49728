"""A recipe with a reward that another installed package brings."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from train.small_recipes import FILE

MODULE = """
from typing import Literal

from pydantic import Field

from debate_rewards import RewardConfig, Score


class Brevity(RewardConfig):
    type: Literal["brevity"] = "brevity"
    words: int = Field(50, ge=1)

    @property
    def streams(self):
        return ("style",)

    def __call__(self, transcripts):
        return [Score((), (None,) * t.protocol.num_agents) for t in transcripts]
"""
RECIPE = FILE + "reward: {type: brevity, words: 20}\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "debate_brevity.py").write_text(MODULE)
    info = tmp_path / "debate_brevity-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: debate-brevity\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[debate_rewards.rewards]\nbrevity = debate_brevity:Brevity\n"
    )
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


CHECK_EACH = """
import json, sys
from debate_train.commands.cli import main
for changes in json.loads(sys.argv[2]):
    print("code", main([sys.argv[1], "--check", *changes]), file=sys.stderr)
"""


def checks(site: Path, *changes: list[str]) -> list[tuple[int, str]]:
    """Check the recipe with each list of changes; return exit codes and what was complained of."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK_EACH, str(site / "r.yaml"), json.dumps(changes)],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    parts = re.split(r"^code (\d)$", done.stderr, flags=re.MULTILINE)
    return [(int(code), said) for said, code in zip(parts[::2], parts[1::2], strict=False)]


def test_recipe_takes_a_reward_of_another_package(site: Path) -> None:
    unnamed, named = checks(site, [], ["advantage.streams={style: {weight: 1}}"])
    assert unnamed[0] == 0
    assert "the reward has values, but no stream style is named" in unnamed[1]
    assert (named[0], named[1].strip()) == (0, "")


def test_recipe_says_what_is_wrong_with_a_reward_of_another_package(site: Path) -> None:
    kind, key, value = checks(site, ["reward.type=brevty"], ["reward.wrds=3"], ["reward.words=0"])
    assert kind[0] == key[0] == value[0] == 2
    assert "did you mean 'brevity'?" in kind[1]
    assert "reward.wrds: unknown key; did you mean 'words'?" in key[1]
    assert "reward.words: found 0; expected at least 1" in value[1]
