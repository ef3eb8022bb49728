"""Several vLLM servers that share the debates: who is asked, and who is down."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from debate_rollout.engine import EndpointError
from debate_rollout.engines.vllm.control import ServerControl, ServerProcess, UnreachableError
from debate_rollout.engines.vllm.model import UNLOADED, OtherWeightsError

PASSING = (404, 500, 502, 503, 504)
"""Statuses of a server that has started again, fails or is about to end: another one is asked."""


@dataclass(eq=False, slots=True)
class PooledServer:
    """One server."""

    client: httpx.AsyncClient
    control: ServerControl
    process: ServerProcess | None = None
    """It, where it was started here."""
    is_up: bool = True
    open: int = 0
    """Requests that it is answering."""
    sessions: list[int] = field(default_factory=lambda: [0])
    """That were given to each of its data-parallel engines since the last load; of a server that
    somebody else started they are not known, and it divides its requests itself."""

    def give(self) -> int | None:
        """Take a session in; return its engine, that with the fewest, None where it has one."""
        engine = self.sessions.index(min(self.sessions))
        self.sessions[engine] += 1
        return engine if len(self.sessions) > 1 else None

    def is_lost_by(self, error: Exception, process: ServerProcess | None) -> bool:
        """Return whether an error is of the server, so that another one may answer.

        Args:
            error: Of a request.
            process: That it was sent to, in whose place there may be another by now.
        """
        if isinstance(error, OtherWeightsError):
            return error.label == UNLOADED  # Else another run refreshes it.
        has_ended = process is not None and process.code is not None
        return isinstance(error, UnreachableError) or (
            isinstance(error, EndpointError) and (has_ended or self.control.is_broken)
        )


class Pool:
    """Gives sessions to servers: a new one to that with the fewest requests, later turns stick.

    Args:
        members: The servers.
        least: While fewer are up, nobody is asked.
    """

    def __init__(self, members: Sequence[PooledServer], least: int) -> None:
        self.members = members
        self._least = least
        self._places: dict[int, tuple[PooledServer, int | None]] = {}

    @property
    def is_several(self) -> bool:
        """Whether another server can answer for one that fails."""
        return len(self.members) > 1

    @property
    def up(self) -> list[PooledServer]:
        """Servers that serve the current weights."""
        return [member for member in self.members if member.is_up]

    def pick(self, session: int) -> tuple[PooledServer, int | None]:
        """Return the server of a session, and which of its engines if it has several.

        Raises:
            UnreachableError: Too few are up.
        """
        up = self.up
        if len(up) < self._least:
            raise UnreachableError(
                f"{len(up)} of {len(self.members)} vLLM servers serve; expected at least "
                f"{self._least} (min_servers)"
            )
        place = self._places.get(session)
        if place is None or not place[0].is_up:
            member = min(up, key=lambda one: (one.open, sum(one.sessions)))
            place = member, member.give()
            if session >= 0:
                self._places[session] = place
        return place

    def forget_sessions(self) -> None:
        """Begin again: by new weights, what servers have computed is worth nothing."""
        self._places.clear()
        for member in self.members:
            member.sessions = [0] * len(member.sessions)
