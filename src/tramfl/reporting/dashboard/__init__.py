"""The live view: one page, served on this machine, that follows a run and replays it. Standard library alone.

`Source` is what it shows: a run's folder (`FolderSource`), or anything else that can say what is going on now and
list the rounds that are done.
"""

from tramfl.reporting.dashboard.folder import FolderSource
from tramfl.reporting.dashboard.server import Dashboard, serve
from tramfl.reporting.dashboard.source import Source

__all__ = ["Dashboard", "FolderSource", "Source", "serve"]
