"""Who saves: copies what has changed now and then, in the learners' turn, and writes it out of it."""

from __future__ import annotations

import logging
import threading

from hamlearn.errors import HamlearnError
from hamlearn.serve.agent import Agent
from hamlearn.serve.agents import Agents

log = logging.getLogger("hamlearn.serve")


class Saver:
    """Writes a checkpoint of each agent that has changed, in a thread of its own: a slow disk holds nobody up.

    Args:
        agents: The learners.
        turn: Held by whoever uses the learners.
        interval: Seconds between two checkpoints of an agent.

    Attributes:
        failures: How many checkpoints could not be written.
    """

    def __init__(self, agents: Agents, turn: threading.Lock, interval: float) -> None:
        self._agents, self._turn, self._interval = agents, turn, interval
        self._end = threading.Event()
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name="hamlearn-saver", daemon=True)

    def start(self) -> None:
        """Begin to save."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the checkpoint that is being written, and return."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        # A checkpoint is late by a tenth of the interval at most, and by no more than a second.
        while not self._end.wait(min(self._interval / 10, 1.0)):
            for key, agent in self._agents.items():
                if agent.due(self._interval) and not self._end.is_set():
                    self._save(key, agent)

    def _save(self, key: str, agent: Agent) -> None:
        try:
            with self._turn:
                write = agent.begin_save()
            write()
        except (HamlearnError, OSError):
            self.failures += 1
            log.exception("the checkpoint of agent %r could not be written; learning goes on", key)
