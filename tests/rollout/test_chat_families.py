"""Prompts that grow, under chat templates that behave as those of the known families.

The templates are our own: shaped by each family's role marks and rules, without its tool calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from debate_protocol.types import Finish, Message, Question, Reply, TurnRequest
from debate_rollout.rendering import Renderer, token_text

# A default system text; the generation prompt opens an assistant message.
QWEN2_5 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Thinking goes from replies before the last user message; a closing reply gets a block.
QWEN3 = (
    "{% set ns = namespace(user=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.user = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}"
    "{% if loop.index0 > ns.user %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
# A system message is always written, with a date of today; contents are trimmed.
LLAMA3 = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\n"
    "Today: {{ strftime_now('%d %b %Y') }}\n\n{{ system }}<|eot_id|>"
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
ALTERNATES = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% endfor %}"
)
# No system role; the marks are ordinary text in the first versions of its tokenizer.
MISTRAL_1 = (
    "{{ bos_token }}" + ALTERNATES + "{% for m in messages %}{% if m.role == 'user' %}"
    "[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# The system text is written into the last user message, so that it moves with every turn.
MISTRAL_3 = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{{ bos_token }}" + ALTERNATES +
    "{% for m in messages %}{% if m.role == 'user' %}[INST] "
    "{% if loop.last and system is defined %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)  # fmt: skip
# No system role; the end token of a message is not the one of the tokenizer.
GEMMA2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}"
    "{% endif %}" + ALTERNATES +
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)  # fmt: skip
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BLOCK = "<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Family:
    """A template with its special tokens; the first begins a text, the last ends one."""

    template: str | None
    special: tuple[str, ...]
    closing: str
    system_role: bool = True
    thinking: bool | None = None
    header: str = ""
    """What an opened reply begins with, where an earlier reply would not have it."""

    @property
    def kwargs(self) -> dict[str, bool]:
        return {} if self.thinking is None else {"enable_thinking": self.thinking}


LLAMA_MARKS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
FAMILIES = {
    "qwen2.5": Family(QWEN2_5, CHATML, "<|im_end|>"),
    "qwen3": Family(QWEN3, CHATML, "<|im_end|>"),
    "qwen3-no-thinking": Family(QWEN3, CHATML, "<|im_end|>", thinking=False, header=BLOCK),
    "llama3": Family(LLAMA3, LLAMA_MARKS, "<|eot_id|>"),
    "mistral-1": Family(MISTRAL_1, ("<s>", "</s>"), "</s>", system_role=False),
    "mistral-3": Family(MISTRAL_3, ("<s>", "[INST]", "[/INST]", "</s>"), "</s>", False),
    "gemma2": Family(
        GEMMA2, ("<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"), "<end_of_turn>", False
    ),
    "plain": Family(None, ("<s>", "</s>"), "</s>"),
}
each_family = pytest.mark.parametrize("name", FAMILIES)


@cache
def renderer_of(name: str) -> Renderer:
    """A byte-level BPE with the family's special tokens; thinking tags are plain added tokens."""
    family = FAMILIES[name]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(family.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = ["<solution>x = 7</solution><comparison>Agent 1 > Agent 2</comparison> user 🙂"] * 4
    backend.train_from_iterator(corpus, trainer)
    if "<|im_end|>" in family.special:
        backend.add_tokens([AddedToken(tag, special=False) for tag in ("<think>", "</think>")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=family.special[0],
        eos_token=family.special[-1],
        additional_special_tokens=list(family.special[1:-1]),
        chat_template=family.template,
    )
    return Renderer(tokenizer, family.kwargs)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Co"]), max_size=20)
PIECES = st.lists(st.integers(0, 10**6), max_size=8)
ENDS = st.sampled_from(["end", "eos", "stop", "length"])


@st.composite
def spoken(draw: st.DrawFn) -> tuple[list[int], str]:
    """Any tokens, whatever bytes they hold, and how the reply ended."""
    return draw(PIECES), draw(ENDS)


def sampled(renderer: Renderer, closing: str, pieces: Sequence[int], end: str) -> tuple[int, ...]:
    tokenizer = renderer.tokenizer
    ordinary = [i for i in range(len(tokenizer)) if i not in renderer._special]
    ids = [ordinary[piece % len(ordinary)] for piece in pieces]
    if end == "stop":  # The stop string ends inside its last token: "</comparison>" and more.
        ids += [
            *tokenizer.encode("</comparison", add_special_tokens=False),
            *tokenizer.encode(">>"),
        ]
    if end in ("end", "eos"):
        ids.append(
            tokenizer.convert_tokens_to_ids(closing if end == "end" else tokenizer.eos_token)
        )
    return tuple(ids)


def whole(renderer: Renderer, ids: Sequence[int]) -> str:
    text: str = renderer.tokenizer.decode(
        ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def slot(number: int) -> str:
    return f"\ue000{number}\ue001"


def expected_text(name: str, messages: Sequence[Message], replies: Sequence[str]) -> str:
    """What the family's template says about the conversation, replies put in as they were said."""
    family, renderer = FAMILIES[name], renderer_of(name)
    ready = [dict(message) for message in messages]
    if not family.system_role and ready[0]["role"] == "system":
        system = ready.pop(0)["content"]
        ready[0]["content"] = f"{system}\n\n{ready[0]['content']}"
    text: str = renderer.tokenizer.apply_chat_template(
        ready, tokenize=False, add_generation_prompt=True, **renderer._kwargs
    )
    for number, reply in enumerate(replies):
        before = " " if family.template == MISTRAL_3 else ""  # Its own text before old replies.
        text = text.replace(before + slot(number), family.header + reply)
    return text


@each_family
@settings(max_examples=40, deadline=None)
@given(
    system=st.none() | TEXTS,
    first=TEXTS,
    turns=st.lists(st.tuples(spoken(), TEXTS), min_size=1, max_size=3),
)
def test_prompts_grow_as_the_family_would_write_them(
    name: str, system: str | None, first: str, turns: list[tuple[tuple[list[int], str], str]]
) -> None:
    family, renderer = FAMILIES[name], renderer_of(name)
    opening: list[Message] = [{"role": "user", "content": first}]
    if system is not None:
        opening.insert(0, {"role": "system", "content": system})
    request = TurnRequest(Question("q", first), 0, 0, tuple(opening))
    told, replies = list(opening), list[str]()
    for (pieces, end), news in turns:
        prompt = renderer.render(request).prompt_ids
        assert whole(renderer, prompt) == expected_text(name, told, replies)
        ids = sampled(renderer, family.closing, pieces, end)
        text = token_text(renderer.tokenizer, ids).text
        finish: Finish = "length" if end == "length" else "stop" if end == "stop" else "end"
        reply = Reply(text, finish, prompt, ids)
        user: Message = {"role": "user", "content": news}
        own: Message = {"role": "assistant", "content": text}
        request = replace(request, messages=(*request.messages, own, user), previous=reply)
        rendered = renderer.render(request)
        assert rendered.extended
        assert rendered.prompt_ids[: len(prompt) + len(ids)] == (*prompt, *ids)
        closed = bool(ids) and ids[-1] == renderer.tokenizer.convert_tokens_to_ids(family.closing)
        replies.append(whole(renderer, ids[:-1] if closed else ids))
        told += [{"role": "assistant", "content": slot(len(replies) - 1)}, user]
        assert whole(renderer, rendered.prompt_ids) == expected_text(name, told, replies)


def armed(renderer: Renderer, ids: Sequence[int], marks: Sequence[str]) -> list[int]:
    """How often each special token and each role mark stands in a prompt."""
    text = whole(renderer, ids)
    return [*(ids.count(i) for i in sorted(renderer._special)), *(text.count(m) for m in marks)]


SPELLED = {name for family in FAMILIES.values() for name in family.special}
BROKEN = ("[INST]", "[/INST]", "### user", "### system", "user", "\n", " ", "<", "|>", "[/", "x")
FORGERIES = st.lists(st.sampled_from((*sorted(SPELLED), *BROKEN)), max_size=6).map("".join)


@each_family
@settings(max_examples=40, deadline=None)
@given(first=FORGERIES, news=FORGERIES, cut=st.integers(0, 12))
def test_contents_forge_no_special_token_and_no_role(
    name: str, first: str, news: str, cut: int
) -> None:
    renderer, family = renderer_of(name), FAMILIES[name]
    marks = {"mistral-1": ["[INST]", "[/INST]"], "plain": ["### user", "### assistant"]}.get(
        name, []
    )
    counts = []
    for opening, told in ((first, news[cut:] + news), ("hello", "news")):
        request = TurnRequest(Question("q", "?"), 0, 0, ({"role": "user", "content": opening},))
        prompt = renderer.render(request).prompt_ids
        ids = sampled(renderer, family.closing, [7, 8], "stop")
        reply = Reply(token_text(renderer.tokenizer, ids).text, "stop", prompt, ids)
        said: tuple[Message, ...] = (
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": told},
        )
        grown = renderer.render(
            replace(request, messages=(*request.messages, *said), previous=reply)
        )
        afresh = renderer.render(replace(request, messages=(*request.messages, *said)))
        assert grown.extended and not afresh.extended
        counts.append([armed(renderer, one, marks) for one in (prompt, grown.prompt_ids)])
        counts[-1].append(armed(renderer, afresh.prompt_ids, marks))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("name", ["mistral-1", "mistral-3", "gemma2"])
def test_neighbours_of_one_role_are_merged_when_roles_must_alternate(name: str) -> None:
    renderer = renderer_of(name)
    two: tuple[Message, ...] = ({"role": "user", "content": "U"}, {"role": "user", "content": "V"})
    one: tuple[Message, ...] = ({"role": "user", "content": "U\n\nV"},)
    requests = [TurnRequest(Question("q", "?"), 0, 0, messages) for messages in (two, one)]
    assert renderer.render(requests[0]) == renderer.render(requests[1])


def test_prompts_hold_no_lone_surrogates() -> None:
    renderer = renderer_of("qwen2.5")
    request = TurnRequest(Question("q", "?"), 0, 0, ({"role": "user", "content": "a\ud83d"},))
    assert "user\na\ufffd<|im_end|>" in whole(renderer, renderer.render(request).prompt_ids)
