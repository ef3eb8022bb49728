"""Rewards of other packages: small distributions, installed into a folder on the path."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from debate_protocol.plugins import VariantNotLoadedWarning, Variants
from debate_protocol.transcripts.files import json_line, to_json
from debate_rewards import V2, RewardConfig

BREVITY = '''
"""A reward for short turns."""

from typing import Literal

from debate_rewards import V2, Credit, RewardConfig, Score


class Brevity(RewardConfig):
    type: Literal["brevity"] = "brevity"
    words: int = 50

    @property
    def streams(self):
        return ("generator",)

    def __call__(self, transcripts):
        return [
            Score(
                tuple(
                    Credit(*turn.key, "generator", -len(turn.text.split()) / self.words)
                    for turn in transcript.turns
                ),
                (0.0,) * transcript.protocol.num_agents,
            )
            for transcript in transcripts
        ]
'''


def install(site: Path, package: str, module: str, entries: str) -> None:
    """Lay a distribution out as an installer does: its module and its dist-info."""
    name = package.replace("-", "_")
    (site / f"{name}.py").write_text(module)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[debate_rewards.rewards]\n{entries}\n")
    (info / "RECORD").write_text("")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


STUDIES = {"v2_control", "v2_peer_scores"}
"""Rewards of debate-studies, where it is installed."""


def rewards() -> Variants[RewardConfig]:
    """Return the rewards of this moment's packages, looked for."""
    found: Variants[RewardConfig] = Variants("debate_rewards.rewards", RewardConfig, V2)
    assert "v2" in found
    return found


def run(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


def test_reward_of_another_package_is_found_by_its_type(site, hold):
    install(site, "debate-brevity", BREVITY, "brevity = debate_brevity:Brevity")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rewards()
    assert {*found} - STUDIES == {"v2", "brevity"}
    (score,) = found["brevity"](words=10)([hold(["", None, ""])])
    assert score.credits[1].value == -0.2  # "no tags": two words of ten


def test_reward_of_another_package_scores_from_the_command_line_and_in_mixtures(site, hold):
    install(site, "debate-brevity", BREVITY, "brevity = debate_brevity:Brevity")
    (site / "d.jsonl").write_bytes(json_line(to_json(hold([None, None, None]))))
    part = '{"reward": {"type": "brevity", "words": 4}, "weight": 2}'
    asked = [
        ("brevity", "--set", "words=4"),
        ("mixed", "--set", f"components.short={part}"),
        ("brevty",),
        ("brevity", "--set", "word=4"),
    ]
    done = run(site, "-c", SCORE_EACH, str(site / "d.jsonl"), json.dumps(asked))
    *lines, codes = done.stdout.splitlines()
    plain, mixed = (json.loads(line)["turns"] for line in lines)
    # "no tags" is two words of four; the mixture weighs them twice.
    assert [turn["streams"]["generator"] for turn in plain] == [-0.5] * 3
    assert [turn["streams"]["generator"] for turn in mixed] == [-1.0] * 3
    assert codes == "[0, 0, 2, 2]"
    assert "did you mean 'brevity'?" in done.stderr
    assert "did you mean 'words'?" in done.stderr


SCORE_EACH = """
import json, sys
from debate_rewards.cli import main
asked = json.loads(sys.argv[2])
print([main(["score", sys.argv[1], "--reward", *arguments]) for arguments in asked])
"""


NOT_A_REWARD = """
from typing import Literal
from pydantic import BaseModel

class Other(BaseModel):
    type: Literal["other"] = "other"

def function(transcripts): return []
"""


@pytest.mark.parametrize(
    ("module", "entries", "message"),
    [
        ("import nothing_like_this", "a = broken:A", "cannot be imported: ModuleNotFoundError"),
        ("raise SystemError('no')", "a = broken:A", "cannot be imported: SystemError: no"),
        ("import sys; sys.exit(3)", "a = broken:A", "cannot be imported: SystemExit: 3"),
        ("raise SystemError('\\x1b[2J')", "a = broken:A", r"SystemError: \x1b[2J"),
        (NOT_A_REWARD, "a\x1b[2J = broken:Other", r"'a\x1b[2J' of package broken"),
        (NOT_A_REWARD, "a = broken:missing", "cannot be imported: AttributeError"),
        (NOT_A_REWARD, "a = broken:function", "expected a pydantic model"),
        (NOT_A_REWARD, "a = broken:Other", 'expected a field type: Literal["a"] = "a" in Other'),
        (
            NOT_A_REWARD,
            "other = broken:Other",
            "expected a subclass of debate_rewards.",
        ),
        (NOT_A_REWARD, "v2 = broken:Other", "has taken; expected another one"),
    ],
)
def test_reward_that_cannot_be_used_is_named_and_left_out(site, module, entries, message):
    install(site, "broken", module, entries)
    sys.modules.pop("broken", None)
    try:
        with pytest.warns(VariantNotLoadedWarning) as caught:
            assert {*rewards()} - STUDIES == {"v2"}
    finally:
        sys.modules.pop("broken", None)
    (warning,) = caught
    assert message in str(warning.message)
    assert "of package broken" in str(warning.message)


def test_second_reward_of_a_name_is_named_and_left_out(site):
    install(site, "debate-brevity", BREVITY, "brevity = debate_brevity:Brevity")
    install(site, "other-brevity", BREVITY, "brevity = other_brevity:Brevity")
    with pytest.warns(VariantNotLoadedWarning, match="debate_brevity has taken"):
        found = rewards()
    assert found["brevity"].__module__ == "debate_brevity"


def test_rewards_of_this_package_work_beside_a_broken_one(site):
    install(site, "broken", "1 / 0", "a = broken:A")
    done = run(site, "-c", "from debate_rewards import get_reward; print(get_reward('v2').type)")
    assert (done.returncode, done.stdout) == (0, "v2\n")
    assert "debate_rewards.rewards: 'a' of package broken (broken:A)" in done.stderr
