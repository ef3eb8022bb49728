"""Evaluation modes: topologies, societies, listening, swapped judging; curves; those of others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import pytest

from debate_protocol.forms import DebateForm, Direct, Simultaneous
from debate_protocol.types import Question, Reply, Transcript, Turn, TurnRequest
from debate_report.curves import OWN_FIGURES
from debate_train.errors import RecipeError
from debate_train.evaluation import (
    MODES,
    DirectAnswers,
    EvaluationMode,
    Plays,
    Values,
    debate_curves,
    reply_curves,
)
from debate_train.evaluation.measuring import Measures
from debate_train.evaluation.modes import CurvePoint, most_replies
from debate_train.evaluation.settings import Setup
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import Rollout, direct_form
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.files import load_recipe
from debate_train.recipe.policies import used_policies
from report.report_runs import drawn
from train.evaluated_puzzles import QUESTIONS, ScriptedEvaluation
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


def by_seed(request: TurnRequest) -> str:
    return f"<solution> {'+ + +' if request.seed % 2 else '- - -'} </solution>"


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


def test_modes_share_first_turns_and_part_later() -> None:
    evaluation = ScriptedEvaluation(by_seed)
    ring = recipe("ring: {type: debate, topology: ring}").evaluated()
    measures = evaluation.measure(ring, QUESTIONS[:2])
    # Of each question 2 direct replies, 4 agents x 2 rounds, and the second round on the ring.
    assert len(evaluation.requests) == 2 * (2 + 4 * 2 + 4)
    for plain, on_ring in zip(measures.played["debate"], measures.played["ring"], strict=True):
        assert on_ring.protocol.topology == "ring"
        assert plain.turns[:4] == on_ring.turns[:4]
        assert [len(turn.shown or ()) for turn in plain.turns[4:]] == [3] * 4
        assert [len(turn.shown or ()) for turn in on_ring.turns[4:]] == [2] * 4
    means = measures.means()
    assert means["eval/pass@k"] == means["eval/ring/pass@k"]
    without_ring = ScriptedEvaluation(by_seed).measure(recipe().evaluated(), QUESTIONS[:2])
    others = {name: m for name, m in measures.found.items() if "/ring/" not in name}
    assert others == without_ring.found


def test_mode_of_another_package_gives_figures_for_each_question_and_run() -> None:
    form = recipe().debate
    modes = {"odd": OddSeeds(), "direct": MODES.make("direct", {})}
    evaluation = ScriptedEvaluation(by_seed)
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


def test_standard_modes_are_left_out_by_null() -> None:
    evaluation = ScriptedEvaluation(by_seed)
    measures = evaluation.measure(recipe("debate: null").evaluated(), QUESTIONS[:2])
    assert len(evaluation.requests) == 2 * 2
    assert {name.split("/")[1] for name in measures.found} == {"direct"}
    setup = recipe("direct: null").evaluated()
    assert set(setup.modes) == {"debate"}
    assert setup.described() == "temperature 1; 4 agents, 2 rounds"


GATE = "exit_criterion.at_least=1 exit_criterion.metric"


@pytest.mark.parametrize(
    ("modes", "changes", "message"),
    [
        ("ring: {topology: sparse}", "", r"evaluation.modes.ring: "),
        ("a/b: {topology: ring}", "", "found 'a/b'; expected a name for figures"),
        ("few: {num_agents: 1}", "", r"modes.few: num_agents: found 1, but a debate needs"),
        (
            "majority: {type: direct}",
            "",
            "modes.majority: found another figure eval/majority/accuracy",
        ),
        (
            "ring: {topology: ring}",
            f"{GATE}=eval/rong/judge/accuracy",
            "did you mean 'eval/ring/judge/accuracy'",
        ),
        (
            "",
            f"{GATE}=eval/format exit_criterion.also_at_least='{{eval/judge/acuracy: 1}}'",
            "exit_criterion.also_at_least: 'eval/judge/acuracy' is not measured",
        ),
        (
            "debate: null",
            "checkpoint.keep_best.metric=eval/majority/accuracy",
            "checkpoint.keep_best.metric: 'eval/majority/accuracy' is not measured",
        ),
        ("x: {debate: {type: direct}}", "", "modes.x: found nothing to play: debate with a"),
        (
            "",
            f"debate.type=direct {GATE}=eval/format",
            "exit_criterion.metric: 'eval/format' is not measured; expected one of eval/direct",
        ),
        (
            "x: {debate: {roles: {a: {count: 2}, b: {policy: gone}}}}",
            "",
            "evaluation.modes.x.roles.b.policy: found 'gone'",
        ),
        ("", "evaluation.headline=[eval/pass]", r"headline: 'eval/pass' is not measured.*did you"),
        (
            "swap: {type: swapped_judging}",
            "debate.type=sequential debate.num_agents=3",
            "modes.swap: debate: found type sequential, whose agents",
        ),
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


def test_policies_that_speak_in_modes_alone_are_opened_with_the_run() -> None:
    roles = "{solver: {count: 2}, rival: {count: 2, policy: start}}"
    debate = f"{{roles: {roles}, style: compact, personas: none}}"
    form = recipe(f"against_start: {{debate: {debate}}}")
    assert set(used_policies(form)) == {"start"}
    assert not used_policies(recipe())
    figures = form.evaluated().figures()
    assert figures["eval/against_start/trained/accuracy"] == "against_start: accuracy, trained"
    assert "eval/trained/accuracy" not in figures


def test_check_counts_the_turns_tokens_and_context_of_all_modes() -> None:
    report = check(recipe("wide: {num_agents: 16}, ring: {topology: ring}"))
    (line,) = [line for line in report.lines if "an evaluation" in line]
    # 2 questions x (2 + 4 x 2 + 16 x 2 + 4 x 2) turns of at most 32 tokens
    turns = "8 turns of debate and 32 turns of debate and 8 turns of debate"
    assert f"2 direct replies and {turns}" in line
    assert "at most 100 turns, 3,200 tokens in replies" in line
    (error,) = report.errors
    assert error.startswith("evaluation: context: at most")


@pytest.mark.parametrize(
    ("name", "headline"),
    [
        ("quickstart", ["direct/accuracy", "judge/accuracy"]),
        ("papers/own_judge_puzzle", ["direct/accuracy"]),  # Its judges are not trained.
        ("papers/sdrl_rand_puzzle", ["maj/last", "maj/delta", "direct/accuracy"]),
        ("acc_debate_puzzle", ["last_round/accuracy", "direct/accuracy"]),
        ("dapo_puzzle", ["direct/accuracy"]),
    ],
)
def test_headline_follows_from_what_a_recipe_trains(name: str, headline: list[str]) -> None:
    *_, last_phase = load_recipe(name, model=Recipe).recipe.phase_recipes().values()
    listed = list(last_phase.evaluated().listed())
    assert listed[: len(headline)] == [f"eval/{figure}" for figure in headline]
    assert len(listed) == len(set(listed)) > len(headline)


def test_headline_can_be_named() -> None:
    form = recipe(changes="evaluation.headline=[eval/pass@k,eval/direct/accuracy]")
    assert list(form.evaluated().listed().items())[:2] == [
        ("eval/pass@k", "eval/pass@k"),
        ("eval/direct/accuracy", "direct accuracy"),
    ]


def logged(metrics: Sequence[str]) -> list[dict[str, Any]]:
    return [{"phase": "train", "step": n, metric: n / 4} for metric in metrics for n in (1, 2)]


def test_report_draws_the_figures_of_each_named_mode() -> None:
    measured = [*recipe().evaluated().figures()]
    for name in ("acc_debate_puzzle", "judged_puzzle"):
        measured += load_recipe(name, model=Recipe).recipe.evaluated().figures()
    groups = {name.split("/")[1] for name in measured}
    assert groups - {"alone"} == OWN_FIGURES  # A named mode.
    assert "Held out: ring" in drawn(logged(["eval/ring/format"]))
    assert "Held out" not in drawn(logged(["eval/ring/maj/round_1"]))
    assert "Held out" not in drawn(logged(["eval/pass@k"]))
    # The four curves of SDRL's figure 4, which a run of SDRL has at every step.
    curves = ("prompts", "samples", "accuracy", "accuracy_improvement")
    page = drawn(logged([f"sdrl/debate_{curve}" for curve in curves]))
    for curve in curves:
        assert f"<strong>Debate {curve.replace('_', ' ')}</strong>" in page


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


def test_agents_listen_to_their_peers_to_strangers_or_to_nobody() -> None:
    def script(request: TurnRequest) -> str:
        # Agents 0 and 1 of "one" are right at once, nobody of "two". Who is told anything by two
        # others takes what they say; who is not repeats itself.
        first = "4" if request.question.id == "one" and request.agent < 2 else "5"
        heard = [text for agent, text in request.claims.items() if agent != request.agent]
        return f"\\boxed{{{min(heard, default=first) if request.round else first}}}"

    evaluation = ScriptedEvaluation(script)
    form = boxed("listening: {type: listening, num_agents: 3}")
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


def only_plays(form: Recipe, mode: str) -> Plays:
    setup = form.evaluated()
    (plays,) = setup.modes[mode].plays(setup.form)
    return plays


def test_society_of_minds_shows_all_answers_and_takes_no_votes() -> None:
    society = "type: society_of_minds, num_agents: 3, max_rounds: 2"
    form = recipe(f"society: {{{society}}}")
    debate = only_plays(form, "society").form
    assert debate.contract_rules().name == "boxed"
    assert debate.persona(0) is None
    answers = {(0, 0): "4", (0, 1): "4", (1, 1): "4"}
    figures = figures_of(with_answers(answers).measure(form.evaluated(), [FOUR]), "society")
    assert (figures["maj/first"], figures["maj/last"]) == (0, 1)
    assert not any(name.startswith(("judge/", "peer_vote/")) for name in figures)
    assert not any("society/peer_vote/" in name for name in form.evaluated().figures())
    with_contract = boxed(f"society: {{{society}, contract: answer_line}}")
    assert only_plays(with_contract, "society").form.contract_rules().name == "answer_line"


def test_personas_of_a_mode_are_others_than_those_of_training() -> None:
    doubter = "personas: [{name: a, style: You doubt., temperature: 0.5}]"
    hot = f"hot: {{{doubter}, temperature: 0.7}}"
    form = boxed(f"doubters: {{{doubter}}}, cast: {{personas: default}}, {hot}")
    assert only_plays(form, "doubters").form.temperature_of(3) == 0.5
    cast = only_plays(form, "cast").form
    assert [cast.temperature_of(agent) for agent in range(5)] == [0.6, 1.0, 0.9, 1.0, 0.8]
    # The temperature of a mode is that of its personas.
    assert only_plays(form, "hot").form.temperature_of(0) == 0.7


def test_modes_take_any_number_of_agents_and_rounds() -> None:
    sizes = {f"n{n}t{t}": (n, t) for n in (3, 7) for t in (1, 4)}
    modes = (f"{name}: {{num_agents: {n}, max_rounds: {t}}}" for name, (n, t) in sizes.items())
    measures = with_answers({}).measure(boxed(", ".join(modes)).evaluated(), [FOUR])
    for name, (num_agents, num_rounds) in sizes.items():
        assert len(measures.played[name][0].turns) == num_agents * num_rounds
    assert "eval/n3t4/accuracy/round_3" in measures.means()


def test_debates_that_were_played_keep_the_counts_of_their_replies() -> None:
    evaluation = ScriptedEvaluation(lambda request: "+ - +", word_tokenizer())
    measures = evaluation.measure(boxed().evaluated(), [FOUR])
    turns = measures.played["debate"][0].turns
    # Three words and the end, from each of 5 agents in 2 rounds.
    assert [turn.token_counts[1] for turn in turns if turn.token_counts] == [4] * 10
    assert measures.means()["eval/tokens/answer"] == 40


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


def test_swapped_judging_counts_what_was_judged_in_one_order_only() -> None:
    _, measures = swapped_judging(
        {
            (1, "own"): "Agent 0 = Agent 2",
            (1, "reversed"): "Agent 0 = Agent 2",
            (2, "own"): "Agent 0 > Agent 1",
            (0, "reversed"): "Agent 0 > Agent 1",
        }
    )
    figures = figures_of(measures, "swap")
    assert figures["judge/pairs_in_both"] == pytest.approx(1 / 3)
    assert figures["judge/accuracy"] == 0.5
    assert figures["judge/both_orders"] == 0
    assert "judge/first_shown" not in figures


def test_swapped_agents_take_their_personas_along() -> None:
    evaluation, _ = swapped_judging({}, "debate.personas=default")
    second_turns = [request for request in evaluation.turn_requests if request.round == 1]
    assert [turn.temperature for turn in second_turns] == [0.6, 1.0, 0.9, 0.9, 1.0, 0.6]
    assert all(turn.previous is None for turn in second_turns[3:])


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


def test_protocol_of_acc_debate(preset: Callable[[str], Setup]) -> None:
    setup = preset("acc")
    plays = dict(setup.plays())
    num_turns = {name: plays[name].turns for name in ("debate", "direct", "som2", "som4")}
    assert num_turns == {"debate": 5 + 4, "direct": 1, "som2": 10, "som4": 20}
    assert list(setup.listed())[:2] == ["eval/last_round/accuracy", "eval/improvement"]
    assert {"eval/improvement", "eval/som4/improvement"} <= set(setup.figures())
    persona = plays["persona"].form
    assert (plays["persona"].turns, persona.protocol().history_rounds) == (10, 1)
    assert [persona.persona(agent).name for agent in (0, 1)] == ["Critic", "Scientist"]
    assert [persona.temperature_of(agent) for agent in (0, 1)] == [1.0, 1.0]


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


def test_tokens_of_a_curve_are_the_mean_over_questions() -> None:
    other = replace(FOUR, id="r")
    unreadable = replace(FOUR, id="s", answer=None)
    played = [*replies("44"), *replies("55", 30, other), *replies("44", 90, unreadable)]
    points = reply_curves(played, 2)["maj@k"]
    assert [point.tokens for point in points] == [20, 40]
    assert all(point.values == {"one": 1.0, "r": 0.0} for point in points)
    assert not reply_curves(played, 3)


def test_curve_of_replies_goes_as_far_as_every_question_has_some() -> None:
    other = replace(FOUR, id="r")
    assert most_replies([*replies("444"), *replies("45", 30, other)]) == 2
    assert most_replies(replies("4" * 80)) == 64
    assert most_replies([]) == 1
    # Two runs of two replies each: the majority of up to four.
    assert len(DirectAnswers(samples=2).curves([replies("4455")])["maj@k"]) == 4


def test_rounds_of_a_debate_stand_beside_all_tokens_until_then() -> None:
    # Round 0: 4 5 5, round 1: 4 4 5, round 2: 4 6 7 (a tie of three). All rounds together:
    # 4 once and 5 twice; then three each; then 4 four times, 5 three times.
    curves = debate_curves([debate("455", "445", "467")])
    assert values_of(curves["debate/majority"]) == pytest.approx([0, 1, 1 / 3])
    assert values_of(curves["debate/agent"]) == pytest.approx([1 / 3, 2 / 3, 1 / 3])
    assert values_of(curves["debate/all_rounds"]) == pytest.approx([0, 0.5, 1])
    assert [point.tokens for point in curves["debate/majority"]] == [30, 90, 180]


def test_debate_that_ended_early_keeps_its_answers_and_costs_no_more() -> None:
    majority = debate_curves([debate("444"), debate("555", "444")])["debate/majority"]
    assert values_of(majority) == [0.5, 1]
    assert [point.tokens for point in majority] == [30, (30 + 90) / 2]


def test_center_has_a_curve_of_its_own() -> None:
    curves = debate_curves([debate("455", "545", topology="central", center=1)])
    assert values_of(curves["debate/central"]) == [0, 1]
    assert values_of(curves["debate/majority"]) == [0, 0]


def test_curves_have_no_tokens_where_turns_have_none() -> None:
    sampled = debate("444")
    imported = replace(sampled, turns=tuple(replace(turn, reply=None) for turn in sampled.turns))
    assert debate_curves([imported])["debate/agent"][0].tokens is None
    assert not debate_curves([])


def test_looks_have_the_majority_of_two_four_and_eight_replies() -> None:
    other = replace(FOUR, id="r")
    played = [*replies("444555"), *replies("555555", question=other)]
    # Three right of six, two classes: by symmetry each majority is right half of the time.
    measures = Measures({}, {}, curves={"eval/direct/maj@k": reply_curves(played, 6)["maj@k"]})
    assert measures.votes() == {"eval/direct/maj@2": 0.25, "eval/direct/maj@4": 0.25}
    assert Measures({}, {}).votes() == {}
