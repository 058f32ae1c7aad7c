"""A run's report as a page that updates while the run continues."""

from hamlearn.watch.run_view import RunView
from hamlearn.watch.server import Server, watch
from hamlearn.watch.site import Answer, Site
from hamlearn.watch.tail import Tail

__all__ = ["Answer", "RunView", "Server", "Site", "Tail", "watch"]
