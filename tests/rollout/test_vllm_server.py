"""The parts of the vllm_server engine that need no vLLM: its settings, JSON and process."""

import asyncio
import sys
import time
from collections.abc import Collection
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from debate_rollout.engine import EndpointError, RolloutError, WeightsError
from debate_rollout.engines import VllmServerEngine
from debate_rollout.engines.vllm import OLD_WEIGHTS_SERVE
from debate_rollout.engines.vllm.control import (
    ServerControl,
    ServerReply,
    are_raw,
    read,
)
from debate_rollout.engines.vllm.server_process import ServerProcess, server_command


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "10.0.0.7:8000"}, "expected http://HOST:PORT"),
        ({"url": "http://me:secret@host"}, "api_key_env"),
        ({"url": "http://host:8000", "max_batch": 8}, "max_batch: set together with url"),
        ({"vllm_args": {"dtype": "auto"}}, "dtype: not for speed"),
        ({"load_urls": ["http://a:8000"]}, "load_urls: expected url, the router"),
        ({"url": "http://a", "load_urls": ["b:8000"]}, "expected http://HOST:PORT"),
    ],
)
def test_settings_are_refused_when_they_cannot_hold(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        VllmServerEngine(**settings)


def test_read_understands_vllms_answer() -> None:
    ends = {"index": 0, "finish_reason": "stop", "stop_reason": "</a>", "token_ids": [7, 8]}
    spans = [{"version": "default", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 2}]
    tokens = [
        {"token_id": 7, "logprob": -0.5, "top_logprobs": [{"logprob": -0.5}, {"logprob": -0.1}]},
        {"token_id": 8, "logprob": -1.5, "top_logprobs": []},
    ]
    reply = read({"choices": [ends | {"logprobs": {"content": tokens}, "weight_versions": spans}]})
    labels = (("default", 0, 1), ("3", 1, 2))
    assert reply == ServerReply((7, 8), (-0.5, -1.5), "stop", "</a>", labels, (-0.1, -0.5))


@pytest.mark.parametrize(
    "answer", [{}, {"choices": []}, {"choices": [{"text": "4", "finish_reason": "stop"}]}, None]
)
def test_read_refuses_an_answer_without_ids(answer: object) -> None:
    with pytest.raises(RolloutError, match="one choice with token_ids"):
        read(answer)


def test_are_raw_compares_gaps_between_tokens_at_two_temperatures() -> None:
    def answer(*likeliest: float) -> ServerReply:
        return ServerReply((0,), (likeliest[0],), "length", None, (), likeliest)

    at_one = answer(-1.0, -1.2, -1.5, -2.0)  # gap 1.0
    assert not are_raw(at_one, answer(-2.0, -2.1, -2.25, -2.5))  # 0.5, as after the temperature
    assert are_raw(at_one, at_one)  # the same at every temperature
    assert not are_raw(answer(-5.0, -5.0, -5.0, -5.0), answer(-5.0, -5.0, -5.0, -5.0))


def test_server_command_spells_arguments_as_flags() -> None:
    command = server_command(
        "model", {"enforce_eager": True, "enable_chunked_prefill": False, "max_num_seqs": 4,
                        "weight_transfer_config": {"backend": "nccl"}, "cpu_offload_params": ["a"]},
    )  # fmt: skip
    assert command[-8:] == [
        "--enforce-eager", "--no-enable-chunked-prefill", "--max-num-seqs", "4",
        "--weight-transfer-config", '{"backend": "nccl"}', "--cpu-offload-params", "a",
    ]  # fmt: skip
    assert command[command.index("--host") + 1] == "127.0.0.1"


def test_wait_shows_the_end_of_the_log_when_a_server_does_not_start(tmp_path: Path) -> None:
    code = "print('no such model'); raise SystemExit(3)"
    process = ServerProcess([sys.executable, "-c", code], {}, tmp_path / "log")
    message = r"ended while it started \(exit code 3\); the end of its log, .*log:\nno such model"
    with pytest.raises(EndpointError, match=message):
        process.wait(lambda: False, timeout_s=60.0)
    process.close()


def test_wait_gives_up_on_a_server_that_is_never_ready(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    process = ServerProcess(command, {}, tmp_path / "log")
    with pytest.raises(EndpointError, match=r"was not ready after 0\.1 s"):
        process.wait(lambda: False, timeout_s=0.1)
    started = time.monotonic()
    process.close()
    assert process.code is not None
    assert time.monotonic() - started < 9.0


class FailingServer:
    """Answers paths in `fails` with status 500, and closes the connection when it is used again.

    So does vLLM's server after an exception, a moment after its answer.
    """

    def __init__(self, fails: Collection[str]) -> None:
        self.fails = fails
        self.answered: list[str] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        failed = False
        while not failed:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = head.partition("content-length: ")[2].partition("\r\n")[0]
            await reader.readexactly(int(length or 0))
            path = head.split()[1].partition("?")[0]
            self.answered.append(path)
            failed = path in self.fails
            text = f'{{"error": "{OLD_WEIGHTS_SERVE}"}}' if failed else '{"success": true}'
            status = "500 Internal Server Error" if failed else "200 OK"
            answer = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
            writer.write(f"{answer}Content-Length: {len(text)}\r\n\r\n{text}".encode())
            await writer.drain()
            if "connection: close" in head:
                break
        else:
            await reader.read(1)
        writer.close()


async def refresh(server: FailingServer, folder: Path) -> ServerControl:
    """Refresh weights; return what talked to the server."""
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        control = ServerControl(url, client, None)
        with pytest.raises(WeightsError):
            await control.load_file(folder / "weights-7.safetensors", "7")
        return control


def test_server_goes_on_when_it_closes_connections_after_a_failed_refresh(tmp_path: Path) -> None:
    server = FailingServer(fails={"/update_weights", "/finish_weight_update"})
    asyncio.run(refresh(server, tmp_path)).check_alive()
    assert server.answered == [
        "/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume",
    ]  # fmt: skip


def test_server_that_does_not_resume_fails_requests_instead_of_holding_them(
    tmp_path: Path,
) -> None:
    control = asyncio.run(refresh(FailingServer(fails={"/update_weights", "/resume"}), tmp_path))
    with pytest.raises(EndpointError, match=r"/resume: found status 500.*are held since a refresh"):
        control.check_alive()
