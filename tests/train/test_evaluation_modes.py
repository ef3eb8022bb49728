"""Evaluation modes: more than one in a recipe, those of others, and what they share."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import pytest

from debate_protocol.forms import DebateForm
from debate_protocol.types import Transcript, TurnRequest
from debate_report.curves import OWN_FIGURES
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.evaluation import (
    MODES,
    EvaluationMode,
    Plays,
    Values,
)
from debate_train.evaluation.measuring import Measures, evaluate
from debate_train.evaluation.settings import Setup
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import Rollout, direct_form
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.files import load_recipe
from debate_train.recipe.policies import used_policies
from report.report_runs import drawn

QUESTIONS = SignsPuzzle().open().split("dev", 2)


def recipe(modes: dict[str, Any], **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"num_agents": 4, "max_rounds": 2, "style": "compact", "personas": "none"},
        "rollout": {"max_tokens": 32},
        "evaluation": {"direct_samples": 2, "questions": 2, "modes": modes},
    }
    return Recipe.model_validate(settings | changes)


def measured(setup: Setup) -> tuple[list[TurnRequest], Measures]:
    """Evaluate with agents whose words follow from the seed; return what was asked, too."""
    asked: list[TurnRequest] = []

    def script(request: TurnRequest) -> str:
        asked.append(request)
        return f"<solution> {'+ + +' if request.seed % 2 else '- - -'} </solution>"

    engine = ScriptedEngine().open(None, word_tokenizer(), script=script)
    return asked, evaluate(setup, engine, QUESTIONS, "dev")


class Seeds(EvaluationMode):
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
            odd: dict[str, list[bool]] = {}
            for debate in debates:
                odd.setdefault(debate.question.id, []).append("+" in debate.turns[0].text)
            figures[name] = {question: fmean(found) for question, found in odd.items()}
        return figures


def test_modes_of_a_recipe_share_first_turns_and_part_later() -> None:
    ring = {"type": "debate", "topology": "ring"}
    asked, found = measured(recipe({"ring": ring}).evaluated())
    # Of each question 2 direct replies, 4 agents x 2 rounds, and the second round on the ring.
    assert len(asked) == 2 * (2 + 4 * 2 + 4)
    for plain, other in zip(found.played["debate"], found.played["ring"], strict=True):
        assert other.protocol.topology == "ring"
        assert plain.turns[:4] == other.turns[:4]
        shown = [[len(turn.shown) for turn in debate.turns[4:]] for debate in (plain, other)]
        assert shown == [[3] * 4, [2] * 4]
    means = found.means()
    assert means["eval/pass@k"] == means["eval/ring/pass@k"]
    alone = measured(recipe({}).evaluated())[1]
    assert {n: m for n, m in found.found.items() if "/ring/" not in n} == alone.found


def test_mode_of_another_package_gives_figures_for_each_question_and_run() -> None:
    form = recipe({}).debate
    setup = Setup(form, {"odd": Seeds(), "direct": MODES.make("direct", {})}, Rollout(), runs=2)
    asked, found = measured(setup)
    # Copies 0 to 4 of 2 questions in 2 runs; those of `direct` are the first four of them.
    assert len(asked) == len({request.seed for request in asked}) == 5 * 2 * 2
    odd_ones = {name for name in found.found if not name.startswith("eval/direct/")}
    assert odd_ones == {"eval/odd/first", "eval/odd/rest"}
    # Asked are three copies of each question in run 1, then in run 2, then the other two.
    odd = [request.seed % 2 for request in asked]
    first = found.found["eval/odd/first"]
    assert first.mean == pytest.approx(fmean(odd[:12]))
    assert found.found["eval/odd/rest"].mean == pytest.approx(fmean(odd[12:]))
    low, high = sorted((fmean(odd[:6]), fmean(odd[6:12])))
    assert first.run_deviation == pytest.approx((high - low) / 2**0.5)
    assert setup.figures()["eval/odd/first"] == "odd: odd seeds"


def test_standard_modes_are_left_out_by_null() -> None:
    asked, found = measured(recipe({"debate": None}).evaluated())
    assert (len(asked), {name.split("/")[1] for name in found.found}) == (2 * 2, {"direct"})
    setup = recipe({"direct": None}).evaluated()
    assert set(setup.modes) == {"debate"}
    assert setup.described() == "temperature 1; 4 agents, 2 rounds"


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"ring": {"topology": "sparse"}}, {}, r"evaluation.modes.ring: "),
    ({"a/b": {"topology": "ring"}}, {}, "found 'a/b'; expected a name for figures"),
    ({"few": {"num_agents": 1}}, {}, r"modes.few: num_agents: found 1, but a debate needs"),
    (
        {"majority": {"type": "direct"}},
        {},
        "modes.majority: found another figure eval/majority/accuracy",
    ),
    (
        {"ring": {"topology": "ring"}},
        {"exit_criterion": {"metric": "eval/rong/judge/accuracy", "at_least": 1}},
        "did you mean 'eval/ring/judge/accuracy'",
    ),
    (
        {},
        {
            "exit_criterion": {
                "metric": "eval/format",
                "at_least": 1,
                "also_at_least": {"eval/judge/acuracy": 1},
            }
        },
        "exit_criterion.also_at_least: 'eval/judge/acuracy' is not measured",
    ),
    (
        {"debate": None},
        {"checkpoint": {"keep_best": {"metric": "eval/majority/accuracy"}}},
        "checkpoint.keep_best.metric: 'eval/majority/accuracy' is not measured",
    ),
    ({"x": {"debate": {"type": "direct"}}}, {}, "modes.x: found nothing to play: debate with a"),
    (
        {},
        {"debate": {"type": "direct"}, "exit_criterion": {"metric": "eval/format", "at_least": 1}},
        "exit_criterion.metric: 'eval/format' is not measured; expected one of eval/direct",
    ),
    (
        {"x": {"debate": {"roles": {"a": {"count": 2}, "b": {"policy": "gone"}}}}},
        {},
        "evaluation.modes.x.roles.b.policy: found 'gone'",
    ),
]


@pytest.mark.parametrize(("modes", "changes", "message"), REFUSED)
def test_mode_that_cannot_be_measured_is_refused(
    modes: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(modes, **changes)


def test_policies_that_speak_in_modes_alone_are_opened_with_the_run() -> None:
    roles = {"solver": {"count": 2}, "rival": {"count": 2, "policy": "start"}}
    against = {"debate": {"roles": roles, "style": "compact", "personas": "none"}}
    form = recipe({"against_start": against})
    assert set(used_policies(form)) == {"start"} and not used_policies(recipe({}))
    figures = form.evaluated().figures()
    assert figures["eval/against_start/trained/accuracy"] == "against_start: accuracy, trained"
    assert "eval/trained/accuracy" not in figures


def test_check_counts_the_turns_tokens_and_context_of_all_modes() -> None:
    form = recipe({"wide": {"num_agents": 40}, "ring": {"topology": "ring"}})
    found = check(form)
    (line,) = [line for line in found.lines if "an evaluation" in line]
    # 2 questions x (2 + 4 x 2 + 40 x 2 + 4 x 2) turns of at most 32 tokens
    assert (
        "2 direct replies and 8 turns of debate and 80 turns of debate and 8 turns of debate"
        in line
    )
    assert "at most 196 turns, 6,272 tokens in replies" in line
    (error,) = found.errors
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


def test_headline_can_be_named_and_must_be_measured() -> None:
    own = recipe({}, evaluation={"headline": ["eval/pass@k", "eval/direct/accuracy"]})
    assert list(own.evaluated().listed().items())[:2] == [
        *(("eval/pass@k", "eval/pass@k"), ("eval/direct/accuracy", "direct accuracy"))
    ]
    with pytest.raises(ValueError, match=r"headline: 'eval/pass' is not measured.*did you mean"):
        recipe({}, evaluation={"headline": ["eval/pass"]})


def test_report_draws_the_figures_of_each_named_mode() -> None:
    others = ("acc_debate_puzzle", "judged_puzzle")
    found = [load_recipe(name, model=Recipe).recipe.evaluated() for name in others]
    measured = [name for one in (recipe({}).evaluated(), *found) for name in one.figures()]
    assert {name.split("/")[1] for name in measured} - {"alone"} == OWN_FIGURES  # A named mode.
    rows = [{"phase": "train", "step": n, "eval/ring/format": n / 4} for n in (1, 2)]
    assert "Held out: ring" in drawn(rows)
    of_round = [{"phase": "train", "step": n, "eval/ring/maj/round_1": n / 4} for n in (1, 2)]
    assert "Held out" not in drawn(of_round)
    # The four curves of SDRL's figure 4, which a run of SDRL has at every step.
    counters = [
        {"phase": "train", "step": n, f"sdrl/{name}": n / 4}
        for name in ("debate_prompts", "debate_samples", "debate_accuracy")
        for n in (1, 2)
    ]
    counters += [
        {"phase": "train", "step": n, "sdrl/debate_accuracy_improvement": n / 4} for n in (1, 2)
    ]
    page = drawn(counters)
    for title in ("prompts", "samples", "accuracy", "accuracy improvement"):
        assert f"<strong>Debate {title}</strong>" in page
    plain = [{"phase": "train", "step": n, "eval/pass@k": n / 4} for n in (1, 2)]
    assert "Held out" not in drawn(plain)


def test_protocol_names_what_the_base_class_offers() -> None:
    mode: EvaluationMode = Seeds()
    form = recipe({}).debate
    assert mode.counted(form) == "5 turns of seeds"
