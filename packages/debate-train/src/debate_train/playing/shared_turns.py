"""Debates that ask the same thing twice and are given one reply."""

import hashlib
from collections.abc import Mapping, Sequence

from debate_protocol.types import Ask, DebateRun, Gate, Reply


class SharedTurns:
    """Answers what was asked before, with the same seed and prompt, by the reply it got then.

    A reply follows from its prompt and seed but for rounding, and from an endpoint not at all; so
    debates that part later are compared on the very same first turns. They cost once where one
    debate asks after another has been answered; those that ask at the same time all do.

    Args:
        known: Replies from before, by `ask_key`.
    """

    def __init__(self, known: Mapping[str, Reply] | None = None) -> None:
        self._known: dict[str, Reply] = dict(known or {})

    def over(self, run: DebateRun) -> DebateRun:
        """Return a debate to be played in the place of this one."""
        try:
            waits = next(run)
            while True:
                if isinstance(waits, Gate):
                    waits = run.send((yield waits))
                else:
                    missing = [ask for ask in waits if ask_key(ask) not in self._known]
                    if missing:
                        replies: Sequence[Reply] = yield missing  # type: ignore[assignment]
                        for ask, reply in zip(missing, replies, strict=True):
                            self._known.setdefault(ask_key(ask), reply)
                    waits = run.send([self._known[ask_key(ask)] for ask in waits])
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            run.close()


def ask_key(ask: Ask) -> str:
    """Return a hash of all that a reply follows from, the same in every process."""
    before = ask.previous
    parts = (
        (ask.policy, ask.adapter),
        ask.seed,
        tuple((message["role"], message["content"]) for message in ask.messages),
        None if before is None else (before.prompt_ids, before.token_ids),
        (ask.temperature, ask.stop, ask.max_tokens, ask.contract),
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()
