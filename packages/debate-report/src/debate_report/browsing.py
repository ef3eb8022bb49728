"""All recorded debates of a page: a short index, and blocks opened on demand."""

import base64
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from debate_protocol.types import TurnKey
from debate_report.debates import Debates, Recorded, states
from debate_report.page_templates import render
from debate_report.run_files import RunFiles
from debate_rewards.reward import ReadTurn

BLOCK = 25
# Of all blocks together; the page says how much was left out beyond it.
MOST_BYTES = 28_000_000
# Debates with the advantage of each token.
MOST_CREDITED = 200
# Characters of one turn, question or message on the page.
MOST_TEXT = 200_000
MOST_VOTES = 200
INDEX_QUESTION_CHARS = 90
NOTHING = Markup()


@dataclass(frozen=True, slots=True)
class Blocks:
    """The debates of a page.

    Attributes:
        index: Entries of the list of debates, with the values of the filters.
        texts: Blocks of debates, deflated JSON in base64.
        prompts: Blocks of their prompts; there may be fewer of them.
        left_out: Numbers of debates, and of blocks of prompts, beyond the limit of bytes.
    """

    index: Mapping[str, Any]
    texts: Sequence[str]
    prompts: Sequence[str]
    left_out: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Browser:
    """The list of debates with the open debate, and their data.

    A page has `shown`, `first`, the script and then `rest`, so the first debate can be read
    while most of the data is still loading.
    """

    shown: Markup = NOTHING
    first: Markup = NOTHING
    rest: Markup = NOTHING


def blocks_of(debates: Debates) -> Blocks:
    """Pack the debates of a run into an index and blocks."""
    recorded = debates.found
    # Few debates show tokens' advantages: evenly spread over all that have any.
    credited = [debate for debate in recorded if debate.has_token_credit]
    if len(credited) > MOST_CREDITED:
        positions = [number * len(credited) // MOST_CREDITED for number in range(MOST_CREDITED)]
        credited = [credited[position] for position in positions]
    credited_ids = {id(debate) for debate in credited}
    parts = [recorded[start : start + BLOCK] for start in range(0, len(recorded), BLOCK)]

    def debates_of(block: Sequence[Recorded]) -> object:
        return [_debate(debate, with_credit=id(debate) in credited_ids) for debate in block]

    def prompts_of(block: Sequence[Recorded]) -> object:
        return [_prompts(debate) for debate in block]

    # Texts come first: a page without prompts is worth more than one without its last debates.
    texts = _pack_while_room(parts, debates_of, MOST_BYTES)
    room = MOST_BYTES - sum(len(text) for text in texts)
    prompts = _pack_while_room(parts[: len(texts)], prompts_of, room)
    shown = recorded[: len(texts) * BLOCK]
    phases = list(dict.fromkeys(debate.phase for debate in shown))
    entries = [
        _index_entry(debate, phases, is_credited=id(debate) in credited_ids) for debate in shown
    ]
    is_single = all(debate.transcript.protocol.num_agents == 1 for debate in shown)
    index = {
        "nouns": ["reply", "replies"] if is_single else ["debate", "debates"],
        "block": BLOCK,
        "phases": phases,
        "prompts": len(prompts),
        "open": _first_open(shown),
        "debates": entries,
    }
    num_debates_left_out = len(recorded) - len(shown)
    num_prompts_left_out = len(texts) - len(prompts)
    return Blocks(index, texts, prompts, (num_debates_left_out, num_prompts_left_out))


def _pack_while_room(
    parts: Sequence[Sequence[Recorded]],
    contents_of: Callable[[Sequence[Recorded]], object],
    room: int,
) -> list[str]:
    """Pack parts into blocks up to the first without room."""
    blocks = []
    for part in parts:
        text = json.dumps(contents_of(part), separators=(",", ":"))
        block = base64.b64encode(zlib.compress(text.encode(), 6)).decode()
        if len(block) > room:
            break
        blocks.append(block)
        room -= len(block)
    return blocks


def _first_open(records: Sequence[Recorded]) -> int:
    """Find the first open debate: of the policy itself, at the last step."""
    numbers = range(len(records))
    played = [number for number in numbers if not records[number].demonstrated]
    trained = [number for number in played if not records[number].evaluated]
    candidates = trained or played
    # Of one step the first.
    return max(candidates, key=lambda number: (records[number].step, -number), default=0)


def _index_entry(debate: Recorded, phases: Sequence[str], *, is_credited: bool) -> list[object]:
    """Build [phase, step, id, start of the question, marks, right answers, answers]."""
    last_round = debate.read.last_round
    verdicts = [debate.verdicts[key] for key in debate.read.turns if key.round == last_round]
    # Only the start of a long question is split into words.
    question_start = debate.transcript.question.text[: 4 * INDEX_QUESTION_CHARS]
    question = " ".join(question_start.split())[:INDEX_QUESTION_CHARS]
    return [
        phases.index(debate.phase),
        debate.step,
        debate.transcript.id[:200],
        question,
        list(_marks(debate, is_credited=is_credited)),
        verdicts.count("right"),
        len(verdicts),
    ]


def _marks(debate: Recorded, *, is_credited: bool) -> Iterator[str]:
    """Yield the names of the filters passed by a debate."""
    _, verdict = next(iter(debate.decisions.values()), ("", None))
    if verdict == "right":
        yield "right"
    # A debate of ours without a decision has no answer; of a reply of others it could not be read.
    is_undecided = not debate.decisions and debate.transcript.question.answer is not None
    if verdict == "wrong" or (is_undecided and not debate.imported):
        yield "wrong"
    last_verdicts: dict[int, str | None] = {}
    changes = set()
    for key, _, turn_verdict in states(debate):
        changes.add((last_verdicts.get(key.agent), turn_verdict))
        last_verdicts[key.agent] = turn_verdict
    if ("right", "wrong") in changes:
        yield "spoiled"
    if ("wrong", "right") in changes:
        yield "mended"
    if any(_problems(debate, turn) for turn in debate.read.judges.values()):
        yield "errors"
    if debate.demonstrated:
        yield "shown"
    if is_credited:
        yield "tokens"


def _problems(debate: Recorded, turn: ReadTurn) -> list[str]:
    problems = []
    if turn.turn.failure:
        problems.append(turn.turn.failure)
    # A file says of a rollout as a whole that it was cut: its last reply was.
    is_cut = debate.imported and debate.transcript.meta.get("finish") == "length"
    if is_cut and turn.turn is debate.transcript.turns[-1]:
        problems.append("cut at the token limit")
    return [*problems, *turn.parsed.problems]


def _debate(debate: Recorded, *, with_credit: bool) -> dict[str, object]:
    question = debate.transcript.question
    protocol = debate.transcript.protocol
    rules = (
        f"{protocol.num_agents} agents, {protocol.schedule}, {protocol.topology}, "
        f"contract {protocol.contract}"
    )
    return {
        "question": question.text[:MOST_TEXT],
        "answer": question.answer,
        "passage": str(question.meta.get("passage") or "")[:MOST_TEXT],
        "rules": rules if protocol.num_agents > 1 else f"contract {protocol.contract}",
        "streams": list(debate.streams),
        "returns": list(debate.returns),
        "decisions": [[rule, *decision] for rule, decision in debate.decisions.items()],
        "turns": [_turn(debate, key, with_credit=with_credit) for key in _keys_in_order(debate)],
    }


def _keys_in_order(debate: Recorded) -> list[TurnKey]:
    return sorted(debate.read.judges, key=lambda key: (key.round, key.agent))


def _turn(debate: Recorded, key: TurnKey, *, with_credit: bool) -> dict[str, object]:
    turn = debate.read.judges[key]
    judged_turns = debate.read.judged_by(turn) if turn.parsed.comparisons else {}
    verdicts = {agent: debate.verdicts.get(judged.key) for agent, judged in judged_turns.items()}
    votes = []
    for vote in turn.parsed.comparisons[:MOST_VOTES]:
        left_verdict = verdicts.get(vote.left)
        # A vote can be right where one of the two answers is right and the other one wrong.
        is_checked = {left_verdict, verdicts.get(vote.right)} == {"right", "wrong"}
        vote_verdict = left_verdict if vote.op == ">" and is_checked else None
        votes.append([vote.left, vote.op, vote.right, vote_verdict])
    problems = _problems(debate, turn)
    unread_reason = debate.unread.get(key)
    if unread_reason:
        problems.append(f"answer not read: {unread_reason}")
    credit = debate.credit_of(key) if with_credit else debate.credit.get(key, {})
    values = {
        "agent": key.agent,
        "round": key.round,
        "text": turn.turn.text[:MOST_TEXT],
        "sections": [[*section.outer, name] for name, section in turn.parsed.sections.items()],
        "answer": turn.parsed.answer,
        "verdict": debate.verdicts.get(key),
        "failed": turn.failed,
        "problems": problems,
        "votes": votes,
        "values": credit.get("values") or {},
        "counts": turn.turn.token_counts,
    }
    if with_credit:
        values["starts"] = credit.get("starts") or []
        values["tokens"] = credit.get("tokens") or []
    return values


def _prompts(debate: Recorded) -> list[list[list[str]]]:
    """Collect the messages of each turn as [role, content], in the order of `_debate`."""
    prompts = []
    for key in _keys_in_order(debate):
        messages = debate.read.judges[key].turn.prompt or ()
        prompts.append([[m["role"], m["content"][:MOST_TEXT]] for m in messages])
    return prompts


def read_all(run: RunFiles) -> Debates:
    """Read all recorded debates of a run."""
    debates = Debates()
    debates.add(run.transcripts, run.tokens, run.phases)
    debates.add(run.evaluations, None, run.phases)
    debates.add_imported(run.imported)
    # The page of a run says at its top which files are damaged.
    for problem in run.damaged_files if run.folder is None else ():
        debates.note_unreadable(1, problem)
    return debates


def browser(run: RunFiles, debates: Debates) -> Browser:
    """Render the list of a run's debates and their data."""
    blocks = blocks_of(debates)
    num_debates_left_out, num_prompts_left_out = blocks.left_out
    unread_reasons: Counter[str] = Counter()
    for debate in debates.found:
        unread_reasons.update(debate.unread.values())
    shown = render(
        "browser.html",
        files=len(run.transcripts) + len(run.imported),
        entries=len(blocks.index["debates"]),
        phases=blocks.index["phases"],
        nouns=blocks.index["nouns"],
        left_out=num_debates_left_out,
        left_prompts=num_prompts_left_out,
        unreadable=debates.unreadable,
        problem=debates.problem,
        unchecked=debates.checking.skipped,
        unread=unread_reasons.most_common(),
    )
    numbered_blocks = [("texts", number, block) for number, block in enumerate(blocks.texts)]
    numbered_blocks += [("prompts", number, block) for number, block in enumerate(blocks.prompts)]
    if not numbered_blocks:
        return Browser(shown)
    first = blocks.index["open"] // blocks.index["block"]
    rest = numbered_blocks[:first] + numbered_blocks[first + 1 :]
    return Browser(
        shown=shown,
        first=render("blocks.html", index=as_data(blocks.index), blocks=[numbered_blocks[first]]),
        rest=render("blocks.html", index="", blocks=rest),
    )


def as_data(value: object) -> Markup:
    """Write a value as JSON for a script element; no text inside can end the element."""
    text = json.dumps(value, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
