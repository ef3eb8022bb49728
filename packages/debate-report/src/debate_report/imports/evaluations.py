"""Readers of evaluations: inspect, lm-evaluation-harness and lighteval."""

import re
from collections.abc import Iterator, Mapping, Sequence

from debate_protocol.types import Message, Transcript
from debate_report.imports.replies import num_before_replies, transcripts
from debate_report.imports.rollout import (
    ImportedReply,
    ReadSettings,
    file_verdict,
    transcript_of,
    verdict_of,
)
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
        for row_number, sample in enumerate(rows):
            messages = read_messages(sample.get("messages") or [], "user", str(settings.path))
            replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
            num_before = num_before_replies(messages)
            # A sample that failed before its first reply has its prompt alone.
            last = len(messages)
            reply = None
            if replies:
                last = replies[-1]
                reply = messages[last]["content"]

            scores = _scores(sample.get("scores"))
            first_score = next(iter(scores.values()), None)
            is_right, verdict_by = _grade(sample.get("scores"), scores)

            stop_reason = None
            choices = mapping(sample.get("output")).get("choices")
            if isinstance(choices, list) and choices:
                stop_reason = mapping(choices[0]).get("stop_reason")

            failure = ""
            error = mapping(sample.get("error"))
            if error:
                failure = text_of(error.get("message")) or "failed"

            sample_id = str(sample.get("id", ""))
            rollout = ImportedReply(
                prompt=messages[:num_before],
                between=messages[num_before:last],
                reply=reply,
                golds=golds(sample.get("target")),
                question_id=sample_id,
                group=sample_id,
                reward=scores.get("reward", first_score),
                is_right=is_right,
                verdict_by=verdict_by,
                numbers=scores,
                # Inspect notes its own limits of tokens, time and messages beside the model's.
                is_cut=stop_reason == "max_tokens" or bool(sample.get("limit")),
                error=failure,
                num_replies=len(replies),
            )
            yield transcript_of(rollout, settings, row_number)


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
        for row_number, row in enumerate(first_filter):
            requests = [mapping(request) for request in mapping(row.get("arguments")).values()]
            prompt = text_of(requests[0].get("arg_0")) if requests else ""
            reply, right_answers = _reply_and_golds(row, requests)

            metric_names = row.get("metrics")
            scores = {}
            if isinstance(metric_names, list):
                scores = numbers({str(name): row.get(str(name)) for name in metric_names})
            first_score = next(iter(scores.values()), None)
            is_right, verdict_by = file_verdict(scores, first_score)

            rollout = ImportedReply(
                prompt=[Message(role="user", content=prompt)],
                reply=reply,
                golds=right_answers,
                task=task,
                question_id=str(row.get("doc_id")),
                reward=first_score,
                is_right=is_right,
                verdict_by=verdict_by,
                numbers=scores,
            )
            yield transcript_of(rollout, settings, row_number)


class Lighteval:
    """`details_TASK_TIME.parquet` of lighteval (0.13): all replies of a question, one metric."""

    name = "lighteval"
    shape = "doc, metric and model_response"

    def fits(self, row: Record) -> bool:
        """Whether a row has its columns."""
        return {"doc", "metric", "model_response"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield every reply; metrics are of all replies of a question, so they are no verdict."""
        return transcripts(self._rollouts(rows), settings)

    def _rollouts(self, rows: Sequence[Record]) -> Iterator[ImportedReply]:
        for row in rows:
            replies = mapping(row.get("model_response")).get("text")
            if not isinstance(replies, list):
                continue
            document = mapping(row.get("doc"))
            choices = document.get("choices")
            texts = []
            if isinstance(choices, list):
                texts = [text_of(choice) for choice in choices]
            gold_index = document.get("gold_index")
            right_answers = []
            for index in gold_index if isinstance(gold_index, list) else [gold_index]:
                if isinstance(index, int) and 0 <= index < len(texts):
                    right_answers.append(texts[index].strip())

            # A metric over several replies is no score of any of them.
            metrics = numbers(row.get("metric"))
            score = None
            if len(replies) == 1:
                score = next(iter(metrics.values()), None)

            for reply in replies:
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
            for name, part in numbers(value).items():
                values[f"{scorer}/{name}"] = part
            continue
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


def _reply_and_golds(row: Record, requests: Sequence[Record]) -> tuple[str | None, list[str]]:
    """Read a document's first reply and right answers.

    In multiple choice each request has one choice, and the target is the index of the right one.
    """
    target = row.get("target")
    choices = [request.get("arg_1") for request in requests]
    is_choice = bool(choices) and all(isinstance(choice, str) for choice in choices)
    if not is_choice:
        return _first_text(row.get("resps")), golds(target)

    texts = [text_of(choice).strip() for choice in choices]
    reply = texts[_likeliest(row.get("resps"), len(texts))]
    right_answers = golds(target)
    if str(target).isdecimal() and int(str(target)) < len(texts):
        right_answers = [texts[int(str(target))]]
    return reply, right_answers


def _likeliest(responses: object, num_choices: int) -> int:
    """Find the choice with the highest log-likelihood; the file has it as a text."""
    highest = float("-inf")
    likeliest_index = 0
    if not isinstance(responses, list):
        return likeliest_index
    for index, response in enumerate(responses):
        # Versions nest the text in one or two lists.
        while isinstance(response, list) and response:
            response = response[0]
        try:
            likelihood = float(str(response))
        except ValueError:
            continue
        # A file may have more responses than choices.
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
