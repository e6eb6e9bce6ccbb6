"""The results of the rounds as Markdown: medians, and ratios within each round."""

import json
import statistics
import sys
from collections import defaultdict


def median(figures):
    return statistics.median(figures) if figures else float("nan")


def short(figure):
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def table(runs, first):
    """`first` is the system that the others are compared with."""
    by = defaultdict(dict)
    for run in runs:
        by[run["keys"], run["workers"], run["system"]][run["round"]] = run
    systems = list(dict.fromkeys(run["system"] for run in runs))
    systems.sort(key=lambda system: not system.startswith(first))
    loads = list(dict.fromkeys((run["keys"], run["workers"]) for run in runs))
    lines = [row(["system", *(f"{keys} key, {workers}" for keys, workers in loads)])]
    lines.append("|---" * (len(loads) + 1) + "|")

    def each(title, cell):
        lines.append(row([f"**{title}**", *([""] * len(loads))]))
        for system in systems:
            cells = []
            for load in loads:
                rounds = by[(*load, system)]
                cells.append(cell(rounds, by[(*load, first)]) if rounds else "-")
            lines.append(row([system, *cells]))

    def of(name):
        return lambda rounds, _: short(median([run[name] for run in rounds.values()]))

    def in_ms(name):
        return lambda rounds, _: short(median([run[name] / 1000 for run in rounds.values()]))

    def ratio(rounds, others):
        both = [r for r in rounds if r in others and rounds[r]["sections_per_s"]]
        ratios = [others[r]["sections_per_s"] / rounds[r]["sections_per_s"] for r in both]
        span = f" ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else ""
        return f"{median(ratios):.2f}{span}"

    def cpu(rounds, _):
        servers, client = (median([run[name] for run in rounds.values()]) for name in ("servers_ms", "client_ms"))
        return f"{short(servers)} + {short(client)}"

    each("sections/s", of("sections_per_s"))
    each(f"rate of {first} divided by this one's in the same round: median (lowest–highest)", ratio)
    each("p50, ms", in_ms("p50_us"))
    each("p99, ms", in_ms("p99_us"))
    each("CPU of servers + client, ms a section", cpu)
    lines += ["", "When a write is synced:", ""]
    logs = {run["system"]: run["log"] for run in runs if "log" in run}
    lines += [f"- {system}: {logs[system]}" for system in systems if system in logs]
    wrong = [r for r in runs if r["errors"] or r["lost"] or r["surplus"]]
    lines.append("")
    lines.append(f"{len(runs)} runs, {len(runs) - len(wrong)} without an error and with exact counters.")
    for run in wrong:
        kinds = ", ".join(f"{n} x {kind[:120]}" for kind, n in list(run.get("error_kinds", {}).items())[:3])
        lines.append(
            f"- {run['system']}, {run['keys']} key, {run['workers']}, round {run['round']}: "
            f"lost {run['lost']}, too many {run['surplus']}, {run['errors']} errors: {kinds}"
        )
    return "\n".join(lines)


def load(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: table.py RESULTS [SYSTEM]")
    print(table(load(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "fermata"))
