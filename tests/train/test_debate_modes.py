"""Modes by name: topologies, majorities, societies of minds and personas, on known answers."""

from typing import Any

import pytest

from debate_protocol.types import Question, TurnRequest
from debate_rollout.engines import ScriptedEngine
from debate_train.evaluation.measuring import Measures, evaluate
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe import Recipe

QUESTIONS = [Question("one", "How many ?", "4", {"kind": "number"})]


def recipe(modes: dict[str, Any], **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {
            "num_agents": 5,
            "max_rounds": 2,
            "history_rounds": 1,
            "style": "compact",
            "personas": "none",
            "contract": "boxed",
        },
        "rollout": {"max_tokens": 32},
        "reward": {"type": "verifiable"},
        "evaluation": {"direct_samples": 2, "questions": 1, "modes": modes},
    }
    return Recipe.model_validate(settings | changes)


def measured(
    form: Recipe, answers: dict[tuple[int, int], str]
) -> tuple[list[TurnRequest], Measures]:
    """Evaluate with known answers by agent and round, 5 where there is none."""
    asked: list[TurnRequest] = []

    def script(turn_request: TurnRequest) -> str:
        asked.append(turn_request)
        return f"\\boxed{{{answers.get((turn_request.agent, turn_request.round), '5')}}}"

    engine = ScriptedEngine().open(script=script)
    return asked, evaluate(form.evaluated(), engine, QUESTIONS, "dev")


TOPOLOGIES: dict[str, dict[str, Any]] = {
    "ring": {"type": "debate", "topology": "ring"},
    "sparse": {"type": "debate", "topology": "sparse", "degree": 2},
    "wide": {"type": "debate", "topology": "sparse", "degree": 4},
    "star": {"type": "debate", "topology": "central", "center": 1},
}


def test_topologies_share_their_first_turns_and_part_in_whom_agents_see() -> None:
    asked, found = measured(recipe(TOPOLOGIES), {})
    firsts = [[turn.text for turn in played[0].turns[:5]] for played in found.played.values()]
    assert firsts[1:] == [firsts[1]] * 5
    # 2 direct replies and 5 first turns once; second turns by what is asked: all others, 2 of them
    # (ring, degree 2: the same words), 4 of 4 (the same as all), and of the star the center's as
    # under all, four others that see it alone.
    assert len([turn_request for turn_request in asked if turn_request.round == 0]) == 2 + 5
    assert len([turn_request for turn_request in asked if turn_request.round == 1]) == 5 + 5 + 4
    seen = {name: [len(turn.shown) for turn in played[0].turns[5:]] for name, played in
            found.played.items() if name != "direct"}  # fmt: skip
    assert seen == {
        "debate": [4] * 5,
        "ring": [2] * 5,
        "sparse": [2] * 5,
        "wide": [4] * 5,
        "star": [1, 4, 1, 1, 1],
    }


def test_agents_listen_to_their_peers_to_strangers_or_to_nobody() -> None:
    other = Question("two", "How much ?", "7", {"kind": "number"})

    def script(turn_request: TurnRequest) -> str:
        # Agents 0 and 1 of "one" are right at once, nobody of "two". Who is told anything by two
        # others takes what they say; who is not repeats itself.
        said = [text for agent, text in turn_request.claims.items() if agent != turn_request.agent]
        own = "4" if turn_request.question.id == "one" and turn_request.agent < 2 else "5"
        return f"\\boxed{{{min(said, default=own) if turn_request.round else own}}}"

    form = recipe({"listening": {"type": "listening", "num_agents": 3}})
    engine = ScriptedEngine().open(script=script)
    asked: list[TurnRequest] = []
    listened = engine.generate
    engine.generate = lambda requests: (  # type: ignore[method-assign]
        asked.extend(one.turn_request for one in requests),
        listened(requests),
    )[1]
    found = evaluate(form.evaluated(), engine, [*QUESTIONS, other], "dev")
    means = found.means()
    # Of "one" two of three are right, and all once they have read each other. Told 5 by agents of
    # "two", nobody is; alone they stay. Of "two" nobody is ever right.
    of = {who: means[f"eval/listening/{who}/accuracy"] for who in ("own", "strangers", "nobody")}
    assert of == {"own": 3 / 6, "strangers": 0, "nobody": pytest.approx(2 / 6)}
    assert means["eval/listening/strangers/flips/right_to_wrong"] == pytest.approx(2 / 6)
    assert means["eval/listening/nobody/flips/right_to_wrong"] == 0
    assert means["eval/listening/own/flips/wrong_to_right"] == pytest.approx(1 / 6)
    strangers = found.played["listening"][2]
    assert strangers.id == "one/strangers" and all(turn.shown == () for turn in strangers.turns)
    # First turns of agents are sampled once: 3 of each question, beside those of other modes.
    keys = [
        (turn_request.question.id, turn_request.agent, turn_request.seed)
        for turn_request in asked
        if turn_request.round == 0
    ]
    assert len(keys) == len(set(keys))
    # One agent that corrects itself costs its own tokens: a third of its debate's.
    costs = {name: [point.tokens for point in points] for name, points in found.curves.items()}
    alone = costs["eval/listening/self_correction"]
    together = costs["eval/listening/nobody/majority"]
    assert alone == [None if cost is None else cost / 3 for cost in together]


def test_centralised_mode_tells_the_answer_of_one_agent_from_a_vote() -> None:
    # Center 1 is right first and last, the vote only last.
    answers = {(1, 0): "4", (1, 1): "4", (0, 1): "4", (2, 1): "4"}
    form = recipe({"star": TOPOLOGIES["star"]})
    means = measured(form, answers)[1].means()
    of_star = {n.removeprefix("eval/star/"): m for n, m in means.items() if "/star/" in n}
    assert (of_star["maj/first"], of_star["maj/last"], of_star["maj/delta"]) == (0, 1, 1)
    assert (of_star["central/first"], of_star["central/last"]) == (1, 1)
    assert (of_star["central/accuracy"], of_star["central/delta"]) == (1, 0)
    rows = form.evaluated().figures()
    assert rows["eval/star/central/accuracy"] == "star: the center's answer, of one agent"
    # One majority has a row: ties counted in expectation, and not drawn as in majority/accuracy.
    assert rows["eval/star/maj/last"] == "star: majority vote"
    assert rows["eval/star/majority/accuracy"] == rows["eval/majority/accuracy"] == ""
    listed = form.evaluated().listed()
    assert [name for name, row in listed.items() if "maj" in name or "majority" in row] == [
        "eval/maj/last", "eval/star/maj/last"
    ]  # fmt: skip
    assert "eval/central/accuracy" not in rows
    table = form.evaluated().rows()
    assert table["eval/star/central/first"] == "star: the center's first answer, of one agent"
    assert table["eval/star/maj/delta"] == "star: majority vote − Maj (Δ)"
    assert (rows["eval/maj/delta"], table["eval/maj/delta"]) == ("", "majority vote − Maj (Δ)")
    assert table["eval/direct/maj@2"] == "majority of 2 replies"


def test_society_of_minds_shows_all_answers_and_takes_no_votes() -> None:
    society = {"type": "society_of_minds", "num_agents": 3, "max_rounds": 2}
    answers = {(0, 0): "4", (0, 1): "4", (1, 1): "4"}
    form = recipe({"society": society}, debate={"style": "compact"}, reward={"type": "v2"})
    (plays,) = form.evaluated().modes["society"].plays(form.debate)
    assert plays.form.contract_rules().name == "boxed"
    assert plays.form.persona(0) is None
    means = measured(form, answers)[1].means()
    assert (means["eval/society/maj/first"], means["eval/society/maj/last"]) == (0, 1)
    silent = ("eval/society/judge/", "eval/society/peer_vote/")
    assert not {name for name in means if name.startswith(silent)}
    assert not {name for name in form.evaluated().figures() if name.startswith(silent[1])}
    kept = recipe({"society": society | {"contract": "answer_line"}})
    (plays,) = kept.evaluated().modes["society"].plays(kept.debate)
    assert plays.form.contract_rules().name == "answer_line"


def test_personas_of_a_mode_are_others_than_those_of_training() -> None:
    own = [{"name": "a", "style": "You doubt.", "temperature": 0.5}]
    modes = {"own": {"type": "debate", "personas": own}, "cast": {"personas": "default"}}
    form = recipe(modes)
    evaluated = form.evaluated()
    (plays,) = evaluated.modes["own"].plays(evaluated.form)
    assert plays.form.temperature_of(3) == 0.5
    (plays,) = evaluated.modes["cast"].plays(evaluated.form)
    assert [plays.form.temperature_of(agent) for agent in range(5)] == [0.6, 1.0, 0.9, 1.0, 0.8]
    # The temperature of a mode is that of its personas.
    hot = recipe({"hot": {"personas": own, "temperature": 0.7}}).evaluated()
    (plays,) = hot.modes["hot"].plays(hot.form)
    assert plays.form.temperature_of(0) == 0.7


def test_modes_take_any_number_of_agents_and_rounds() -> None:
    modes = {f"n{n}t{t}": {"num_agents": n, "max_rounds": t} for n in (3, 7) for t in (1, 4)}
    found = measured(recipe(modes), {})[1]
    for name, debates in found.played.items():
        if name in modes:
            wanted = modes[name]
            assert len(debates[0].turns) == wanted["num_agents"] * wanted["max_rounds"]
    assert "eval/n3t4/accuracy/round_3" in found.means()


def test_debates_that_were_played_keep_the_counts_of_their_replies() -> None:
    engine = ScriptedEngine().open(None, word_tokenizer(), script=lambda turn_request: "+ - +")
    found = evaluate(recipe({}).evaluated(), engine, QUESTIONS, "dev")
    turns = found.played["debate"][0].turns
    # Three words and the end, from each of 5 agents in 2 rounds.
    assert [turn.extra["tokens"][1] for turn in turns] == [4] * 10  # type: ignore[index]
    assert found.means()["eval/tokens/answer"] == 40


JUDGED = Question("judged", "?", "s0", {"kind": "text"})


def judged(
    lines: dict[tuple[int, bool], str], **settings: Any
) -> tuple[list[TurnRequest], Measures]:
    """Play swapped_judging of three agents; lines by judge's agent and whether seats are reversed.

    In reversed seats the news gives agent 2's answer to seat 0, and agent 0's to seat 2.
    """
    asked: list[TurnRequest] = []

    def script(turn_request: TurnRequest) -> str:
        asked.append(turn_request)
        if turn_request.round == 0:
            return f"<solution>s{turn_request.agent}</solution><evaluation>N/A</evaluation>" + (
                "<comparison>N/A</comparison>"
            )
        other = 2 if turn_request.agent == 0 else 0
        moved = f"Agent {other} : s{other}" not in turn_request.messages[-1]["content"]
        agent = 2 - turn_request.agent if moved else turn_request.agent
        line = lines.get((agent, moved), "N/A")
        return f"<solution>s</solution><evaluation>-</evaluation><comparison>{line}</comparison>"

    debate = {"num_agents": 3, "max_rounds": 2, "style": "compact"} | settings
    form = recipe({"swap": {"type": "swapped_judging"}}, debate=debate, reward={"type": "v2"})
    engine = ScriptedEngine().open(script=script)
    return asked, evaluate(form.evaluated(), engine, [JUDGED], "dev")


def test_swapped_judging_asks_about_the_same_turns_in_both_orders() -> None:
    # Agent 0 is right. Judge 1 on (0, 2) names 0 in both orders: in reversed seats 0 sits in 2 and
    # 2 in 0. Judge 2 on (0, 1) names whoever stands first, 0 and then 1 (seat 1, before seat 2).
    # Judge 0 on (1, 2), both wrong, names 1 in both orders.
    lines = {
        (1, False): "Agent 0 > Agent 2",
        (1, True): "Agent 2 > Agent 0",
        (2, False): "Agent 0 > Agent 1",
        (2, True): "Agent 1 > Agent 2",
        (0, False): "Agent 1 > Agent 2",
        (0, True): "Agent 1 > Agent 0",
    }
    asked, found = judged(lines)
    # 2 direct replies, a debate of 2 rounds, and 3 second turns in other seats.
    assert len(asked) == 2 + 6 + 3
    plain, moved = found.played["swap"]
    assert [turn.text for turn in moved.turns[:3]] == [turn.text for turn in plain.turns[2::-1]]
    means = {n.removeprefix("eval/swap/"): m for n, m in found.means().items() if "/swap/" in n}
    assert means == {
        # Right in both orders 1, right in one of two 1/2.
        "judge/accuracy": 0.75,
        "judge/both_orders": 0.5,
        "judge/consistent": pytest.approx(2 / 3),
        # Judges 1, 2 and 0 name first the one that stands first, then 0 (second), 1 (first) and
        # 1 (second).
        "judge/first_shown": pytest.approx(4 / 6),
        "judge/pairs_in_both": 1,
    }


def test_swapped_judging_counts_what_was_judged_in_one_order_only() -> None:
    lines = {
        (1, False): "Agent 0 = Agent 2",
        (1, True): "Agent 0 = Agent 2",
        (2, False): "Agent 0 > Agent 1",
        (0, True): "Agent 0 > Agent 1",
    }
    means = judged(lines)[1].means()
    assert means["eval/swap/judge/pairs_in_both"] == pytest.approx(1 / 3)
    assert means["eval/swap/judge/accuracy"] == 0.5
    assert means["eval/swap/judge/both_orders"] == 0
    assert "eval/swap/judge/first_shown" not in means


def test_swapped_agents_take_their_personas_along() -> None:
    asked, _ = judged({}, personas="default")
    second = [turn_request for turn_request in asked if turn_request.round == 1]
    assert [turn_request.temperature for turn_request in second] == [0.6, 1.0, 0.9, 0.9, 1.0, 0.6]
    assert all(turn_request.previous is None for turn_request in second[3:])


@pytest.mark.parametrize(
    ("debate", "said"),
    [
        ({"type": "sequential", "num_agents": 3}, "debate: found type sequential, whose agents"),
        ({"roles": {"a": {"count": 3}, "b": {"count": 1}}}, "roles: found some; agents can"),
    ],
)
def test_swapped_judging_needs_seats_that_can_be_exchanged(
    debate: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=f"evaluation.modes.swap: {said}"):
        recipe({"swap": {"type": "swapped_judging"}}, debate=debate, reward={"type": "v2"})
