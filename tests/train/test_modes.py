"""Evaluation modes: topologies, societies, listening, swapped judging; curves; those of others."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import pytest

from debate_protocol.forms import DebateForm, Direct, Simultaneous
from debate_protocol.types import (
    TRAINED,
    Question,
    Reply,
    Transcript,
    Turn,
    TurnRequest,
    roles_by_agent,
)
from debate_train.errors import RecipeError
from debate_train.evaluation import (
    MODES,
    EvaluationMode,
    Opponents,
    Plays,
    Values,
    debate_curves,
    reply_curves,
)
from debate_train.evaluation.measuring import Measures
from debate_train.evaluation.modes import CurvePoint
from debate_train.evaluation.settings import Setup
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import Rollout, direct_form
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.policies import used_policies
from train.evaluated_puzzles import QUESTIONS, ScriptedEvaluation, answer_by_seed, puzzle_answer
from train.small_recipes import recipe_of, write

BASE = """\
name: t
steps: 1
model: {type: scratch}
data: {type: signs_puzzle, batch_size: 2}
debate: {type: simultaneous, num_agents: 4, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 32}
evaluation: {direct_samples: 2, questions: 2}
"""
FOUR = Question("one", "How many ?", "4", {"kind": "number"})
# Five agents that answer in a box and see the round before.
BOXED = """\
debate.num_agents=5 debate.history_rounds=1 debate.contract=boxed reward.type=verifiable
evaluation.questions=1
"""


def recipe(modes: str = "", changes: str = "") -> Recipe:
    return recipe_of(BASE, f"evaluation.modes='{{{modes}}}' {changes}")


def boxed(modes: str = "", changes: str = "") -> Recipe:
    return recipe(modes, f"{BOXED} {changes}")


def figures_of(measures: Measures, mode: str) -> dict[str, float]:
    """The means of one mode, by figure."""
    prefix = f"eval/{mode}/"
    means = measures.means()
    return {name.removeprefix(prefix): m for name, m in means.items() if name.startswith(prefix)}


def with_answers(answers: Mapping[tuple[int, int], str]) -> ScriptedEvaluation:
    """Answers by agent and round; 5 where none is known."""

    def script(request: TurnRequest) -> str:
        return f"\\boxed{{{answers.get((request.agent, request.round), '5')}}}"

    return ScriptedEvaluation(script)


class OddSeeds(EvaluationMode):
    """Single replies; a reply is right where its seed is odd, so that figures are known."""

    type: Literal["seeds"] = "seeds"
    samples: int = 3

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        single = direct_form(form)
        return Plays(single, range(self.samples)), Plays(single, range(self.samples, 5))

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        return {"first": "odd seeds", "rest": "", "never": "never"}

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        figures: dict[str, dict[str, float]] = {"unnamed": {"q": 1.0}, "never": {}}
        for name, debates in zip(("first", "rest"), played, strict=True):
            is_odd: dict[str, list[bool]] = {}
            for debate in debates:
                is_odd.setdefault(debate.question.id, []).append("+" in debate.turns[0].text)
            figures[name] = {question: fmean(odd) for question, odd in is_odd.items()}
        return figures


def test_mode_of_another_package_gives_figures_for_each_question_and_run() -> None:
    form = recipe().debate
    modes = {"odd": OddSeeds(), "direct": MODES.make("direct", {})}
    evaluation = ScriptedEvaluation(answer_by_seed)
    measures = evaluation.measure(Setup(form, modes, Rollout(), runs=2), QUESTIONS[:2])
    # Copies 0 to 4 of 2 questions in 2 runs; those of `direct` are the first four of them.
    assert len(evaluation.seeds) == len(set(evaluation.seeds)) == 5 * 2 * 2
    assert figures_of(measures, "odd").keys() == {"first", "rest"}
    # Asked are three copies of each question in run 1, then in run 2, then the other two.
    is_odd = [seed % 2 for seed in evaluation.seeds]
    first = measures.found["eval/odd/first"]
    assert first.mean == pytest.approx(fmean(is_odd[:12]))
    assert measures.found["eval/odd/rest"].mean == pytest.approx(fmean(is_odd[12:]))
    difference = abs(fmean(is_odd[:6]) - fmean(is_odd[6:12]))
    assert first.run_deviation == pytest.approx(difference / 2**0.5)
    assert Setup(form, modes, Rollout()).figures()["eval/odd/first"] == "odd: odd seeds"
    assert OddSeeds().counted(form) == "5 turns of seeds"


GATE = "exit_criterion.at_least=1 exit_criterion.metric"


@pytest.mark.parametrize(
    ("modes", "changes", "message"),
    [
        ("ring: {topology: sparse}", "", r"evaluation.modes.ring: "),
        ("few: {num_agents: 1}", "", r"modes.few: num_agents: found 1, but a debate needs"),
        (
            "ring: {topology: ring}",
            f"{GATE}=eval/rong/judge/accuracy",
            "did you mean 'eval/ring/judge/accuracy'",
        ),
        (
            "debate: null",
            "checkpoint.keep_best.metric=eval/majority/accuracy",
            "checkpoint.keep_best.metric: 'eval/majority/accuracy' is not measured",
        ),
        (
            "",
            f"debate.type=direct {GATE}=eval/format",
            "exit_criterion.metric: 'eval/format' is not measured; expected one of eval/direct",
        ),
        ("", "evaluation.headline=[eval/pass]", r"headline: 'eval/pass' is not measured.*did you"),
        (
            "swap: {type: swapped_judging}",
            "debate.roles='{a: {count: 3}, b: {count: 1}}'",
            "modes.swap: roles: found some; agents can",
        ),
    ],
)
def test_mode_that_cannot_be_measured_is_refused(modes: str, changes: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(modes, changes)


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("quickstart", ["direct/accuracy", "judge/accuracy"]),
        ("papers/sdrl_rand_puzzle", ["maj/last", "maj/delta", "direct/accuracy"]),
        ("dapo_puzzle", ["direct/accuracy"]),
    ],
)
def test_headline_follows_from_what_a_recipe_trains(name: str, headline: list[str]) -> None:
    *_, last_phase = load_recipe(name, model=Recipe).recipe.phase_recipes().values()
    listed = list(last_phase.evaluated().listed())
    assert listed[: len(headline)] == [f"eval/{figure}" for figure in headline]
    assert len(listed) == len(set(listed)) > len(headline)


STAR = "star: {type: debate, topology: central, center: 1}"


def test_topologies_share_their_first_turns_and_part_in_whom_agents_see() -> None:
    sparse = "sparse: {topology: sparse, degree: 2}, wide: {topology: sparse, degree: 4}"
    evaluation = with_answers({})
    form = boxed(f"ring: {{topology: ring}}, {sparse}, {STAR}")
    measures = evaluation.measure(form.evaluated(), [FOUR])
    debates = {name: debates[0] for name, debates in measures.played.items() if name != "direct"}
    first_turns = [[turn.text for turn in debate.turns[:5]] for debate in debates.values()]
    assert all(texts == first_turns[0] for texts in first_turns)
    # 2 direct replies and 5 first turns once; second turns by what is asked: all others, 2 of them
    # (ring, degree 2: the same words), 4 of 4 (the same as all), and of the star the center's as
    # under all, four others that see it alone.
    rounds = [request.round for request in evaluation.turn_requests]
    assert rounds.count(0) == 2 + 5
    assert rounds.count(1) == 5 + 5 + 4
    num_shown = {
        name: [len(turn.shown or ()) for turn in debate.turns[5:]]
        for name, debate in debates.items()
    }
    assert num_shown == {
        "debate": [4] * 5,
        "ring": [2] * 5,
        "sparse": [2] * 5,
        "wide": [4] * 5,
        "star": [1, 4, 1, 1, 1],
    }
    # Figures of the debate itself are those of an evaluation without the other modes.
    other_modes = tuple(f"eval/{mode}/" for mode in ("ring", "sparse", "wide", "star"))
    figures = {name: m for name, m in measures.found.items() if not name.startswith(other_modes)}
    assert figures == with_answers({}).measure(boxed().evaluated(), [FOUR]).found


def test_agents_listen_to_their_peers_to_strangers_or_to_nobody() -> None:
    def script(request: TurnRequest) -> str:
        # Agents 0 and 1 of "one" are right at once, nobody of "two". Who is told anything by two
        # others takes what they say; who is not repeats itself.
        first = "4" if request.question.id == "one" and request.agent < 2 else "5"
        heard = [text for agent, text in request.claims.items() if agent != request.agent]
        return f"\\boxed{{{min(heard, default=first) if request.round else first}}}"

    evaluation = ScriptedEvaluation(script)
    form = boxed("listening: {type: listening}", "evaluation.num_agents=3")
    seven = Question("two", "How much ?", "7", {"kind": "number"})
    measures = evaluation.measure(form.evaluated(), [FOUR, seven])
    figures = figures_of(measures, "listening")
    # Of "one" two of three are right, and all once they have read each other. Told 5 by agents of
    # "two", nobody is; alone they stay. Of "two" nobody is ever right.
    assert figures["own/accuracy"] == 3 / 6
    assert figures["strangers/accuracy"] == 0
    assert figures["nobody/accuracy"] == pytest.approx(2 / 6)
    assert figures["own/flips/wrong_to_right"] == pytest.approx(1 / 6)
    assert figures["strangers/flips/right_to_wrong"] == pytest.approx(2 / 6)
    assert figures["nobody/flips/right_to_wrong"] == 0
    strangers = measures.played["listening"][2]
    assert strangers.id == "one/strangers"
    assert all(turn.shown == () for turn in strangers.turns)
    # First turns of agents are sampled once: 3 of each question, beside those of other modes.
    first_turns = [
        (request.question.id, request.agent, request.seed)
        for request in evaluation.turn_requests
        if request.round == 0
    ]
    assert len(first_turns) == len(set(first_turns))
    # One agent that corrects itself costs its own tokens: a third of its debate's.
    alone = measures.curves["eval/listening/self_correction"]
    together = measures.curves["eval/listening/nobody/majority"]
    for single, debate in zip(alone, together, strict=True):
        assert single.tokens == (None if debate.tokens is None else debate.tokens / 3)


def test_centralised_mode_tells_the_answer_of_one_agent_from_a_vote() -> None:
    # Center 1 is right first and last, the vote only last.
    form = boxed(STAR)
    answers = {(1, 0): "4", (1, 1): "4", (0, 1): "4", (2, 1): "4"}
    measures = with_answers(answers).measure(form.evaluated(), [FOUR])
    star = figures_of(measures, "star")
    assert (star["maj/first"], star["maj/last"], star["maj/delta"]) == (0, 1, 1)
    assert (star["central/first"], star["central/last"]) == (1, 1)
    assert (star["central/accuracy"], star["central/delta"]) == (1, 0)
    figures = form.evaluated().figures()
    assert figures["eval/star/central/accuracy"] == "star: the center's answer, of one agent"
    assert "eval/central/accuracy" not in figures
    # One majority has a row: ties counted in expectation, and not drawn as in majority/accuracy.
    assert figures["eval/star/maj/last"] == "star: majority vote"
    assert figures["eval/star/majority/accuracy"] == figures["eval/majority/accuracy"] == ""
    listed = form.evaluated().listed()
    majorities = [name for name, row in listed.items() if "maj" in name or "majority" in row]
    assert majorities == ["eval/maj/last", "eval/star/maj/last"]
    rows = form.evaluated().rows()
    assert rows["eval/star/central/first"] == "star: the center's first answer, of one agent"
    assert rows["eval/star/maj/delta"] == "star: majority vote − Maj (Δ)"
    assert rows["eval/maj/delta"] == "majority vote − Maj (Δ)"
    assert rows["eval/direct/maj@2"] == "majority of 2 replies"


def swapped_judging(
    votes: Mapping[tuple[int, str], str], changes: str = ""
) -> tuple[ScriptedEvaluation, Measures]:
    """Play three agents in their own seats and in reversed ones.

    Args:
        votes: by the judge's agent and `own` or `reversed`. In reversed seats the news gives agent
            2's answer to seat 0, and agent 0's to seat 2.
        changes: of the recipe.
    """

    def script(request: TurnRequest) -> str:
        if request.round == 0:
            return f"<solution>s{request.agent}</solution><comparison>N/A</comparison>"
        peer = 2 if request.agent == 0 else 0
        is_in_own_seat = f"Agent {peer} : s{peer}" in request.messages[-1]["content"]
        agent = request.agent if is_in_own_seat else 2 - request.agent
        vote = votes.get((agent, "own" if is_in_own_seat else "reversed"), "N/A")
        return f"<solution>s</solution><evaluation>-</evaluation><comparison>{vote}</comparison>"

    evaluation = ScriptedEvaluation(script)
    form = recipe("swap: {type: swapped_judging}", f"debate.num_agents=3 {changes}")
    question = Question("judged", "?", "s0", {"kind": "text"})
    return evaluation, evaluation.measure(form.evaluated(), [question])


def test_swapped_judging_asks_about_the_same_turns_in_both_orders() -> None:
    # Agent 0 is right. Judge 1 on (0, 2) names 0 in both orders: in reversed seats 0 sits in 2 and
    # 2 in 0. Judge 2 on (0, 1) names whoever stands first, 0 and then 1 (seat 1, before seat 2).
    # Judge 0 on (1, 2), both wrong, names 1 in both orders.
    evaluation, measures = swapped_judging(
        {
            (1, "own"): "Agent 0 > Agent 2",
            (1, "reversed"): "Agent 2 > Agent 0",
            (2, "own"): "Agent 0 > Agent 1",
            (2, "reversed"): "Agent 1 > Agent 2",
            (0, "own"): "Agent 1 > Agent 2",
            (0, "reversed"): "Agent 1 > Agent 0",
        }
    )
    # 2 direct replies, a debate of 2 rounds, and 3 second turns in other seats.
    assert len(evaluation.requests) == 2 + 6 + 3
    own, swapped = measures.played["swap"]
    assert [turn.text for turn in swapped.turns[:3]] == [turn.text for turn in own.turns[2::-1]]
    assert figures_of(measures, "swap") == {
        # Right in both orders 1, right in one of two 1/2.
        "judge/accuracy": 0.75,
        "judge/both_orders": 0.5,
        "judge/consistent": pytest.approx(2 / 3),
        # Judges 1, 2 and 0 name first the one that stands first, then 0 (second), 1 (first) and
        # 1 (second).
        "judge/first_shown": pytest.approx(4 / 6),
        "judge/pairs_in_both": 1,
    }


PRESETS = Path(__file__).resolve().parents[2] / "recipes" / "evaluation"


@pytest.fixture
def preset(tmp_path: Path) -> Callable[[str], Setup]:
    """What a recipe that extends a protocol of a paper measures with."""

    def load(name: str) -> Setup:
        own = {"reward": "{type: verifiable}", "debate": "{contract: boxed, personas: none}"}
        lines = [f"extends: {PRESETS / name}.yaml", "name: mine", "steps: 1"]
        lines += ["model: {type: scratch}", "data: {type: signs_puzzle}"]
        lines += [f"{key}: {value}" for key, value in own.items()]
        path = write(tmp_path, "\n".join(lines))
        return load_recipe(path, model=Recipe).recipe.evaluated()

    return load


@pytest.mark.parametrize(
    ("name", "num_replies", "contract"), [("sdrl", 4, "boxed"), ("sdrl_k32", 32, "answer_line")]
)
def test_protocol_of_sdrl(
    preset: Callable[[str], Setup], name: str, num_replies: int, contract: str
) -> None:
    setup = preset(name)
    assert (setup.runs, setup.rollout.sampling["top_p"]) == (5, 0.9)
    assert setup.rollout.max_tokens == 8196
    plays = dict(setup.plays())
    assert set(plays) == {"direct", "debate", "sparse", "central"}
    assert plays["direct"].turns == num_replies
    for mode, topology in (("debate", "all"), ("sparse", "sparse"), ("central", "central")):
        form = plays[mode].form
        rules = form.protocol()
        assert (rules.num_agents, rules.max_rounds, rules.history_rounds) == (5, 2, 1)
        assert (rules.topology, rules.contract) == (topology, contract)
        assert rules.extra["own_rounds"] == 1
        assert {form.temperature_of(agent) for agent in range(5)} == {1.0}
    deltas = {"eval/maj/delta", "eval/sparse/maj/delta", "eval/central/central/delta"}
    assert deltas | {f"eval/direct/maj@{num_replies}"} <= set(setup.figures())
    rows = [row.partition(" (")[0] for row in setup.listed().values()]
    expected = ["majority of first answers", "majority vote", "majority vote − Maj"]
    assert rows[:3] == expected


def boxed_turn(agent: int, round: int, answer: str, num_tokens: int) -> Turn:
    reply = Reply("", token_ids=tuple(range(num_tokens)))
    return Turn(agent, round, f"\\boxed{{{answer}}}", reply=reply)


def replies(answers: str, num_tokens: int = 10, question: Question = FOUR) -> list[Transcript]:
    """Single replies of these digits."""
    rules = Direct(contract="boxed", personas="none").protocol()
    debates = []
    for number, answer in enumerate(answers):
        turn = boxed_turn(0, 0, answer, num_tokens)
        debates.append(Transcript(f"{question.id}/{number}", question, rules, (turn,)))
    return debates


def debate(*rounds: str, **settings: Any) -> Transcript:
    """Three agents whose answers are the digits of each round; round r has 10 (r + 1) tokens."""
    form = Simultaneous(num_agents=3, max_rounds=3, contract="boxed", personas="none", **settings)
    turns = []
    for round_number, answers in enumerate(rounds):
        for agent, answer in enumerate(answers):
            turns.append(boxed_turn(agent, round_number, answer, 10 * (round_number + 1)))
    return Transcript("d", FOUR, form.protocol(), tuple(turns))


def values_of(points: Sequence[CurvePoint], question: str = "one") -> list[float]:
    return [point.values[question] for point in points]


def test_majority_of_more_replies_stands_beside_its_tokens() -> None:
    # 4, 4, 5: one reply right 2/3; a pair is 4-4 in one of three and a tie in two: (1 + 1/2 + 1/2)
    # / 3; all three: 4. pass@2: no pair without a 4.
    curves = reply_curves(replies("445"), 3)
    assert [point.x for point in curves["maj@k"]] == [1, 2, 3]
    assert [point.tokens for point in curves["maj@k"]] == [10, 20, 30]
    assert values_of(curves["maj@k"]) == pytest.approx([2 / 3, 2 / 3, 1])
    assert values_of(curves["pass@k"]) == pytest.approx([2 / 3, 1, 1])


def test_rounds_of_a_debate_stand_beside_all_tokens_until_then() -> None:
    # Round 0: 4 5 5, round 1: 4 4 5, round 2: 4 6 7 (a tie of three). All rounds together:
    # 4 once and 5 twice; then three each; then 4 four times, 5 three times.
    curves = debate_curves([debate("455", "445", "467")])
    assert values_of(curves["debate/majority"]) == pytest.approx([0, 1, 1 / 3])
    assert values_of(curves["debate/agent"]) == pytest.approx([1 / 3, 2 / 3, 1 / 3])
    assert values_of(curves["debate/all_rounds"]) == pytest.approx([0, 0.5, 1])
    assert [point.tokens for point in curves["debate/majority"]] == [30, 90, 180]


# The policy is right on both questions, its opponents only on the first.
EASY, HARD = (question.id for question in QUESTIONS[:2])
OTHER = {"other": {"type": "engine", "engine": {"type": "openai", "model": "m"}}}
THREE_AGENTS = {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"}


def seats_recipe(opponent="", debate=THREE_AGENTS, **sections):
    mode = f"{{type: opponents{opponent and f', opponent: {opponent}'}}}"
    changes = f"evaluation.direct_samples=1 evaluation.modes='{{debate: null, seats: {mode}}}'"
    return recipe_of(BASE, changes, debate=debate, **sections)


def make_reply(request, is_right, vote):
    solution = puzzle_answer(request.question, is_right)
    return f"<solution> {solution} </solution> <comparison> {vote} </comparison>"


def peers_of(request):
    return sorted({0, 1, 2} - {request.agent})


def prefer_the_policy(request):
    """Let the policy be always right; opponents prefer the lower number of the two they see."""
    is_policy = request.policy == TRAINED
    low, high = peers_of(request)
    vote = f"Agent {low} {'=' if is_policy else '>'} Agent {high}" if request.round else "N/A"
    return make_reply(request, is_policy or request.question.id == EASY, vote)


def measure_seats(script=prefer_the_policy):
    evaluation = ScriptedEvaluation(script, word_tokenizer())
    measures = evaluation.measure(seats_recipe().evaluated(), QUESTIONS[:2])
    return evaluation.turn_requests, measures


def test_policy_has_each_seat_once_and_first_turns_are_sampled_once():
    requests, measures = measure_seats()
    seats = []
    for debate in measures.played["seats"]:
        policies = [role.policy for role in roles_by_agent(debate.protocol)]
        seats.append([agent for agent, policy in enumerate(policies) if policy == TRAINED])
    assert seats == [[0], [0], [1], [1], [2], [2]]
    num_direct = 1
    assert Counter((request.question.id, request.round) for request in requests) == {
        # Each agent of each question once as the policy and once as an opponent.
        (EASY, 0): num_direct + 6,
        (HARD, 0): num_direct + 6,
        # 3 in each of 3 debates; on the first question, where both sides speak alike, an
        # opponent is shown the same in two of them.
        (EASY, 1): 6,
        (HARD, 1): 9,
    }


def test_figures_of_both_sides_are_means_over_the_seats():
    _, measures = measure_seats()
    expected = {
        "learned/accuracy": {EASY: 1.0, HARD: 1.0},
        "opponent/accuracy": {EASY: 1.0, HARD: 0.0},
        "delta/accuracy": {EASY: 0.0, HARD: 1.0},
        "learned/accuracy/seat_2": {EASY: 1.0, HARD: 1.0},
        # Policy in seat 1: both opponents vote for it, 2 of 2. In seat 2: agent 0 sees 1 and 2 and
        # votes for it, agent 2 sees 0 and 1 and votes against, 1 of 2. In seat 3: 0 of 2.
        "learned/vote_win_rate": {EASY: 3 / 6, HARD: 3 / 6},
        # On the second question such a vote is right as often: only the policy is right.
        "opponent/judge/accuracy": {HARD: 3 / 6},
        # Two opponents who are wrong alike outvote the policy.
        "majority/accuracy": {EASY: 1.0, HARD: 0.0},
        # Votes are cast in round 1. Seat 1: 2 votes for the policy. Seat 2: agent 1 has a vote for
        # and one against, agent 0 one for from agent 2 and half of the policy's, so it wins with
        # +1; seat 3: agent 0 wins. One of three is right.
        "peer_vote/accuracy": {EASY: 1.0, HARD: pytest.approx(1 / 3)},
        "opponent/format": {EASY: 1.0, HARD: 1.0},
    }
    assert {name: measures.values[f"eval/seats/{name}"] for name in expected} == expected
    assert "eval/seats/learned/judge/accuracy" not in measures.values


def test_pairs_of_opponents_that_the_policy_leaves_out_count_half():
    def leave_out_in_seat_2(request):
        # Of the opponents only agent 0 is right. The policy has a pair of a right and a wrong
        # opponent in seats 2 and 3; it leaves out the first and is right about the second.
        is_policy = request.policy == TRAINED
        low, high = peers_of(request)
        votes = request.round and not (is_policy and request.agent == 1)
        vote = f"Agent {low} > Agent {high}" if votes else "N/A"
        return make_reply(request, is_policy or request.agent == 0, vote)

    _, measures = measure_seats(leave_out_in_seat_2)
    for question in (EASY, HARD):
        values = measures.values
        assert values["eval/seats/learned/judge/owed_accuracy"][question] == (0.5 + 1) / 2
        assert values["eval/seats/learned/judge/accuracy"][question] == 1


def test_roles_of_a_recipe_are_seats_and_keep_their_settings():
    roles = {
        "solver": {"count": 2, "temperature": 0.5},
        "critic": {"temperature": 0.25, "sees": {"solver": 1}},
        "guest": {"policy": "start"},
    }
    debate = {"roles": roles, "max_rounds": 2, "style": "compact", "personas": "none"}
    recipe = seats_recipe("other", debate, rollout={"policies": OTHER})
    plays = Opponents(opponent="other").plays(recipe.debate)
    assert [[play.form.policy_of(agent) for agent in range(4)] for play in plays] == [
        ["trained", "trained", "other", "start"],
        ["other", "other", "trained", "start"],
    ]
    for play in plays:
        temperatures = [play.form.temperature_of(agent) for agent in range(4)]
        assert temperatures == [0.5, 0.5, 0.25, 1.0]
        assert roles_by_agent(play.form.protocol())[2].sees == {"solver": 1}
    assert set(used_policies(recipe)) == {"start", "other"}


@pytest.mark.parametrize(
    ("opponent", "debate", "message"),
    [
        ("strat", THREE_AGENTS, r"policy: found 'strat'.*did you mean 'start'"),
        ("trained", THREE_AGENTS, r"modes\.seats: opponent: found 'trained', which is the"),
        ("", {"type": "direct"}, "nothing to play: opponents with a debate of type"),
    ],
)
def test_policy_that_cannot_be_an_opponent_is_refused(opponent, debate, message):
    with pytest.raises(ValueError, match=message):
        seats_recipe(opponent, debate)
