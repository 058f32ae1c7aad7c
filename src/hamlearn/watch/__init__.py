"""A run's report as a page that updates while the run continues."""

from hamlearn.watch.folder import RunFolder
from hamlearn.watch.site import app, watch

__all__ = ["RunFolder", "app", "watch"]
