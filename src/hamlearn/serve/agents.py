"""The learners of one process, by key: made when they are first asked for, never more than a bounded number."""

from __future__ import annotations

import logging
import re

from hamlearn.errors import ConfigError, HamlearnError
from hamlearn.serve.agent import CHECKPOINT, Agent
from hamlearn.serve.refusals import Refused
from hamlearn.serve.settings import Settings
from hamlearn.streams.values import shown

FOLDER = "agents"

log = logging.getLogger("hamlearn.serve")

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


class Agents:
    """Learners by key; the one without a key is there from the start, and so are those that were saved.

    Each has the weights that the seed gives when it begins, a folder of its own, and a checkpoint of its own.

    Args:
        settings: What all of them are built from.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._most = settings.serve["agents"]
        self._known = {"": Agent(settings, settings.folder)}
        saved = sorted(path.parent.name for path in (settings.folder / FOLDER).glob(f"*/{CHECKPOINT}"))
        if len(saved) >= self._most and saved:
            raise ConfigError(
                f"{settings.folder} holds {len(saved) + 1} agents, and serve.agents = {self._most} allows fewer. "
                "Raise it, or move folders of agents away."
            )
        for key in saved:
            self._known[key] = self._made(key)

    def items(self) -> list[tuple[str, Agent]]:
        """Keys and agents."""
        return list(self._known.items())

    def has(self, key: str) -> bool:
        """Whether there is an agent of this key already."""
        return key in self._known

    def require(self, key: str, *, make: bool) -> None:
        """Refuse a key that no agent has and none may get.

        Args:
            key: From a request.
            make: Whether an agent may be made for it.
        """
        if key in self._known:
            return
        self.require_key(key)
        if not make:
            raise Refused(404, f"there is no agent {key!r} yet. Send it a sample first: POST /predict?agent={key}")
        if len(self._known) >= self._most:
            raise Refused(
                429,
                f"there are {len(self._known)} agents, and serve.agents = {self._most} allows no more. Use one of "
                "them, or raise serve.agents.",
                retry=60,
            )

    def require_key(self, key: str) -> None:
        """Refuse what cannot be the key of an agent."""
        if key and not _KEY.fullmatch(key):
            raise Refused(
                422,
                f"agent={shown(key)} is no key. Give 1 to 64 letters, digits, '.', '_', '-'; not '.' first.",
            )

    def get(self, key: str, *, make: bool = False) -> Agent:
        """The agent of a key, which is made if it may be."""
        if key not in self._known:
            self.require(key, make=make)
            self._known[key] = self._made(key)
        return self._known[key]

    def count_dropped(self, key: str, count: int) -> None:
        """Count samples that were refused for lack of room; where there is no such agent, they are the first's."""
        self._known.get(key, self._known[""]).dropped += count

    def _made(self, key: str) -> Agent:
        return Agent(self._settings, self._settings.folder / FOLDER / key)

    def close(self) -> None:
        """Save all of them; what cannot be saved is told, and keeps no other from being saved."""
        problems = []
        for key, agent in self.items():
            try:
                agent.close()
            except (HamlearnError, OSError) as error:
                log.exception("the agent %r could not be saved", key)
                problems.append(error)
        if problems:
            raise problems[0]
