"""Drivers: run debates against an engine, in lock-step or each at its own pace."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.plugins import Variants
from debate_protocol.types import DebateRun, Transcript
from debate_rollout.engine import Engine, streaming
from debate_rollout.errors import EngineFailure
from debate_rollout.playing.debates import Debates, Select
from debate_rollout.playing.free_running import free_running
from debate_rollout.playing.lock_step import lock_step
from debate_rollout.playing.requests import Requests

__all__ = [
    "AUTO",
    "DRIVERS",
    "Auto",
    "DriverChoice",
    "DriverConfig",
    "FreeRunning",
    "LockStep",
    "play",
    "play_each",
]

TIMEOUT_S = 3600.0
"""Default time limit of one request of an engine that streams."""


class LockStep(Config):
    """All open asks of all debates are one call of the engine."""

    lets_overtake: ClassVar[bool] = False

    type: Literal["lock_step"] = "lock_step"
    timeout_s: float | None = Field(None, gt=0)
    """Most seconds to wait for a reply before it is asked for again. None: an hour with engines
    that stream; no limit with batch engines, where it holds for a call of a whole round."""


class FreeRunning(Config):
    """Each debate goes on when its own replies are in; batch engines are run in lock-step."""

    lets_overtake: ClassVar[bool] = True
    """Whether one debate may get ahead of another where the engine streams."""

    type: Literal["free_running"] = "free_running"
    in_flight: int = Field(1024, ge=1)
    """Most debates that wait for replies at once."""
    timeout_s: float | None = Field(None, gt=0)
    """Most seconds to wait for a reply before it is asked for again."""


class Auto(Config):
    """`free_running` for engines that stream, `lock_step` for the others."""

    lets_overtake: ClassVar[bool] = True

    type: Literal["auto"] = "auto"
    in_flight: int = Field(1024, ge=1)
    """Most debates that wait for replies at once, with engines that stream."""
    timeout_s: float | None = Field(None, gt=0)
    """Most seconds to wait for a reply before it is asked for again."""


DriverConfig = Auto | LockStep | FreeRunning
DRIVERS: Variants[DriverConfig] = Variants(None, DriverConfig, Auto, LockStep, FreeRunning)
DriverChoice = Annotated[DriverConfig, DRIVERS]
"""What a recipe's `driver` may be."""

AUTO = Auto()


def play(
    runs: Sequence[DebateRun],
    engine: Engine,
    *,
    max_tokens: int,
    sampling: Mapping[str, object] = {},
    select: Select | None = None,
    driver: DriverConfig = AUTO,
) -> list[Transcript]:
    """Run debates to their ends.

    With a deterministic engine all drivers give the same transcripts. Gates wait until every
    debate is finished or at a gate; `select` then answers them together, in order of place.

    Args:
        runs: Forms that were started; each is run to its end or closed.
        engine: Samples the replies.
        max_tokens: Most tokens of a reply whose ask sets none.
        sampling: Fields of `Sampling` that replace what the asks say, such as `temperature`.
        select: Answers gates; without it every debate goes on.
        driver: Which debates wait for which, and how long.

    Returns:
        The transcripts in the order of `runs`, dropped debates left out.

    Raises:
        EngineFailure: When the engine fails on a request, and again when it is tried alone;
            `finished` holds the debates that had ended.
        EngineConfigError: When `sampling` names no field of `Sampling`.
    """
    finished: dict[int, Transcript] = {}
    try:
        for place, transcript in play_each(
            runs, engine, max_tokens=max_tokens, sampling=sampling, select=select, driver=driver
        ):
            finished[place] = transcript
    except EngineFailure as error:
        error.finished = tuple(finished[place] for place in sorted(finished))
        raise
    return [finished[place] for place in sorted(finished)]


def play_each(
    runs: Sequence[DebateRun],
    engine: Engine,
    *,
    max_tokens: int,
    sampling: Mapping[str, object] = {},
    select: Select | None = None,
    driver: DriverConfig = AUTO,
) -> Iterator[tuple[int, Transcript]]:
    """Yield (place in `runs`, transcript) as debates end; else as `play`.

    Leaving the iterator early closes the debates and cancels their requests.
    """
    debates = Debates(runs, select)
    try:
        requests = Requests(engine.renderer, max_tokens, sampling)
        stream = streaming(engine)
        limit = driver.timeout_s
        if stream is None:
            yield from lock_step(debates, engine, requests, limit)
        elif isinstance(driver, LockStep):
            yield from lock_step(debates, engine, requests, limit or TIMEOUT_S)
        else:
            yield from free_running(debates, stream, requests, driver.in_flight, limit or TIMEOUT_S)
    finally:
        debates.close()
