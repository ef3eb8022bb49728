"""What a step is measured by, under the names that the papers use."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from debate_protocol.parsing import Contract, answer_line, final_box, get_contract
from debate_protocol.prompts import answer_form
from debate_protocol.types import Transcript
from debate_rewards.answer_rewards import turn_verdicts
from debate_rewards.decisions import last_turns
from debate_rewards.reward import ReadDebate, ReadTurn, read_debate
from debate_train.batches.row_types import Row

_ANSWERS = ("correct", "pass@k", "avg@k", "cons@k")


def paper_metrics(
    transcripts: Sequence[Transcript],
    rows: Sequence[Row],
    watched: Mapping[str, float],
    dataset: str,
    num_agents: int,
) -> dict[str, float]:
    """Return the metrics of a step's debates that have a name in a paper.

    Args:
        transcripts: The debates of a step, single-turn replies beside them included.
        rows: What is trained on, with advantages.
        watched: `debate_rewards.metrics` of the debates.
        dataset: The name of the data, in `train_{dataset}/…`.
        num_agents: Of a debate; a transcript of fewer is a single reply beside the debates.

    Source: Tinker debate note, section 3.1 (`train_…`); exact formulation, "Per-step env metrics";
    SDRL (paper), Figure 4.
    """
    named = {f"train_{dataset}/{name}": watched[name] for name in _ANSWERS if name in watched}
    debates = [read_debate(transcript) for transcript in transcripts]
    whole = [d for d in debates if d.transcript.protocol.num_agents == num_agents]
    asked = [debate for debate in whole if _asks_for_a_form(debate)]
    replies = [
        _has_form(turn, _contract(debate).kind)
        for debate in asked
        for turn in last_turns(debate).values()
    ]
    if replies:
        named[f"train_{dataset}/format"] = fmean(replies)
    return named | transition_metrics(debates) | self_debate_metrics(debates, rows)


def transition_metrics(debates: Sequence[ReadDebate]) -> dict[str, float]:
    """Return `round`, `parse_error` and `consensus_reached`, each a mean over all turns.

    `round` counts from 0; `consensus_reached` is 1 on a turn after which every agent of its round
    has said YES (where a round is spoken in parallel, on all its turns), and is left out where no
    contract asks for consensus.
    """
    turns = [turn for debate in debates for turn in debate.transcript.turns]
    if not turns:
        return {}
    found = {
        "round": fmean(turn.round for turn in turns),
        "parse_error": fmean(
            _failed(debate, index)
            for debate in debates
            for index in range(len(debate.transcript.turns))
        ),
    }
    asking = [d for d in debates if "consensus" in _contract(d).sections]
    reached = [one for debate in asking for one in _consensus(debate)]
    return found | ({"consensus_reached": fmean(reached)} if reached else {})


def self_debate_metrics(debates: Sequence[ReadDebate], rows: Sequence[Row]) -> dict[str, float]:
    """Return the four curves of SDRL's Figure 4, and what was built before its filter.

    `sdrl/debate_prompts` are debate prompts with a second answer whose advantage is not 0, and
    `sdrl/debate_samples` such answers: what the update is made of. `…_built` and `…_drawn` count
    all. The accuracies are over questions that were debated.

    Args:
        debates: All debates of the step; those of other forms are passed over.
        rows: Rows of the step, whose `debate` is the index of their transcript.
    """
    taught = {(row.debate, row.agent) for row in rows if row.advantages.any()}
    prompts = samples = built = drawn = 0
    held = []
    for index, debate in enumerate(debates):
        second = [key for key in debate.turns if key.round == 1]
        if debate.transcript.protocol.topology != "pair" or not second:
            continue
        held.append(debate)
        used = sum((index, key.agent) in taught for key in second)
        prompts, samples = prompts + (used > 0), samples + used
        built, drawn = built + 1, drawn + len(second)
    if not held:
        return {}
    counted = {
        "sdrl/debate_prompts": prompts,
        "sdrl/debate_samples": samples,
        "sdrl/debate_prompts_built": built,
        "sdrl/debate_samples_drawn": drawn,
    }
    return {name: float(count) for name, count in counted.items()} | _revised(held)


def _revised(debates: Sequence[ReadDebate]) -> dict[str, float]:
    """Return how often second answers are right, and how much more often than first ones."""
    right: tuple[list[float], list[float]] = ([], [])
    for verdicts in turn_verdicts(debates):
        if any(verdict.verdict == "unverifiable" for verdict in verdicts.values()):
            continue
        for key, verdict in verdicts.items():
            right[key.round].append(float(verdict.verdict == "right"))
    if not right[1]:
        return {}
    second = fmean(right[1])
    return {
        "sdrl/debate_accuracy": second,
        "sdrl/debate_accuracy_improvement": second - fmean(right[0]),
    }


def _contract(debate: ReadDebate) -> Contract:
    return get_contract(debate.transcript.protocol.contract)


def _failed(debate: ReadDebate, index: int) -> bool:
    turn = debate.transcript.turns[index]
    read = debate.turns.get(turn.key)
    return turn.failure is not None if read is None else read.failed


def _consensus(debate: ReadDebate) -> list[float]:
    """Return for each turn whether all agents of its round have said YES by then."""
    rules = debate.transcript.protocol
    found = []
    for turn in debate.turns.values():
        heard = [
            other
            for other in debate.turns.values()
            if other.key.round == turn.key.round
            and (rules.schedule == "parallel" or other.key.agent <= turn.key.agent)
        ]
        agreed = len(heard) == rules.num_agents and all(one.parsed.consensus for one in heard)
        found.append(float(agreed))
    return found


def _asks_for_a_form(debate: ReadDebate) -> bool:
    """Return whether prompts say how an answer is written, which the compact style does not."""
    transcript = debate.transcript
    is_compact = transcript.protocol.extra.get("style") == "compact"
    return not is_compact and bool(answer_form(transcript.question, _contract(debate).kind))


def _has_form(turn: ReadTurn, kind: str) -> bool:
    r"""Return whether an answer stands where it is asked for: in a box, or on an answer line."""
    if turn.failed:
        return False
    text = (turn.parsed.answer or "") if kind == "xml" else turn.turn.text
    found = answer_line(text) if kind == "answer_line" else final_box(text)
    return found is not None and found[0] < found[1]
