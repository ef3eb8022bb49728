"""Measure a policy: alone, by majority, by the votes of its peers, and as a judge."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.forms import Direct
from debate_protocol.forms.settings import SpeakingSettings
from debate_protocol.types import Question, Transcript

if TYPE_CHECKING:
    from debate_rollout.engine import Engine
    from debate_train.recipe import Recipe

DIRECT: Mapping[str, str] = {"correct": "eval/direct/accuracy"}
"""What is taken from single-turn replies: name in `debate_rewards.metrics` to ours."""
DEBATE: Mapping[str, str] = {
    "decision/majority": "eval/majority/accuracy",
    "decision/peer_vote": "eval/peer_vote/accuracy",
    "judge/accuracy": "eval/judge/accuracy",
    "format_all": "eval/format",
    "correct": "eval/last_round/accuracy",
    "judge/equal_share": "eval/judge/equal_share",
    "comparisons_made": "eval/comparisons_made",
    "pass@k": "eval/pass@k",
    "diversity/round_0": "eval/diversity/round_0",
}
"""What is taken from debates."""


class Evaluation(Config):
    """When and on how many held-out questions the policy is measured."""

    every: int = Field(0, ge=0)
    """Steps between evaluations on the dev split; 0 leaves them out."""
    questions: int = Field(128, ge=0)
    """Questions of each evaluation; 0 leaves out the one before and after the run, too."""
    direct_samples: int = Field(4, ge=1)
    """Single-turn replies to each question."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over questions with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    questions: int


@dataclass(frozen=True, slots=True)
class Measures:
    """All measures of one evaluation, by name."""

    found: Mapping[str, Measure]
    transcripts: Sequence[Transcript]

    def means(self) -> dict[str, float]:
        """Return the means alone."""
        return {name: measure.mean for name, measure in self.found.items()}


def evaluate(
    recipe: "Recipe", engine: "Engine", questions: Sequence[Question], name: str
) -> Measures:
    """Let the policy answer alone and debate, and measure both.

    `name` seeds the sampling, so that evaluations before and after a run differ only by the
    policy.
    """
    from debate_rewards.answers import same_answer
    from debate_rewards.intervals import bootstrap_interval
    from debate_rewards.metrics import question_values

    form, samples = recipe.debate, recipe.evaluation.direct_samples
    alone = recipe.rollout.play(
        [
            direct_form(form).start(
                q, seed=_seed(recipe, name, q, copy), debate_id=f"{q.id}/{copy}"
            )
            for q in questions
            for copy in range(samples)
        ],
        engine,
    )
    values = {DIRECT[k]: v for k, v in question_values(alone).items() if k in DIRECT}
    debates: list[Transcript] = []
    if not isinstance(form, Direct):
        debates = recipe.rollout.play(
            [
                form.start(q, seed=_seed(recipe, name, q, -1), same_answer=partial(same_answer, q))
                for q in questions
            ],
            engine,
        )
        found = question_values(debates)
        values |= {DEBATE[k]: found[k] for k in DEBATE if k in found}
    measures = {
        key: Measure(*bootstrap_interval(list(by_question.values())), len(by_question))
        for key, by_question in values.items()
    }
    return Measures(measures, debates)


def direct_form(form: SpeakingSettings) -> Direct:
    """Return the form in which one agent answers once, prompted as in this form."""
    shared = {name: getattr(form, name) for name in SpeakingSettings.model_fields}
    return Direct(**shared)


def _seed(recipe: "Recipe", name: str, question: Question, copy: int) -> int:
    return zlib.crc32(f"{recipe.seed}/{name}/{question.id}/{copy}".encode())
