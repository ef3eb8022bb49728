"""The section of a page for the run's own model to answer, check and vote."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from markupsafe import Markup

from debate_protocol.forms import Simultaneous
from debate_report.browsing import as_data
from debate_report.debates import Recorded
from debate_report.json_values import as_mapping, finite
from debate_report.page_templates import render
from debate_report.playing.architecture import read_architecture
from debate_report.playing.prompt_lines import check_form, read_prompts
from debate_report.playing.signs_puzzles import Puzzle, read_puzzle
from debate_report.playing.small_weights import (
    NotPlayableError,
    pack_weights,
    read_config,
    read_weights,
)
from debate_report.playing.word_tokens import as_page_tokens, read_word_tokens
from debate_report.run_files import RunFiles
from debate_report.stages import recipe_of

PHASE_START = "phase_start.safetensors"
# A distribution that is cut would need the sampler's filters.
UNCUT = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
# How `Debates` names the phase of debates on the test split after a run.
AFTER = "test questions after"
NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

_log = logging.getLogger(__name__)


def play_section(run: RunFiles, debates: Sequence[Recorded]) -> Markup:
    """Render the section; empty for runs with debaters beyond the page's script."""
    try:
        return _render_section(run, debates)
    except NotPlayableError as reason:
        _log.info("%s: its page has no live debaters: %s", run.name, reason)
        return Markup()


@dataclass(frozen=True, slots=True)
class _Settings:
    """Keys of the recipe in the phase of the saved start."""

    debate: Mapping[str, object]
    rollout: Mapping[str, object]
    data: Mapping[str, object]


def _render_section(run: RunFiles, debates: Sequence[Recorded]) -> Markup:
    if run.folder is None:
        raise NotPlayableError("found files, expected a run directory")
    before = read_weights(run.folder / PHASE_START)
    phase = str(before.metadata.get("phase", ""))
    settings = _settings_of(run, phase)
    if settings.debate.get("type") != "simultaneous":
        raise NotPlayableError(f"debate: found {settings.debate.get('type')!r}")
    try:
        form = Simultaneous.model_validate(settings.debate)
    except ValueError as problem:
        raise NotPlayableError(f"debate: {problem}") from problem
    check_form(form)
    checkpoint = _last_checkpoint(run.folder)
    architecture = read_architecture(read_config(checkpoint / "config.json"))
    after = read_weights(checkpoint / "model.safetensors")
    for weights in (before, after):
        architecture.check(weights)
    contract = form.contract_rules()
    tokens = read_word_tokens(checkpoint, contract)
    if len(tokens.words) != architecture.sizes["vocabulary"]:
        raise NotPlayableError("tokenizer: has another number of words than the model")
    played = [debate for debate in debates if not debate.demonstrated]
    puzzle = read_puzzle(settings.data, [debate.transcript.question for debate in played])
    names = list(architecture.shapes)
    data = {
        "model": architecture.sizes,
        "tensors": [[name, *architecture.shapes[name]] for name in names],
        "before": pack_weights(before, names),
        "after": pack_weights(after, names),
        "tokens": as_page_tokens(tokens),
        "form": {
            "agents": form.num_agents,
            "rounds": form.max_rounds,
            "sections": list(contract.sections),
            "answer": contract.answer_section,
            "prompts": [[asdict(prompt) for prompt in row] for row in read_prompts(form)],
        },
        "sampling": {
            "temperatures": [form.temperature_of(agent) for agent in range(form.num_agents)],
            "max_tokens": _max_tokens(settings.rollout),
            "stop": contract.stop,
        },
        "puzzle": asdict(puzzle),
        "opens": _first_puzzle(played, puzzle),
    }
    return render(
        "play.html",
        data=as_data(data),
        num_parameters=architecture.num_parameters,
        agents=_in_words(form.num_agents),
        digits=_in_words(puzzle.num_digits),
        num_digits=puzzle.num_digits,
        largest_digit=puzzle.largest_digit,
        period=_period_of(run, phase),
    )


def _period_of(run: RunFiles, phase: str) -> str:
    """Name the training between both sets of weights: a named phase, or the full run."""
    phases = as_mapping(recipe_of(run).get("phases"))
    return phase.replace("_", "-") if phase in phases else "the run"


def _settings_of(run: RunFiles, phase: str) -> _Settings:
    recipe = recipe_of(run)
    overrides = as_mapping(as_mapping(recipe.get("phases")).get(phase))

    def merged(key: str) -> Mapping[str, object]:
        base = as_mapping(recipe.get(key))
        override = as_mapping(overrides.get(key))
        # Settings of another type share nothing with these.
        is_same_type = override.get("type", base.get("type")) == base.get("type")
        return {**base, **override} if is_same_type else override

    return _Settings(merged("debate"), merged("rollout"), merged("data"))


def _max_tokens(rollout: Mapping[str, object]) -> int:
    for key, expected in UNCUT.items():
        if rollout.get(key, expected) != expected:
            raise NotPlayableError(f"rollout.{key}: found {rollout[key]!r}, expected {expected!r}")
    max_tokens = finite(rollout.get("max_tokens"))
    if max_tokens is None or max_tokens < 1:
        raise NotPlayableError(f"rollout.max_tokens: found {rollout.get('max_tokens')!r}")
    return int(max_tokens)


def _last_checkpoint(folder: Path) -> Path:
    """Find the final weights: the checkpoint with the highest number."""
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    if not checkpoints:
        raise NotPlayableError("found no checkpoint")
    return checkpoints[-1]


def _first_puzzle(debates: Sequence[Recorded], puzzle: Puzzle) -> list[int]:
    """Choose what is shown first: a held-out puzzle that divided the agents and that they solved.

    Returns:
        The digits, and then the total.
    """

    def interest(debate: Recorded) -> tuple[bool, bool, bool]:
        first_answers = {answer for key, answer in debate.answers.items() if key.round == 0}
        is_right = any(verdict == "right" for _, verdict in debate.decisions.values())
        is_held_out = debate.evaluated and debate.phase.startswith(AFTER)
        return is_held_out, len(first_answers) > 1, is_right

    question = max(debates, key=interest).transcript.question
    numbers = [int(word) for word in question.text.split() if word not in puzzle.words]
    return [*numbers[1:], numbers[0]]


def _in_words(number: int) -> str:
    return NUMBER_WORDS[number] if number < len(NUMBER_WORDS) else str(number)
