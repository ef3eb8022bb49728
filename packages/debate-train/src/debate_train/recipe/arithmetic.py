"""Lines with the debates, turns, updates and tokens of a run, its steps and evaluations."""

from collections.abc import Iterator

from debate_protocol.forms import DebateForm
from debate_train.playing import direct_form
from debate_train.recipe.imitation import examples_text
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.signal_check import reward_context
from debate_train.recipe.step_counts import StepCounts, many, step_counts


def outline(recipe: Recipe) -> str:
    """Describe a run in a line: phases with steps and rewards, and agents."""
    phases = recipe.phase_recipes()
    phase_texts = []
    sizes = []
    for name, phase in phases.items():
        steps = f"{many(phase.steps, 'step')} ({_teacher(phase)})"
        phase_texts.append(f"{name} {steps}" if recipe.phases else steps)
        form = phase.debate
        sizes.append(f"{many(form.num_agents, 'agent')}, {many(form.max_rounds, 'round')}")
    if len(set(sizes)) == 1:
        return f"{', then '.join(phase_texts)}; {sizes[0]}"
    texts_with_sizes = [f"{text}: {size}" for text, size in zip(phase_texts, sizes, strict=True)]
    return "; then ".join(texts_with_sizes)


def _teacher(phase: Recipe) -> str:
    if phase.offline is not None:
        return f"{phase.loss.type} on {phase.offline.type}"
    if phase.loss.supervised:
        return "imitation"
    reward_types = dict.fromkeys(part.reward.type for part in phase.reward.parts().values())
    return f"reward {' + '.join(reward_types)}"


def most_tokens(recipe: Recipe) -> int:
    """Bound the reply tokens sampled in all steps of a run."""
    num_tokens = 0
    for phase in recipe.phase_recipes().values():
        if phase.offline is None and phase.rollout.engine.is_sampled:
            num_turns = phase.steps * step_counts(phase, phase.data.batch_size).drawn_turns
            num_tokens += num_turns * phase.rollout.max_tokens
    return num_tokens


def phase_lines(name: str, phase: Recipe) -> Iterator[str]:
    """Describe the debates of a step and of the whole phase.

    Raises:
        UsageError: The phase learns from files that are absent.
    """
    offline = phase.offline
    criterion = phase.exit_criterion
    counts = step_counts(phase, phase.data.batch_size)
    num_rows = counts.samples if offline is None else offline.batch_size
    num_updates = phase.trainer.update_count(num_rows)
    at_most = "" if phase.trainer.minibatch_size is None else "at most "
    updates = "one optimizer update" if num_updates == 1 else f"{num_updates} optimizer updates"
    extended = f" to {criterion.max_steps:,} (exit criterion)" if criterion else ""
    yield f"phase {name}: {phase.steps:,}{extended} steps of {at_most}{updates} each"
    if phase.keep_if is not None:
        yield f"  {phase.keep_if.described(name)}"
    if offline is None:
        all_updates = f"{at_most}{many(phase.steps * num_updates, 'update')}"
        yield from _played_lines(phase, counts, all_updates)
    else:
        yield f"  examples ({offline.type}), made once: {examples_text(phase, offline)}"
        yield (
            f"  a step: {offline.batch_size:,} of them; in all "
            f"{offline.batch_size * phase.steps:,}, epoch after epoch"
        )
    if offline is not None or phase.loss.supervised:
        yield "  supervised: log-probabilities are taken at temperature 1"
    else:
        agents = range(phase.debate.num_agents)
        temperatures = dict.fromkeys(phase.debate.temperature_of(agent) for agent in agents)
        listed = ", ".join(f"{temperature:g}" for temperature in temperatures)
        yield f"  temperatures {listed}: log-probabilities are taken at them"
    if phase.evaluation.questions:
        yield evaluation_line(phase)


def _played_lines(phase: Recipe, counts: StepCounts, all_updates: str) -> Iterator[str]:
    num_steps = phase.steps
    num_questions = phase.data.batch_size
    rollout = phase.rollout
    sample_unit = "turn" if counts.samples == counts.turns else "turn that is trained on"
    num_sequences = counts.debates * len(phase.debate.trained_agents())
    if counts.samples < counts.turns and counts.samples - counts.direct == num_sequences:
        sample_unit = "agent and debate"
    direct = f" + {many(counts.direct, 'direct reply')}" if counts.direct else ""
    yield (
        f"  a step: {many(num_questions, 'question')} x "
        f"{many(rollout.debates_per_question, 'debate')} = {many(counts.debates, 'debate')}; "
        f"x {_debate_shape(phase, counts)}{direct} = {many(counts.turns, 'turn')}; "
        f"{many(counts.samples, 'sample')} (one for each {sample_unit})"
    )
    yield (
        f"  in all: {many(num_questions * num_steps, 'question')}, "
        f"{many(counts.debates * num_steps, 'debate')}, {many(counts.turns * num_steps, 'turn')}, "
        f"{many(counts.samples * num_steps, 'sample')}, {all_updates}, "
        f"at most {counts.turns * num_steps * rollout.max_tokens:,} tokens in replies"
    )
    for note in phase.reward.notes(reward_context(phase)):
        if note.kind == "change":
            yield f"  {note.text}"
    if rollout.oversample > 1:
        yield (
            f"  a step draws up to {rollout.oversample} batches of "
            f"{many(num_questions, 'question')} until {num_questions:,} are kept: at most "
            f"{counts.drawn_turns * rollout.max_tokens:,} tokens in replies"
        )
    if phase.pipeline.max_staleness:
        ahead = many(phase.pipeline.max_staleness, "step")
        yield f"  up to {ahead} played ahead of training, with weights at most {ahead} old"


def _debate_shape(phase: Recipe, counts: StepCounts) -> str:
    """Describe the turns of a debate, and how many debates go on after a gate."""
    form = phase.debate
    if len(phase.forms) > 1:
        turn_counts = (str(form.turn_count()) for form in phase.forms)
        return f"{' or '.join(turn_counts)} turns"
    first_segment, *later_segments = counts.segments
    if later_segments:
        text = many(first_segment.turns, "turn")
        for segment in later_segments:
            text += f", {segment.debates:,} of them x {segment.turns:,} more"
    elif form.turn_count() == form.num_agents * form.max_rounds:
        text = f"{many(form.num_agents, 'agent')} x {many(form.max_rounds, 'round')}"
    else:
        text = many(form.turn_count(), "turn")
    return text


def collecting_line(recipe: Recipe) -> str:
    """Describe the debates collected by `debate-rollout`."""
    num_steps = recipe.steps
    batch_size = recipe.data.batch_size
    counts = step_counts(recipe, batch_size)
    direct = f" and {many(num_steps * counts.direct, 'direct reply')}" if counts.direct else ""
    num_turns = num_steps * counts.turns
    return (
        f"collect: {many(num_steps, 'step')} x {many(batch_size, 'question')} = "
        f"{many(num_steps * batch_size, 'question')}; "
        f"{many(num_steps * counts.debates, 'debate')}{direct}; "
        f"{many(num_turns, 'turn')}, at most {num_turns * recipe.rollout.max_tokens:,} tokens in "
        "replies"
    )


def evaluation_line(phase: Recipe) -> str:
    """Describe the debates of an evaluation in all modes."""
    setup = phase.evaluated()
    num_questions = phase.evaluation.questions
    mode_texts = [mode.counted(setup.form) for mode in setup.modes.values()]
    turns_per_question = sum(play.turns for _, play in setup.plays())
    num_turns = turns_per_question * num_questions * setup.runs
    return (
        f"  an evaluation: {many(num_questions, 'question')} at most, each with "
        f"{' and '.join(filter(None, mode_texts)) or 'nothing to play'}; {setup.described()}; at "
        f"most {many(num_turns, 'turn')}, {num_turns * phase.rollout.max_tokens:,} tokens in "
        "replies"
    )


def forms_of_evaluations(phase: Recipe) -> list[DebateForm]:
    """List the forms played by evaluations but not in training, without repetition."""
    if not phase.evaluation.questions:
        return []
    covered_forms = [*phase.forms, direct_form(phase.debate)]
    new_forms = []
    plays = sorted(phase.evaluated().plays(), key=lambda play: -play[1].form.turn_count())
    for _, play in plays:
        if play.form not in covered_forms:
            new_forms.append(play.form)
            # The direct question's prompt is never longer than the debate's.
            covered_forms += [play.form, direct_form(play.form)]
    return new_forms
