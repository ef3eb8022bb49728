"""From messages to prompt ids with a tokenizer's own chat template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from debate_protocol.types import Ask, Message, Reply
from debate_rollout.token_text import special_ids

PLAIN_TEMPLATE = (
    "{% for message in messages %}### {{ message.role }}\n{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}### assistant{{ '\n' }}{% endif %}"
)
"""Used when a tokenizer has no chat template: a `### role` line, then the content."""

_MARK = "debatemark"
_PAD = "  "


@dataclass(frozen=True, slots=True)
class Rendered:
    """Prompt ids; `extended` when they go on from an earlier prompt and its sampled reply."""

    prompt_ids: tuple[int, ...]
    extended: bool


@dataclass(frozen=True, slots=True)
class _Slot:
    """Template text before a news message, and which ends of its content the template trims."""

    before: str
    trims_left: bool
    trims_right: bool


@dataclass(frozen=True, slots=True)
class _Bridge:
    """Template text from the end of a reply to the next reply, without the news themselves."""

    closing: str
    slots: tuple[_Slot, ...]
    generation_prompt: str


class Renderer:
    """Makes prompt ids for any tokenizer; replies that are extended stay as sampled ids.

    Strings of special tokens inside message contents are broken up, so that nothing said in a
    debate can end a message or open another. System text goes into the first user message where
    the template knows no system role.

    Args:
        tokenizer: A Hugging Face tokenizer.
        template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.
    """

    def __init__(self, tokenizer: Any, template_kwargs: Mapping[str, Any] = {}) -> None:
        self.tokenizer = tokenizer
        self._kwargs = dict(template_kwargs)
        if not getattr(tokenizer, "chat_template", None):
            self._kwargs.setdefault("chat_template", PLAIN_TEMPLATE)
        names = sorted(
            {str(tokenizer.convert_ids_to_tokens(i)) for i in special_ids(tokenizer)},
            key=len,
            reverse=True,
        )
        pattern = "|".join(re.escape(name) for name in names if name)
        # Zero-width: overlapping names are all found, and each gets its own break.
        self._special = re.compile(f"(?=(?:{pattern}))(.)", re.DOTALL) if pattern else None
        self._special_names = names
        self._has_system_role = self._keeps_system_role()
        self._bridges: dict[tuple[tuple[str, ...], int], _Bridge | None] = {}
        self.end_ids = self._find_end_ids()

    def render(self, ask: Ask) -> Rendered:
        """Return the prompt of an ask.

        Args:
            ask: With `previous` set, its prompt is the previous prompt, the sampled reply, and
                the template's text from the end of that reply on. A fresh prompt is rendered
                (`extended` False) where the template rewrites earlier text, where the messages
                do not hold the previous reply as it was sampled, or where it has no ids.
        """
        if ask.previous is not None and ask.previous.prompt_ids:
            extended = self._extend(ask.messages, ask.previous)
            if extended is not None:
                return Rendered(extended, True)
        messages = [_with(m, self.plain(m["content"])) for m in self._fold_system(ask.messages)]
        return Rendered(tuple(self.encode(self._template(messages, True))), False)

    def plain(self, text: str) -> str:
        """Return text in which no special token can be read: a space after its first character."""
        if self._special is None:
            return text
        return self._special.sub(lambda m: " " if m[1] in self._special_names else m[1] + " ", text)

    def encode(self, text: str) -> list[int]:
        """Return the ids of text, special token strings read as such."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _template(self, messages: Sequence[Message], generation_prompt: bool) -> str:
        text: str = self.tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=generation_prompt,
            **self._kwargs,
        )
        return text

    def _keeps_system_role(self) -> bool:
        marks: list[Message] = [
            {"role": "system", "content": _MARK + "s"},
            {"role": "user", "content": _MARK + "u"},
        ]
        try:
            return _MARK + "s" in self._template(marks, True)
        except Exception:  # a template refuses a role by an error of its own choice
            return False

    def _fold_system(self, messages: Sequence[Message]) -> list[Message]:
        if self._has_system_role or not messages or messages[0]["role"] != "system":
            return list(messages)
        system, *rest = messages
        if rest and rest[0]["role"] == "user":
            return [_with(rest[0], f"{system['content']}\n\n{rest[0]['content']}"), *rest[1:]]
        return [{"role": "user", "content": system["content"]}, *rest]

    def _find_end_ids(self) -> tuple[int, ...]:
        """Return the ids that end a reply: the end token, and what the template closes one with."""
        ends = {self.tokenizer.eos_token_id} - {None}
        bridge = self._bridge(("user",), 1)
        if bridge is not None:
            special = special_ids(self.tokenizer)
            ends.update([i for i in self.encode(bridge.closing) if i in special][:1])
        return tuple(sorted(ends))

    def _extend(self, messages: Sequence[Message], previous: Reply) -> tuple[int, ...] | None:
        folded = self._fold_system(messages)
        at = max((k for k, m in enumerate(folded) if m["role"] == "assistant"), default=-1)
        news = folded[at + 1 :]
        if at < 0 or not news or folded[at]["content"] != previous.text:
            return None
        bridge = self._bridge(tuple(m["role"] for m in folded[:at]), len(news))
        if bridge is None or any(m["role"] != "user" for m in news):
            return None
        parts = [bridge.closing]
        for slot, message in zip(bridge.slots, news, strict=True):
            content = self.plain(message["content"])
            content = content.lstrip() if slot.trims_left else content
            parts += [slot.before, content.rstrip() if slot.trims_right else content]
        ids = self.encode("".join((*parts, bridge.generation_prompt)))
        last = previous.token_ids[-1] if previous.token_ids else None
        if (
            last in self.end_ids
            and str(self.tokenizer.convert_ids_to_tokens(last)) in bridge.closing
        ):
            ids = ids[ids.index(last) + 1 :]  # the end token was sampled: not a second time
        return (*previous.prompt_ids, *previous.token_ids, *ids)

    def _bridge(self, before: tuple[str, ...], news: int) -> _Bridge | None:
        key = (before, news)
        if key not in self._bridges:
            self._bridges[key] = self._make_bridge(before, news)
        return self._bridges[key]

    def _make_bridge(self, before: tuple[str, ...], news: int) -> _Bridge | None:
        """Read the bridge off a conversation of placeholders; None where it would be rewritten."""
        past: list[Any] = [{"role": r, "content": f"{_MARK}p{k}x"} for k, r in enumerate(before)]
        reply = f"{_MARK}reply"
        marks = [f"{_MARK}n{k}x" for k in range(news)]
        later: list[Any] = [{"role": "user", "content": _PAD + mark + _PAD} for mark in marks]
        try:
            earlier = self._template(past, False)
            text = self._template([*past, {"role": "assistant", "content": reply}, *later], True)
        except Exception:  # the template refuses this order of roles
            return None
        if not text.startswith(earlier) or text.count(reply) != 1:
            return None
        rest = text.partition(reply)[2]
        slots: list[_Slot] = []
        trims_right = False
        for mark in marks:
            head, found, rest = rest.partition(mark)
            if not found:
                return None
            trims_left, trims_right = not head.endswith(_PAD), not rest.startswith(_PAD)
            slots.append(_Slot(head if trims_left else head[: -len(_PAD)], trims_left, trims_right))
            rest = rest if trims_right else rest[len(_PAD) :]
        return _split_closing(slots, rest, self._special_names)


def _split_closing(slots: list[_Slot], generation_prompt: str, names: list[str]) -> _Bridge:
    """Part the text before the first news into what closes the reply and what opens the news."""
    head = slots[0].before
    ends = [(head.find(name), name) for name in names if name and name in head]
    at, name = min(ends, default=(0, ""), key=lambda found: found[0])
    cut = at + len(name)
    first = _Slot(head[cut:], slots[0].trims_left, slots[0].trims_right)
    return _Bridge(head[:cut], (first, *slots[1:]), generation_prompt)


def _with(message: Message, content: str) -> Message:
    return {"role": message["role"], "content": content}
