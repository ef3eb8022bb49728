"""Context windows, and the longest prompt of a debate, without loading weights."""

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from debate_protocol.forms import DebateForm
from debate_protocol.parsing import Contract, get_contract, neutralised
from debate_protocol.types import Message, Question, Reply, TurnRequest
from debate_train.models import ModelConfig
from debate_train.models.model_files import read_json, reading_model
from debate_train.recipe.scripted_debates import play_debate

# Fewer than English has with any common tokenizer, so that estimates are too long, not short.
CHARS_PER_TOKEN = 3
# For questions that are not read here; competition problems rarely have more.
ASSUMED_QUESTION_TOKENS = 512
# Characters of the note that marks a clipped field.
CLIP_MARK_CHARS = 24
# Private characters of Unicode: each replaces a text whose tokens are counted once.
REPLY_MARK = "\ue000"
QUESTION_MARK = "\ue001"
PASSAGE_MARK = "\ue002"
WINDOWS_OF_FAMILIES = (
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
    """Counts tokens of text, and tokens added by a chat template to each message and prompt."""

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
    """The longest prompt of a debate, with turn and share of the question."""

    prompt_tokens: int
    agent: int
    round: int
    question_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """Most tokens of prompt and reply (`None` if unknown here), and the source of this number."""

    tokens: int | None
    source: str


def token_counter(model: ModelConfig | None) -> TokenCounter:
    """Build a counter from the model's tokenizer on this disk; without it, a cautious estimate.

    Args:
        model: The model; `None` if only the engine knows it.
    """
    estimate = TokenCounter(
        count=lambda text: math.ceil(len(text) / CHARS_PER_TOKEN),
        per_message=16,
        per_prompt=32,
        how=f"estimated at {CHARS_PER_TOKEN} characters a token",
    )
    if model is None:
        return estimate
    if model.source is None:
        words = model.load_tokenizer()
        return TokenCounter(
            count=lambda text: len(words.encode(text, add_special_tokens=False)),
            per_message=2,
            per_prompt=1,
            how="counted",
        )
    file = Path(model.source) / "tokenizer.json"
    if not file.is_file():
        return estimate
    from tokenizers import Tokenizer

    with reading_model(model.source, "tokenizer"):
        tokenizer = Tokenizer.from_file(str(file))
    return replace(
        estimate,
        count=lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
        how="counted with its tokenizer",
    )


def context_window(model: ModelConfig) -> Window:
    """Find the model's window in the recipe, in the configuration, or by the family's name."""
    if model.context_window is not None:
        return Window(model.context_window, "model.context_window")
    file = Path(model.base) / "config.json"
    if file.is_file():
        config = read_json(file, "a model configuration")
        text_config = config.get("text_config") or config
        num_positions = None
        if isinstance(text_config, dict):
            num_positions = text_config.get("max_position_embeddings")
        return Window(num_positions if isinstance(num_positions, int) else None, str(file))
    for pattern, tokens in WINDOWS_OF_FAMILIES:
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
    """Play a debate of replies of `max_tokens` tokens, and find the longest prompt.

    Args:
        form: The debate.
        question: The longest question; `None` assumes `ASSUMED_QUESTION_TOKENS`.
        max_tokens: Most tokens of a reply.
        counter: Counts the text around the replies.
        agents: Agents with counted prompts; `None` for all.
    """
    contract = form.contract_rules()
    marked_question, tokens_by_mark = _mark_texts(question, contract, counter)
    # Other agents' replies are shown by sections, each clipped to some characters.
    shown_reply_tokens = max_tokens
    max_chars = form.speaking().max_chars_per_field
    if max_chars:
        contracts = form.contracts() or (contract,)
        num_sections = max(1, *(len(get_contract(name).sections) for name in contracts))
        shown_reply_tokens = min(max_tokens, num_sections * (max_chars + CLIP_MARK_CHARS))
    longest = Longest(0, 0, 0)
    count_text = lru_cache(maxsize=4096)(counter.count)

    def count_message(message: Message) -> int:
        is_own_reply = message["role"] == "assistant"
        reply_tokens = max_tokens if is_own_reply else shown_reply_tokens
        text = message["content"]
        num_tokens = counter.per_message
        for mark, mark_tokens in {REPLY_MARK: reply_tokens, **tokens_by_mark}.items():
            num_tokens += text.count(mark) * mark_tokens
            text = text.replace(mark, "")
        return num_tokens + count_text(text)

    def measure(request: TurnRequest) -> Reply:
        nonlocal longest
        num_tokens = counter.per_prompt + sum(count_message(m) for m in request.messages)
        is_counted = agents is None or request.agent in agents
        if is_counted and num_tokens > longest.prompt_tokens:
            question_tokens = sum(tokens_by_mark.values())
            longest = Longest(num_tokens, request.agent, request.round, question_tokens)
        turn_contract = request.contract or contract
        # One mark replaces all tokens of an answer, and answers differ by agent.
        answer = f"{REPLY_MARK} {request.agent}"
        sections = {}
        if not turn_contract.answers:
            # An agent may be shown all that a critic says about it.
            critiques = " ".join(f"Agent {i}: {REPLY_MARK}" for i in range(form.num_agents))
            sections = dict.fromkeys(turn_contract.sections[-1:], critiques)
        return Reply(turn_contract.reply(answer, sections))

    play_debate(form.start(marked_question, seed=0), measure)
    return longest


def _mark_texts(
    question: Question | None, contract: Contract, counter: TokenCounter
) -> tuple[Question, dict[str, int]]:
    """Replace each text of a question by a mark, and count the tokens of the replaced text.

    A long question is part of every prompt, and is counted only once.
    """
    if question is None:
        return Question("longest", QUESTION_MARK), {QUESTION_MARK: ASSUMED_QUESTION_TOKENS}
    tokens_by_mark = {QUESTION_MARK: counter.count(neutralised(question.text, contract))}
    meta = dict(question.meta)
    passage = meta.get("passage")
    if passage:
        tokens_by_mark[PASSAGE_MARK] = counter.count(neutralised(str(passage), contract))
        meta["passage"] = PASSAGE_MARK
    return replace(question, text=QUESTION_MARK, meta=meta), tokens_by_mark
