"""Readers of training rollouts: TRL, verl, ms-swift, SkyRL, NeMo RL, ART, and plain rows."""

import contextlib
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
ID_KEYS = ("example_id", "id", "idx")
PROMPT_KEYS = ("prompt", "question", "problem")
REPLY_KEYS = ("completion", "response", "output", "reply", "answer_text", "generation")
REWARD_KEYS = ("reward", "score")
GOLD_KEYS = ("answer", "solution")


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
        has_prompt = any(key in row for key in PROMPT_KEYS)
        return has_prompt and any(key in row for key in REPLY_KEYS)

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each row's last reply."""
        for index, row in enumerate(rows):
            where = f"{settings.path}, row {index + 1}"
            yield transcript_of(self._rollout(row, settings, where), settings, index)

    def _rollout(self, row: Record, settings: ReadSettings, where: str) -> ImportedReply:
        prompt_key = next((key for key in PROMPT_KEYS if key in row), None)
        reply_key = next((key for key in REPLY_KEYS if key in row), None)
        if prompt_key is None or reply_key is None:
            columns = ", ".join(sorted(map(str, row))[:8]) or "nothing"
            raise UsageError(f"{where}: found {columns}; expected {self.shape}")
        prompt_value = row[prompt_key]
        if isinstance(prompt_value, str):
            prompt = template_messages(prompt_value)
        else:
            prompt = read_messages(prompt_value, "user", f"{where}: {prompt_key}")
        # Sampling failed where a row has the column and no reply in it.
        reply_messages: list[Message] = []
        if row[reply_key] is not None:
            reply_messages = read_messages(row[reply_key], "assistant", f"{where}: {reply_key}")
        reply, between, num_replies = _split_at_last_reply(reply_messages)

        if reply is not None:
            reply = without_markers(reply)

        gold_keys = GOLD_KEYS if settings.answer is None else (settings.answer,)
        # A column of the row counts before a metric of the same name.
        scores = numbers({**mapping(row.get("metrics")), **row})
        rewards = {
            name: value for name, value in scores.items() if name not in (*COUNTERS, *gold_keys)
        }
        reward = _reward_of(row, rewards, where)
        is_right, verdict_by = file_verdict(rewards, reward)

        num_tokens = as_int(_first_value(row, TOKEN_COUNT_KEYS))
        token_ids = _first_value(row, TOKEN_ID_KEYS)
        # A file may have the sampled ids and no count of them.
        if num_tokens is None and isinstance(token_ids, list):
            num_tokens = len(token_ids)
        tokens, advantages = _token_advantages(row)
        trainer_logprobs = _first_value(row, TRAINER_LOGPROB_KEYS)
        sampler_logprobs = _first_value(row, SAMPLER_LOGPROB_KEYS)

        ids = [row.get(key) for key in ID_KEYS]
        known_ids = [str(value) for value in ids if isinstance(value, str | int)]
        # prime-rl exports its rows flat, with its own numbers below `info`.
        prime_rl = mapping(mapping(row.get("info")).get("prime_rl"))
        return ImportedReply(
            prompt=prompt,
            between=between,
            reply=reply,
            golds=settings.golds(row, *gold_keys, where=where),
            task=str(row.get("task") or row.get("env_name") or ""),
            question_id=known_ids[0] if known_ids else "",
            step=as_int(row.get("step", prime_rl.get("step"))),
            reward=reward,
            is_right=is_right,
            verdict_by=verdict_by,
            numbers=rewards,
            advantage=number(row.get("advantage", prime_rl.get("advantage"))),
            tokens=tokens,
            advantages=advantages,
            num_tokens=num_tokens,
            version=as_int(_first_value(row, VERSION_KEYS)),
            logprob_gap=logprob_gap(trainer_logprobs, sampler_logprobs),
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
        sessions: dict[object, list[int]] = {}
        groups: dict[int, str] = {}
        for index, row in enumerate(rows):
            # An id is `PROMPT_SESSION_OUTPUT`; a row with an id of another form is by itself.
            uid = row.get("uid")
            parts_of_id = uid.rsplit("_", 2) if isinstance(uid, str) else []
            session: object = index
            if len(parts_of_id) == 3:
                groups[index] = parts_of_id[0]
                session = tuple(parts_of_id[:2])
            sessions.setdefault(session, []).append(index)

        for row_number, row_indices in enumerate(sessions.values()):
            index = row_indices[-1]
            row = rows[index]
            scores = numbers({key: value for key, value in row.items() if key != "step"})
            reward = scores.get("reward", scores.get("score"))
            is_right, verdict_by = file_verdict(scores, reward)
            where = f"{settings.path}, row {index + 1}"
            rollout = ImportedReply(
                prompt=template_messages(text_of(row.get("input"))),
                reply=text_of(row.get("output")),
                golds=settings.golds(row, "gts", where=where),
                group=groups.get(index, ""),
                step=as_int(row.get("step")),
                reward=reward,
                is_right=is_right,
                verdict_by=verdict_by,
                numbers=scores,
                num_replies=len(row_indices),
            )
            yield transcript_of(rollout, settings, row_number)


class MsSwift:
    """`completions.jsonl` of ms-swift (4.6.0): each line is a log, an object of columns.

    Reward functions have columns of their own names, unweighted; there is no total. A log without
    a new generation repeats the completions of the line before under the next step.
    """

    name = "ms-swift"
    shape = "prompt, completion and advantages, all lists"

    def fits(self, row: Record) -> bool:
        """Whether a row is a table of columns."""
        columns = [row.get(name) for name in ("prompt", "completion", "advantages")]
        if not all(isinstance(column, list) for column in columns):
            return False
        # A list of messages is the prompt of a single row.
        prompts = cast(list[object], row["prompt"])
        return not any(isinstance(prompt, Mapping) for prompt in prompts)

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield the replies of all logs, repeated replies once."""
        return transcripts(self._rollouts(rows, settings), settings)

    def _rollouts(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[ImportedReply]:
        last_log: object = None
        for line, table in enumerate(rows):
            where = f"{settings.path}, row {line + 1}"
            log = (table.get("completion"), table.get("advantages"))
            # The repeated log is no new generation: counting it would double its replies.
            if log == last_log:
                continue
            last_log = log
            for row in _rows_of_table(table, where):
                scores = numbers(row)
                # Neither is a reward, though both are numbers of the row.
                scores.pop("advantages", None)
                scores.pop("step", None)
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
        # A row does not say its step.
        folder_step = re.search(r"global_step_(\d+)_", str(settings.path.resolve().parent))
        step = int(folder_step[1]) if folder_step else None
        for row_number, row in enumerate(rows):
            score = row.get("score")
            num_tokens = None
            reward = number(score)
            if isinstance(score, list):
                # A score a token: their sum is the reply's.
                num_tokens = len(score)
                token_scores = _known_numbers(score)
                reward = sum(token_scores) if token_scores else None
            reward_model = mapping(mapping(row.get("env_extras")).get("reward_model"))
            rollout = ImportedReply(
                prompt=template_messages(text_of(row.get("input_prompt"))),
                reply=without_markers(text_of(row.get("output_response"))),
                golds=golds(reward_model.get("ground_truth")),
                task=str(row.get("data_source") or ""),
                step=step,
                reward=reward,
                is_right=verdict_of(reward),
                verdict_by="score",
                num_tokens=num_tokens,
                is_cut=row.get("stop_reason") == "length",
            )
            yield transcript_of(rollout, settings, row_number)


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
        for row_number, row in enumerate(rows):
            content = first_of_one(row.get("content"))
            texts = []
            for message in content if isinstance(content, list) else ():
                # The prompt comes first and the reply last, each as a message or as its text.
                message_text = message.get("content") if isinstance(message, Mapping) else message
                texts.append(text_of(message_text))

            # Tokens of the prompt and of the padding have a 0 in the mask, and nothing to count.
            num_tokens = None
            mean_advantage = None
            mask = first_of_one(row.get("token_loss_mask"))
            token_advantages = first_of_one(row.get("advantages"))
            if isinstance(mask, list):
                num_tokens = sum(map(bool, mask))
            if isinstance(mask, list) and isinstance(token_advantages, list):
                masked = zip(token_advantages, mask, strict=False)
                sampled = _known_numbers([value for value, is_sampled in masked if is_sampled])
                mean_advantage = sum(sampled) / len(sampled) if sampled else None
            trainer_logprobs = first_of_one(row.get("prev_logprobs"))
            sampler_logprobs = first_of_one(row.get("generation_logprobs"))

            reward = number(first_of_one(row.get("rewards")))
            rollout = ImportedReply(
                prompt=template_messages(texts[0] if texts else ""),
                reply=without_markers(texts[-1]) if len(texts) > 1 else None,
                step=step,
                reward=reward,
                is_right=verdict_of(reward),
                verdict_by="rewards",
                advantage=mean_advantage,
                num_tokens=num_tokens,
                logprob_gap=logprob_gap(trainer_logprobs, sampler_logprobs, mask),
            )
            yield transcript_of(rollout, settings, row_number)


class Art:
    """`trajectories/SPLIT/STEP.parquet` of OpenPipe ART (0.5.18); failed rollouts have no row."""

    name = "ART"
    shape = "group_index, messages and reward"

    def fits(self, row: Record) -> bool:
        """Whether a row has ART's columns."""
        return {"group_index", "messages", "reward"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each trajectory's last reply; the step is the file's name."""
        for row_number, row in enumerate(rows):
            messages = read_messages(row.get("messages"), "user", str(settings.path))
            num_before = num_before_replies(messages)
            reply, between, num_replies = _split_at_last_reply(messages[num_before:])

            # ART writes metrics as JSON in a text column.
            metrics: object = None
            metrics_text = row.get("metrics")
            if isinstance(metrics_text, str):
                with contextlib.suppress(ValueError, RecursionError):
                    metrics = json.loads(metrics_text)
            scores = numbers(metrics)
            reward = number(row.get("reward"))
            is_right, verdict_by = file_verdict(scores, reward)

            rollout = ImportedReply(
                prompt=messages[:num_before],
                between=between,
                reply=reply,
                group=str(row.get("group_index")),
                # `0000` is step 0, and a text of zeros alone has no digit left.
                step=as_int(settings.path.stem.lstrip("0") or "0"),
                reward=reward,
                is_right=is_right,
                verdict_by=verdict_by,
                numbers=scores,
                num_replies=num_replies,
            )
            yield transcript_of(rollout, settings, row_number)


def _first_value(row: Record, keys: Sequence[str]) -> object:
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _reward_of(row: Record, scores: Mapping[str, float], where: str) -> float | None:
    """Find the row's named total; else the only reward function's value.

    Raises:
        UsageError: The total is there and no number.
    """
    for name in REWARD_KEYS:
        if name in scores:
            return scores[name]
        value = row.get(name)
        # Numbers that are not finite are not known; all other values would be lost without a word.
        if value is not None and not isinstance(value, int | float):
            raise UsageError(f"{where}: {name}: found {value!r:.60}; expected a number")
    # TRL names the columns of reward functions so; the sum of several needs weights we lack.
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
    if not len(texts) == len(tokens) == len(values) == len(advantages):
        return [], []
    return texts, values


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
    rows = []
    for index in range(lengths.pop()):
        rows.append({name: values[index] for name, values in columns.items()})
    return rows


def _known_numbers(values: Sequence[object]) -> list[float]:
    known_numbers = []
    for value in values:
        # Lists have a number for each token: plain numbers need no further check.
        if type(value) is float and abs(value) <= LARGEST_NUMBER:
            known_numbers.append(value)
            continue
        known_number = number(value)
        if known_number is not None:
            known_numbers.append(known_number)
    return known_numbers
