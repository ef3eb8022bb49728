"""Readers of evaluations: inspect, lm-evaluation-harness and lighteval."""

import re
from collections.abc import Iterator, Mapping, Sequence

from debate_protocol.types import Message, Transcript
from debate_report.imports.replies import num_before_replies, transcripts
from debate_report.imports.rollout import ImportedReply, ReadSettings, file_verdict, verdict_of
from debate_report.imports.values import (
    Record,
    golds,
    mapping,
    number,
    numbers,
    read_messages,
    text_of,
)

# inspect's grades: correct, incorrect, partial, no answer.
GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


class Inspect:
    """Samples of inspect's logs (0.3): epochs of an id are a group.

    Their `messages` hold whole texts, where events hold references.
    """

    name = "inspect"
    shape = "id, epoch, messages and scores"

    def fits(self, row: Record) -> bool:
        """Whether a row is a sample."""
        return {"epoch", "messages", "scores"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each sample's last reply."""
        return transcripts((self._rollout(row, settings) for row in rows), settings)

    def _rollout(self, sample: Record, settings: ReadSettings) -> ImportedReply:
        messages = read_messages(sample.get("messages") or [], "user", str(settings.path))
        replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        last = replies[-1] if replies else len(messages)
        scores = _scores(sample.get("scores"))
        is_right, verdict_by = _grade(sample.get("scores"), scores)
        choices = mapping(sample.get("output")).get("choices")
        choice = mapping(choices[0]) if isinstance(choices, list) and choices else {}
        error = mapping(sample.get("error"))
        return ImportedReply(
            prompt=messages[: num_before_replies(messages)],
            between=messages[num_before_replies(messages) : last],
            reply=messages[last]["content"] if replies else None,
            golds=golds(sample.get("target")),
            question_id=str(sample.get("id", "")),
            group=str(sample.get("id", "")),
            reward=scores.get("reward", next(iter(scores.values()), None)),
            is_right=is_right,
            verdict_by=verdict_by,
            numbers=scores,
            is_cut=choice.get("stop_reason") == "max_tokens" or bool(sample.get("limit")),
            error=text_of(error.get("message")) or ("failed" if error else ""),
            num_replies=len(replies),
        )


class LmEval:
    """`samples_TASK_TIME.jsonl` of lm-evaluation-harness (0.4): a document under one filter a line.

    With repeats a line has all replies and the score of the first. In multiple choice nothing is
    sampled: the reply is the likeliest choice.
    """

    name = "lm-evaluation-harness"
    shape = "doc_id, resps and filter"

    def fits(self, row: Record) -> bool:
        """Whether a row has its columns."""
        return {"doc_id", "resps", "filter"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each document's first reply, under the first filter of the file."""
        filters = [row.get("filter") for row in rows]
        first_filter = [row for row in rows if row.get("filter") == filters[0]]
        task = re.sub(r"^samples_|_\d{4}-\d\d-\d\dT.*$", "", settings.path.stem)
        return transcripts((self._rollout(row, task) for row in first_filter), settings)

    def _rollout(self, row: Record, task: str) -> ImportedReply:
        arguments = mapping(row.get("arguments"))
        requests = [mapping(request) for request in arguments.values()]
        prompt = text_of(requests[0].get("arg_0")) if requests else ""
        choices = [request.get("arg_1") for request in requests]
        is_choice = bool(choices) and all(isinstance(choice, str) for choice in choices)
        target = row.get("target")
        if is_choice:
            texts = [text_of(choice).strip() for choice in choices]
            reply: str | None = texts[_likeliest(row.get("resps"), len(texts))]
            index = int(str(target)) if str(target).isdecimal() else -1
            right_answers = [texts[index]] if 0 <= index < len(texts) else golds(target)
        else:
            reply = _first_text(row.get("resps"))
            right_answers = golds(target)
        names = row.get("metrics")
        metric_names = [str(name) for name in names] if isinstance(names, list) else []
        scores = numbers({name: row.get(name) for name in metric_names})
        is_right, verdict_by = file_verdict(scores, next(iter(scores.values()), None))
        return ImportedReply(
            prompt=[Message(role="user", content=prompt)],
            reply=reply,
            golds=right_answers,
            task=task,
            question_id=str(row.get("doc_id")),
            reward=next(iter(scores.values()), None),
            is_right=is_right,
            verdict_by=verdict_by,
            numbers=scores,
        )


class Lighteval:
    """`details_TASK_TIME.parquet` of lighteval (0.13): all replies of a question, one metric."""

    name = "lighteval"
    shape = "doc, metric and model_response"

    def fits(self, row: Record) -> bool:
        """Whether a row has its columns."""
        return {"doc", "metric", "model_response"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield every reply; metrics are of all replies of a question, so they are no verdict."""
        rollouts = (rollout for row in rows for rollout in self._rollouts(row))
        return transcripts(rollouts, settings)

    def _rollouts(self, row: Record) -> Iterator[ImportedReply]:
        document = mapping(row.get("doc"))
        choices = document.get("choices")
        texts = [text_of(choice) for choice in choices] if isinstance(choices, list) else []
        index = document.get("gold_index")
        indices = index if isinstance(index, list) else [index]
        right_answers = [
            texts[i].strip() for i in indices if isinstance(i, int) and 0 <= i < len(texts)
        ]
        replies = mapping(row.get("model_response")).get("text")
        metrics = numbers(row.get("metric"))
        only = len(replies) == 1 if isinstance(replies, list) else False
        score = next(iter(metrics.values()), None) if only else None
        for reply in replies if isinstance(replies, list) else ():
            yield ImportedReply(
                prompt=[Message(role="user", content=text_of(document.get("query")))],
                reply=text_of(reply),
                golds=right_answers,
                task=str(document.get("task_name") or ""),
                question_id=str(document.get("id") or ""),
                reward=score,
                is_right=verdict_of(score),
                verdict_by=next(iter(metrics), ""),
                numbers=metrics,
            )


def _scores(scores: object) -> dict[str, float]:
    """Read the numbers of a sample's scores; of a value with several parts each."""
    values: dict[str, float] = {}
    for scorer, score in mapping(scores).items():
        value = mapping(score).get("value")
        if isinstance(value, Mapping):
            values |= {f"{scorer}/{name}": part for name, part in numbers(value).items()}
        else:
            grade = GRADES.get(value) if isinstance(value, str) else number(value)
            if grade is not None:
                values[str(scorer)] = grade
    return values


def _grade(scores: object, values: Mapping[str, float]) -> tuple[bool | None, str]:
    """Find the verdict: of a scorer with grades C and I, else of an all-or-nothing score."""
    for scorer, score in mapping(scores).items():
        grade = mapping(score).get("value")
        if grade in ("C", "I"):
            return grade == "C", str(scorer)
    for scorer, value in values.items():
        verdict = verdict_of(value)
        if verdict is not None:
            return verdict, scorer
    return None, ""


def _likeliest(responses: object, num_choices: int) -> int:
    """Find the choice with the highest log-likelihood; the file has it as a text."""
    highest = float("-inf")
    likeliest_index = 0
    for index, response in enumerate(responses if isinstance(responses, list) else ()):
        # Versions nest the text in one or two lists.
        while isinstance(response, list) and response:
            response = response[0]
        try:
            likelihood = float(str(response))
        except ValueError:
            continue
        if likelihood > highest and index < num_choices:
            highest = likelihood
            likeliest_index = index
    return likeliest_index


def _first_text(responses: object) -> str | None:
    while isinstance(responses, list):
        if not responses:
            return None
        responses = responses[0]
    return responses if isinstance(responses, str) else None
