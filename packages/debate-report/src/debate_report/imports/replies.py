"""Readers of training rollouts: TRL, verl, ms-swift, SkyRL, NeMo RL, ART, and plain rows."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from debate_protocol.command_line import UsageError
from debate_protocol.types import Message, Transcript
from debate_report.imports.rollout import (
    ImportedReply,
    ReadSettings,
    file_verdict,
    transcript_of,
    verdict_of,
)
from debate_report.imports.values import (
    LARGEST_NUMBER,
    Record,
    as_int,
    first_of_one,
    golds,
    logprob_gap,
    mapping,
    number,
    numbers,
    read_messages,
    template_messages,
    text_of,
    without_markers,
)

# Sampled tokens of a reply, and the version of the weights that sampled it.
TOKEN_COUNT_KEYS = ("completion_tokens", "num_tokens", "response_length", "completion_length")
VERSION_KEYS = ("policy_version", "weight_version", "param_version", "model_version", "version")
# Lists with an entry for each sampled token.
TOKEN_ID_KEYS = ("completion_ids", "response_ids", "token_ids")
SAMPLER_LOGPROB_KEYS = ("inference_logprobs", "rollout_log_probs", "sampling_logprobs", "logprobs")
TRAINER_LOGPROB_KEYS = ("trainer_logprobs", "old_log_probs", "old_logprobs", "old_per_token_logps")
# Numbers of a row that are no scores.
COUNTERS = frozenset(
    {
        *("step", "idx", "id", "example_id", "ok", "advantage", "num_turns"),
        *TOKEN_COUNT_KEYS,
        *VERSION_KEYS,
    }
)
PROMPT_KEYS = ("prompt", "question", "problem")
REPLY_KEYS = ("completion", "response", "output", "reply", "answer_text", "generation")
REWARD_KEYS = ("reward", "score")


def transcripts(rollouts: Iterable[ImportedReply], settings: ReadSettings) -> Iterator[Transcript]:
    """Yield rollouts as transcripts, numbered in order."""
    for row_number, rollout in enumerate(rollouts):
        yield transcript_of(rollout, settings, row_number)


class ReplyRows:
    """Rows with a prompt and a reply each, as TRL writes them, and plain rows.

    TRL's completion files have a column for each reward function and no total, and one batch for
    each log, so most of a training is not in them.
    """

    name = "TRL, or plain rows"
    shape = "prompt (or question) and completion (or response), with reward"

    def fits(self, row: Record) -> bool:
        """Whether a row has a prompt and a reply."""
        return _has(row, PROMPT_KEYS) and _has(row, REPLY_KEYS)

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each row's last reply."""
        for index, row in enumerate(rows):
            where = f"{settings.path}, row {index + 1}"
            yield transcript_of(self._rollout(row, settings, where), settings, index)

    def _rollout(self, row: Record, settings: ReadSettings, where: str) -> ImportedReply:
        prompt_key = _first(row, PROMPT_KEYS)
        reply_key = _first(row, REPLY_KEYS)
        if prompt_key is None or reply_key is None:
            columns = ", ".join(sorted(map(str, row))[:8]) or "nothing"
            raise UsageError(f"{where}: found {columns}; expected {self.shape}")
        prompt = read_messages(row[prompt_key], "user", f"{where}: {prompt_key}")
        reply, between, num_replies = _last_reply(row[reply_key], f"{where}: {reply_key}")
        scores = numbers({**mapping(row.get("metrics")), **row})
        rewards = {name: value for name, value in scores.items() if name not in COUNTERS}
        reward = _reward_of(scores)
        is_right, verdict_by = file_verdict(rewards, reward)
        tokens, advantages = _token_advantages(row)
        prime_rl = mapping(mapping(row.get("info")).get("prime_rl"))
        return ImportedReply(
            prompt=prompt,
            between=between,
            reply=reply,
            golds=settings.golds(row, "answer", "solution", where=where),
            task=str(row.get("task") or row.get("env_name") or ""),
            question_id=_id_of(row),
            step=as_int(row.get("step", prime_rl.get("step"))),
            reward=reward,
            is_right=is_right,
            verdict_by=verdict_by,
            numbers=rewards,
            advantage=number(row.get("advantage", prime_rl.get("advantage"))),
            tokens=tokens,
            advantages=advantages,
            num_tokens=_num_tokens(row),
            version=_first_number(row, VERSION_KEYS),
            logprob_gap=logprob_gap(
                _first_value(row, TRAINER_LOGPROB_KEYS), _first_value(row, SAMPLER_LOGPROB_KEYS)
            ),
            is_cut=row.get("finish_reason") == "length" or row.get("truncated") is True,
            error=text_of(row.get("error")),
            num_replies=num_replies,
        )


class Verl:
    """`rollout_data_dir` and `validation_data_dir` of verl (0.9.1).

    The prompt has role words and no markers. A reward function with a dict replaces
    `score` by its own, so the trained reward is `reward` where a row has one. Several outputs of
    one session each carry its whole reward: the last is its reply.
    """

    name = "verl"
    shape = "input, output and score"

    def fits(self, row: Record) -> bool:
        """Whether a row has verl's columns."""
        return {"input", "output", "score"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield the last reply of each session."""
        sessions: dict[object, list[tuple[int, Record]]] = {}
        for index, row in enumerate(rows):
            id_parts = _id_parts(row)
            session = tuple(id_parts[:2]) if id_parts else index
            sessions.setdefault(session, []).append((index, row))
        rollouts = (self._rollout(session, settings) for session in sessions.values())
        return transcripts(rollouts, settings)

    def _rollout(
        self, session: Sequence[tuple[int, Record]], settings: ReadSettings
    ) -> ImportedReply:
        index, row = session[-1]
        where = f"{settings.path}, row {index + 1}"
        scores = numbers({key: value for key, value in row.items() if key != "step"})
        reward = scores.get("reward", scores.get("score"))
        is_right, verdict_by = file_verdict(scores, reward)
        id_parts = _id_parts(row)
        return ImportedReply(
            prompt=template_messages(text_of(row.get("input"))),
            reply=text_of(row.get("output")),
            golds=settings.golds(row, "gts", where=where),
            group=id_parts[0] if id_parts else "",
            step=as_int(row.get("step")),
            reward=reward,
            is_right=is_right,
            verdict_by=verdict_by,
            numbers=scores,
            num_replies=len(session),
        )


def _id_parts(row: Record) -> list[str]:
    """Split verl's `PROMPT_SESSION_OUTPUT`; empty for an id of another form."""
    uid = row.get("uid")
    parts_of_id = uid.rsplit("_", 2) if isinstance(uid, str) else []
    return parts_of_id if len(parts_of_id) == 3 else []


class MsSwift:
    """`completions.jsonl` of ms-swift (4.6.0): each line is a log, an object of columns.

    Reward functions have columns of their own names, unweighted; there is no total. A log without
    a new generation repeats the completions of the line before under the next step.
    """

    name = "ms-swift"
    shape = "prompt, completion and advantages, all lists"

    def fits(self, row: Record) -> bool:
        """Whether a row is a table of columns."""
        columns = (row.get(name) for name in ("prompt", "completion", "advantages"))
        return all(isinstance(column, list) for column in columns) and not any(
            isinstance(item, Mapping) for item in cast(list[object], row["prompt"])
        )

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield the replies of all logs, repeated replies once."""
        return transcripts(self._rollouts(rows, settings), settings)

    def _rollouts(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[ImportedReply]:
        last_log: object = None
        for line, table in enumerate(rows):
            where = f"{settings.path}, row {line + 1}"
            log = (table.get("completion"), table.get("advantages"))
            if log == last_log:
                continue
            last_log = log
            for row in _rows_of_table(table, where):
                scores = numbers({k: v for k, v in row.items() if k not in {"advantages", "step"}})
                is_right, verdict_by = file_verdict(scores, None)
                yield ImportedReply(
                    prompt=template_messages(text_of(row.get("prompt"))),
                    reply=without_markers(text_of(row.get("completion"))),
                    golds=settings.golds(row, "solution", "answer", where=where),
                    step=as_int(row.get("step")),
                    is_right=is_right,
                    verdict_by=verdict_by,
                    numbers=scores,
                    advantage=number(row.get("advantages")),
                )


class SkyRl:
    """`dumped_evals/global_step_N_evals/SOURCE.jsonl` of SkyRL (0.3.0), with a score a token."""

    name = "SkyRL"
    shape = "input_prompt, output_response and score"

    def fits(self, row: Record) -> bool:
        """Whether a row has SkyRL's columns."""
        return {"input_prompt", "output_response"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each row's reply; the step is in the folder's name."""
        folder_step = re.search(r"global_step_(\d+)_", str(settings.path.resolve().parent))
        step = int(folder_step[1]) if folder_step else None
        rollouts = (self._rollout(row, step) for row in rows)
        return transcripts(rollouts, settings)

    def _rollout(self, row: Record, step: int | None) -> ImportedReply:
        score = row.get("score")
        if isinstance(score, list):
            # A score a token: their sum is the reply's.
            token_scores = _known_numbers(score)
            reward = sum(token_scores) if token_scores else None
        else:
            reward = number(score)
        reward_model = mapping(mapping(row.get("env_extras")).get("reward_model"))
        return ImportedReply(
            prompt=template_messages(text_of(row.get("input_prompt"))),
            reply=without_markers(text_of(row.get("output_response"))),
            golds=golds(reward_model.get("ground_truth")),
            task=str(row.get("data_source") or ""),
            step=step,
            reward=reward,
            is_right=verdict_of(reward),
            verdict_by="score",
            num_tokens=len(score) if isinstance(score, list) else None,
            is_cut=row.get("stop_reason") == "length",
        )


class NemoRl:
    """`train_data_stepN.jsonl` and `val_data_stepN.jsonl` of NeMo RL (0.6): lists of one value."""

    name = "NeMo RL"
    shape = "content and rewards, lists of one"

    def fits(self, row: Record) -> bool:
        """Whether a row has NeMo RL's columns."""
        return {"content", "rewards"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each row's reply; the step is in the file's name."""
        name_step = re.search(r"step(\d+)", settings.path.stem)
        step = int(name_step[1]) if name_step else None
        return transcripts((self._rollout(row, step) for row in rows), settings)

    def _rollout(self, row: Record, step: int | None) -> ImportedReply:
        content = first_of_one(row.get("content"))
        texts = []
        for message in content if isinstance(content, list) else ():
            message_text = message.get("content") if isinstance(message, Mapping) else message
            texts.append(text_of(message_text))
        reward = number(first_of_one(row.get("rewards")))
        mask = first_of_one(row.get("token_loss_mask"))
        return ImportedReply(
            prompt=template_messages(texts[0] if texts else ""),
            reply=without_markers(texts[-1]) if len(texts) > 1 else None,
            step=step,
            reward=reward,
            is_right=verdict_of(reward),
            verdict_by="rewards",
            advantage=_masked_mean(row),
            num_tokens=sum(map(bool, mask)) if isinstance(mask, list) else None,
            logprob_gap=logprob_gap(
                first_of_one(row.get("prev_logprobs")),
                first_of_one(row.get("generation_logprobs")),
                mask,
            ),
        )


class Art:
    """`trajectories/SPLIT/STEP.parquet` of OpenPipe ART (0.5.18); failed rollouts have no row."""

    name = "ART"
    shape = "group_index, messages and reward"

    def fits(self, row: Record) -> bool:
        """Whether a row has ART's columns."""
        return {"group_index", "messages", "reward"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each trajectory's last reply; the step is the file's name."""
        return transcripts((self._rollout(row, settings) for row in rows), settings)

    def _rollout(self, row: Record, settings: ReadSettings) -> ImportedReply:
        messages = read_messages(row.get("messages"), "user", str(settings.path))
        num_asked = num_before_replies(messages)
        reply, between, num_replies = _split_at_last_reply(messages[num_asked:])
        scores = numbers(_parsed(row.get("metrics")))
        reward = number(row.get("reward"))
        is_right, verdict_by = file_verdict(scores, reward)
        return ImportedReply(
            prompt=messages[:num_asked],
            between=between,
            reply=reply,
            group=str(row.get("group_index")),
            step=as_int(settings.path.stem.lstrip("0") or "0"),
            reward=reward,
            is_right=is_right,
            verdict_by=verdict_by,
            numbers=scores,
            num_replies=num_replies,
        )


def _parsed(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _has(row: Record, keys: Sequence[str]) -> bool:
    return any(key in row for key in keys)


def _first(row: Record, keys: Sequence[str]) -> str | None:
    return next((key for key in keys if key in row), None)


def _first_value(row: Record, keys: Sequence[str]) -> object:
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _first_number(row: Record, keys: Sequence[str]) -> int | None:
    return as_int(_first_value(row, keys))


def _num_tokens(row: Record) -> int | None:
    """Read the number of sampled tokens: a count, else the length of their list."""
    count = _first_number(row, TOKEN_COUNT_KEYS)
    token_ids = _first_value(row, TOKEN_ID_KEYS)
    if count is None and isinstance(token_ids, list):
        return len(token_ids)
    return count


def _id_of(row: Record) -> str:
    values = (row.get(key) for key in ("example_id", "id", "idx"))
    return next((str(value) for value in values if isinstance(value, str | int)), "")


def _reward_of(scores: Mapping[str, float]) -> float | None:
    """Find the row's named total; else the only reward function's value."""
    for name in REWARD_KEYS:
        if name in scores:
            return scores[name]
    functions = [value for name, value in scores.items() if name.endswith("_reward")]
    return functions[0] if len(functions) == 1 else None


def _token_advantages(row: Record) -> tuple[list[str], list[float]]:
    tokens = row.get("tokens")
    advantages = row.get("advantages")
    if not isinstance(tokens, list) or not isinstance(advantages, list):
        return [], []
    texts = [token for token in tokens if isinstance(token, str)]
    values = _known_numbers(advantages)
    # A list with gaps would shift advantages to other tokens.
    is_complete = len(texts) == len(tokens) == len(values) == len(advantages)
    return (texts, values) if is_complete else ([], [])


def _last_reply(completion: object, where: str) -> tuple[str | None, list[Message], int]:
    if completion is None:
        return None, [], 0
    messages = read_messages(completion, "assistant", where)
    return _split_at_last_reply(messages)


def num_before_replies(messages: Sequence[Message]) -> int:
    """Count the messages before the first reply."""
    replies = (i for i, message in enumerate(messages) if message["role"] == "assistant")
    return next(replies, len(messages))


def _split_at_last_reply(messages: Sequence[Message]) -> tuple[str | None, list[Message], int]:
    """Split into the last reply, all messages before it, and the number of replies."""
    replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not replies:
        return None, list(messages), 0
    last = replies[-1]
    return messages[last]["content"], list(messages[:last]), len(replies)


def _rows_of_table(table: Record, where: str) -> list[dict[str, object]]:
    columns = {name: values for name, values in table.items() if isinstance(values, list)}
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        raise UsageError(f"{where}: found columns of {sorted(lengths)} values; expected as many")
    return [
        {name: values[index] for name, values in columns.items()} for index in range(lengths.pop())
    ]


def _masked_mean(row: Record) -> float | None:
    """Average the advantages of sampled tokens; prompt and padding have none to count."""
    mask = first_of_one(row.get("token_loss_mask"))
    advantages = first_of_one(row.get("advantages"))
    if not isinstance(mask, list) or not isinstance(advantages, list):
        return None
    masked = zip(advantages, mask, strict=False)
    sampled = _known_numbers([advantage for advantage, is_sampled in masked if is_sampled])
    return sum(sampled) / len(sampled) if sampled else None


def _known_numbers(values: Sequence[object]) -> list[float]:
    # Lists have a number for each token: plain numbers need no further check.
    known_numbers = [
        value if type(value) is float and abs(value) <= LARGEST_NUMBER else number(value)
        for value in values
    ]
    return [value for value in known_numbers if value is not None]
