"""The longest context a recipe can reach, before anything is loaded."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from debate_protocol.forms import DebateForm
from debate_protocol.parsing.contract import Contract
from debate_protocol.parsing.tags import neutralised
from debate_protocol.types import Ask, Gate, Message, Question, Reply, Sent
from debate_train.models import ModelConfig
from debate_train.models.model_files import read_json, reading_model

CHARS_PER_TOKEN = 3
"""Fewer than English has with any common tokenizer, so that estimates are too long, not short."""
ASSUMED_QUESTION_TOKENS = 512
"""For questions that are not read here; competition problems rarely have more."""
_CLIP_MARK = 24
_REPLY, _QUESTION, _PASSAGE = "\ue000", "\ue001", "\ue002"
_FAMILIES = (
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
    if file.is_file():
        from tokenizers import Tokenizer

        with reading_model(model.source, "tokenizer"):
            tokenizer = Tokenizer.from_file(str(file))
        return TokenCounter(
            lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
            16,
            32,
            "counted with its tokenizer",
        )
    return _ESTIMATE


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

    Args:
        form: The debate.
        question: The longest question; None stands for one of `ASSUMED_QUESTION_TOKENS`.
        max_tokens: Most tokens of a reply.
        counter: Counts the text around the replies.
        agents: Whose prompts are looked at; None for all.
    """
    contract = form.contract_rules()
    # A long question stands in every prompt, and is counted once.
    question, inserted_tokens = _stand_in(question, contract, counter)
    longest = Longest(0, 0, 0)
    shown_tokens = _most_shown(form.speaking().max_chars_per_field, contract, max_tokens)
    count = lru_cache(maxsize=4096)(counter.count)

    def tokens(message: Message) -> int:
        content = message["content"]
        reply = max_tokens if message["role"] == "assistant" else shown_tokens
        inserted = content.count(_REPLY) * reply
        text = content.replace(_REPLY, "")
        for mark, size in inserted_tokens.items():
            inserted += content.count(mark) * size
            text = text.replace(mark, "")
        return count(text) + inserted + counter.per_message

    for asks in held(form, question):
        for ask in () if isinstance(asks, Gate) else asks:
            found = counter.per_prompt + sum(tokens(message) for message in ask.messages)
            if found > longest.prompt_tokens and (agents is None or ask.agent in agents):
                longest = Longest(found, ask.agent, ask.round, sum(inserted_tokens.values()))
    return longest


def held(form: DebateForm, question: Question) -> Iterator[Sequence[Ask] | Gate]:
    """Hold a debate whose replies are valid and differ by agent; yield its asks and gates."""
    run, contract = form.start(question, seed=0), form.contract_rules()
    sent: Sent | None = None
    while True:
        try:
            step = next(run) if sent is None else run.send(sent)
        except StopIteration:
            return
        yield step
        if isinstance(step, Gate):
            sent = "go_on"
        else:
            sent = [Reply(_longest_reply(contract, ask.agent)) for ask in step]


def _stand_in(
    question: Question | None, contract: Contract, counter: TokenCounter
) -> tuple[Question, dict[str, int]]:
    """Return a question of one mark for each of its texts, and how many tokens a mark is."""
    if question is None:
        return Question("longest", _QUESTION), {_QUESTION: ASSUMED_QUESTION_TOKENS}

    def tokens(text: str) -> int:
        return counter.count(neutralised(text, contract))

    sizes = {_QUESTION: tokens(question.text)}
    meta = dict(question.meta)
    if passage := meta.get("passage"):
        sizes[_PASSAGE] = tokens(str(passage))
        meta["passage"] = _PASSAGE
    return replace(question, text=_QUESTION, meta=meta), sizes


def _most_shown(max_chars: int | None, contract: Contract, max_tokens: int) -> int:
    """Return the most tokens that peers see of one reply."""
    if max_chars is None:
        return max_tokens
    return min(max_tokens, max(1, len(contract.sections)) * (max_chars + _CLIP_MARK))


def _longest_reply(contract: Contract, agent: int) -> str:
    """Return a valid reply whose answer stands for all its tokens; answers differ by agent."""
    answer = f"{_REPLY} {agent}"
    if contract.kind == "boxed":
        return f"\\boxed{{{answer}}}"
    if contract.kind == "answer_line":
        return f"Answer: {answer}"
    said = {contract.answer_section: answer, "comparison": "N/A", "consensus": "NO"}
    return "\n".join(f"<{name}>{said.get(name, 'x')}</{name}>" for name in contract.sections)
