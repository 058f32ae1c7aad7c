"""The learners of one process, by key: created by their first sample, up to a bounded number."""

from __future__ import annotations

import re
import shutil

from hamlearn.errors import ConfigError
from hamlearn.serve.agent import Agent
from hamlearn.serve.checkpoints import PATTERN
from hamlearn.serve.forms import Refused
from hamlearn.serve.settings import Settings

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


class Agents:
    """Learners by key; the one without a key is there from the start, and so are those that were saved.

    Args:
        settings: What all of them are built from.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._most = settings, settings.serve["agents"]
        self._folder = settings.folder / "agents"
        saved = sorted({path.parent.name for path in self._folder.glob(f"*/{PATTERN}")})
        if saved and len(saved) >= self._most:
            raise ConfigError(
                f"{settings.folder} holds {len(saved) + 1} agents, and serve.agents = {self._most} allows fewer. "
                "Raise it, or move folders of agents away."
            )
        self._known = {"": Agent(settings, settings.folder)}
        for key in saved:
            self._known[key] = Agent(settings, self._folder / key)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def items(self) -> list[tuple[str, Agent]]:
        """Keys and agents."""
        return list(self._known.items())

    def get(self, key: str, *, make: bool = False) -> Agent:
        """The agent of a key, which is made if it may be.

        Raises:
            Refused: There is none, or there are as many as there may be.
        """
        if key not in self._known:
            if not _KEY.fullmatch(key):
                allowed = "Give 1 to 64 letters, digits, '.', '_' or '-', without '.' first."
                raise Refused(422, f"agent={key[:80]!r} is not a key. {allowed}")
            if not make:
                raise Refused(404, f"there is no agent {key!r}. Send it a sample first: POST /predict?agent={key}")
            if len(self._known) >= self._most:
                remedy = "Use one of them, delete one, or raise serve.agents."
                raise Refused(429, f"there are serve.agents = {self._most} agents already. {remedy}", retry=60)
            self._known[key] = Agent(self._settings, self._folder / key)
        return self._known[key]

    def delete(self, key: str) -> None:
        """Forget an agent, with its checkpoints and records."""
        if not key:
            raise Refused(422, "the agent without a key cannot be deleted. Name one: DELETE /agent?agent=KEY")
        self.get(key)
        del self._known[key]
        shutil.rmtree(self._folder / key)
