"""The longest prompt that a debate can reach."""

from typing import Any

import pytest

from debate_protocol.forms import Conl, Direct, Judged, Sequential, Simultaneous
from debate_protocol.types import Question
from debate_train.recipe import windows
from debate_train.recipe.check import check
from debate_train.recipe.context import Longest, TokenCounter, longest_prompt
from train.small_recipes import FILE, recipe_of

COUNTS_REPLIES_ONLY = TokenCounter(lambda text: 0, 0, 0, "counted")
QUESTION = Question("q", "1 + 1 = ?", "2")


@pytest.mark.parametrize(
    ("form", "num_replies"),
    [
        # Last prompt of 4 agents in 3 rounds: own 2 replies and 3 peers x 2 rounds.
        (Simultaneous(num_agents=4, max_rounds=3), 2 + 3 * 2),
        (Simultaneous(num_agents=4, max_rounds=3, conversation="rebuild"), 2 + 3 * 2),
        # Only news of the last round in each ask, but an appended dialogue keeps them all.
        (Simultaneous(num_agents=4, max_rounds=3, history_rounds=1), 2 + 3 * 2),
        # Rebuilt: own 2 replies and 3 peers in the last round.
        (Simultaneous(num_agents=4, max_rounds=3, history_rounds=1, conversation="rebuild"), 5),
        # The last agent of a sequence also sees 3 peers of its own round.
        (Sequential(num_agents=4, max_rounds=3, contract="five_section"), 2 + 3 * 2 + 3),
        (Simultaneous(num_agents=4, max_rounds=3, stop_when_agreed=True), 2 + 3 * 2),
        # A revision reads 4 first solutions, and all that 3 critics say of its agent.
        (Conl(num_agents=4), 4 + 3),
        # The judge reads two answers and a critique.
        (Judged(opponent="critic", max_rounds=4), 3),
        (Direct(contract="boxed"), 0),
    ],
)
def test_longest_prompt_counts_every_reply_in_sight(form: Any, num_replies: int) -> None:
    longest = longest_prompt(form, QUESTION, 1000, COUNTS_REPLIES_ONLY)
    assert longest.prompt_tokens == num_replies * 1000


def test_longest_prompt_keeps_own_replies_uncut_when_fields_are_clipped() -> None:
    form = Simultaneous(num_agents=3, max_rounds=2, max_chars_per_field=26)
    # Own reply 1,000; of each of 2 peers at most 3 sections x (26 + 24) characters = 150.
    longest = longest_prompt(form, QUESTION, 1000, COUNTS_REPLIES_ONLY)
    assert longest.prompt_tokens == 1000 + 2 * 150


def test_longest_prompt_assumes_512_tokens_for_a_question_that_is_not_read() -> None:
    form = Simultaneous(num_agents=2, max_rounds=1)
    assert longest_prompt(form, None, 1000, COUNTS_REPLIES_ONLY).prompt_tokens == 512


def test_longest_prompt_counts_a_long_question_and_passage_once() -> None:
    counted_texts: list[str] = []

    def count(text: str) -> int:
        counted_texts.append(text)
        return len(text)

    question = Question("q", "x" * 100_000, "2", {"passage": "y" * 50_000})
    form = Simultaneous(num_agents=5, max_rounds=3, conversation="rebuild")
    longest = longest_prompt(form, question, 10, TokenCounter(count, 0, 0, "counted"))
    assert longest.question_tokens == 150_000
    assert 150_000 < longest.prompt_tokens < 175_000  # both once; the rest are instructions
    assert sum(len(text) >= 50_000 for text in counted_texts) == 2


def test_equal_forms_of_phases_and_evaluations_are_played_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = []

    def play(form: Any, *arguments: Any) -> Longest:
        played.append(form)
        return longest_prompt(form, *arguments)

    monkeypatch.setattr(windows, "longest_prompt", play)
    forms = "rollout.other_forms=[{type: direct}, {type: direct}]"
    overrides = f"'{forms}' 'phases={{first: {{}}, second: {{}}}}'"
    lines = check(recipe_of(FILE, overrides)).lines
    # A line of the debate and of direct replies in each phase; evaluations have no other forms.
    assert sum("context: at most" in line for line in lines) >= 4
    assert len(played) == len({repr(form) for form in played})
