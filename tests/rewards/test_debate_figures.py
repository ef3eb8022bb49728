"""Every figure of debates, on one small table that is worked by hand."""

from dataclasses import replace

import pytest

from debate_protocol.transcripts.files import from_json, to_json, with_counts
from debate_protocol.types import Reply, Turn
from debate_rewards.decisions import bradley_terry, confidence, majority
from debate_rewards.metrics import debate_metrics, question_moments, question_values


def debate(id, *rounds, tokens=None, logps=None, gold="4", **rules):
    """Hold a debate of numbers: "4 5 -" is a round, - a turn without an answer.

    Turn k of all, from 0, has tokens[k] sampled tokens of log-probability logps[k] each.
    """
    turns = []
    for number, said in enumerate(rounds):
        for agent, answer in enumerate(said.split()):
            text = "no box" if answer == "-" else f"\\boxed{{{answer}}}"
            shown = tuple(t.key for t in turns if t.round < number and t.agent != agent)
            turn = Turn(agent, number, text, shown)
            if tokens is not None:
                count = tokens[len(turns)]
                each = (logps or [-1.0] * 99)[len(turns)]
                reply = Reply("", "end", (1,) * 7, (1,) * count, (each,) * count)
                turn = replace(turn, reply=reply)
            turns.append(turn)
    record = {
        "id": id,
        "question": {"text": "?", "answer": gold, "meta": {"kind": "number"}},
        "protocol": {"num_agents": len(rounds[0].split()), "max_rounds": 9, "contract": "boxed"},
        "turns": [],
    }
    bare = from_json(record | {"protocol": record["protocol"] | rules})
    return replace(bare, question=replace(bare.question, id=id), turns=tuple(turns))


TABLE = (
    debate("a", "4 5 5", "4 4 5", "4 4 4", tokens=[10, 20, 30, 1, 2, 3, 4, 5, 6]),
    debate("b", "4 4 4", "5 4 -", "5 6 7", tokens=[100, 100, 100, 7, 8, 9, 1, 1, 1]),
)


def test_table_of_two_debates_by_hand():
    found = debate_metrics(TABLE)
    expected = {
        # Right agents of three: a 1, 2, 3; b 3, 1, 0.
        "accuracy/round_0": 4 / 6,
        "accuracy/round_1": 3 / 6,
        "accuracy/round_2": 3 / 6,
        "avg@k": 1 / 2,
        "pass@k": 1 / 2,
        "cons@k": 1 / 2,
        "drift/round_1": (1 / 3 - 2 / 3) / 2,
        "drift/round_2": (1 / 3 - 1 / 3) / 2,
        # Majorities: a wrong, right, right; b right, a tie of 5 and 4, a tie of three wrong ones.
        "maj/round_0": (0 + 1) / 2,
        "maj/round_1": (1 + 0.5) / 2,
        "maj/round_2": (1 + 0) / 2,
        # Some agent is right: a in all rounds, b not in the last.
        "pass@k/round_0": 1,
        "pass@k/round_1": 1,
        "pass@k/round_2": 1 / 2,
        "maj/first": 1 / 2,
        "maj/last": 1 / 2,
        "maj/delta": ((1 - 0) + (0 - 1)) / 2,
        # (3/3 + 0/3 − 1/3 − 3/3) / (1/3 + 3/3)
        "improvement": -(1 / 3) / (4 / 3),
        # Of 12 pairs of successive turns: b loses agents 0 and 2, then 1; a wins 1, then 2.
        "flips/right_to_wrong": 3 / 12,
        "flips/wrong_to_right": 2 / 12,
        "flips/right_to_wrong/round_1": 2 / 6,
        # Right and read 0 wrong ones: b in round 1, of three two turn wrong; 1: a's first two in
        # round 2 stay; 2: a's agent 0 stays in round 1, b's agent 1 turns in round 2. Wrong and
        # read 1 right one: a's agent 1 turns, a's agent 2 and b's agents 0 and 2 do not; 2: a's
        # agent 2 turns.
        "flips/right_to_wrong/dissent_0": 2 / 3,
        "flips/right_to_wrong/dissent_1": 0,
        "flips/right_to_wrong/dissent_2": 1 / 2,
        "flips/wrong_to_right/dissent_1": 1 / 4,
        "flips/wrong_to_right/dissent_2": 1,
        # Lengths. Round 0: right 10, 100, 100, 100; wrong 20, 30. Round 1: right 1, 2, 8;
        # wrong 3, 7, 9.
        "right/tokens/round_0": 310 / 4,
        "wrong/tokens/round_0": 25,
        "right/tokens/round_1": 11 / 3,
        "wrong/tokens/round_1": 19 / 3,
        "right/characters/round_0": 9,
        "wrong/characters/round_1": (9 + 9 + 6) / 3,
        # a samples 81 tokens and b 327; a agrees after round 2, b after round 0.
        "tokens/answer": (81 + 327) / 2,
        "agreement/reached": 1,
        "agreement/tokens_saved": (0 + 27) / (81 + 327),
        "agreement/accuracy": (1 + 1) / 2,
    }
    assert {name: found[name] for name in expected} == {
        name: pytest.approx(value) for name, value in expected.items()
    }


def test_figures_without_replies_leave_tokens_out_and_files_keep_the_counts():
    whole = TABLE[0]
    bare = from_json(to_json(whole))
    assert not {name for name in debate_metrics([bare]) if "tokens" in name}
    kept = from_json(to_json(with_counts(whole)))
    assert all(turn.reply is None for turn in kept.turns)
    assert debate_metrics([kept]) == debate_metrics([whole])


def test_debate_of_one_round_gains_nothing_and_does_not_improve():
    found = debate_metrics([debate("a", "4 5 4")])
    assert (found["maj/first"], found["maj/last"]) == (1, 1)
    assert not {"maj/delta", "improvement"} & found.keys()


def test_agreement_needs_an_answer_of_everyone():
    silent = debate("a", "5 5 -", "5 5 5", "4 4 4", tokens=[1] * 9)
    found = debate_metrics([silent])
    assert found["agreement/tokens_saved"] == pytest.approx(3 / 9)
    assert found["agreement/accuracy"] == 0
    cut = debate("a", "5 5 5", "4 4 4", tokens=[1] * 6)
    absent = replace(cut, turns=(*cut.turns[:2], *cut.turns[3:]))
    assert debate_metrics([absent])["agreement/accuracy"] == 1
    never = debate_metrics([debate("a", "4 5 5", "5 4 4", tokens=[1] * 6)])
    assert (never["agreement/reached"], never["agreement/tokens_saved"]) == (0, 0)
    assert never["agreement/accuracy"] == 1


def test_center_has_figures_of_its_own():
    held = debate("a", "5 4 4", "4 5 5", topology="central", center=0)
    found = debate_metrics([held])
    assert (found["central/first"], found["central/last"], found["central/delta"]) == (0, 1, 1)
    assert (found["maj/first"], found["maj/last"], found["decision/central"]) == (1, 0, 1)


def test_effective_voters_follow_from_rho_by_hand():
    # Two debates on one question, all right in one and all wrong in the other: within a debate
    # mean x·x' = 1/2, between them 0, mean x² = 1/2, so ρ = 1 and two agents are worth one.
    both = [debate("q", "4 4"), debate("q", "5 5")]
    found = debate_metrics(both)
    assert (found["rho/round_0"], found["n_eff/round_0"]) == (1, 1)
    # 4 5 and 5 4: within 0, between 1 of the 4 pairs of two debates, so 1/4.
    # ρ = (0 − 1/4) / (1/2 − 1/4) = −1: two agents who are never right together.
    apart = [debate("q", "4 5"), debate("q", "5 4")]
    assert debate_metrics(apart)["rho/round_0"] == -1
    assert "n_eff/round_0" not in debate_metrics(apart)
    # Summed over both questions: a = 1/2 − 0 − 1/4, b = 1/2 − 0 + 1/4, N b / (b + a).
    other = [replace(one, question=replace(one.question, id="r")) for one in apart]
    found = debate_metrics([*both, *other])
    assert found["rho/round_0"] == pytest.approx(0.25 / 0.75)
    assert found["n_eff/round_0"] == pytest.approx(2 / (1 + 1 / 3))


def test_ratios_over_questions_are_no_values_of_a_question():
    values, moments = question_values(TABLE), question_moments(TABLE)
    assert not {"improvement", "right/tokens/round_0"} & values.keys()
    assert values["maj/delta"] == {"a": 1, "b": -1}
    assert moments["b"]["improvement"] == (-1, 1)


def test_confidence_weighs_answers_by_their_token_probabilities():
    # Two sure of 5 at exp(−3) each, .0996 together, against 4 at exp(−.5) = .6065.
    held = debate("a", "4 5 5", tokens=[3, 3, 3], logps=[-0.5, -3, -3])
    assert majority(held, 0) == "5"
    assert confidence(held, 0) == "4"
    even = debate("a", "4 5 5", tokens=[3, 3, 3], logps=[-0.5, -0.6, -0.7])
    assert confidence(even, 0) == "5"
    assert confidence(from_json(to_json(with_counts(held))), 0) == "4"
    assert confidence(debate("a", "4 5 5"), 0) is None
    assert debate_metrics([held])["decision/confidence"] == 1
    assert "decision/confidence" not in debate_metrics([debate("a", "4 5 5")])


def test_bradley_terry_takes_the_answer_of_the_strongest_agent(hold):
    # 0 beats 1 twice, 1 beats 2 twice, 2 beats 3 once: the strongest is agent 0.
    answers = {(agent, r): f"s{agent}" for agent in range(4) for r in range(2)}
    lines = ["A1>A2", "A2>A3", "A0>A1", "A0>A1; A1>A2"]
    held = hold([""] * 4, lines, n=4, answers=answers, answer="s0")
    assert bradley_terry(held, 0) == "s0"
    assert debate_metrics([held])["decision/bradley_terry"] == 1
    silent = hold([""] * 4, [""] * 4, n=4, answers=answers, answer="s0")
    assert {bradley_terry(silent, seed) for seed in range(40)} == {"s0", "s1", "s2", "s3"}


def test_critics_of_right_and_of_wrong_answers_by_hand():
    # Actor, critic, actor, critic, ...: ok of a right answer, no of it, no of a wrong one without
    # a better one, no of a wrong one with itself, and feedback to a turn without an answer.
    exchange = ("4", "ok"), ("4", "no 5"), ("5", "no 6"), ("5", "no 5"), ("-", "no 4")
    turns = []
    for number, (answer, said) in enumerate(exchange):
        shown = [[1, number - 1]] if number else []
        line = "" if answer == "-" else f"Answer: {answer}"
        word, _, other = said.partition(" ")
        text = f"{word}\nAnswer: {other}" if other else word
        turns.append({"agent": 0, "round": number, "text": f"so\n{line}", "shown": shown})
        turns.append({"agent": 1, "round": number, "text": text, "shown": [[0, number]]})
    roles = [{"name": "actor", "count": 1}, {"name": "critic", "count": 1, "answers": False}]
    protocol = {"num_agents": 2, "max_rounds": 5, "topology": "actor_critic", "roles": roles}
    record = {"id": "d", "question": {"text": "?", "answer": "4", "meta": {"kind": "number"}}}
    record |= {"protocol": protocol | {"contract": "answer_line"}, "turns": turns}
    found = debate_metrics([from_json(record)])
    assert (found["critic/ok_when_right"], found["critic/no_when_wrong"]) == (1 / 2, 1 / 2)
    in_prose = record | {"protocol": protocol | {"contract": "boxed"}}
    assert not [name for name in debate_metrics([from_json(in_prose)]) if "critic/" in name]
