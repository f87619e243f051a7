"""The plots in docs/benchmarks.md, a selection of the published ones, and the one in README.md."""

from __future__ import annotations

import os

# The caption of a plot, and its file.
IN_DOCS = (
    ("Every store: holdfast and other libraries", "summary.svg"),
    ("A free lock", "uncontended-machine-pairs.svg"),
    ("A contended lock", "contended-machine-8-hold-2ms.svg"),
    ("A long queue", "waiters-machine.svg"),
    ("A free lock on Redis", "uncontended-redis-pairs.svg"),
    ("50 tasks at once on Redis", "many-redis-50-tasks.svg"),
    ("A contended lock on Redis", "contended-redis-8-hold-2ms.svg"),
    ("Commands for one hand-over on Redis", "waiters-redis-commands.svg"),
    ("Commands for one hand-over on etcd", "waiters-etcd-commands.svg"),
    ("Commands for one hand-over on ZooKeeper", "waiters-zookeeper-commands.svg"),
    ("A contended lock on PostgreSQL", "contended-postgresql-8-hold-2ms.svg"),
    ("A free lock by the majority of five nodes", "uncontended-redlock-pairs.svg"),
    ("The same, with client and servers on cores of their own", "uncontended-redlock-apart.svg"),
    ("The same, with nodes that are 5 ms away", "uncontended-redlock-5ms-away.svg"),
)
SUMMARY = "summary.svg"
IN_README = (("acquire and release, and waits, on every store: holdfast and other libraries", SUMMARY),)
BEGIN, END = "<!-- plots: written by --publish -->\n", "<!-- end of plots -->\n"


def with_plots(page: str, folder: str, link: str) -> str:
    """Return the text of the page with those plots that are in the folder. `link` is the folder, seen from the page."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = IN_README if "/" in link else IN_DOCS
    shown = [
        f"![{caption}]({link}/{file})\n\n" for caption, file in wanted if os.path.exists(os.path.join(folder, file))
    ]
    return "".join((before, BEGIN, "\n" if shown else "", *shown, END, after))
