"""Readers of token ids with a number each: prime-rl's token exports and groups of Atropos."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from statistics import fmean

from debate_protocol.command_line import UsageError
from debate_protocol.types import Message, Transcript
from debate_report.imports.replies import num_before_replies, transcripts
from debate_report.imports.rollout import (
    ImportedReply,
    NoRepliesError,
    ReadSettings,
    verdict_of,
)
from debate_report.imports.token_texts import TokenTexts, ids_as_texts, open_tokenizer
from debate_report.imports.values import (
    END_MARKERS,
    Record,
    as_int,
    logprob_gap,
    number,
    read_messages,
    template_messages,
)

IDS_CAVEAT = "The file has token ids and no text: --tokenizer FILE decodes them."
# Atropos' mask of a token that was not sampled.
NOT_SAMPLED = -100
# Measures of the trainer with a number for each token; only sampled ones count.
EXPORTED_MEASURES = ("entropy", "mismatch_kl", "importance_ratio", "is_masked")


class TokenExports:
    """`token_exports/step_N/rank_R.jsonl` of prime-rl: a sequence a line, as its trainer saw it.

    The file has neither question nor group: sequences with one prompt are a group. Versions since
    September 2026 have the reward, the same for each token.
    """

    name = "prime-rl's token export"
    shape = "token_ids, loss_mask and export_sequence_idx"

    def fits(self, row: Record) -> bool:
        """Whether a row has its columns."""
        return {"token_ids", "loss_mask", "export_sequence_idx"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield the text of each sequence from its first sampled token on."""
        token_texts = _token_texts(settings, self.name)
        rollouts = []
        for index, row in enumerate(rows):
            where = f"{settings.path}, row {index + 1}"
            rollouts.append(self._rollout(row, token_texts, where, settings.tokenizer is None))
        return transcripts(rollouts, settings)

    def _rollout(
        self, row: Record, token_texts: TokenTexts, where: str, is_without_text: bool
    ) -> ImportedReply:
        token_ids = _ids(row.get("token_ids"), f"{where}: token_ids")
        mask = _column(row, "loss_mask", token_ids, where)
        is_sampled = [counts is True for counts in mask]
        prompt, texts, sampled = _parted(token_ids, is_sampled, token_texts)
        advantages = _numbers_of(row.get("advantages"), is_sampled)
        # Off the mask they compare with log-probabilities of 0, and say nothing.
        measures = {}
        for name in EXPORTED_MEASURES:
            values = _numbers_of(row.get(name), is_sampled)
            if values:
                measures[name] = fmean(values)
        rewards = _numbers_of(row.get("rewards"), is_sampled)
        reward = fmean(rewards) if rewards else None
        # A run's step may take several of the trainer: the run's own is `export_step`.
        step = row.get("step") if row.get("export_step") is None else row["export_step"]
        return ImportedReply(
            prompt=prompt,
            reply="".join(texts),
            task=str(row.get("env_name") or ""),
            step=as_int(step),
            reward=reward,
            is_right=verdict_of(reward),
            verdict_by="reward",
            numbers=measures,
            advantage=fmean(advantages) if advantages else None,
            tokens=texts,
            advantages=_spread_over(sampled, advantages),
            num_tokens=sum(sampled),
            logprob_gap=logprob_gap(
                row.get("trainer_logprobs"), row.get("inference_logprobs"), mask
            ),
            num_replies=sum(is_reply for is_reply, _ in groupby(sampled)),
            caveats=[IDS_CAVEAT] if is_without_text else [],
        )


class Atropos:
    """`data_path_to_save_groups` of Atropos (0.4): a group a line, ids with masks and scores.

    Groups whose scores are equal are not in the file. Environments may add messages; else they are
    one of the user, with prompt and reply.
    """

    name = "Atropos"
    shape = "tokens, masks and scores"
    caveat = "Groups with equal scores are not in the file, so its mean reward is not the policy's."

    def fits(self, row: Record) -> bool:
        """Whether a row has its columns."""
        return {"tokens", "masks", "scores"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield the replies of each group."""
        has_text = all(_has_items(row.get("messages")) for row in rows)
        token_texts = ids_as_texts if has_text else _token_texts(settings, self.name)
        if settings.tokenizer is not None:
            token_texts = open_tokenizer(settings.tokenizer)
        rollouts = []
        for index, row in enumerate(rows):
            where = f"{settings.path}, row {index + 1}"
            num_replies = len(_items(row, "tokens", where))
            for number_in_group in range(num_replies):
                rollouts.append(
                    self._rollout(row, number_in_group, index, token_texts, where, settings)
                )
        return transcripts(rollouts, settings)

    def _rollout(
        self,
        group: Record,
        number_in_group: int,
        group_number: int,
        token_texts: TokenTexts,
        where: str,
        settings: ReadSettings,
    ) -> ImportedReply:
        row = {}
        for name, values in group.items():
            if isinstance(values, list) and number_in_group < len(values):
                row[name] = values[number_in_group]
        token_ids = _ids(row.get("tokens"), f"{where}: tokens")
        mask = _column(row, "masks", token_ids, where)
        is_sampled = [token_mask != NOT_SAMPLED for token_mask in mask]
        prompt, texts, sampled = _parted(token_ids, is_sampled, token_texts)
        reply = "".join(texts)
        caveats = [self.caveat]
        if settings.tokenizer is None:
            messages = _messages(row.get("messages"), where)
            # Without markers of a template nothing separates prompt and reply in one text.
            num_asked = num_before_replies(messages)
            if num_asked < len(messages):
                prompt = messages[:num_asked]
                reply = messages[-1]["content"]
                texts = []  # ids are no text of these tokens
            else:
                caveats.append(IDS_CAVEAT)
        score = number(row.get("scores"))
        advantages = _numbers_of(row.get("advantages"), is_sampled)
        return ImportedReply(
            prompt=prompt,
            reply=reply,
            group=f"group {group_number}",
            reward=score,
            is_right=verdict_of(score),
            verdict_by="scores",
            advantage=fmean(advantages) if advantages else None,
            tokens=texts,
            advantages=_spread_over(sampled, advantages),
            num_tokens=sum(sampled),
            num_replies=sum(is_reply for is_reply, _ in groupby(sampled)),
            caveats=caveats,
        )


def _token_texts(settings: ReadSettings, name: str) -> TokenTexts:
    """Open the tokenizer; without one ids are their own texts where no text is needed.

    Raises:
        NoRepliesError: Text is needed.
    """
    if settings.tokenizer is not None:
        return open_tokenizer(settings.tokenizer)
    if not settings.allow_no_text:
        raise NoRepliesError(
            f"{settings.path}: found {name}, token ids without text; expected the tokenizer of its "
            "model beside it"
        )
    return ids_as_texts


def _parted(
    token_ids: Sequence[int], is_sampled: Sequence[bool], token_texts: TokenTexts
) -> tuple[list[Message], list[str], list[bool]]:
    """Part a sequence at its first sampled token.

    Returns:
        The prompt's messages; the text of each later token, none for markers at the end; and
        whether each later token was sampled.
    """
    start = is_sampled.index(True) if True in is_sampled else len(is_sampled)
    texts = token_texts(token_ids)
    reply_texts = texts[start:]
    # Their tokens stay, so that advantages keep their places.
    for position in range(len(reply_texts) - 1, -1, -1):
        if reply_texts[position] not in END_MARKERS:
            break
        reply_texts[position] = ""
    prompt_text = "".join(texts[:start])
    return template_messages(prompt_text), reply_texts, list(is_sampled[start:])


def _spread_over(sampled: Sequence[bool], advantages: Sequence[float]) -> list[float]:
    """Give each sampled token its advantage and others 0; empty where one is not known."""
    if not advantages or len(advantages) != sum(sampled):
        return []
    remaining = iter(advantages)
    return [next(remaining) if is_sampled else 0.0 for is_sampled in sampled]


def _numbers_of(column: object, is_sampled: Sequence[bool]) -> list[float]:
    """Read the numbers of sampled tokens; the others are fillers of the trainer."""
    if not isinstance(column, list) or len(column) != len(is_sampled):
        return []
    # One that is not finite is null in these files.
    values = [number(value) for value, counts in zip(column, is_sampled, strict=True) if counts]
    return [value for value in values if value is not None]


def _ids(value: object, where: str) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise UsageError(f"{where}: found {str(value)[:40]!r}; expected a list of token ids")
    if any(not 0 <= item < 2**31 for item in value):
        raise UsageError(f"{where}: found an id below 0 or above 2^31; expected token ids")
    return value


def _column(row: Record, name: str, token_ids: Sequence[int], where: str) -> list[object]:
    values = _items(row, name, where)
    if len(values) != len(token_ids):
        raise UsageError(
            f"{where}: {name}: found {len(values)} values; expected {len(token_ids)}, one a token"
        )
    return values


def _items(row: Record, name: str, where: str) -> list[object]:
    values = row.get(name)
    if not isinstance(values, list):
        raise UsageError(f"{where}: {name}: found {type(values).__name__}; expected a list")
    return values


def _has_items(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _messages(value: object, where: str) -> list[Message]:
    """Read messages; one of the user with a whole conversation is split by its template."""
    if not _has_items(value):
        return []
    messages = read_messages(value, "user", f"{where}: messages")
    return template_messages(messages[0]["content"]) if len(messages) == 1 else messages
