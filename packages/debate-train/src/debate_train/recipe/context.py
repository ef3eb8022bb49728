"""The longest context a recipe can reach, and what can be said of its data, before loading any."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from debate_protocol.forms import DebateForm
from debate_protocol.parsing import Contract, get_contract, neutralised
from debate_protocol.types import (
    DebateRun,
    Gate,
    Message,
    Question,
    Reply,
    Sent,
    Transcript,
    TurnRequest,
)
from debate_rewards.decisions import GateRule, divided
from debate_train.data import DataSettings, DataSource
from debate_train.data.source import keep_apart
from debate_train.errors import UsageError
from debate_train.models import ModelConfig
from debate_train.models.model_files import read_json, reading_model
from debate_train.playing import direct_form
from debate_train.recipe import Recipe

CHARS_PER_TOKEN = 3
"""Fewer than English has with any common tokenizer, so that estimates are too long, not short."""
ASSUMED_QUESTION_TOKENS = 512
"""For questions that are not read here; competition problems rarely have more."""
_CLIP_MARK = 24
_REPLY, _QUESTION, _PASSAGE = "\ue000", "\ue001", "\ue002"
_FAMILIES = (
    (r"smollm2", 8192),
    (r"Qwen/Qwen3-[\d.]+B-Base", 32768),
    (r"Qwen/Qwen3-[\d.]+B", 40960),
    (r"Qwen/Qwen2\.5-Math-[\d.]+B(-Instruct)?", 4096),
    (r"Qwen/Qwen2\.5-(0\.5|1\.5|3)B", 32768),
    (r"Qwen/Qwen2\.5-[\d.]+B-Instruct", 32768),
    (r"meta-llama/Llama-3\.[12]-[\d.]+B(-Instruct)?", 131072),
)


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts tokens of text, and what a chat template adds for each message and prompt."""

    count: Callable[[str], int]
    per_message: int
    per_prompt: int
    how: str

    @property
    def is_exact(self) -> bool:
        """Whether the text itself is counted, not estimated."""
        return self.how.startswith("counted")


@dataclass(frozen=True, slots=True)
class Longest:
    """The longest prompt of a debate, the turn that gets it, and the question's share in it."""

    prompt_tokens: int
    agent: int
    round: int
    question_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Most tokens of prompt and reply, None when it cannot be known here, and who says so."""

    tokens: int | None
    source: str


_ESTIMATE = TokenCounter(
    lambda text: math.ceil(len(text) / CHARS_PER_TOKEN),
    16,
    32,
    f"estimated at {CHARS_PER_TOKEN} characters a token",
)


def token_counter(model: ModelConfig | None) -> TokenCounter:
    """Return the model's own tokenizer where it is at hand, else a careful estimate.

    None is a model that only its engine knows.
    """
    if model is None:
        return _ESTIMATE
    if model.source is None:
        words = model.load_tokenizer()
        return TokenCounter(
            lambda text: len(words.encode(text, add_special_tokens=False)), 2, 1, "counted"
        )
    file = Path(model.source) / "tokenizer.json"
    if not file.is_file():
        return _ESTIMATE
    from tokenizers import Tokenizer

    with reading_model(model.source, "tokenizer"):
        tokenizer = Tokenizer.from_file(str(file))
    return replace(
        _ESTIMATE,
        count=lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
        how="counted with its tokenizer",
    )


def context_window(model: ModelConfig) -> Window:
    """Return the model's window from the recipe, its configuration, or the family's name."""
    if model.context_window is not None:
        return Window(model.context_window, "model.context_window")
    file = Path(model.base) / "config.json"
    if file.is_file():
        config = read_json(file, "a model configuration")
        part = config.get("text_config") or config
        found = part.get("max_position_embeddings") if isinstance(part, dict) else None
        return Window(found if isinstance(found, int) else None, str(file))
    for pattern, tokens in _FAMILIES:
        if re.fullmatch(pattern, model.name):
            return Window(tokens, "known of this family")
    return Window(None, "unknown here")


def longest_prompt(
    form: DebateForm,
    question: Question | None,
    max_tokens: int,
    counter: TokenCounter,
    agents: Collection[int] | None = None,
) -> Longest:
    """Hold a debate in which every reply has `max_tokens` tokens; return its longest prompt.

    A mark stands for all tokens of an answer, which differs by agent.

    Args:
        form: The debate.
        question: The longest question; None stands for one of `ASSUMED_QUESTION_TOKENS`.
        max_tokens: Most tokens of a reply.
        counter: Counts the text around the replies.
        agents: Whose prompts are looked at; None for all.
    """
    contract = form.contract_rules()
    # A long question stands in every prompt, and is counted once.
    question, sizes = _stand_in(question, contract, counter)
    clipped = form.speaking().max_chars_per_field
    most = max(len(get_contract(one).sections) for one in form.contracts() or (contract,))
    shown = min(max_tokens, max(1, most) * (clipped + _CLIP_MARK)) if clipped else max_tokens
    longest, count = Longest(0, 0, 0), lru_cache(maxsize=4096)(counter.count)

    def tokens(message: Message) -> int:
        text, total = message["content"], counter.per_message
        reply = max_tokens if message["role"] == "assistant" else shown
        for mark, size in {_REPLY: reply, **sizes}.items():
            total += text.count(mark) * size
            text = text.replace(mark, "")
        return count(text) + total

    def measured(request: TurnRequest) -> Reply:
        nonlocal longest
        found = counter.per_prompt + sum(map(tokens, request.messages))
        if found > longest.prompt_tokens and (agents is None or request.agent in agents):
            longest = Longest(found, request.agent, request.round, sum(sizes.values()))
        own, mark = request.contract or contract, f"{_REPLY} {request.agent}"
        # Of others' critiques an agent may be given all that one of them says.
        said = " ".join(f"Agent {one}: {_REPLY}" for one in range(form.num_agents))
        return Reply(own.reply(mark, {} if own.answers else dict.fromkeys(own.sections[-1:], said)))

    hold(form.start(question, seed=0), measured)
    return longest


def hold(
    run: DebateRun,
    script: Callable[[TurnRequest], Reply],
    at_gate: Callable[[Gate], None] | None = None,
) -> Transcript:
    """Hold one debate; gates go on, after `at_gate` was called with each."""
    sent: Sent | None = None
    while True:
        try:
            yielded = next(run) if sent is None else run.send(sent)
        except StopIteration as ended:
            transcript: Transcript = ended.value
            return transcript
        if isinstance(yielded, Gate) and at_gate is not None:
            at_gate(yielded)
        sent = "go_on" if isinstance(yielded, Gate) else [script(request) for request in yielded]


def _stand_in(
    question: Question | None, contract: Contract, counter: TokenCounter
) -> tuple[Question, dict[str, int]]:
    """Return a question of one mark for each of its texts, and how many tokens a mark is."""
    if question is None:
        return Question("longest", _QUESTION), {_QUESTION: ASSUMED_QUESTION_TOKENS}
    sizes = {_QUESTION: counter.count(neutralised(question.text, contract))}
    meta = dict(question.meta)
    if passage := meta.get("passage"):
        sizes[_PASSAGE] = counter.count(neutralised(str(passage), contract))
        meta["passage"] = _PASSAGE
    return replace(question, text=_QUESTION, meta=meta), sizes


class Part(NamedTuple):
    """The turns of debates up to a gate, or from one to the next.

    Attributes:
        debates: Debates that come so far.
        turns: Of each.
        trained: Those of the turns that are trained on.
    """

    debates: int
    turns: int
    trained: int


class StepCounts(NamedTuple):
    """What some questions make; `direct` replies are among the turns and samples.

    Attributes:
        drawn_turns: The turns with those of all questions that over-sampling may draw.
        parts: Of the debates of the first form.
    """

    debates: int
    direct: int
    turns: int
    samples: int
    drawn_turns: int
    parts: tuple[Part, ...]


def step_counts(recipe: Recipe, questions: int) -> StepCounts:
    """Return what so many questions make at most, debated in the forms of the recipe in turn.

    A rule of `rollout.select` that lets some debates go on alone is counted as it decides.
    """
    rollout, forms = recipe.rollout, recipe.forms
    shares = [
        len(range(n, questions, len(forms))) * rollout.debates_per_question
        for n in range(len(forms))
    ]
    direct = questions * rollout.direct_per_question
    played = [_parts(*pair, rollout.select) for pair in zip(forms, shares, strict=True)]
    turns = direct + sum(part.debates * part.turns for parts in played for part in parts)
    first = direct + sum(parts[0].debates * parts[0].turns for parts in played)
    drawn = turns + (rollout.oversample - 1) * first
    if rollout.oversample > 1 and rollout.select and divided(rollout.select)[1] is None:
        drawn += turns - first  # Those of the last batch that are too many go on, too.
    samples = sum(map(_samples, forms, played))
    return StepCounts(
        debates=sum(shares),
        direct=direct,
        turns=turns,
        samples=samples + direct * direct_form(recipe.debate).sequence_count(),
        drawn_turns=drawn,
        parts=played[0],
    )


def _parts(form: DebateForm, debates: int, rule: GateRule | None) -> tuple[Part, ...]:
    """Return the parts of so many debates; without a rule nothing divides them."""
    if rule is None:
        return (Part(debates, form.turn_count(), form.turn_count()),)
    trained, found = form.trained_agents(), [Part(debates, 0, 0)]

    def counted(request: TurnRequest) -> Reply:
        part = found[-1]
        found[-1] = Part(part.debates, part.turns + 1, part.trained + (request.agent in trained))
        return Reply((request.contract or form.contract_rules()).reply(f"{_REPLY} {request.agent}"))

    def divide(gate: Gate) -> None:
        found.append(Part(rule.most_going_on(found[-1].debates, gate.name), 0, 0))

    hold(form.start(Question("count", "?"), seed=0), counted, divide)
    # A question without an answer has no turns beside its debate: they come last.
    said = sum(part.turns for part in found[:-1])
    found[-1] = found[-1]._replace(turns=form.turn_count() - said)
    return tuple(part for part in found if part.turns)


def _samples(form: DebateForm, parts: tuple[Part, ...]) -> int:
    """Return the sequences that are trained on, at most one for each turn of a debate."""
    total, trained, most = 0, 0, form.sequence_count()
    ends = [*(part.debates for part in parts[1:]), 0]
    for part, going_on in zip(parts, ends, strict=True):
        trained += part.trained
        total += (part.debates - going_on) * min(most, trained)
    return total


_SHOWN = ("passage", "choices")
"""What prompts show of a question's meta."""


@dataclass(frozen=True, slots=True)
class DataView:
    """What was seen. `longest` and `source` are None where nothing was read."""

    lines: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    longest: Question | None = None
    source: DataSource | None = None

    def has_answers(self, data: DataSettings) -> bool:
        """Return whether any training question may have an answer."""
        return data.may_have_answers(self.source)


def look_at_data(data: DataSettings, *, trains: bool = True) -> DataView:
    """Read local text files; name what is on a hub or in parquet, and leave it alone.

    Args:
        data: Where questions come from.
        trains: Whether there have to be questions to train on.
    """
    try:
        if unread := data.unread():
            taken = f"questions are taken to have at most {ASSUMED_QUESTION_TOKENS} tokens"
            return DataView((f"{unread}; {taken}",))
        source = data.open()
        if trains:
            source.batch(0)
    except UsageError as error:
        return DataView(errors=(str(error),))
    longest = max(
        data.checked_questions(source),
        key=lambda one: len(one.text) + sum(len(str(one.meta.get(key, ""))) for key in _SHOWN),
    )
    lines = (data.summary(source), *source.notes)
    return DataView(lines, (), longest, source)


def overlap_lines(views: Mapping[str, DataView], stages: Mapping[str, DataSettings]) -> list[str]:
    """Say what stages are not trained on, as another one is measured on it.

    Args:
        views: What was seen of each stage's data.
        stages: That data, by the same names.

    Raises:
        DataError: There are such questions, and `overlap` refuses them.
    """
    opened = {name: view.source for name, view in views.items() if view.source is not None}
    found = [
        keep_apart(own, [one for other, one in opened.items() if other != name], stages[name])
        for name, own in opened.items()
    ]
    return [said for said in found if said]


def many(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural where it needs one."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"
