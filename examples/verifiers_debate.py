"""A verifiers environment: agents debate by one of our forms and are paid by their peers' votes.

PYTHONPATH=examples vf-eval verifiers_debate -m MODEL --client.base-url URL --no-push

PYTHONPATH names this folder; an installed module needs none. Each agent of a debate is one rollout
of the role `debater`, held open from round to round, so its trace is a dialogue of several turns.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack

import verifiers.v1 as vf
from openai import AsyncOpenAI

from debate_protocol import Question, Reply, Simultaneous, TurnRequest, from_json, to_json
from debate_rewards import V2, debate_metrics

QUESTIONS = (("What is 17 + 25?", "42"), ("What is 6 * 7 - 2?", "40"))


class Asked(vf.TaskData):
    """A question with its right answer; a rollout's prompts come from the form."""

    question: str
    answer: str


class DebateTask(vf.Task[Asked]):
    """One question to debate."""


class Questions(vf.Taskset[DebateTask]):
    """The questions; a taskset of one's own reads them from a file."""

    def load(self) -> Iterator[DebateTask]:
        """Yield a task for each question."""
        for number, (question, answer) in enumerate(QUESTIONS):
            yield DebateTask(Asked(id=str(number), question=question, answer=answer))


class Chat(vf.Harness[vf.HarnessConfig]):
    """An agent that has nothing but its dialogue: one call of the model for each turn."""

    APPENDS_SYSTEM_PROMPT, SUPPORTS_RESUME = True, True
    EXECUTES_CODE, NEEDS_CONTAINER = False, False

    async def launch(self, ctx, trace, runtime, endpoint, *rest):
        """Send the dialogue to the model; verifiers records the reply."""
        secret, _, data = rest
        said = [message.model_dump(include={"role", "content"}) for message in data.prompt]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            await client.chat.completions.create(model=ctx.model, messages=said)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class DebateConfig(vf.EnvConfig):
    """How long debates are and who plays: `--env.agents 5`, `--env.debater.model NAME`."""

    debater: vf.AgentConfig = vf.AgentConfig(runtime={"type": "subprocess"})
    agents: int = 3
    rounds: int = 2


class Debate(vf.Env[DebateConfig]):
    """One debate is one episode; the reward of each trace is its agent's return."""

    async def run(self, task: DebateTask, agents: vf.Agents) -> None:
        """Play the debate: the asks of a round go to all its agents at once."""
        form = Simultaneous(num_agents=self.config.agents, max_rounds=self.config.rounds)
        question = Question(task.data.id, task.data.question, task.data.answer)
        debate = form.start(question, seed=task.data.idx)
        async with AsyncExitStack() as stack:
            seats = [
                await stack.enter_async_context(agents.debater.interaction(task))
                for _ in range(form.num_agents)
            ]

            async def reply(request: TurnRequest) -> Reply:
                seat = seats[request.agent]
                news = request.messages[len(seat.trace.messages) :]
                return Reply((await seat.turn([dict(message) for message in news])).last_reply)

            requests = next(debate)
            try:
                while True:
                    requests = debate.send(list(await asyncio.gather(*map(reply, requests))))
            except StopIteration as end:
                for agent, seat in enumerate(seats):
                    seat.trace.info |= {"debate": to_json(end.value), "agent": agent}

    async def finalize(self, task: DebateTask, episode: vf.Episode) -> None:
        """Pay each agent by what the votes of its peers say; note whether the answers are right."""
        debate = from_json(episode.traces[0].info["debate"])
        (score,), accuracy = V2()([debate]), debate_metrics([debate])["avg@k"]
        for trace in episode.traces:
            value = score.agents[trace.info["agent"]]
            if value is not None:  # None is no signal: nobody voted on what this agent said.
                trace.record_reward("peers", value)
            trace.record_metric("accuracy", accuracy)


__all__ = ["Chat", "Debate", "Questions"]

if __name__ == "__main__":
    from verifiers.v1.cli.eval.main import main

    main(["verifiers_debate", *sys.argv[1:]])
