"""A run's report as a page that updates while the run continues."""

from hamlearn.watch.site import RunFolder, app, watch

__all__ = ["RunFolder", "app", "watch"]
