"""How fast holdfast is, with its peers beside it in the same run: `make bench`.

    contenders/   who takes part: a module for each family, which says how to make a lock and how it waits
    measures/     what is measured: a module for each question, written once, run on every contender that can
    servers       what contenders talk to: started for each case, counted by their own account
    delay         a way to them that takes time
    plan          which contender goes through which measure, with which numbers
    runner        runs the plan: interleaved rounds, each case in a process of its own, pinned to given cores
    case          the inside of such a process
    crowd         the processes that a case contends with
    figures       medians, quantiles, Jain's index, overlaps
    results       what came out, round by round, and what that makes together
    notify        by itself: what a hand-over on PostgreSQL costs, in round trips of NOTIFY
    claims        what we say of ourselves, and whether this run bears it out
    table, plots, svg, machine, report, front    how it is shown

Not here: anything that holdfast needs. It is used as any program would use it. docs/benchmarks.md says how to read the
figures and what they do not compare.
"""
