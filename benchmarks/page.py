"""The plots at the top of docs/benchmarks.md: a selection of the published ones."""

from __future__ import annotations

import os

# The caption of a plot, and its file.
WORTH_IT = (
    ("A free lock", "uncontended-machine-pairs.svg"),
    ("A wanted lock", "contended-machine-8-hold-2ms.svg"),
    ("A long queue", "waiters-machine.svg"),
    ("A free lock on Redis", "uncontended-redis-pairs.svg"),
    ("50 tasks at once on Redis", "many-redis-50-tasks.svg"),
    ("A wanted lock on Redis", "contended-redis-8-hold-2ms.svg"),
    ("Commands for one hand-over on Redis", "waiters-redis-commands.svg"),
    ("Commands for one hand-over on etcd", "waiters-etcd-commands.svg"),
    ("Commands for one hand-over on ZooKeeper", "waiters-zookeeper-commands.svg"),
    ("A free lock by the majority of five nodes", "uncontended-redlock-pairs.svg"),
    ("The same, with client and servers on cores of their own", "uncontended-redlock-apart.svg"),
    ("The same, with nodes that are 5 ms away", "uncontended-redlock-5ms-away.svg"),
)
BEGIN, END = "<!-- plots: written by --publish -->\n", "<!-- end of plots -->\n"


def with_plots(page: str, folder: str) -> str:
    """Return the text of the page with the plots in that folder."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    name = os.path.basename(folder)
    shown = [f"![{says}]({name}/{file})\n\n" for says, file in WORTH_IT if os.path.exists(os.path.join(folder, file))]
    return "".join((before, BEGIN, "\n", *shown, END, after))
