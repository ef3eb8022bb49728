"""From messages to prompt ids, by a tokenizer's chat template, and from sampled ids to text."""

import codecs
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import chain, product
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from debate_protocol.types import Finish, Message, Reply, Role, TurnRequest
from debate_rollout.engine import EngineConfigError, Request

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


__all__ = ["Rendered", "Renderer", "TokenText", "token_text"]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

PLAIN_TEMPLATE = (
    "{% for message in messages %}### {{ message.role }}\n{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}### assistant{{ '\n' }}{% endif %}"
)
"""Used when a tokenizer has no chat template: a `### role` line, then the content."""

_LONG = 512
"""Shorter texts, in characters, are encoded whole."""
_CUTS = (re.compile(r"(?<=\n\n)(?=\S)"), re.compile(r"(?<=\n)(?=\n\S)"))
"""Where texts may be cut: after a blank line, or before its last newline, as GPT-2 splits them."""
# Ends, gaps and starts of paragraphs to test a cut with, of each kind that tokenizers distinguish.
_GAPS = ("\n\n", "\n\n\n", " \n\n", "\r\n\n")
_ENDS = (*"aA7.)>}é中🙂\t—", "", "</turn>", "x = 1;", "'s")
_STARTS = (*"aA7.#é中🙂—(", "The", "123", "/*", "/>", "<turn", "\\boxed", "'s", "_x")

_MARK = "debatemark"
_REPLY = _MARK + "reply"
_ROLE_MARKS = re.compile(r"\[/?[A-Z][A-Z_]*\]|<[^<>\s]+>|^#+ \w+", re.MULTILINE)
"""Role marks of templates in ordinary characters, such as `[INST]` and `### user`."""
_ANCHORS = ("a", "\n")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_CACHED_PARAGRAPHS = 1 << 16


@dataclass(frozen=True, slots=True)
class TokenText:
    """Decoded token ids.

    `starts[k]` is the index in `text` of the character that holds the first byte of token k.
    A special token has no text: it starts where the next token does, or at the end of the text.
    """

    text: str
    starts: tuple[int, ...]


def token_text(tokenizer: "PreTrainedTokenizerFast", ids: Sequence[int]) -> TokenText:
    """Decode ids to text and token starts, in time linear in the number of tokens.

    Byte-level and sentencepiece-style tokenizers are decoded through the bytes of each token, so
    that a character split across tokens keeps its place; bytes that are not UTF-8 become
    replacement characters. Other tokenizers are refused.

    Args:
        tokenizer: A Hugging Face tokenizer.
        ids: Sampled ids; ids outside the vocabulary have no text.

    Returns:
        The text, special tokens left out, and one start a token.
    """
    pieces = piece_bytes(tokenizer)
    decoded = _decode_bytes([pieces[i] for i in ids])
    if not pieces.strips_first_space or not decoded.text.startswith(" "):
        return decoded
    # The first token starts at 0 with the space and without it.
    starts = [max(0, start - 1) for start in decoded.starts]
    return TokenText(decoded.text[1:], tuple(starts))


class PieceBytes:
    """The bytes of each token of a vocabulary, decoded on first use; special tokens have none."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", kind: str, strips_first_space: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._decode = _byte_level_piece if kind == "byte_level" else _sentencepiece_piece
        self._bytes_by_token = dict.fromkeys(special_ids(tokenizer), b"")
        self.strips_first_space = strips_first_space

    def __getitem__(self, token: int) -> bytes:
        token_bytes = self._bytes_by_token.get(token)
        if token_bytes is None:
            piece = self._tokenizer.convert_ids_to_tokens(token)
            token_bytes = b"" if piece is None else self._decode(piece)
            self._bytes_by_token[token] = token_bytes
        return token_bytes


_PIECES: WeakKeyDictionary[object, PieceBytes] = WeakKeyDictionary()


def piece_bytes(tokenizer: "PreTrainedTokenizerFast") -> PieceBytes:
    """Open the bytes of a tokenizer's tokens.

    Raises:
        EngineConfigError: The tokenizer is neither byte-level BPE nor sentencepiece.
    """
    if tokenizer not in _PIECES:
        _PIECES[tokenizer] = _read_decoder(tokenizer)
    return _PIECES[tokenizer]


def special_ids(tokenizer: "PreTrainedTokenizerFast") -> frozenset[int]:
    """List the ids of special tokens, which have no text."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    added_special_ids = {token_id for token_id, token in added.items() if token.special}
    return frozenset(tokenizer.all_special_ids) | added_special_ids


def _read_decoder(tokenizer: "PreTrainedTokenizerFast") -> PieceBytes:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    steps = [] if decoder is None else _steps(json.loads(decoder.__getstate__()))
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return PieceBytes(tokenizer, "byte_level", strips_first_space=False)
    if types == ["Metaspace"] and steps[0]["replacement"] == "▁":
        # The scheme puts a space before the first word, which decoding takes away again.
        strips = steps[0]["prepend_scheme"] != "never"
        return PieceBytes(tokenizer, "sentencepiece", strips)
    if "ByteFallback" in types and set(types) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        strips = any(step["type"] == "Strip" and step["start"] > 0 for step in steps)
        return PieceBytes(tokenizer, "sentencepiece", strips)
    raise EngineConfigError(
        f"tokenizer: found one that decodes by {' and '.join(types) or 'nothing'}; expected "
        "a fast tokenizer of byte-level BPE or sentencepiece, whose tokens have bytes"
    )


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


@cache
def _byte_of_character() -> dict[str, int]:
    """Build the byte-level BPE alphabet.

    Printable Latin-1 characters are their own bytes; the other bytes follow from character 256.

    Source: GPT-2 (Radford et al. 2019), byte-level BPE.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    unprintable = sorted(set(range(256)) - set(printable))
    for number, byte in enumerate(unprintable):
        alphabet[chr(256 + number)] = byte
    return alphabet


def _byte_level_piece(piece: str) -> bytes:
    alphabet = _byte_of_character()
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:  # an added token, spelled as plain text
        return piece.encode("utf-8", errors="replace")


def _sentencepiece_piece(piece: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace("▁", " ").encode("utf-8", errors="replace")


def _decode_bytes(pieces: Sequence[bytes]) -> TokenText:
    try:
        text = b"".join(pieces).decode()
    except UnicodeDecodeError:
        text, starts = _decode_broken(pieces)
    else:
        starts = []
        num_characters = 0
        for piece in pieces:
            num_begun, continues = _count_characters(piece)
            # A piece that continues a character starts where that character does.
            starts.append(num_characters - continues)
            num_characters += num_begun
    # A token without text starts where the next token does.
    next_start = len(text)
    for index in reversed(range(len(pieces))):
        if not pieces[index]:
            starts[index] = next_start
        next_start = starts[index]
    return TokenText(text, tuple(starts))


@lru_cache(maxsize=1 << 18)
def _count_characters(piece: bytes) -> tuple[int, bool]:
    """Count the characters that begin in a piece; say whether it continues an earlier one."""
    # 10xxxxxx is a continuation byte of UTF-8.
    num_begun = sum(byte & 0xC0 != 0x80 for byte in piece)
    continues = bool(piece) and piece[0] & 0xC0 == 0x80
    return num_begun, continues


def _decode_broken(pieces: Sequence[bytes]) -> tuple[str, list[int]]:
    """Decode tokens that are not all UTF-8, byte after byte, to text and token starts."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    parts: list[str] = []
    starts: list[int] = []
    length = 0
    for piece in pieces:
        start = length
        if piece and decoder.getstate()[0]:
            # The character before is open: does this byte go on with it, or begin another?
            first = decoder.decode(piece[:1])
            parts.append(first)
            length += len(first)
            still_open = decoder.getstate()[0]  # Two characters if it can only be a surrogate.
            start = length + len(still_open.decode("utf-8", errors="replace")) - 1
            piece = piece[1:]
        starts.append(start)
        text = decoder.decode(piece)
        parts.append(text)
        length += len(text)
    return "".join([*parts, decoder.decode(b"", final=True)]), starts


def plain_template(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Choose the template for a tokenizer without one."""
    if tokenizer.bos_token_id is None:
        return PLAIN_TEMPLATE
    # A model was never trained without a token that its tokenizer puts before each text. Texts of
    # chat templates are encoded without special tokens, so the template has to write it.
    begins_texts = tokenizer.encode("a")[:1] == [tokenizer.bos_token_id]
    return "{{ bos_token }}" + PLAIN_TEMPLATE if begins_texts else PLAIN_TEMPLATE


@dataclass(frozen=True, slots=True)
class Rendered:
    """Prompt ids; `extended` if they begin with an earlier prompt and its sampled reply."""

    prompt_ids: tuple[int, ...]
    extended: bool


class Renderer:
    """Makes prompt ids for any tokenizer; replies in extended prompts stay as sampled ids.

    Inside message contents, special tokens and the template's own role marks are broken up, so
    that no text of a debate can end a message or open another. System text goes into the first
    user message if the template has no system role, or moves it about. Neighbors of one role
    become one message if the template insists on alternating roles.

    Args:
        tokenizer: A Hugging Face tokenizer.
        template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.

    Raises:
        EngineConfigError: The chat template does not write texts.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", template_kwargs: Mapping[str, object] = {}
    ) -> None:
        self.tokenizer = tokenizer
        self._kwargs = dict(template_kwargs)
        if not getattr(tokenizer, "chat_template", None):
            self._kwargs.setdefault("chat_template", plain_template(tokenizer))
        self._special = special_ids(tokenizer)
        self._special_names = {str(tokenizer.convert_ids_to_tokens(i)) for i in self._special}
        # Templates of image models take lists of parts: of a text they write nothing, or fail.
        if not self._accepts(_placeholders("user")):
            raise EngineConfigError(
                "tokenizer: found a chat template that does not write the text of a user message; "
                "expected one of a text model"
            )
        self._has_system_role = self._keeps_system_role()
        self._merges_neighbors = not self._accepts(_placeholders("user", "user"))
        self._marks = self._mark_pattern()
        # Roles of conversations whose earlier text the template does not rewrite.
        self._stable_roles: set[tuple[tuple[str, ...], int]] = set()
        self.end_ids = self._find_end_ids()

    def render(self, turn_request: TurnRequest) -> Rendered:
        """Render the prompt of a turn request.

        Args:
            turn_request: With `previous` set, its prompt is the previous prompt, the sampled
                reply, and the template's text from the end of that reply on. Earlier turns stay
                as they were shown, even if the template would change them, such as an empty
                thinking block. A fresh prompt is rendered (`extended` False) if the template has
                no separable text after a reply, if the messages do not contain the previous reply
                as it was sampled, or if it has no ids.
        """
        messages = self._fit_roles(turn_request.messages)
        if turn_request.previous is not None and turn_request.previous.prompt_ids:
            extended = self._extend(messages, turn_request.previous)
            if extended is not None:
                return Rendered(extended, extended=True)
        text = self._template(self._plain_messages(messages), True)
        return Rendered(tuple(self.encode(text)), extended=False)

    def reply(
        self,
        request: Request,
        ids: Sequence[int],
        logps: Sequence[float],
        finish: Finish,
        version: int,
    ) -> Reply:
        """Decode sampled ids to a reply; `version` is the version of the weights."""
        decoded = token_text(self.tokenizer, ids)
        return Reply(
            text=decoded.text,
            starts=decoded.starts,
            finish=finish,
            prompt_ids=request.prompt_ids,
            token_ids=tuple(ids),
            logps=tuple(logps),
            temperature=request.sampling.temperature,
            weight_version=version,
        )

    def plain(self, text: str) -> str:
        """Break up special tokens and role marks in text.

        Each gets a space after its first character. Lone surrogates (tokenizers refuse them)
        become replacement characters.
        """
        text = _SURROGATE.sub("�", text)
        if self._marks is None:
            return text

        def break_up(match: re.Match[str]) -> str:
            first = match[1]
            # A special token of one character has nothing to be broken from.
            return " " if first in self._special_names else first + " "

        return self._marks.sub(break_up, text)

    def _plain_messages(self, messages: Sequence[Message]) -> list[Message]:
        plain_messages: list[Message] = []
        for message in messages:
            content = self.plain(message["content"])
            plain_messages.append({"role": message["role"], "content": content})
        return plain_messages

    def encode(self, text: str) -> list[int]:
        """Encode text, special token strings as special tokens.

        Long texts are encoded by paragraphs, each of them once: all readers of a reply get the
        same paragraphs.
        """
        if len(text) < _LONG or self._cut is None:
            return self._encode(text)
        return self._encode_paragraphs(self._cut.split(text))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _encode_paragraphs(self, paragraphs: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for paragraph in paragraphs:
            ids += self._encode_cached(paragraph)
        return ids

    @cached_property
    def _cut(self) -> re.Pattern[str] | None:
        """Find a cut into paragraphs without a change of their ids, `None` without any."""
        texts = [f"{end}{gap}{start}" for end, gap, start in product(_ENDS, _GAPS, _STARTS)]
        for cut in _CUTS:
            for text in texts:
                ids_by_paragraph = map(self._encode, cut.split(text))
                if [*chain.from_iterable(ids_by_paragraph)] != self._encode(text):
                    break  # this tokenizer merges across the cut
            else:
                return cut
        return None

    @cached_property
    def _encode_cached(self) -> Callable[[str], tuple[int, ...]]:
        return lru_cache(_MOST_CACHED_PARAGRAPHS)(lambda text: tuple(self._encode(text)))

    def _template(self, messages: Sequence[Message], generation_prompt: bool) -> str:
        text: str = self.tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=generation_prompt,
            **self._kwargs,
        )
        return text

    def _accepts(self, messages: Sequence[Message]) -> bool:
        """Check that the template takes these messages and writes all of their contents."""
        try:
            text = self._template(messages, False)
        except Exception:  # a template refuses a role by an error of its own choice
            return False
        return all(message["content"] in text for message in messages)

    def _keeps_system_role(self) -> bool:
        """Check that system text is written, and does not move as a conversation grows."""
        short = _placeholders("system", "user")
        long = _placeholders("system", "user", "assistant", "user")
        if not self._accepts(short) or not self._accepts(long):
            return False
        first_user_text = short[1]["content"]
        head_of_short = self._template(short, False).partition(first_user_text)[0]
        head_of_long = self._template(long, False).partition(first_user_text)[0]
        return head_of_short == head_of_long

    def _mark_pattern(self) -> re.Pattern[str] | None:
        """Build the pattern of special tokens and role marks; it matches their first character."""
        roles: tuple[Role, ...] = ("user", "assistant", "user")
        if self._has_system_role:
            roles = ("system", *roles)
        try:
            text = self._template(_placeholders(*roles), False)
            role_marks = set(_ROLE_MARKS.findall(text))
        except Exception:  # no template takes every conversation
            role_marks = set()
        names = (role_marks | self._special_names) - {""}
        if not names:
            return None
        # Zero-width: overlapping names are all found, and each gets its own break.
        return re.compile(f"(?={_prefix_pattern(names)})(.)", re.DOTALL)

    def _fit_roles(self, messages: Sequence[Message]) -> list[Message]:
        """Fit a conversation to the roles of the template, and to their order."""
        fitted: list[Message] = []
        follows_system_text = False
        for message in messages:
            is_folded = message["role"] == "system" and not self._has_system_role
            role: Role = "user" if is_folded else message["role"]
            content = message["content"]
            repeats_role = bool(fitted) and fitted[-1]["role"] == role
            if repeats_role and (follows_system_text or self._merges_neighbors):
                earlier = fitted.pop()
                content = f"{earlier['content']}\n\n{content}"
            fitted.append({"role": role, "content": content})
            follows_system_text = is_folded
        return fitted

    def _find_end_ids(self) -> tuple[int, ...]:
        """Find the ids that end a reply: the end token, and the template's end of a message."""
        end_ids = {self.tokenizer.eos_token_id} - {None}
        (next_message,) = _placeholders("user")
        text_between = self._after_reply(("user",), [next_message]) or ""
        text_between = text_between.partition(next_message["content"])[0]
        # The last reply goes first: gpt-oss ends it otherwise, and thoughts as earlier replies.
        for text in (self._after_last_reply(), text_between):
            closing_ids = [i for i in self.encode(text) if i in self._special]
            if closing_ids:
                # Further special tokens open the next message.
                end_ids.add(closing_ids[0])
                break
        return tuple(sorted(end_ids))

    def _after_last_reply(self) -> str:
        """Render the text from the end of a conversation's last reply on."""
        (question,) = _placeholders("user")
        reply: Message = {"role": "assistant", "content": _REPLY}
        try:
            return self._template([question, reply], False).partition(_REPLY)[2]
        except Exception:  # the template takes no conversation that ends in a reply
            return ""

    def all_end_ids(self, model: "PreTrainedModel") -> list[int]:
        """List the ids that end a reply, with the ids of the model's generation config."""
        end_ids = set(self.end_ids)
        # One id, a list of ids, or none, as the model's authors wrote it.
        declared = getattr(model.generation_config, "eos_token_id", None)
        if isinstance(declared, list):
            end_ids.update(token_id for token_id in declared if token_id is not None)
        elif declared is not None:
            end_ids.add(declared)
        return sorted(end_ids)

    def _extend(self, messages: Sequence[Message], previous: Reply) -> tuple[int, ...] | None:
        last_reply = -1
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                last_reply = index
        if last_reply < 0 or last_reply == len(messages) - 1:
            return None
        if messages[last_reply]["content"] != previous.text:
            return None
        roles_before = tuple(message["role"] for message in messages[:last_reply])
        new_messages = self._plain_messages(messages[last_reply + 1 :])
        text = self._after_reply(roles_before, new_messages)
        if text is None:
            return None
        ids = self._encode_on(text)
        last_id = previous.token_ids[-1] if previous.token_ids else None
        if last_id in self.end_ids:
            # The end token was sampled with the reply, so the template's is dropped.
            first_special = next((k for k, i in enumerate(ids) if i in self._special), None)
            if first_special is not None and ids[first_special] == last_id:
                ids = ids[first_special + 1 :]
        return (*previous.prompt_ids, *previous.token_ids, *ids)

    def _after_reply(
        self, roles_before: tuple[Role, ...], new_messages: Sequence[Message]
    ) -> str | None:
        """Render the text from the end of a reply on, `None` if the template rewrites the past.

        Placeholders replace the earlier messages, so that the time does not depend on them.
        """
        past = _placeholders(*roles_before)
        reply: Message = {"role": "assistant", "content": _REPLY}
        try:
            text = self._template([*past, reply, *new_messages], True)
            head, placeholder, text_after = text.partition(_REPLY)
            if not placeholder or not self._is_stable(past, len(new_messages), head):
                return None
        except Exception:  # the template refuses this order of roles
            return None
        return text_after

    def _is_stable(self, past: Sequence[Message], num_new: int, head: str) -> bool:
        """Check the text before a reply against the prompt of the reply."""
        key = (tuple(message["role"] for message in past), num_new)
        if key in self._stable_roles:
            return True
        # With and without a generation prompt: some templates begin a reply with other text.
        prompts = [self._template(past, True), self._template(past, False)]
        if not any(head.startswith(prompt) for prompt in prompts):
            return False  # Not remembered: a template may write a date, which changes.
        self._stable_roles.add(key)
        return True

    def _encode_on(self, text: str) -> list[int]:
        """Encode text that follows other text.

        Some tokenizers put a space before the first word. An anchor before the text takes it and
        is cut off again, unless it merged with the text.
        """
        if len(text) >= _LONG and self._cut is not None:
            first, *others = self._cut.split(text)
            if others:
                return [*self._encode_on(first), *self._encode_paragraphs(others)]
            text = first
        # A special token takes no space before it, and slow tokenizers have no offsets.
        begins_special = any(name and text.startswith(name) for name in self._special_names)
        has_offsets = getattr(self.tokenizer, "is_fast", False)
        if begins_special or not has_offsets:
            return self.encode(text)
        for anchor in _ANCHORS:
            encoding = self.tokenizer(
                anchor + text, add_special_tokens=False, return_offsets_mapping=True
            )
            spans = encoding["offset_mapping"]
            num_anchor_tokens = sum(start < len(anchor) for start, _ in spans)
            if all(end <= len(anchor) for _, end in spans[:num_anchor_tokens]):
                ids: list[int] = encoding["input_ids"][num_anchor_tokens:]
                return ids
        return self.encode(text)


def _prefix_pattern(names: Collection[str]) -> str:
    """Write the pattern of any of these names.

    By shared prefixes, as tokenizers have thousands of names, which a plain alternative would try
    one by one at each character.
    """
    # A name that is the beginning of others decides already.
    if "" in names:
        return ""
    rests_by_first: dict[str, list[str]] = {}
    for name in names:
        rests_by_first.setdefault(name[0], []).append(name[1:])
    branches = []
    for first, rests in sorted(rests_by_first.items()):
        branches.append(re.escape(first) + _prefix_pattern(rests))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _placeholders(*roles: Role) -> list[Message]:
    """Build a conversation of placeholders."""
    return [{"role": role, "content": f"{_MARK}{k}x"} for k, role in enumerate(roles)]
