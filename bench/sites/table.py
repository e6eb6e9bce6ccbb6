"""The results of the rounds as Markdown: medians over the rounds, a column a site."""

import json
import statistics
import sys
from collections import defaultdict

SITES = (1, 2, 3)
TITLES = {
    "alone": "One worker on keys of its own, each site by itself",
    "within": "Four workers of one site on one key, each site by itself",
    "all": "One worker of each site on one key, all at once",
    "near": "One worker of each site on 30 keys, all at once: 90 % of its sections on a third of them",
    "crowd": "Four workers of each site on one key, all at once",
}


def short(figure):
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}"


def jain(rates):
    """How even: 1 where all have as much, 1/n where one has all."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def row(cells):
    return "| " + " | ".join(cells) + " |"


def medians(rounds, name, divisor=1):
    """A figure of each site."""
    figures = [[runs[site][name] / divisor for runs in rounds.values() if site in runs] for site in SITES]
    return [short(statistics.median(of_site)) if of_site else "-" for of_site in figures]


def tables(runs):
    by = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for run in runs:
        by[run["load"]][run["system"]][run["round"]][run["site"]] = run
    lines = []
    for name, systems in by.items():
        sites = [f"{what}, site {site}" for what in ("sections/s", "p50 ms", "p99 ms") for site in SITES]
        at_once = name in ("all", "crowd", "near")
        lines += [f"### {TITLES[name]}", "", row(["system", *sites, *(["in all, /s", "evenness"] if at_once else [])])]
        lines.append("|---" * (len(sites) + 1 + 2 * at_once) + "|")
        for system, rounds in systems.items():
            cells = [system, *medians(rounds, "sections_per_s"), *medians(rounds, "p50_us", 1000)]
            cells += medians(rounds, "p99_us", 1000)
            if at_once:
                rates = [[run["sections_per_s"] for run in runs.values()] for runs in rounds.values()]
                cells.append(short(statistics.median([sum(of) for of in rates])))
                cells.append(f"{statistics.median([jain(of) for of in rates]):.2f}")
            lines.append(row(cells))
        lines.append("")
    wrong = [run for run in runs if run["errors"] or run["lost"] or run["surplus"]]
    lines.append(
        f"{len(runs)} runs, {len(runs) - len(wrong)} without an error and, where one site had the keys, with exact counters."
    )
    for run in wrong:
        kinds = ", ".join(f"{n} x {kind[:120]}" for kind, n in list(run.get("error_kinds", {}).items())[:3])
        lines.append(
            f"- {run['system']}, {run['load']}, site {run['site']}, round {run['round']}: lost {run['lost']}, "
            f"too many {run['surplus']}, {run['errors']} errors: {kinds}"
        )
    return "\n".join(lines)


def load(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: table.py RESULTS")
    print(tables(load(sys.argv[1])))
