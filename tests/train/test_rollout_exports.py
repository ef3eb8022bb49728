"""What debate-protocol writes for verifiers and TRL is read back as rollouts."""

from pathlib import Path

import pytest

from debate_protocol.cli import main
from debate_train.rollout_files import import_rollouts

DEBATES = Path(__file__).resolve().parents[2] / "examples/data/debates.jsonl"


@pytest.mark.parametrize("program", ["verifiers", "trl"])
def test_exported_rows_are_read_as_replies(
    program: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    main(["export", str(DEBATES), "--to", program])
    path = tmp_path / "results.jsonl"
    path.write_bytes(capsysbinary.readouterr().out)
    replies = import_rollouts(path)
    assert len(replies) == 24
    assert len({reply.question.id for reply in replies}) == 4
    assert replies[0].question.answer == "5"
    assert "15 divided by 3" in replies[0].turns[0].text
