"""Calls of a vLLM server that wait for their answer: its health, and weights through NCCL.

No call takes a proxy from the environment: the server is on this machine or in its cluster.
"""

from collections.abc import Mapping

import httpx


def is_healthy(url: str) -> bool:
    """Return whether a server answers and is ready."""
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


class ServerCalls:
    """The four calls that vLLM's trainer side makes, over HTTP."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=timeout_s, trust_env=False
        )

    def init_weight_transfer_engine(self, init_info: dict[str, object]) -> None:
        """Let the workers meet this process."""
        self._post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        """Open a refresh."""
        self._post("/start_weight_update", {})

    def update_weights(self, update_info: object) -> None:
        """Let the workers receive."""
        self._post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Close a refresh."""
        self._post("/finish_weight_update", {"weight_version": weight_version})

    def workers(self) -> int:
        """Return how many workers the server has."""
        return int(self._client.get("/get_world_size").raise_for_status().json()["world_size"])

    def name_version(self, label: str) -> None:
        """Label the weights that are served."""
        self._post("/update_weight_version", {"new_version": label})

    def _post(self, path: str, json: Mapping[str, object]) -> None:
        self._client.post(path, json=json).raise_for_status()
