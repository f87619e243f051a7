"""The dashboard: the locks of a store in a browser, live. It needs the extra `holdfast[dashboard]`.

    from holdfast.dashboard import dashboard

    app.mount("/locks", dashboard(client, token=os.environ["LOCKS_TOKEN"]))      # FastAPI or Starlette

`holdfast dashboard` serves the same app.

app       the routes, and the stream of changes
security  hosts, token, cookie, headers, checks of a POST
feed      one monitor for all open pages
states    the result of a poll, as JSON texts
waits     the wait-for graph
store     guarantees, warnings and primitives
pages     HTML; the scripts and styles are in static/
"""

from __future__ import annotations

from holdfast.errors import ConfigurationError

try:
    from holdfast.dashboard.app import dashboard
except ImportError as error:
    raise ConfigurationError(f"a package is missing ({error}): pip install 'holdfast[dashboard]'") from error

__all__ = ["dashboard"]
