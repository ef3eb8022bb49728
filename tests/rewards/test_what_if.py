"""Recorded debates under other rewards, with figures worked by hand."""

import json
from pathlib import Path

import pytest

from debate_protocol.transcripts.files import from_json, to_json
from debate_protocol.types import Transcript
from debate_rewards import get_reward
from debate_rewards.cli import main
from debate_rewards.estimates import Estimate
from debate_rewards.what_if import (
    RewardReplay,
    seeds_needed,
    truth_advice,
    what_if,
    write_r_squared,
)

NO_VOTES = "<comparison>N/A</comparison>"
ANSWERS = ("right", "wrong", "right", "wrong")


def debate(
    name: str, votes: dict[int, str], answers: tuple[str, ...] = ANSWERS, question: str = ""
) -> Transcript:
    """Build a debate whose agents answer in round 0 and vote in round 1."""
    turns = []
    for agent, answer in enumerate(answers):
        text = f"<solution>{answer}</solution><evaluation>-</evaluation>"
        turns.append({"agent": agent, "round": 0, "text": text + NO_VOTES, "shown": []})
    for agent, answer in enumerate(answers):
        lines = votes.get(agent, "N/A")
        text = f"<solution>{answer}</solution><evaluation>-</evaluation>"
        text += f"<comparison>{lines}</comparison>"
        shown = [[other, 0] for other in range(len(answers)) if other != agent]
        turns.append({"agent": agent, "round": 1, "text": text, "shown": shown})
    return from_json(
        {
            "id": name,
            "question": {
                "id": question or name,
                "text": "?",
                "answer": "right",
                "meta": {"kind": "text"},
            },
            "protocol": {"num_agents": len(answers), "max_rounds": 2},
            "turns": turns,
        }
    )


GOOD_VOTES = {
    0: "Agent 1 < Agent 2\nAgent 1 = Agent 3\nAgent 2 > Agent 3",
    1: "Agent 0 = Agent 2\nAgent 0 > Agent 3\nAgent 2 > Agent 3",
    2: "Agent 0 > Agent 1\nAgent 0 > Agent 3\nAgent 1 = Agent 3",
    3: "Agent 0 > Agent 1\nAgent 0 = Agent 2\nAgent 1 < Agent 2",
}
BAD_VOTES = {
    agent: lines.replace("<", "~").replace(">", "<").replace("~", ">")
    for agent, lines in GOOD_VOTES.items()
}


def test_values_that_are_the_truth_have_r_squared_one_and_reversed_votes_point_away():
    truth, votes = what_if(
        [debate("a", GOOD_VOTES)], {"truth": get_reward("verifiable"), "v2": get_reward("v2")}
    )
    assert truth.r_squared == pytest.approx(1)
    assert votes.r_squared == pytest.approx(1)
    # Both rounds have verified answers; votes are about the first alone.
    assert (truth.num_answers, votes.num_answers) == (8, 4)
    (reversed_votes,) = what_if([debate("a", BAD_VOTES)], {"v2": get_reward("v2")})
    assert reversed_votes.truth is not None
    assert reversed_votes.truth.value == pytest.approx(-1)


def test_values_that_point_away_from_the_truth_are_never_shown_as_if_they_followed_it():
    away = RewardReplay("broken", truth=Estimate(-0.8, -0.9, -0.7, 8))
    follows = RewardReplay("good", truth=Estimate(0.8, 0.7, 0.9, 8))
    assert write_r_squared(away) == "0.640 [0.490, 0.810] (r < 0)"
    assert write_r_squared(follows) == "0.640 [0.490, 0.810]"
    assert truth_advice(away) == "broken: values point away from the truth: expect no gain"
    assert truth_advice(RewardReplay("unknown")) is None


def test_correlation_is_taken_within_debates():
    # Within each debate votes follow the truth. All of the second debate's answers are right and
    # get no votes: its points add nothing, though verified values differ between the debates.
    debates = [debate("a", GOOD_VOTES), debate("b", {}, answers=("right",) * 4)]
    truth, votes = what_if(
        debates, {"truth": get_reward("verifiable"), "v2": get_reward("v2")}, with_habits=False
    )
    assert truth.r_squared == pytest.approx(1)
    assert votes.r_squared == pytest.approx(1)
    assert truth.dead_questions == 0.5


def test_signs_that_change_are_named_with_the_turn():
    debates = [debate("a", BAD_VOTES)]
    _, votes = what_if(debates, {"truth": get_reward("verifiable"), "v2": get_reward("v2")})
    assert votes.disagreement is not None
    # All four first answers: right ones lose by these votes, wrong ones win.
    assert (votes.disagreement.num_turns, votes.disagreement.num_changed) == (4, 4)
    example = votes.disagreement.examples[0]
    assert example.stream == "answer"
    assert example.is_right == (example.first > 0) == (example.second < 0)


def test_habits_earn_what_the_truth_says_of_their_votes():
    debates = [debate("a", GOOD_VOTES, question="q"), debate("b", BAD_VOTES, question="q")]
    (replay,) = what_if(debates, {"truth_judge": get_reward("truth_judge")})
    # Judges of the first debate earn +1 each, those of the second -1. Agent 0 has the habit in the
    # first, agent 1 in the second. A vote earns +1, -1, or 0 for `=`, on pairs of right and wrong.
    assert replay.recorded_judging == pytest.approx(0)
    assert replay.habits == {
        "always equal": 0,
        # Agent 0: 1 > 2 is wrong, 2 > 3 right. Agent 1: 0 > 3 and 2 > 3 are right.
        "first shown": 0.5,
        "longest": 0,
        # Two agents hold each answer.
        "the crowd": 0,
        # Agent 0 is right and agent 1 wrong: +1 and -1.
        "own answer": 0,
    }


def test_a_reward_without_values_says_why():
    (replay,) = what_if([debate("a", {})], {"bt": get_reward("bradley_terry")})
    assert replay.problem is not None


# Against power of the noncentral t distribution (scipy 1.16): 199, 34, 12, 10, 6, 4.
@pytest.mark.parametrize(
    ("effect", "num_seeds"), [(0.2, 199), (0.5, 34), (0.9, 12), (1.0, 10), (1.5, 6), (2.5, 4)]
)
def test_seeds_are_those_of_a_t_test(effect: float, num_seeds: int):
    assert seeds_needed(effect, 1.0) == num_seeds


def test_no_difference_needs_no_number_of_seeds():
    with pytest.raises(ValueError, match="difference"):
        seeds_needed(0.0, 1.0)


def test_command_reads_a_run_directory_and_files(tmp_path: Path, capsys):
    folder = tmp_path / "run" / "transcripts"
    folder.mkdir(parents=True)
    lines = [to_json(debate("a", GOOD_VOTES)), to_json(debate("b", BAD_VOTES))]
    (folder / "self_play-000001.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (folder / "warm_start-000001.jsonl").write_text(json.dumps(lines[0]) + "\n")
    command = ["what-if", str(tmp_path / "run"), "--phase", "self_play", "--reward", "v2"]
    assert main([*command, "--reward", "v2:consensus=peer_prediction", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["name"], second["name"]) == ("v2", "v2:consensus=peer_prediction")
    assert first["num_answers"] == 8
    assert main([*command, "--truth-gain", "0.1", "--seed-deviation", "0.01"]) == 0
    assert "2 debates of 2 questions" in capsys.readouterr().out
    assert main(["what-if", str(folder), "--phase", "nothing"]) == 2
    assert main([*command, "--truth-gain", "0.1"]) == 2
    assert main([*command, "--reward", "v3"]) == 2
