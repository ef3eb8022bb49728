"""Sets of examples: which pairs and replies debates give, against tables worked by hand."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.forms import ActorCritic, Simultaneous
from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Branch, Reply, Transcript, Turn
from debate_train.offline import (
    AnswerPairs,
    ChosenReplies,
    Completion,
    GuidedPairs,
    read_examples,
)

Json = dict[str, Any]
NUMBERS = itertools.count(100)
PROMPT = {"role": "user", "content": "natural"}
GUIDED = {"role": "user", "content": "natural, and support yes"}


def said(agent: int, round: int, text: str, **more: Any) -> Json:
    return {"agent": agent, "round": round, "text": text, "prompt": [PROMPT], **more}


def answers(round: int, right: int, of: int) -> list[Json]:
    """Roll-outs of a critic's state: the actor's next answers, this many of them right."""
    texts = ["\\boxed{yes}"] * right + ["\\boxed{no}"] * (of - right)
    return [said(0, round + 1, text) for text in texts]


def replies(round: int, right: int, of: int) -> list[Json]:
    """Roll-outs of an actor's state: feedback, then an answer."""
    return [said(1, round, "well", continuations=[one]) for one in answers(round, right, of)]


def guided(guide: str, turn: Json) -> Json:
    return {"guide": guide, "turn": {**turn, "prompt": [GUIDED]}}


def with_replies(transcript: Transcript) -> Transcript:
    """Give every turn, and every branch, tokens of its own."""

    def heard(turn: Turn) -> Turn:
        reply = Reply(turn.text, "end", (1, turn.agent, turn.round), (next(NUMBERS), 9))
        branches = tuple(Branch(b.guide, heard(b.turn)) for b in turn.branches)
        return replace(turn, reply=reply, branches=branches)

    return replace(transcript, turns=tuple(map(heard, transcript.turns)))


def exchange(*turns: Json) -> Transcript:
    rules = {**ACTOR_CRITIC, "max_rounds": 3}
    question = {"id": "q", "text": "?", "answer": "yes", "meta": {"kind": "yes_no"}}
    found = {"id": "d", "question": question, "protocol": rules, "turns": list(turns)}
    return with_replies(from_json(found))


ACTOR_CRITIC: Json = {
    "num_agents": 2,
    "schedule": "sequential",
    "contract": "boxed",
    "topology": "actor_critic",
    "history_rounds": 1,
}

# Values, natural / guided right / guided wrong, of ten roll-outs each:
# actor 1: .4 / .6 / .1   critic 1: .7 / .8 / .5   actor 2 (the end): wrong 0 / right 1 / wrong 0
DEBATE = exchange(
    said(0, 0, "\\boxed{no}"),
    said(1, 0, "look"),
    said(
        0,
        1,
        "\\boxed{no}",
        continuations=replies(1, 4, 10),
        branches=[
            guided("yes", said(0, 1, "so \\boxed{yes}", continuations=replies(1, 6, 10))),
            guided("no", said(0, 1, "so \\boxed{no}", continuations=replies(1, 1, 10))),
        ],
    ),
    said(
        1,
        1,
        "look again",
        continuations=answers(1, 7, 10),
        branches=[
            guided("yes", said(1, 1, "it is yes", continuations=answers(1, 8, 10))),
            guided("no", said(1, 1, "it is no", continuations=answers(1, 5, 10))),
        ],
    ),
    said(
        0,
        2,
        "\\boxed{no}",
        branches=[
            guided("yes", said(0, 2, "now \\boxed{yes}")),
            guided("no", said(0, 2, "now \\boxed{no}")),
        ],
    ),
)


@pytest.mark.parametrize(
    ("role", "threshold", "both", "pairs"),
    [
        # Gains of the actor: round 1 +.2 and +.3, round 2 +1 and 0.
        ("actor", 0.2, False, [("so yes", "no"), ("now yes", "no")]),
        ("actor", 0.2, True, [("so yes", "no"), ("no", "so no"), ("now yes", "no")]),
        # Eq. 4: the second case counts where the first does not.
        ("actor", 0.25, False, [("no", "so no"), ("now yes", "no")]),
        ("actor", 0.5, False, [("now yes", "no")]),
        # Gains of the critic: +.1 and +.2.
        ("critic", 0.1, False, [("it is yes", "look again")]),
        ("critic", 0.15, False, [("look again", "it is no")]),
        ("critic", 0.1, True, [("it is yes", "look again"), ("look again", "it is no")]),
        ("critic", 0.25, False, []),
    ],
)
def test_guided_pairs_are_those_of_equation_4(
    role: str, threshold: float, both: bool, pairs: list[tuple[str, str]]
) -> None:
    wanted = GuidedPairs(
        role=role, threshold=threshold, pairs_per_state="both" if both else "first"
    )
    taken = wanted.take([DEBATE])
    found = [(e.chosen.text, e.rejected.text) for e in taken.examples if e.rejected]

    def plain(text: str) -> str:
        return text.replace("\\boxed{", "").replace("}", "")

    assert [(plain(a), plain(b)) for a, b in found] == pairs
    states = 2 if role == "actor" else 1
    left_out = sum(n for name, n in taken.counts.items() if name.startswith("left_out/"))
    with_pair = len({example.meta["round"] for example in taken.examples})
    assert left_out == states - with_pair


def test_pair_has_the_natural_prompt_and_nothing_of_its_guidance() -> None:
    for role in ("actor", "critic"):
        taken = GuidedPairs(role=role, threshold=0.1, pairs_per_state="both").take([DEBATE])
        for example in taken.examples:
            assert example.prompt == (PROMPT,)
            assert example.prompt_ids == (1, example.agent, example.meta["round"])
            assert "support" not in json.dumps(example.to_json())


def test_pair_keeps_what_its_replies_are_worth() -> None:
    first = GuidedPairs(role="actor", threshold=0.2).take([DEBATE]).examples[0]
    meta = dict(first.meta)
    assert meta["gain"] == pytest.approx(0.2)
    assert (meta["chosen_value"], meta["rejected_value"]) == (0.6, 0.4)
    # √(p(1 − p)/(n − 1)) of six and of four right of ten
    assert meta["chosen_standard_error"] == pytest.approx((0.6 * 0.4 / 9) ** 0.5)
    assert (meta["chosen_rollouts"], meta["guided"], meta["round"]) == (10, "chosen", 1)


def test_values_of_guided_and_natural_states_are_measured() -> None:
    measures = GuidedPairs(role="actor").take([DEBATE]).measures
    assert measures == {
        "value_natural": [0.4, 0.0],
        "value_guided_right": [0.6, 1.0],
        "value_guided_wrong": [0.1, 0.0],
    }


def test_failed_reply_is_never_chosen() -> None:
    turns = list(DEBATE.turns)
    last = turns[-1]
    branch = replace(last.branches[0], turn=replace(last.branches[0].turn, failure="no_answer"))
    broken = replace(DEBATE, turns=(*turns[:-1], replace(last, branches=(branch,))))
    taken = GuidedPairs(role="actor", threshold=0.9).take([broken])
    assert taken.examples == []
    assert taken.counts == {"left_out/below_threshold": 2}


def debate(*rounds: list[str | None], answer: str | None = "4") -> Transcript:
    """A debate whose agents give these answers; None is a reply without one."""
    form = Simultaneous(num_agents=len(rounds[0]), max_rounds=len(rounds), personas="none")
    turns = [
        said(
            agent,
            number,
            f"<solution>a{number}{agent} \\boxed{{{text}}}</solution><evaluation>e{number}"
            "</evaluation><comparison>N/A</comparison>"
            if text is not None
            else "so",
        )
        for number, texts in enumerate(rounds)
        for agent, text in enumerate(texts)
    ]
    protocol = form.protocol()
    rules = {
        "num_agents": protocol.num_agents,
        "max_rounds": protocol.max_rounds,
        "schedule": "parallel",
        "contract": "three_section",
        "topology": "all",
        "history_rounds": -1,
    }
    question = {"id": "q", "text": "2 + 2?", "answer": answer, "meta": {"kind": "number"}}
    found = {"id": "d", "question": question, "protocol": rules, "turns": turns}
    return with_replies(from_json(found))


def who(found: Completion | None) -> str:
    assert found is not None
    return found.text[len("<solution>") :].split()[0]


def test_answer_pairs_set_the_majority_over_the_others() -> None:
    one = debate(["4", "5", "5"], ["5", "4", "5"])
    taken = AnswerPairs().take([one])
    assert [(who(e.chosen), who(e.rejected)) for e in taken.examples] == [("a10", "a11")]
    # By the question's own answer, which is not the majority's, and in the first round.
    taken = AnswerPairs(by="answer", round="first").take([one])
    assert [(who(e.chosen), who(e.rejected)) for e in taken.examples] == [
        ("a00", "a01"),
        ("a00", "a02"),
    ]


def test_debates_without_two_sides_have_no_pair() -> None:
    tie, alike, none = debate(["4", "5"]), debate(["5", "5"]), debate([None, None])
    taken = AnswerPairs().take([tie, alike, none, debate(["5", None])])
    assert taken.examples == []
    assert taken.counts == {"left_out/no_decision": 2, "left_out/all_agree": 2}
    without = AnswerPairs(by="answer").take([debate(["4", "5"], answer=None), alike])
    assert without.counts == {"left_out/no_decision": 1, "left_out/none_chosen": 1}


def test_equal_answers_in_other_words_are_one_side() -> None:
    taken = AnswerPairs().take([debate(["4.0", "4", "5"])])
    assert [(who(e.chosen), who(e.rejected)) for e in taken.examples] == [("a00", "a02")]


def test_chosen_replies_are_imitated_in_their_prompts() -> None:
    taken = ChosenReplies(round="last").take([debate(["4", "5", "5"], ["5", "4", "4"])])
    assert [who(e.chosen) for e in taken.examples] == ["a11", "a12"]
    assert [e.prompt_ids for e in taken.examples] == [(1, 1, 1), (1, 2, 1)]
    assert taken.counts == {"kept/answer": 2, "left_out/other_answer": 1}
    one = ChosenReplies(replies_per_debate=1).take([debate(["4", "4", "5"])])
    assert [who(e.chosen) for e in one.examples] == ["a00"]


def test_answer_of_a_debate_is_learned_as_a_first_turn() -> None:
    one = debate(["5", "5", None], ["4", "5", "4"])
    taken = ChosenReplies(learned_as="first_turn").take([one])
    # Agent 2 has no first turn of its own to put the answer into.
    (example,) = taken.examples
    assert example.chosen.text == (
        "<solution>a10 \\boxed{4}</solution><evaluation>e0</evaluation><comparison>N/A</comparison>"
    )
    assert example.prompt_ids == (1, 0, 0)
    assert example.chosen.token_ids == ()
    assert taken.counts["left_out/no_first_turn"] == 1


def test_examples_are_read_as_they_were_written(tmp_path: Path) -> None:
    examples = [
        *GuidedPairs(role="actor", threshold=0.1, pairs_per_state="both").take([DEBATE]).examples,
        *ChosenReplies().take([debate(["4", "5"])]).examples,
    ]
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(example.to_json()) + "\n" for example in examples))
    assert read_examples(path) == examples
    path.write_text('{"prompt": []}\n')
    with pytest.raises(ValueError, match=r"examples.jsonl:1: no example \(KeyError: 'sampled'\)"):
        read_examples(path)


def test_sets_say_which_debates_they_need() -> None:
    pairs = GuidedPairs(role="critic")
    assert pairs.problem(ActorCritic(guided=True, continuations=2)) is None
    assert "expected debate.type: actor_critic" in str(pairs.problem(ActorCritic()))
    assert "expected one of debater" in str(pairs.problem(Simultaneous()))
    distilled = ChosenReplies(learned_as="first_turn")
    assert distilled.problem(Simultaneous()) is None
    assert "sequential" in str(distilled.problem(ActorCritic()))
