"""Requests for real vLLM engines: long prompts that differ and are the same each time."""

from dataclasses import replace

from debate_rollout.engine import Request, Sampling
from debate_rollout.testing import turn_request

SAMPLING = Sampling(max_tokens=12, temperature=0.7)


def requests_for(sampling: Sampling = SAMPLING, count: int = 4, length: int = 100) -> list[Request]:
    requests = []
    for number in range(count):
        prompt = tuple(3 + (7 * number + offset) % 290 for offset in range(length + number))
        requests.append(Request(turn_request(), replace(sampling, seed=number), prompt))
    return requests
