"""Rewards by their type, mixtures of several, labels on a share, and rewards of other packages."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.rewards.debates import (
    SILENT,
    debate_of,
    judged_debate,
    numbers,
    round_values,
    score_of,
    span_values,
    turn_credits,
    turn_values,
)

from debate_protocol.plugins import VariantNotLoadedWarning, Variants
from debate_protocol.transcripts.files import json_line, to_json
from debate_protocol.types import Transcript
from debate_rewards import (
    REWARDS,
    V2,
    Credit,
    Labelled,
    Mixed,
    Overlong,
    Reward,
    RewardChoice,
    RewardConfig,
    RewardContext,
    Score,
    Verifiable,
    get_reward,
)

REQUIRED_SETTINGS: dict[str, dict[str, Any]] = {
    "overlong": {"max_tokens": 10, "buffer": 4},
    "mixed": {"components": {"a": {"reward": {"type": "v2"}, "weight": 1.0}}},
    "labelled": {"share": 0.5, "rest": {"type": "v2"}},
}
CYCLE = "A1>A2 | A2>A0 | A0>A1"


def read_reward(**config: Any) -> Any:
    return TypeAdapter(RewardChoice).validate_python(config)


# ---- by type --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REWARDS)
def test_every_reward_is_read_by_its_type_and_keeps_to_its_streams(name: str) -> None:
    settings = REQUIRED_SETTINGS.get(name, {})
    reward: Reward = get_reward(name, **settings)
    assert reward == read_reward(type=name, **settings)
    assert reward([]) == []
    lines = "A1>A2 | A0>A2 | A0>A1 | A0=A1 |"
    evaluations = {(agent, 1): "Agent 1 errs." for agent in range(5)}
    debates = []
    for debate_id in "ab":
        debates.append(
            debate_of(
                "| | | | fail", lines, lines, id=debate_id, gold="s0", evaluations=evaluations
            )
        )
    for score in reward(debates):
        assert len(score.agents) == 5
        assert {credit.stream for credit in score.credits} <= set(reward.streams)  # type: ignore[attr-defined]


def test_an_unknown_type_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"found 'bradly_terry'.*did you mean 'bradley_terry'"):
        get_reward("bradly_terry")


# ---- mixed ----------------------------------------------------------------------------------


def mixed(**options: Any) -> Mixed:
    config: Any = {
        "type": "mixed",
        "components": {
            "peers": {"reward": {"type": "v2"}, "weight": 0.7},
            "truth": {"reward": {"type": "verifiable"}, "weight": 0.3},
        },
    }
    reward = read_reward(**config | options)
    assert isinstance(reward, Mixed)
    return reward


VOTED = judged_debate("A1>A2 | A0=A2 | A1>A0", gold="s1")


def test_mixed_advantages_keep_components_apart() -> None:
    score = score_of(mixed(), VOTED)
    credits: dict[tuple[int, int], list[Any]] = {}
    for credit in score.credits:
        if credit.stream == "generator":
            values = credits.setdefault((credit.agent, credit.round), [])
            values.append((credit.component, credit.weight, credit.value))
    assert credits[1, 0] == [("peers", 0.7, 1.0), ("truth", 0.3, 1.0)]
    assert credits[0, 1] == [("peers", 0.7, None), ("truth", 0.3, -1.0)]
    # Agent 0: .7 · −.5 + .3 · −1.
    assert score.agents == pytest.approx((-0.65, 1.0, -0.65))
    assert score.metrics["v2/total_votes"] == 3
    assert score.metrics["verifiable/right"] == pytest.approx(1 / 3)


def test_mixed_rewards_add_raw_values_and_none_adds_nothing() -> None:
    score = score_of(mixed(mix="rewards"), VOTED)
    assert round_values(score, 0) == numbers("-0.65 1 -0.65")
    assert round_values(score, 1) == numbers("-0.3 0.3 -0.3")
    assert round_values(score, 1, "judge") == numbers("none none none")
    assert {(credit.component, credit.weight) for credit in score.credits} == {("", 1.0)}
    without_gold = score_of(mixed(mix="rewards"), judged_debate("A1>A2 | A0=A2 | A1>A0"))
    assert round_values(without_gold, 0)[1] == pytest.approx(0.7)
    assert round_values(without_gold, 1)[1] is None
    failed = score_of(mixed(mix="rewards"), debate_of("fail | |", gold="s1"))
    assert round_values(failed, 0)[0] == -1.0
    assert turn_credits(failed)[0, 0].penalty


def test_components_may_own_a_stream_each() -> None:
    components = {
        "peers": {"reward": {"type": "v2", "consensus": "none"}, "weight": 1.0},
        "most": {"reward": {"type": "majority", "values": "plus_minus"}, "weight": 0.5},
        "judge": {"reward": {"type": "truth_judge"}, "weight": 0.5},
    }
    reward = mixed(components=components, mix="rewards")
    assert reward.streams == ("generator", "judge")
    score = score_of(reward, judged_debate(CYCLE, solutions=["aab"], gold="b"))
    # Votes are a cycle, worth 0 each: ½ for the two with the majority, −½ for the third. Judge 0
    # prefers a wrong answer, judge 1 a right one, and judge 2 compares two wrong ones.
    assert round_values(score, 0) == numbers("1/2 1/2 -1/2")
    assert round_values(score, 1, "judge") == numbers("-1/2 1/2 none")
    apart = score_of(
        mixed(components=components), judged_debate(CYCLE, solutions=["aab"], gold="b")
    )
    judges = [credit for credit in apart.credits if credit.stream == "judge"]
    assert {credit.component for credit in judges} == {"judge"}


def test_raw_values_of_a_range_join_the_turns_values_of_other_components() -> None:
    end = len(VOTED.turns[0].text)

    def steps(debate: Transcript) -> Score:
        values = {(0, 10): 2.0, (5, end): -1.0}
        return Score(
            tuple(Credit(0, 0, "generator", value, span) for span, value in values.items())
        )

    components = {
        "steps": {"reward": steps, "weight": 0.5},
        "truth": {"reward": {"type": "verifiable"}, "weight": 0.25},
    }
    score = score_of(mixed(components=components, mix="rewards"), VOTED)
    values = {c.span: c.value for c in score.credits if (c.agent, c.round) == (0, 0)}
    # The turn is wrong: −¼. Where both ranges hold, the shorter one counts: ½ · 2 − ¼.
    assert values == {None: -0.25, (0, 5): 0.75, (5, 10): 0.75, (10, end): -0.75}


def test_raw_values_of_judges_lines_join_those_of_their_turns() -> None:
    components = {
        "peers": {"reward": {"type": "v2", "judge_credit": "segment"}, "weight": 1.0},
        "truth": {"reward": {"type": "truth_judge"}, "weight": 0.5},
    }
    debate = judged_debate(
        "| | A0>A1 | A0>A1 | A0>A1; A2>A3",
        solutions=["abcde"],
        gold="a",
        evaluations={(4, 1): "Agent 0 is right. Agent 2 is right."},
    )
    score = score_of(mixed(components=components, mix="rewards"), debate)
    # Agent 4 agrees with both other judges of agents 0 and 1, and the truth says so, too: ½ for its
    # turn. Nobody else compares 2 with 3, it leaves pairs out, and its evaluation is beside that.
    assert span_values(score, debate, 4, 1) == [
        ("Agent 0 is right. ", 1.0),
        ("Agent 2 is right.", None),
        ("Agent 0>Agent 1", 1.0 + 0.5),
        ("Agent 2>Agent 3", 0.5),
        ("\n</comparison>", -0.5 + 0.5),
    ]


def test_a_fading_weight_is_that_of_the_step() -> None:
    components: Any = {
        "truth": {
            "reward": {"type": "verifiable"},
            "weight": {"start": 0.6, "end": 0.2, "steps": 4},
        },
        "peers": {"reward": {"type": "v2"}, "weight": 1.0},
    }
    reward = mixed(components=components, mix="rewards")
    # Agent 1 is right, 0 and 2 are wrong, and nobody voted: what remains is the truth's weight,
    # 0.6 − 0.4 · step / 4 until it is 0.2.
    for step, weight in enumerate([0.6, 0.5, 0.4, 0.3, 0.2, 0.2]):
        score = score_of(reward.at(step), debate_of(SILENT, gold="s1"))
        assert score.agents == pytest.approx((-weight, weight, -weight))
        assert score.metrics["reward/weight/truth"] == pytest.approx(weight)
        assert "reward/weight/peers" not in score.metrics
    weights = {name: component.weight for name, component in reward.parts().items()}
    assert weights == {"truth": 0.6, "peers": 1.0}
    components["truth"]["weight"] = {"start": 0, "end": 1, "steps": 2}
    later = mixed(components=components)
    weights = {name: component.weight for name, component in later.parts().items()}
    assert weights == {"truth": 1.0, "peers": 1.0}
    assert mixed().at(7) == mixed()


# ---- labels on a share ----------------------------------------------------------------------


def test_labelled_values_some_questions_by_the_truth_and_others_by_votes() -> None:
    # Agent 0 gives the right answer; both judges prefer agent 1 to agent 0.
    batch = []
    for number in range(40):
        debate = judged_debate("| A0<A2 | A0<A1", id=str(number), gold="s0")
        batch.append(debate)
    reward = Labelled(share=0.5, rest=V2(consensus="peer_prediction"))
    labelled_ids = reward.labelled(batch)
    assert 5 < len(labelled_ids) < 35
    # Whether a question is labelled does not depend on the rest of its batch, but on the seed.
    assert reward.labelled(batch[:7]) == labelled_ids & {str(number) for number in range(7)}
    assert reward.model_copy(update={"seed": 1}).labelled(batch) != labelled_ids
    by_truth = Verifiable()(batch)
    by_votes = reward.rest(batch)
    for index, score in enumerate(reward(batch)):
        is_labelled = str(index) in labelled_ids
        values = by_truth[index] if is_labelled else by_votes[index]
        assert turn_values(score) == turn_values(values)
        assert turn_values(score)[0, 0] == (1.0 if is_labelled else -1.0)
        assert turn_values(score, "judge") == turn_values(by_votes[index], "judge")
        assert score.metrics["labelled/share"] == float(is_labelled)


def test_labels_go_where_judges_disagree() -> None:
    # Agents 2, 3 and 4 judge the pair 0, 1: 1 − (2/3)² − (1/3)² = 4/9 against 0.
    united = judged_debate("| | A0>A1 | A0>A1 | A0>A1", id="united", gold="s0")
    divided = judged_debate("| | A0>A1 | A0>A1 | A0<A1", id="divided", gold="s0")
    reward = Labelled(share=0.5, by="votes", rest=V2())
    assert reward.labelled([united, divided]) == {"divided"}
    assert reward.labelled([divided, united]) == {"divided"}
    nobody = Labelled(share=0, by="votes", rest=V2())
    assert nobody.labelled([united, divided]) == set()
    everybody = Labelled(share=1, by="votes", rest=V2())
    assert everybody.labelled([united, divided]) == {"united", "divided"}


# ---- rewards of other packages --------------------------------------------------------------

BREVITY = '''
"""A reward for short turns."""

from typing import Literal

from debate_rewards import Credit, RewardConfig, Score


class Brevity(RewardConfig):
    type: Literal["brevity"] = "brevity"
    words: int = 50

    @property
    def streams(self):
        return ("generator",)

    def __call__(self, transcripts):
        return [self.score(transcript) for transcript in transcripts]

    def score(self, transcript):
        credits = []
        for turn in transcript.turns:
            value = -len(turn.text.split()) / self.words
            credits.append(Credit(*turn.key, "generator", value))
        return Score(tuple(credits), (0.0,) * transcript.protocol.num_agents)
'''
NOT_A_REWARD = """
from typing import Literal
from pydantic import BaseModel

class Other(BaseModel):
    type: Literal["other"] = "other"

def function(transcripts): return []
"""
SCORE_EACH = """
import json, sys
from debate_rewards.cli import main
commands = json.loads(sys.argv[2])
print([main(["score", sys.argv[1], "--reward", *arguments]) for arguments in commands])
"""
# Rewards of debate-studies, where it is installed.
STUDIES = {"learnability_control", "v2_control", "v2_peer_scores"}


def install(site: Path, package: str, module: str, entry: str) -> None:
    """Lay a distribution out as an installer does: its module and its dist-info."""
    name = package.replace("-", "_")
    (site / f"{name}.py").write_text(module)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[debate_rewards.rewards]\n{entry}\n")
    (info / "RECORD").write_text("")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand a folder for packages at the front of the path."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def installed_rewards() -> Variants[RewardConfig]:
    rewards: Variants[RewardConfig] = Variants("debate_rewards.rewards", RewardConfig, V2)
    assert "v2" in rewards
    return rewards


def run_python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


def test_a_reward_of_another_package_scores_here_and_in_commands_and_mixtures(site: Path) -> None:
    install(site, "debate-brevity", BREVITY, "brevity = debate_brevity:Brevity")
    rewards = installed_rewards()
    assert {*rewards} - STUDIES == {"v2", "brevity"}
    score = score_of(rewards["brevity"](words=10), debate_of("| fail |"))
    assert round_values(score, 0)[1] == -0.2  # "no tags": two words of ten.

    file = site / "debates.jsonl"
    file.write_bytes(json_line(to_json(debate_of("fail | fail | fail"))))
    component = '{"reward": {"type": "brevity", "words": 4}, "weight": 2}'
    commands = [
        ("brevity", "--set", "words=4"),
        ("mixed", "--set", f"components.short={component}"),
        ("brevty",),
        ("brevity", "--set", "word=4"),
    ]
    finished = run_python(site, "-c", SCORE_EACH, str(file), json.dumps(commands))
    *lines, exit_codes = finished.stdout.splitlines()
    streams = [json.loads(line)["turns"][0]["streams"] for line in lines]
    # Two words of four; the mixture weighs them twice.
    assert streams == [{"generator": -0.5}, {"generator": -1.0}]
    assert exit_codes == "[0, 0, 2, 2]"
    assert "did you mean 'brevity'?" in finished.stderr
    assert "did you mean 'words'?" in finished.stderr


@pytest.mark.parametrize(
    ("module", "entry", "message"),
    [
        ("import nothing_like_this", "a = broken:A", "cannot be imported: ModuleNotFoundError"),
        ("raise SystemError('\\x1b[2J')", "a = broken:A", r"SystemError: \x1b[2J"),
        (NOT_A_REWARD, "a = broken:missing", "cannot be imported: AttributeError"),
        (NOT_A_REWARD, "a = broken:Other", 'expected a field type: Literal["a"] = "a" in Other'),
        (NOT_A_REWARD, "v2 = broken:Other", "has taken; expected another one"),
    ],
)
def test_a_reward_that_cannot_be_used_is_named_and_left_out(
    site: Path, module: str, entry: str, message: str
) -> None:
    install(site, "broken", module, entry)
    sys.modules.pop("broken", None)
    try:
        with pytest.warns(VariantNotLoadedWarning) as warnings:
            assert {*installed_rewards()} - STUDIES == {"v2"}
    finally:
        sys.modules.pop("broken", None)
    (warning,) = warnings
    assert message in str(warning.message)
    assert "of package broken" in str(warning.message)


def test_a_rest_without_signal_is_named_where_nothing_is_labelled() -> None:
    context = RewardContext(debate_of(SILENT).protocol, max_tokens=8)
    rest = Overlong(max_tokens=10, buffer=1)  # No reply is long enough.
    assert not list(Labelled(share=0.1, rest=rest).notes(context))
    (note,) = Labelled(share=0, rest=rest).notes(context)
    assert (note.kind, note.stream) == ("no_signal", "generator")
    assert "overlong" in note.text


def test_labels_go_where_first_answers_disagree() -> None:
    # In the second round those disagree who agreed in the first. 1 − Σ f²: 4/9, 0 and 2/3.
    solutions = {"two": ["aab", "zzy"], "one": ["aaa", "xyz"], "three": ["abc", "zzz"]}
    batch = []
    for question_id, rounds in solutions.items():
        batch.append(judged_debate("A1=A2 | A0=A2 | A0=A1", id=question_id, solutions=rounds))
    third = Labelled(share=1 / 3, by="answers", rest=V2())
    two_thirds = Labelled(share=2 / 3, by="answers", rest=V2())
    assert third.labelled(batch) == {"three"}
    assert two_thirds.labelled(batch) == {"three", "two"}
