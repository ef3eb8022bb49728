import pytest

from debate_protocol.transcripts.files import from_json, to_json
from debate_rewards import Persuasion

FOUR = [""] * 4


def critic(transcript, **options):
    (score,) = Persuasion(**options)([transcript])
    assert {c.stream for c in score.credits} <= {"critic"}
    return {(c.agent, c.round): c.value for c in score.credits if c.span is None}


ABOUT = {(0, 1): "Fine all. Agent 1 drops a sign. Agent 2 guesses, says agent 2."}
BEFORE = ["A1=A2; A2=A3", "A2>A3", "A1>A0; A1>A3", "A1>A0; A1=A2"]
AFTER = ["A2>A1; A3>A1", "A3>A2", "A0>A1; A1=A3", "A1>A2"]
# About agent 1. Judge 2: 2 for of 2 -> +1, then ½ of 2 -> -½: falls (1 + ½)/2 = ¾.
#   Judge 3: 1½ of 2 -> ½, then 1 of 1 -> 1: falls (½ - 1)/2 = -¼. Mean ¼.
# About agent 2. Judge 1: +1, then -1: falls 1. Judge 3: tie -> 0, then -1: falls ½. Mean ¾.
# The critic's own ballots, which would make agent 1 fall by ½, do not count.


def test_persuasion_is_the_fall_of_opinion_between_two_ballots(hold):
    debate = hold(FOUR, BEFORE, AFTER, n=4, evaluation=ABOUT)
    (score,) = Persuasion()([debate])
    own = [c for c in score.credits if (c.agent, c.round) == (0, 1)]
    text = debate.turns[4].text
    assert [(c.span and text[slice(*c.span)].strip(), c.value) for c in own] == [
        (None, 0.5),  # the mean over the targets: ¼ and ¾
        ("Agent 1 drops a sign.", 0.25),
        ("Agent 2 guesses, says agent 2.", 0.75),
    ]
    assert own[0].expected
    assert score.agents == (0.5, None, None, None)
    assert score.metrics == {
        "persuasion/critiques": 2.0,
        "persuasion/critiques_with_value": 2.0,
        "persuasion/mean": 0.5,
    }


def test_persuasion_leaves_out_the_critic_even_where_it_was_shown_its_own_turn(hold):
    data = to_json(hold(FOUR, BEFORE, AFTER, n=4, evaluation=ABOUT))
    for turn in data["turns"]:
        if (turn["agent"], turn["round"]) == (0, 2):
            turn["shown"].append([0, 1])
    assert critic(from_json(data))[0, 1] == 0.5


def test_persuasion_has_no_signal_for_turns_that_criticise_nobody(hold):
    (score,) = Persuasion()([hold(FOUR, BEFORE, AFTER, n=4, evaluation=ABOUT)])
    rest = [c for c in score.credits if (c.agent, c.round) != (0, 1)]
    assert {(c.value, c.expected) for c in rest} == {(None, False)}


def test_persuasion_critiques_of_the_last_round_are_heard_by_nobody(hold):
    (score,) = Persuasion()([hold(FOUR, BEFORE, n=4, evaluation=ABOUT)])
    own = [c for c in score.credits if (c.agent, c.round) == (0, 1)]
    assert [(c.value, c.expected) for c in own] == [(None, True)]
    assert score.agents == (None,) * 4


def test_persuasion_leaves_out_judges_without_a_vote_about_the_target_in_both_ballots(hold):
    # Judge 2 says nothing of agent 1 after; judge 3 stays: -¼. Nobody but judge 1 and 3 for 2.
    after = ["", "A3>A2", "A0>A3", "A1>A2"]
    (score,) = Persuasion()([hold(FOUR, BEFORE, after, n=4, evaluation=ABOUT)])
    assert [c.value for c in score.credits if c.span] == [-0.25, 0.75]
    silent = hold(FOUR, BEFORE, FOUR, n=4, evaluation=ABOUT)
    assert critic(silent)[0, 1] is None


def test_persuasion_ties_ignored_leave_only_strict_votes(hold):
    # Agent 1. Judge 2: +1, then only 0>1: -1, falls 1. Judge 3: 1>0: +1, then +1: 0. Mean ½.
    # Agent 2. Judge 1: falls 1; judge 3's tie says nothing before. Mean 1. Turn: ¾.
    assert critic(hold(FOUR, BEFORE, AFTER, n=4, evaluation=ABOUT), ties="ignore")[0, 1] == 0.75


def test_persuasion_is_zero_when_opinions_stay_and_when_all_tie(hold):
    tie = ["A1=A2", "A2=A3", "A1=A3", "A1=A2"]
    assert critic(hold(FOUR, tie, tie, n=4, evaluation=ABOUT))[0, 1] == 0.0
    assert critic(hold(FOUR, BEFORE, BEFORE, n=4, evaluation=ABOUT))[0, 1] == 0.0


def test_persuasion_failed_turns_carry_nothing_and_failed_judges_do_not_count(hold):
    # Judge 2 fails in the second ballot: -¼ and ¾ as above.
    after = ["", "A3>A2", None, "A1>A2"]
    values = critic(hold(FOUR, BEFORE, after, n=4, evaluation=ABOUT))
    assert values[0, 1] == 0.25
    assert (2, 2) not in values


def test_persuasion_judge_whose_first_turn_hears_the_critique_has_no_ballot_before(hold):
    # Sequential. Agent 1 criticises 0 in round 0; 2 and 3 hear it before they ever vote.
    rounds = (["", "", "A0>A1", "A0>A1"], ["", "", "A1>A0", "A1>A0"])
    debate = hold(
        *rounds, n=4, schedule="sequential", max_rounds=2, evaluation={(0, 0): "-", (1, 0): "Weak."}
    )
    assert critic(debate)[1, 0] is None


def test_persuasion_sequential_takes_the_ballots_around_the_critique(hold):
    # Agent 3 ends round 0 on agent 0. Judge 2 voted before it (+1) and first hears it in
    # round 1 (-1): falls 1. Judge 1 had no votes in round 0.
    rounds = (["", "", "A0>A1", ""], ["", "A0>A2", "A1>A0", ""])
    debate = hold(
        *rounds,
        n=4,
        schedule="sequential",
        max_rounds=2,
        evaluation={(3, 0): "Agent 0 is wrong."},
    )
    assert critic(debate)[3, 0] == 1.0


def test_persuasion_evaluation_without_names_is_about_the_only_agent_shown(hold):
    # Ring of 4 with shown by hand: agent 1 in round 1 was shown agent 0 only. Judge 2 hears it
    # in round 2: about agent 0 it votes +1 before, -1 after. Judge 3 is shown nothing of it.
    data = to_json(
        hold(
            FOUR,
            ["", "", "A0>A3", ""],
            ["", "", "A3>A0", ""],
            n=4,
            evaluation={(1, 1): "Too short."},
        )
    )
    for turn in data["turns"]:
        if (turn["agent"], turn["round"]) == (1, 1):
            turn["shown"] = [[0, 0]]
    (score,) = Persuasion()([from_json(data)])
    own = [c for c in score.credits if (c.agent, c.round) == (1, 1)]
    assert [(c.value, c.span) for c in own] == [(1.0, None)]


def test_persuasion_two_agents_have_no_judge(hold):
    debate = hold(["", ""], ["", ""], ["", ""], n=2, evaluation={(0, 1): "Agent 1 errs."})
    assert critic(debate)[0, 1] is None


def test_persuasion_names_of_agents_not_shown_are_no_targets(hold):
    debate = hold(FOUR, BEFORE, AFTER, n=4, evaluation={(0, 1): "Agent 0 is me, agent 9 is who?"})
    (score,) = Persuasion()([debate])
    assert score.metrics["persuasion/critiques"] == 0


@pytest.mark.parametrize("contract", ["boxed", "answer_line"])
def test_persuasion_without_evaluation_section_has_no_signal(hold, contract):
    (score,) = Persuasion()([hold(FOUR, BEFORE, AFTER, n=4, contract=contract)])
    assert all(c.value is None for c in score.credits)
