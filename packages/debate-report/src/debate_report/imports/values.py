"""Values in other programs' rows: numbers, texts, messages and right answers."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast, get_args

from debate_protocol.command_line import UsageError
from debate_protocol.types import Message, Role

Record = Mapping[str, object]

# Beyond this, sums and differences overflow.
LARGEST_NUMBER = 1e300
# A message of a template: its role, a line end, the text, and the end marker.
TEMPLATE_MESSAGES = (
    # ChatML (Qwen, SmolLM2 and many others)
    re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL),
    # Llama 3
    re.compile(
        r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n(.*?)(?:<\|eot_id\|>|\Z)", re.DOTALL
    ),
    # Gemma, whose assistant is `model`
    re.compile(r"<start_of_turn>(\w+)\n(.*?)(?:<end_of_turn>|\Z)", re.DOTALL),
)
END_MARKERS = (
    *("<|im_end|>", "<|eot_id|>", "<end_of_turn>"),
    *("<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>"),
)
# What is left of a template whose markers were dropped as special tokens.
ROLE_LINE = re.compile(r"^(system|user|assistant|tool)$", re.MULTILINE)
# Objects that hold a right answer hold it under one of these.
GOLD_KEYS = ("ground_truth", "target", "answer", "gold", "solution", "value")


def number(value: object) -> float | None:
    """Read a number; `None`, NaN, infinity and everything else is not known."""
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST_NUMBER <= value <= LARGEST_NUMBER else None


def numbers(values: object) -> dict[str, float]:
    """Read the numbers of an object by name."""
    if not isinstance(values, Mapping):
        return {}
    known_numbers = {}
    for name, value in values.items():
        known_number = number(value)
        if known_number is not None:
            known_numbers[str(name)] = known_number
    return known_numbers


def as_int(value: object) -> int | None:
    """Read a whole number, also one that is written as a text."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value):
        return int(value)
    parsed_number = number(value)
    return None if parsed_number is None else int(parsed_number)


def logprob_gap(trained: object, sampled: object, mask: object = None) -> float | None:
    """Average |trainer − sampler| over the sampled tokens of two lists of log-probabilities.

    Tokens without a number, or outside the mask, do not count; `None` without any.
    """
    if not isinstance(trained, list) or not isinstance(sampled, list):
        return None
    is_sampled = mask if isinstance(mask, list) else [True] * len(sampled)
    if not len(trained) == len(sampled) == len(is_sampled):
        return None
    gaps = []
    for trained_value, sampled_value, counts in zip(trained, sampled, is_sampled, strict=True):
        trained_logprob = number(trained_value)
        sampled_logprob = number(sampled_value)
        if counts and trained_logprob is not None and sampled_logprob is not None:
            gaps.append(abs(trained_logprob - sampled_logprob))
    return sum(gaps) / len(gaps) if gaps else None


def mapping(value: object) -> Record:
    """Read an object, an empty one for any other value."""
    return value if isinstance(value, Mapping) else {}


def first_of_one(value: object) -> object:
    """Unwrap a list of a single value; any other value stays as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def golds(value: object) -> list[str]:
    """Read right answers: a text or number, a list of them, or an object with them."""
    if isinstance(value, Mapping):
        for key in GOLD_KEYS:
            # An object may hold an empty answer beside the right one.
            if value.get(key) not in (None, ""):
                return golds(value[key])
        return []
    if isinstance(value, list | tuple):
        right_answers = []
        for item in value:
            right_answers += golds(item)
        return right_answers
    # A bool is no answer but a verdict, though Python counts it as a whole number.
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return []
    if isinstance(value, float) and not math.isfinite(value):
        return []
    return [str(value)] if value != "" else []


def text_of(content: object) -> str:
    """Join the text of a message's content, which may come in parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def read_messages(value: object, role: Role, where: str) -> list[Message]:
    """Read messages; a text is one. Roles that a transcript does not have are the user's.

    Raises:
        UsageError: The value is neither.
    """
    if isinstance(value, str):
        return [Message(role=role, content=value)]
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise UsageError(f"{where}: found {type(value).__name__}; expected a text or messages")
    return [_message(item.get("role"), text_of(item.get("content"))) for item in value]


def template_messages(prompt: str) -> list[Message]:
    """Split a prompt that a chat template wrote into its messages.

    Templates are known by their markers, or by lines that are role words where these were dropped.
    A prompt without either is one message of the user.
    """
    # One template writes a prompt: the first with a match is the prompt's.
    marked = next(filter(None, (form.findall(prompt) for form in TEMPLATE_MESSAGES)), [])
    if marked:
        pairs: Sequence[tuple[str, str]] = marked
    elif re.match(r"(?:system|user)\n", prompt):
        pairs = list(_after_role_lines(prompt))
    else:
        return [Message(role="user", content=prompt)]
    messages = [_message(role, text.strip()) for role, text in pairs]
    # The template ends with the head of the reply.
    if messages and messages[-1]["role"] == "assistant" and not messages[-1]["content"]:
        messages.pop()
    return messages


def without_markers(reply: str) -> str:
    """Drop the markers at the end of a reply."""
    ends = [marker for marker in END_MARKERS if reply.endswith(marker)]
    return without_markers(reply.removesuffix(ends[0])) if ends else reply


def _after_role_lines(prompt: str) -> Iterator[tuple[str, str]]:
    heads = list(ROLE_LINE.finditer(prompt))
    ends = [head.start() for head in heads[1:]] + [len(prompt)]
    for head, end in zip(heads, ends, strict=True):
        yield head[1], prompt[head.end() : end]


def _message(role: object, content: str) -> Message:
    role = "assistant" if role == "model" else role
    known_role = cast(Role, role) if role in get_args(Role) else "user"
    return Message(role=known_role, content=content)
