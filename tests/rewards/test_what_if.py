"""Recorded debates under other rewards, with figures worked by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rewards.debates import judged_debate, on_question

from debate_protocol.transcripts.files import to_json
from debate_rewards import get_reward
from debate_rewards.cli import main
from debate_rewards.estimates import Estimate
from debate_rewards.what_if import (
    RewardReplay,
    sampling_deviation,
    seeds_needed,
    truth_advice,
    what_if,
    write_r_squared,
)

SOLUTIONS = [["right", "wrong", "right", "wrong"]] * 2
GOOD_VOTES = "A1<A2; A1=A3; A2>A3 | A0=A2; A0>A3; A2>A3 | A0>A1; A0>A3; A1=A3 | A0>A1; A0=A2; A1<A2"
BAD_VOTES = GOOD_VOTES.translate(str.maketrans("<>", "><"))
GOOD = judged_debate(GOOD_VOTES, id="a", solutions=SOLUTIONS, gold="right")
BAD = judged_debate(BAD_VOTES, id="b", solutions=SOLUTIONS, gold="right")
REWARDS = {"truth": get_reward("verifiable"), "v2": get_reward("v2")}


def test_values_that_are_the_truth_have_r_squared_one_and_reversed_votes_point_away() -> None:
    truth, votes = what_if([GOOD], REWARDS)
    assert truth.r_squared == pytest.approx(1)
    assert votes.r_squared == pytest.approx(1)
    # Both rounds have verified answers; votes are about the first alone.
    assert (truth.num_answers, votes.num_answers) == (8, 4)
    _, reversed_votes = what_if([BAD], REWARDS)
    assert reversed_votes.truth is not None
    assert reversed_votes.truth.value == pytest.approx(-1)


def test_values_that_point_away_from_the_truth_are_marked() -> None:
    away = RewardReplay("broken", truth=Estimate(-0.8, -0.9, -0.7, 8))
    follows = RewardReplay("good", truth=Estimate(0.8, 0.7, 0.9, 8))
    assert write_r_squared(away) == "0.640 [0.490, 0.810] (r < 0)"
    assert write_r_squared(follows) == "0.640 [0.490, 0.810]"
    assert truth_advice(away) == "broken: values point away from the truth: expect no gain"
    assert truth_advice(RewardReplay("unknown")) is None


def test_correlation_is_taken_within_debates() -> None:
    # All of the second debate's answers are right and get no votes: its points add nothing, though
    # verified values differ between the debates.
    all_right = judged_debate("| | |", id="b", solutions=[["right"] * 4] * 2, gold="right")
    truth, votes = what_if([GOOD, all_right], REWARDS, with_habits=False)
    assert truth.r_squared == pytest.approx(1)
    assert votes.r_squared == pytest.approx(1)
    assert truth.dead_questions == 0.5


def test_signs_that_change_are_named_with_the_turn() -> None:
    _, votes = what_if([BAD], REWARDS)
    assert votes.disagreement is not None
    # All four first answers: right ones lose by these votes, wrong ones win.
    assert (votes.disagreement.num_turns, votes.disagreement.num_changed) == (4, 4)
    example = votes.disagreement.examples[0]
    assert example.stream == "answer"
    assert example.is_right == (example.first > 0) == (example.second < 0)


def test_habits_earn_what_the_truth_says_of_their_votes() -> None:
    debates = [on_question("q", GOOD), on_question("q", BAD)]
    (replay,) = what_if(debates, {"truth_judge": get_reward("truth_judge")})
    # Judges of the first debate earn +1 each, those of the second −1. Agent 0 has the habit in the
    # first, agent 1 in the second. A vote earns +1, −1, or 0 for `=`, on pairs of right and wrong.
    assert replay.recorded_judging == pytest.approx(0)
    assert replay.habits == {
        "always equal": 0,
        # Agent 0: 1 > 2 is wrong, 2 > 3 right. Agent 1: 0 > 3 and 2 > 3 are right.
        "first shown": 0.5,
        "longest": 0,
        # Two agents give each answer.
        "the crowd": 0,
        # Agent 0 is right and agent 1 wrong: +1 and −1.
        "own answer": 0,
    }


# Against power of the noncentral t distribution (scipy 1.16): 199, 34, 12, 10, 6, 4.
@pytest.mark.parametrize(
    ("effect", "num_seeds"), [(0.2, 199), (0.5, 34), (0.9, 12), (1.0, 10), (1.5, 6), (2.5, 4)]
)
def test_seeds_are_those_of_a_t_test(effect: float, num_seeds: int) -> None:
    assert seeds_needed(effect, 1.0) == num_seeds


def test_deviation_of_sampling_is_that_of_two_arms_of_single_replies() -> None:
    # √(2 · ½ · ½ / 128) = 1/16
    assert sampling_deviation(0.5, 128) == pytest.approx(1 / 16)
    # √(2 · ⅛ · ⅞ / 8): an accuracy beyond 1 − 1/8 or below 1/8 is taken as that.
    for accuracy in (1.08, 1.0, 0.0, 1 / 8):
        assert sampling_deviation(accuracy, 8) == pytest.approx(7**0.5 / 16)
    assert sampling_deviation(1.0, 1) == pytest.approx(0.5**0.5)


def test_the_command_reads_a_run_directory_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run" / "transcripts"
    folder.mkdir(parents=True)
    lines = [json.dumps(to_json(debate)) + "\n" for debate in (GOOD, BAD)]
    (folder / "self_play-000001.jsonl").write_text("".join(lines))
    (folder / "warm_start-000001.jsonl").write_text(lines[0])
    command = ["what-if", str(tmp_path / "run"), "--phase", "self_play", "--reward", "v2"]
    second_reward = "v2:consensus=peer_prediction"
    assert main([*command, "--reward", second_reward, "--json"]) == 0
    replays: list[Any] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [replay["name"] for replay in replays] == ["v2", second_reward]
    assert replays[0]["num_answers"] == 8
    assert main([*command, "--truth-gain", "0.1", "--seed-deviation", "0.01"]) == 0
    assert "2 debates of 2 questions" in capsys.readouterr().out
    assert main(["what-if", str(folder), "--phase", "nothing"]) == 2
    assert main([*command, "--truth-gain", "0.1"]) == 2
    assert main([*command, "--reward", "v3"]) == 2
