"""`debate-ask`: one question, debated by any models."""

import argparse
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from debate_protocol.command_line import is_quiet
from debate_protocol.transcripts.showing import escaped
from debate_protocol.types import Question, Reply, Transcript, TurnRequest, judging_agents, role_of
from debate_rewards.answer_checking import answer_classes, same_answer
from debate_rewards.decisions import Agreed, answer_text, decisions_of, last_turns, standings
from debate_rewards.reward import ReadDebate, read_debate
from debate_rollout.engine import Request
from debate_rollout.routing import HeardEngine
from debate_train.commands.evaluate import named_policy
from debate_train.commands.options import ASK_FORMS, ASK_RECIPE, ask_parser
from debate_train.commands.recipe_command import DONE, FAILED, command
from debate_train.errors import UsageError
from debate_train.models.policies import folder_problems
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.policies import missing_libraries
from debate_train.recipe.refusals import refuse_absent_devices
from debate_train.running.open_engines import open_sampling

Spoken = Callable[[TurnRequest, Reply], None]
"""Is called with each turn as it comes."""

_EQUALS = "{type: simultaneous, num_agents: 3, max_rounds: 2, contract: five_section}"


def settings_of(arguments: argparse.Namespace) -> list[str]:
    """Return the settings of a recipe that the options of `debate-ask` stand for."""
    url, agents, models = arguments.url, arguments.agents, list(arguments.model)
    if url is not None and not models:
        raise UsageError("--url: found no --model; expected the endpoint's name of the model")
    if url is None:
        models = [named_policy(text, "--model").model or text for text in models]
    found: dict[str, object] = {}
    if url is not None:
        found["rollout.engine"] = _endpoint(url, models[0])
    elif models:
        found["model"] = _pretrained(models[0])
    if len(models) > 1:
        spoken, policies, agents = _shared_out(models, url, arguments)
        found |= {"rollout.policies": policies, "debate.roles": spoken}
    found |= {
        "debate.judges" if arguments.form == "judged" else "debate.num_agents": agents,
        "debate.max_rounds": arguments.rounds,
        "debate.topology": arguments.topology,
        "rollout.max_tokens": arguments.max_tokens,
        "seed": arguments.seed,
    }
    rounds = ASK_FORMS.get(arguments.form)
    form = [f"debate={{type: {arguments.form}, max_rounds: {rounds}}}"] if rounds else []
    if arguments.recipe == ASK_RECIPE and not form:
        form = [f"debate={_EQUALS}"]
    # A word as it was given, which is how messages show it.
    return form + [
        f"{key}={value if isinstance(value, str) and value.isidentifier() else json.dumps(value)}"
        for key, value in found.items()
        if value is not None
    ]


def _shared_out(
    models: Sequence[str], url: str | None, arguments: argparse.Namespace
) -> tuple[dict[str, object], dict[str, object], int | None]:
    """Return who speaks for which role, the policies beside the first, and how many agents."""
    agents, count = arguments.agents, len(models)
    if arguments.form == "conl" or (arguments.form == "judged" and count > 2):
        which = "a speaker and a judge" if arguments.form == "judged" else "one for all agents"
        raise UsageError(f"--model: found {count}; expected {which}")
    policies: dict[str, object] = {
        f"model_{n}": _policy(url, model) for n, model in enumerate(models[1:], 2)
    }
    if arguments.form == "judged":
        return {"judge": {"policy": "model_2"}}, policies, agents
    agents = count if agents is None else agents
    if agents < count:
        raise UsageError(f"--agents: found {agents} for {count} models; expected as many")
    roles: dict[str, object] = {}
    for n in range(count):  # A role for each, with as equal numbers as can be.
        name = f"model_{n + 1}"
        own = {"policy": name} if n else {}
        roles[name] = {"count": len(range(n, agents, count))} | own
    return roles, policies, agents


def _policy(url: str | None, model: str) -> dict[str, object]:
    if url is None:
        return {"type": "model", "model": _pretrained(model)}
    return {"type": "engine", "engine": _endpoint(url, model)}


def _pretrained(name: str) -> dict[str, object]:
    return {"type": "pretrained", "name": name}


def _endpoint(url: str, model: str) -> dict[str, object]:
    endpoint: dict[str, object] = {"type": "openai", "base_url": url, "model": model}
    if not os.environ.get("OPENAI_API_KEY"):
        return endpoint | {"api_key_env": None}
    # Whoever types the URL means it to get the key.
    return endpoint | {"api_key_env": "OPENAI_API_KEY", "api_key_host": urlsplit(url).hostname}


def ask(
    recipe: Recipe,
    question: Question,
    spoken: Spoken,
    *,
    decision: str | None = None,
    until_agreed: bool = False,
) -> dict[str, Any]:
    """Let the agents of a recipe debate a question.

    Args:
        recipe: Its model, debate and rollout are used; its gates go on.
        question: What is debated.
        spoken: Is called with each turn as it comes.
        decision: The rule whose answer counts; None is that of judges, or the peers' vote, or
            without comparisons the majority.
        until_agreed: End the debate after the first round whose answers are all the same.

    Returns:
        What `--json` prints.

    Raises:
        UsageError: The recipe's model or engine cannot be used, or the rule does not apply.
        EngineFailure: The engine failed twice on a request.
    """
    from transformers.utils import logging

    refuse_absent_devices(recipe)
    problems = list(missing_libraries(recipe))
    if "tokens" in recipe.rollout.engine.capabilities:
        problems += folder_problems(recipe.model)
    if problems:
        raise UsageError("\n".join(problems))
    form = recipe.debate
    if decision == "central" and form.protocol().topology != "central":
        raise UsageError("--decision: found central; expected it with --topology central")
    if until_agreed and judging_agents(form.protocol()):
        raise UsageError("--until-agreed: found it before judges, who decide in the last round")
    if until_agreed:
        form = form.changed({"gate_after": list(range(form.max_rounds - 1))})
    logging.disable_progress_bar()  # Of weights that are loaded: turns are what is shown.
    logging.set_verbosity_error()
    seed = zlib.crc32(f"{recipe.seed}/ask".encode())
    same = partial(same_answer, question)
    run = form.start(question, seed=seed, debate_id="asked", same_answer=same)

    def hear(replies: list[tuple[Request, Reply]]) -> None:
        for asked, reply in replies:
            spoken(asked.turn_request, reply)

    engine = open_sampling(recipe, recipe.data.open(recipe.seed))
    try:
        select = partial(Agreed(), seed=seed) if until_agreed else None
        transcript = recipe.rollout.play([run], HeardEngine(engine, hear), select)[0]
    finally:
        engine.close()
    return decided(transcript, decision, seed)


def decided(transcript: Transcript, decision: str | None, seed: int) -> dict[str, Any]:
    """Return what a debate came to: the answer, every rule's answer, votes, tokens and turns."""
    debate = read_debate(transcript)
    decisions = decisions_of(debate, seed)
    usual = [name for name in ("judged", "peer_vote", "majority") if name in decisions]
    by = decision or usual[0]
    if by not in decisions:
        known = ", ".join(decisions)
        raise UsageError(f"--decision: found {by}; expected one that applies here: {known}")
    answers = [answer_text(debate, turn) for turn in last_turns(debate).values()]
    classes = answer_classes(transcript.question, answers)
    votes = Counter(place for place in classes if place is not None).most_common()
    counts = [turn.token_counts or (0, 0) for turn in transcript.sampled_turns()]
    turns = [
        {
            "agent": turn.agent,
            "round": turn.round,
            "answer": answer_text(debate, own) if (own := debate.turns.get(turn.key)) else None,
            "failure": turn.failure,
            "text": turn.text,
        }
        for turn in transcript.turns
    ]
    return {
        "question": transcript.question.text,
        "answer": decisions[by],
        "decision": by,
        "explanation": explain(debate, by, decisions[by]),
        "decisions": decisions,
        "votes": {str(answers[classes.index(place)]): count for place, count in votes},
        "rounds": 1 + max(turn.round for turn in transcript.turns),
        "tokens": {"prompt": sum(p for p, _ in counts), "sampled": sum(s for _, s in counts)},
        "turns": turns,
    }


def explain(debate: ReadDebate, by: str, answer: str | None) -> list[str]:
    """Say how the decision was made, and what the agents say in the end where it is another answer.

    In the quickstart's test debates the votes on earlier answers were right more often than agents
    who all agreed in the end, so agreement does not overrule votes.
    """
    question = debate.transcript.question
    lines = []
    judged = standings(debate) if by == "peer_vote" else []
    if judged:
        rounds = sorted({turn.key.round + 1 for turn, _ in judged})
        of_rounds = " and ".join(map(str, rounds))
        lines.append(f"by the votes of the others on the answers of round {of_rounds}")
        best = max(standing for _, standing in judged)
        tied = [answer_text(debate, turn) for turn, standing in judged if standing == best]
        others = [text for text in tied if text and not same_answer(question, text, answer)]
        if others:
            lines.append(f"tied with {', '.join(dict.fromkeys(others))}; drawn by the seed")
    last_answers = [answer_text(debate, turn) for turn in last_turns(debate).values()]
    classes = set(answer_classes(question, last_answers))
    is_unanimous = len(classes) == 1 and None not in classes
    if is_unanimous and not same_answer(question, last_answers[0], answer):
        lines.append(
            f"all {len(last_answers)} agents say {last_answers[0]} in the last round; "
            "--decision majority takes that"
        )
    return lines


class Printer:
    """Prints turns as they come, the answer alone, or one JSON object."""

    def __init__(self, recipe: Recipe, as_object: bool) -> None:
        self._rules, self._as_object = recipe.debate.protocol(), as_object

    def turn(self, turn_request: TurnRequest, reply: Reply) -> None:
        """Print a turn."""
        if not self._as_object and not is_quiet():
            role = role_of(self._rules, turn_request.agent).name
            who = f"Agent {turn_request.agent}, round {turn_request.round + 1}"
            who += f" ({role})" if len(self._rules.roles) > 1 else ""
            who += f", {n:,} tokens" if (n := reply.token_counts[1]) else ""
            who += ", cut off" if reply.finish == "length" else ""
            print(f"--- {who}\n{_shown(reply.text.strip())}\n", flush=True)

    def end(self, found: dict[str, Any]) -> None:
        """Print what the debate came to."""
        if self._as_object:
            print(json.dumps(found, ensure_ascii=False))
        elif is_quiet():
            print(_shown(found["answer"] or ""))
        else:
            votes = ", ".join(f"{one}: {n}" for one, n in found["votes"].items()) or "none"
            others = (f"{rule}: {one or 'none'}" for rule, one in found["decisions"].items())
            spent = "; {sampled:,} tokens sampled, {prompt:,} read".format(**found["tokens"])
            print(
                f"answer: {_shown(found['answer'] or 'none that can be read')}\n"
                + "".join(f"  {_shown(line)}\n" for line in found["explanation"])
                + f"  by {found['decision']}, after {found['rounds']} "
                f"round{'s' * (found['rounds'] > 1)}{spent * bool(found['tokens']['sampled'])}\n"
                f"  agents of the last round for each answer: {_shown(votes)}\n"
                f"  by rule: {_shown(', '.join(others))}"
            )


def _shown(text: str) -> str:
    """Return text that changes nothing in a terminal."""
    return "\n".join(escaped(line) for line in text.splitlines())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return command("debate-ask", ask_parser(), argv, _main)


def _main(arguments: argparse.Namespace) -> int:
    if not arguments.question.strip():
        raise UsageError("QUESTION: found no text; expected a question")
    overrides = [*settings_of(arguments), *arguments.overrides]
    names_model = any(one.startswith(("model", "rollout.engine")) for one in overrides)
    if arguments.recipe == ASK_RECIPE and not names_model:
        raise UsageError(
            "found no --model; expected a run, a folder or a hub id, with --url what the endpoint "
            "calls the model, or a --recipe that has one"
        )
    recipe = load_recipe(arguments.recipe, overrides, model=Recipe).recipe
    meta: dict[str, object] = {"kind": arguments.kind}
    if arguments.choice:
        meta = {"kind": "choice", "choices": list(arguments.choice)}
    printer = Printer(recipe, arguments.json)
    question = Question("asked", arguments.question, meta=meta)
    how = {"decision": arguments.decision, "until_agreed": arguments.until_agreed}
    found = ask(recipe, question, printer.turn, **how)
    printer.end(found)
    return DONE if found["answer"] is not None else FAILED
