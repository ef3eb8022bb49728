"""From messages to prompt ids, by a tokenizer's chat template, and from sampled ids to text."""

import codecs
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from debate_protocol.types import Finish, Message, Reply, Role, TurnRequest
from debate_rollout.engine import EngineConfigError, Request

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


__all__ = ["Rendered", "Renderer", "TokenText", "token_text"]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


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
    if pieces.strips_first_space and decoded.text.startswith(" "):
        return TokenText(decoded.text[1:], tuple(max(0, start - 1) for start in decoded.starts))
    return decoded


class PieceBytes:
    """The bytes of every token of a vocabulary, found on first use; special tokens have none."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", kind: str, strips_first_space: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._of_piece = _byte_level_piece if kind == "byte_level" else _sentencepiece_piece
        self._known = dict.fromkeys(special_ids(tokenizer), b"")
        self.strips_first_space = strips_first_space

    def __getitem__(self, token: int) -> bytes:
        known = self._known.get(token)
        if known is None:
            piece = self._tokenizer.convert_ids_to_tokens(token)
            known = b"" if piece is None else self._of_piece(piece)
            self._known[token] = known
        return known


_PIECES: WeakKeyDictionary[object, PieceBytes] = WeakKeyDictionary()


def piece_bytes(tokenizer: "PreTrainedTokenizerFast") -> PieceBytes:
    """Return the bytes of each token.

    Raises:
        EngineConfigError: The tokenizer spells tokens neither in bytes nor as sentencepiece does.
    """
    if tokenizer not in _PIECES:
        _PIECES[tokenizer] = _read_decoder(tokenizer)
    return _PIECES[tokenizer]


def special_ids(tokenizer: "PreTrainedTokenizerFast") -> frozenset[int]:
    """Return the ids that never show as text: declared special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}


def _read_decoder(tokenizer: "PreTrainedTokenizerFast") -> PieceBytes:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    steps = [] if decoder is None else _steps(json.loads(decoder.__getstate__()))
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return PieceBytes(tokenizer, "byte_level", False)
    if types == ["Metaspace"] and steps[0]["replacement"] == "▁":
        return PieceBytes(tokenizer, "sentencepiece", steps[0]["prepend_scheme"] != "never")
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
    """Return the byte-level BPE alphabet: printable Latin-1 stands for itself, the rest from 256.

    Source: GPT-2 (Radford et al. 2019), byte-level BPE.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + k): byte for k, byte in enumerate(others)
    }


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
        starts, length = [], 0
        for piece in pieces:
            begun, goes_on = _characters(piece)
            starts.append(length - goes_on)
            length += begun
    following = len(text)
    for k in reversed(range(len(pieces))):
        if not pieces[k]:
            starts[k] = following
        following = starts[k]
    return TokenText(text, tuple(starts))


@lru_cache(maxsize=1 << 18)
def _characters(piece: bytes) -> tuple[int, bool]:
    """Return how many characters begin in a piece, and whether it goes on with one."""
    begun = sum(byte & 0xC0 != 0x80 for byte in piece)
    return begun, bool(piece) and piece[0] & 0xC0 == 0x80


def _decode_broken(pieces: Sequence[bytes]) -> tuple[str, list[int]]:
    """Return the text and the starts of tokens that are not all UTF-8, byte after byte."""
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


PLAIN_TEMPLATE = (
    "{% for message in messages %}### {{ message.role }}\n{{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}### assistant{{ '\n' }}{% endif %}"
)
"""Used when a tokenizer has no chat template: a `### role` line, then the content."""

_LONG = 512
"""Characters below which a text is encoded whole."""
_CUTS = (re.compile(r"(?<=\n\n)(?=\S)"), re.compile(r"(?<=\n)(?=\n\S)"))
"""After a blank line, or before its last newline, which GPT-2's pattern parts from the others."""
_GAPS = ("\n\n", "\n\n\n", " \n\n", "\r\n\n")
_ENDS = (*"aA7.)>}é中🙂\t—", "", "</turn>", "x = 1;", "'s")
_STARTS = (*"aA7.#é中🙂—(", "The", "123", "/*", "/>", "<turn", "\\boxed", "'s", "_x")
"""What stands before, between and after paragraphs, of each kind that tokenizers treat apart."""

_MARK = "debatemark"
_REPLY = _MARK + "reply"
_ROLE_MARKS = re.compile(r"\[/?[A-Z][A-Z_]*\]|<[^<>\s]+>|^#+ \w+", re.MULTILINE)
"""What templates mark roles with in ordinary characters, such as `[INST]` and `### user`."""
_ANCHORS = ("a", "\n")
_SURROGATE = re.compile("[\ud800-\udfff]")


def plain_template(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Return the template for a tokenizer without one.

    A model whose tokenizer begins each text with a token was never trained without it. Texts of
    chat templates are encoded without special tokens, so the template has to write it.
    """
    if tokenizer.bos_token_id is None:
        return PLAIN_TEMPLATE
    begins_texts = tokenizer.encode("a")[:1] == [tokenizer.bos_token_id]
    return "{{ bos_token }}" + PLAIN_TEMPLATE if begins_texts else PLAIN_TEMPLATE


@dataclass(frozen=True, slots=True)
class Rendered:
    """Prompt ids; `extended` when they go on from an earlier prompt and its sampled reply."""

    prompt_ids: tuple[int, ...]
    extended: bool


class Renderer:
    """Makes prompt ids for any tokenizer; replies that are extended stay as sampled ids.

    Inside message contents, special tokens and the template's own role marks are broken up, so
    that nothing said in a debate can end a message or open another. System text goes into the
    first user message where the template has no system role, or moves it about. Neighbours of
    one role become one message where the template insists that roles alternate.

    Args:
        tokenizer: A Hugging Face tokenizer.
        template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.
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
        self._has_system_role = self._keeps_system_role()
        self._merges_neighbours = not self._keeps(_said("user", "user"))
        self._armed = self._armed_pattern()
        self._steady: set[tuple[tuple[str, ...], int]] = set()
        self.end_ids = self._find_end_ids()

    def render(self, turn_request: TurnRequest) -> Rendered:
        """Render the prompt of an ask.

        Args:
            ask: With `previous` set, its prompt is the previous prompt, the sampled reply, and
                the template's text from the end of that reply on. So what the template would
                change in earlier turns, such as an empty thinking block, stays as it was shown.
                A fresh prompt is rendered (`extended` False) where the template's text after a
                reply cannot be found, where the messages do not hold the previous reply as it was
                sampled, or where it has no ids.
        """
        messages = self._accepted(turn_request.messages)
        if turn_request.previous is not None and turn_request.previous.prompt_ids:
            extended = self._extend(messages, turn_request.previous)
            if extended is not None:
                return Rendered(extended, True)
        plain = [_with(message, self.plain(message["content"])) for message in messages]
        return Rendered(tuple(self.encode(self._template(plain, True))), False)

    def reply(
        self,
        request: Request,
        ids: Sequence[int],
        logps: Sequence[float],
        finish: Finish,
        version: int,
    ) -> Reply:
        """Return the reply of these sampled ids; `version` is that of the weights."""
        said = token_text(self.tokenizer, ids)
        return Reply(
            text=said.text,
            starts=said.starts,
            finish=finish,
            prompt_ids=request.prompt_ids,
            token_ids=tuple(ids),
            logps=tuple(logps),
            temperature=request.sampling.temperature,
            weight_version=version,
        )

    def plain(self, text: str) -> str:
        """Return text in which no special token or role mark can be read.

        Each gets a space after its first character. Lone surrogates, which no tokenizer takes,
        become replacement characters.
        """
        text = _SURROGATE.sub("�", text)
        if self._armed is None:
            return text
        return self._armed.sub(lambda m: " " if m[1] in self._special_names else m[1] + " ", text)

    def encode(self, text: str) -> list[int]:
        """Return the ids of text, special token strings read as such.

        Of paragraphs of a long text each is encoded once: all who read a reply read the same.
        """
        if len(text) < _LONG or self._cut is None:
            return self._encode(text)
        return [token for part in self._cut.split(text) for token in self._known(part)]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    @cached_property
    def _cut(self) -> re.Pattern[str] | None:
        """Where texts are cut into paragraphs that have the same ids apart, None if nowhere."""
        texts = [f"{end}{gap}{start}" for end in _ENDS for gap in _GAPS for start in _STARTS]
        for cut in _CUTS:
            if all([*chain(*map(self._encode, cut.split(t)))] == self._encode(t) for t in texts):
                return cut
        return None

    @cached_property
    def _known(self) -> Callable[[str], tuple[int, ...]]:
        """Encode a paragraph that may have been encoded before."""
        return lru_cache(maxsize=1 << 16)(lambda text: tuple(self._encode(text)))

    def _template(self, messages: Sequence[Message], generation_prompt: bool) -> str:
        text: str = self.tokenizer.apply_chat_template(
            list(messages),
            tokenize=False,
            add_generation_prompt=generation_prompt,
            **self._kwargs,
        )
        return text

    def _keeps(self, messages: Sequence[Message]) -> bool:
        """Return whether the template takes these messages, and writes all of their contents."""
        try:
            text = self._template(messages, False)
        except Exception:  # a template refuses a role by an error of its own choice
            return False
        return all(message["content"] in text for message in messages)

    def _keeps_system_role(self) -> bool:
        """Return whether system text is written, and stays where it is as a conversation grows."""
        short, long = _said("system", "user"), _said("system", "user", "assistant", "user")
        if not self._keeps(short) or not self._keeps(long):
            return False
        user = short[1]["content"]
        before = [self._template(messages, False).partition(user)[0] for messages in (short, long)]
        return before[0] == before[1]

    def _armed_pattern(self) -> re.Pattern[str] | None:
        roles = ("system", "user", "assistant", "user")
        conversation = _said(*(roles if self._has_system_role else roles[1:]))
        try:
            marks = set(_ROLE_MARKS.findall(self._template(conversation, False)))
        except Exception:  # no template takes every conversation
            marks = set()
        names = (marks | self._special_names) - {""}
        # Zero-width: overlapping names are all found, and each gets its own break.
        return re.compile(f"(?={_any_of(names)})(.)", re.DOTALL) if names else None

    def _accepted(self, messages: Sequence[Message]) -> list[Message]:
        """Return the conversation in the roles, and their order, that the template takes."""
        accepted: list[Message] = []
        joins = False
        for message in messages:
            folds = message["role"] == "system" and not self._has_system_role
            role: Role = "user" if folds else message["role"]
            if accepted and accepted[-1]["role"] == role and (joins or self._merges_neighbours):
                before = accepted.pop()["content"]
                message = _with(message, f"{before}\n\n{message['content']}")
            accepted.append({"role": role, "content": message["content"]})
            joins = folds
        return accepted

    def _find_end_ids(self) -> tuple[int, ...]:
        """Return the ids that end a reply: the end token, and what the template closes one with."""
        ends = {self.tokenizer.eos_token_id} - {None}
        (news,) = _said("user")
        text = self._after_reply(("user",), [news])
        if text is not None:
            closing = self.encode(text.partition(news["content"])[0])
            ends.update([i for i in closing if i in self._special][:1])
        return tuple(sorted(ends))

    def all_end_ids(self, model: "PreTrainedModel") -> list[int]:
        """Return the ids that end a reply, those that the model declares included."""
        declared = getattr(model.generation_config, "eos_token_id", None)
        ends = {*self.end_ids, *(declared if isinstance(declared, list) else [declared])}
        return sorted(i for i in ends if i is not None)

    def _extend(self, messages: Sequence[Message], previous: Reply) -> tuple[int, ...] | None:
        at = max((k for k, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
        news = [_with(m, self.plain(m["content"])) for m in messages[at + 1 :]]
        if at < 0 or not news or messages[at]["content"] != previous.text:
            return None
        text = self._after_reply(tuple(m["role"] for m in messages[:at]), news)
        if text is None:
            return None
        ids = self._encode_on(text)
        last = previous.token_ids[-1] if previous.token_ids else None
        if last in self.end_ids:
            # What closes the reply was sampled with it: not a second time.
            first = next((k for k, i in enumerate(ids) if i in self._special), None)
            if first is not None and ids[first] == last:
                ids = ids[first + 1 :]
        return (*previous.prompt_ids, *previous.token_ids, *ids)

    def _after_reply(self, before: tuple[Role, ...], news: Sequence[Message]) -> str | None:
        """Return the template's text from the end of a reply on, None if it rewrites the past.

        Placeholders stand for what was said before, so that the time does not depend on it.
        """
        past: list[Message] = _said(*before)
        reply: Message = {"role": "assistant", "content": _REPLY}
        try:
            text = self._template([*past, reply, *news], True)
            head, found, rest = text.partition(_REPLY)
            if not found or not self._stays(past, len(news), head):
                return None
        except Exception:  # the template refuses this order of roles
            return None
        return rest

    def _stays(self, past: Sequence[Message], news: int, head: str) -> bool:
        """Return whether the text before a reply is what it was when the reply was asked for."""
        key = (tuple(message["role"] for message in past), news)
        if key not in self._steady:
            earlier = [self._template(past, prompted) for prompted in (True, False)]
            if not any(head.startswith(text) for text in earlier):
                return False  # Not remembered: a template may write a date, which changes.
            self._steady.add(key)
        return True

    def _encode_on(self, text: str) -> list[int]:
        """Return the ids of text that follows other text.

        Some tokenizers put a space before what they take for the first word. An anchor stands
        first and is cut off again, unless it grew together with the text.
        """
        if len(text) >= _LONG and self._cut is not None:
            text, *rest = self._cut.split(text)
            if rest:
                return [*self._encode_on(text), *(i for part in rest for i in self._known(part))]
        begins_special = any(name and text.startswith(name) for name in self._special_names)
        knows_offsets = getattr(self.tokenizer, "is_fast", False)
        for anchor in _ANCHORS if knows_offsets and not begins_special else ():
            found = self.tokenizer(
                anchor + text, add_special_tokens=False, return_offsets_mapping=True
            )
            spans = found["offset_mapping"]
            held = sum(start < len(anchor) for start, _ in spans)
            if all(end <= len(anchor) for _, end in spans[:held]):
                ids: list[int] = found["input_ids"][held:]
                return ids
        return self.encode(text)


def _any_of(names: Collection[str]) -> str:
    """Return the pattern of where a name begins, by shared prefixes: tokenizers have thousands."""
    if "" in names:
        return ""
    by_first: dict[str, list[str]] = {}
    for name in names:
        by_first.setdefault(name[0], []).append(name[1:])
    parts = [re.escape(first) + _any_of(rest) for first, rest in sorted(by_first.items())]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _said(*roles: Role) -> list[Message]:
    """Return a conversation of placeholders."""
    return [{"role": role, "content": f"{_MARK}{k}x"} for k, role in enumerate(roles)]


def _with(message: Message, content: str) -> Message:
    return {"role": message["role"], "content": content}
