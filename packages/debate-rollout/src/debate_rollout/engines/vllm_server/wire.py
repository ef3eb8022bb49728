"""What is said to a vLLM server and read from it: prompt ids out, sampled ids back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from debate_rollout.errors import RolloutError

Wire = Literal["tokens", "completions"]
"""`tokens` is vLLM's own endpoint, which also reports the weight version of every token;
`completions` is OpenAI's with vLLM's fields."""

PATHS: Mapping[Wire, str] = {"tokens": "/inference/v1/generate", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply; `labels` are (weight version, start, end), none where the server reports none."""

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish: str | None
    stop: str | int | None
    labels: tuple[tuple[str, int, int], ...] = ()
    likeliest: tuple[float, ...] = ()
    """Log-probabilities of the likeliest first tokens, largest first, where they were asked for."""


def body(
    wire: Wire, model: str, prompt: Sequence[int], sampling: Mapping[str, object]
) -> dict[str, object]:
    """Return the JSON of a request."""
    if wire == "tokens":
        return {"model": model, "token_ids": list(prompt), "sampling_params": dict(sampling)}
    return {
        "model": model,
        "prompt": list(prompt),
        "return_token_ids": True,
        "add_special_tokens": False,
        **sampling,
    }


def read(wire: Wire, answer: Any) -> Answer:
    """Return what the JSON of a response says.

    Raises:
        RolloutError: When it has no token ids or log-probabilities.
    """
    try:
        (choice,) = answer["choices"]
        ids = tuple(int(token) for token in choice["token_ids"])
        if wire == "tokens":
            places = choice["logprobs"]["content"]
            logps = [float(one["logprob"]) for one in places]
            first = [float(one["logprob"]) for one in places[0]["top_logprobs"]] if places else []
        else:
            places = choice["logprobs"]["top_logprobs"]
            logps = [float(one) for one in choice["logprobs"]["token_logprobs"]]
            first = [float(one) for one in (places[0] or {}).values()] if places else []
        labels = tuple(
            (str(one["version"]), int(one["start"]), int(one["end"]))
            for one in choice.get("weight_versions") or ()
        )
        return Answer(
            ids=ids,
            logps=tuple(logps),
            finish=choice["finish_reason"],
            stop=choice["stop_reason"],
            labels=labels,
            likeliest=tuple(sorted(first, reverse=True)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RolloutError(
            f"{PATHS[wire]}: found {str(answer)[:200]!r} ({type(error).__name__}: {error}); "
            "expected one choice with token_ids, log-probabilities and a finish_reason, as vLLM "
            "0.32 answers to return_token_ids"
        ) from error


def are_raw(at_one: Answer, at_two: Answer) -> bool:
    """Return whether log-probabilities are those before the temperature.

    Args:
        at_one: Answer to a prompt at temperature 1, with its likeliest first tokens.
        at_two: Answer to the same prompt at temperature 2.

    After the temperature, the gap between two tokens at 2 is half of that at 1.
    """
    gaps = [one.likeliest[0] - one.likeliest[3] for one in (at_one, at_two)]
    return gaps[0] > 1e-4 and gaps[1] > 0.75 * gaps[0]
