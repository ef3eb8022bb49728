"""One thing to learn from debates that were held: a reply, or one reply over another."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from debate_protocol.types import Message, Reply

__all__ = ["Completion", "Example", "read_examples"]

MADE_FROM = "made_from"
"""Key of a row: what decides which examples there are, hashed."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply as text and as the ids that were sampled."""

    text: str
    token_ids: tuple[int, ...]

    @classmethod
    def of(cls, reply: Reply) -> "Completion":
        """Return a sampled reply."""
        return cls(reply.text, reply.token_ids)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with a reply to imitate, or with one that is preferred over another.

    `prompt` and `prompt_ids` are what the policy is asked when nobody guides it, whatever the
    completions were sampled from. `meta` says where it comes from and what it is worth.
    """

    prompt: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    chosen: Completion
    rejected: Completion | None = None
    agent: int = 0
    adapter: str | None = None
    weight_version: int = 0
    meta: Mapping[str, object] = field(default_factory=dict)
    weight: float = 1.0
    """What it counts for in a supervised loss, above 0."""

    def to_json(self) -> dict[str, object]:
        """Return a row as preference trainers and supervised ones read it.

        Pairs have `prompt`, `chosen` and `rejected`, others `prompt` and `completion`, all as chat
        messages; what only this trainer needs stands under `sampled` and `meta`.
        """
        names = {"chosen": self.chosen, "rejected": self.rejected}
        if self.rejected is None:
            names = {"completion": self.chosen}
        found = {name: one for name, one in names.items() if one is not None}
        said = {n: [{"role": "assistant", "content": one.text}] for n, one in found.items()}
        ids = {name: list(one.token_ids) for name, one in found.items()}
        sampled = {
            "prompt": list(self.prompt_ids),
            **ids,
            "agent": self.agent,
            "adapter": self.adapter,
            "weight_version": self.weight_version,
            "weight": self.weight,
        }
        prompt = [dict(message) for message in self.prompt]
        return {"prompt": prompt, **said, "meta": dict(self.meta), "sampled": sampled}

    @classmethod
    def from_json(cls, row: Mapping[str, object]) -> "Example":
        """Return what `to_json` wrote.

        Raises:
            KeyError: Something is missing.
            TypeError: Something is of another kind.
        """
        sampled = cast(Mapping[str, object], row["sampled"])

        def completion(name: str) -> Completion:
            (message,) = cast(list[Message], row[name])
            return Completion(message["content"], _ids(sampled[name]))

        return cls(
            tuple(cast(list[Message], row["prompt"])),
            _ids(sampled["prompt"]),
            completion("chosen" if "chosen" in row else "completion"),
            completion("rejected") if "rejected" in row else None,
            cast(int, sampled["agent"]),
            cast("str | None", sampled["adapter"]),
            cast(int, sampled["weight_version"]),
            cast(Mapping[str, object], row["meta"]),
            cast(float, sampled.get("weight", 1.0)),
        )


def _ids(found: object) -> tuple[int, ...]:
    ids = tuple(cast(Iterable[object], found))
    if not all(isinstance(one, int) for one in ids):
        raise TypeError(f"found {found!r:.60}; expected token ids")
    return cast(tuple[int, ...], ids)


def read_examples(path: Path) -> list[Example]:
    """Return the examples of a file, in order.

    Raises:
        ValueError: A line is none; the message says which.
    """
    found = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                found.append(Example.from_json(json.loads(line)))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(
                    f"{path}:{number}: no example ({type(error).__name__}: {error})"
                ) from error
    return found
