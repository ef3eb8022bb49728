"""Several vLLM servers for the debates: serving servers, and sessions by server."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from debate_rollout.engine import EndpointError
from debate_rollout.engines.vllm.control import ServerControl, UnreachableError
from debate_rollout.engines.vllm.model import UNLOADED, OtherWeightsError
from debate_rollout.engines.vllm.server_process import ServerProcess

PASSING = (404, 500, 502, 503, 504)
"""Statuses of a server that restarts, fails or is about to end: another server is asked."""


@dataclass(eq=False, slots=True)
class PooledServer:
    """One server."""

    client: httpx.AsyncClient
    control: ServerControl
    process: ServerProcess | None = None
    """The server's process if it was started here."""
    is_up: bool = True
    open: int = 0
    """Number of open requests."""
    sessions: list[int] = field(default_factory=lambda: [0])
    """Number of sessions of each data-parallel engine since the last load. A server that was not
    started here has one entry and divides its requests itself."""

    def assign_session(self) -> int | None:
        """Assign a session to the engine with the fewest sessions; `None` for a single engine."""
        engine = self.sessions.index(min(self.sessions))
        self.sessions[engine] += 1
        return engine if len(self.sessions) > 1 else None

    def is_lost_by(self, error: Exception, process: ServerProcess | None) -> bool:
        """Check whether an error comes from the server, so that another server may answer.

        Args:
            error: The error of a request.
            process: The process that got the request; a restart may have replaced it since.
        """
        if isinstance(error, OtherWeightsError):
            # A server without our weights has restarted; with others, another run refreshes it.
            return error.label == UNLOADED
        if isinstance(error, UnreachableError):
            return True
        has_ended = process is not None and process.code is not None
        return isinstance(error, EndpointError) and (has_ended or self.control.is_broken)


class Pool:
    """Assigns sessions to servers.

    A new session goes to the server with the fewest requests; its later turns stay there, by the
    cached prefixes of earlier ones.

    Args:
        members: The servers.
        min_servers: No request is sent while fewer are up.
    """

    def __init__(self, members: Sequence[PooledServer], min_servers: int) -> None:
        self.members = members
        self._min_servers = min_servers
        self._assignments: dict[int, tuple[PooledServer, int | None]] = {}

    @property
    def is_several(self) -> bool:
        """Whether another server can answer for a failing server."""
        return len(self.members) > 1

    @property
    def up(self) -> list[PooledServer]:
        """Servers that serve the current weights."""
        return [member for member in self.members if member.is_up]

    def pick(self, session: int) -> tuple[PooledServer, int | None]:
        """Choose the server of a session, and an engine of the server.

        Raises:
            UnreachableError: Too few are up.
        """
        up = self.up
        if len(up) < self._min_servers:
            raise UnreachableError(
                f"{len(up)} of {len(self.members)} vLLM servers serve; expected at least "
                f"{self._min_servers} (min_servers)"
            )
        assignment = self._assignments.get(session)
        if assignment is None or not assignment[0].is_up:
            server = min(up, key=lambda server: (server.open, sum(server.sessions)))
            assignment = (server, server.assign_session())
            if session >= 0:  # Requests with session -1 belong to none.
                self._assignments[session] = assignment
        return assignment

    def forget_sessions(self) -> None:
        """Drop all assignments: new weights make cached prefixes worthless."""
        self._assignments.clear()
        for member in self.members:
            member.sessions = [0] * len(member.sessions)
