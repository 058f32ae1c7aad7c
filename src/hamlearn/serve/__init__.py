"""A learner behind HTTP: `hamlearn serve CONFIG.toml`, or a finished run (extra `serve`).

`serve` runs a server until it is stopped. `Service` and `application` are its parts.
"""

from hamlearn.serve.app import application
from hamlearn.serve.server import serve
from hamlearn.serve.service import Service
from hamlearn.serve.settings import Settings, check, load

__all__ = ["Service", "Settings", "application", "check", "load", "serve"]
