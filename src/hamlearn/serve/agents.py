"""The learners of one process, by key: created by their first sample, up to a bounded number."""

from __future__ import annotations

import re
import shutil

from hamlearn.errors import ConfigError
from hamlearn.serve.agent import Agent
from hamlearn.serve.checkpoints import PATTERN
from hamlearn.serve.forms import RequestError
from hamlearn.serve.settings import Settings

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


class Agents(dict[str, Agent]):
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
        folders = {"": settings.folder, **{key: self._folder / key for key in saved}}
        super().__init__({key: Agent(settings, folder) for key, folder in folders.items()})

    def of(self, key: str, *, make: bool = False) -> Agent:
        """The agent of a key, which is made if it may be.

        Raises:
            RequestError: There is none, or there are as many as there may be.
        """
        if key not in self:
            if not _KEY.fullmatch(key):
                allowed = "Give 1 to 64 letters, digits, '.', '_' or '-', without '.' first."
                raise RequestError(422, f"agent={key[:80]!r} is not a key. {allowed}")
            if not make:
                raise RequestError(
                    404, f"there is no agent {key!r}. Send it a sample first: POST /predict?agent={key}"
                )
            if len(self) >= self._most:
                remedy = "Use one of them, delete one, or raise serve.agents."
                raise RequestError(
                    429, f"there are serve.agents = {self._most} agents already. {remedy}", retry=60
                )
            self[key] = Agent(self._settings, self._folder / key)
        return self[key]

    def delete(self, key: str) -> None:
        """Forget an agent, with its checkpoints."""
        if not key:
            raise RequestError(422, "the agent without a key cannot be deleted. Name one: DELETE /agent?agent=KEY")
        self.of(key)
        del self[key]
        shutil.rmtree(self._folder / key)
