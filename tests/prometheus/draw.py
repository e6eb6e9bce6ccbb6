#!/usr/bin/env python3
"""Draws a dashboard of helm/fermata/dashboards as a PNG, from a running Prometheus, where there is no Grafana.

    draw.py http://127.0.0.1:9090 service.json service.png job=fermata [instance=HOST:PORT] [minutes=15] [end=UNIX_TIME]

Needs matplotlib and Pillow. It knows what those dashboards use: rows, stats and time series, units, thresholds and stacks.
"""

import json
import re
import sys
import time
import urllib.parse
import urllib.request

import matplotlib

matplotlib.use("Agg")
import matplotlib.dates as dates
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter
from PIL import Image

UNIT_HEIGHT, WIDTH = 0.28, 20.0
COLORS = {"green": "#37872d", "orange": "#e0a030", "red": "#c4162a", "transparent": "none"}


def ask(prometheus, path, **query):
    url = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)["data"]["result"]


def shown(value, unit, digits=3):
    """A number as Grafana shows it in this unit."""
    if value is None or value != value:
        return "no data"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "dateTimeFromNow":
        return time.strftime("%H:%M:%S", time.localtime(value / 1000))
    steps = {
        "s": [(60, " min", 60), (1, " s", 1), (1e-3, " ms", 1e-3), (0, " µs", 1e-6)],
        "bytes": [(2**30, " GiB", 2**30), (2**20, " MiB", 2**20), (2**10, " KiB", 2**10), (0, " B", 1)],
    }.get(unit, [(1e6, " M", 1e6), (1e3, " K", 1e3), (0, "", 1)])
    for least, suffix, by in steps:
        if abs(value) >= least:
            per = "/s" if unit == "ops" else ""
            return f"{value / by:.{digits}g}{suffix}{per}"
    return f"{value:g}"


def legend(target, metric):
    return re.sub(r"{{(\w+)}}", lambda name: metric.get(name[1], ""), target["legendFormat"]).strip()


def color_of(value, thresholds):
    color = "#444444"
    for step in thresholds:
        if step["value"] is None or (value is not None and value >= step["value"]):
            color = COLORS.get(step["color"], color)
    return color


def stat(axes, panel, series):
    defaults, options = panel["fieldConfig"]["defaults"], panel["options"]
    texts = []
    for name, points in series:
        value = points[-1][1] if points else None
        names = {kind["options"][key]["text"]: float(key) for kind in defaults.get("mappings", []) for key in kind["options"]}
        text = next((text for text, of in names.items() if of == value), shown(value, defaults["unit"]))
        texts.append((name if options["textMode"] == "name" else f"{text} {name}".strip(), value))
    color = "#444444" if options["colorMode"] == "none" else color_of((texts or [("", None)])[0][1], defaults["thresholds"]["steps"])
    axes.set_axis_off()
    axes.text(0.5, 0.4, "\n".join(text for text, _ in texts) or "no data", ha="center", va="center", color=color,
              fontsize=13 if len(texts) > 1 else 16, transform=axes.transAxes)


def graph(axes, panel, series, begin, end):
    defaults = panel["fieldConfig"]["defaults"]
    custom, unit = defaults["custom"], defaults["unit"]
    if custom.get("stacking") and series:
        times = sorted({at for _, points in series for at, _ in points})
        rows = [[dict(points).get(at, 0) for at in times] for _, points in series]
        axes.stackplot([at / 86400 for at in times], rows, labels=[name for name, _ in series], alpha=0.6)
    else:
        for name, points in series:
            dashed = any(re.search(o["matcher"]["options"].strip("/"), name) for o in panel["fieldConfig"]["overrides"])
            style = {"linestyle": "--", "color": "#c4162a"} if dashed else {}
            draw = axes.step if custom.get("lineInterpolation") == "stepAfter" else axes.plot
            draw([at / 86400 for at, _ in points], [value for _, value in points], label=name, linewidth=1.1, **style)
    if custom.get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("symlog" if not series or any(v <= 0 for _, points in series for _, v in points) else "log")
    elif series:
        axes.set_ylim(bottom=defaults.get("min"), top=defaults.get("max"))
    high = axes.get_ylim()[1]
    for step in defaults.get("thresholds", {}).get("steps", []):
        if step["value"] is not None and step["value"] <= high:
            axes.axhline(step["value"], color=COLORS[step["color"]], linewidth=0.8, linestyle=":")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(begin / 86400, end / 86400)
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    axes.xaxis.set_major_locator(dates.AutoDateLocator(maxticks=6))
    axes.tick_params(labelsize=7, length=2)
    axes.grid(alpha=0.25)
    if series:
        # As many as have room.
        handles, names = axes.get_legend_handles_labels()
        axes.legend(handles[:9], names[:9], fontsize=6.5, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.09), frameon=False,
                    borderaxespad=0.2, handlelength=1.2, columnspacing=1)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", color="#888888", transform=axes.transAxes)


def main(prometheus, path, out, *settings):
    settings = dict(setting.split("=", 1) for setting in settings)
    end = float(settings.pop("end", time.time()))
    begin = end - 60 * float(settings.pop("minutes", 15))
    with open(path, encoding="utf-8") as file:
        board = json.load(file)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    figure = plt.figure(figsize=(WIDTH, rows * UNIT_HEIGHT + 0.5))
    top = rows + 0.5 / UNIT_HEIGHT
    figure.text(0.01, 1 - 0.3 / (top * UNIT_HEIGHT), board["title"], fontsize=15, weight="bold")
    for panel in board["panels"]:
        at = panel["gridPos"]
        left, bottom = at["x"] / 24, (rows - at["y"] - at["h"]) / top
        if panel["type"] == "row":
            figure.text(left + 0.01, bottom + 0.3 / top, panel["title"], fontsize=12, weight="bold")
            continue
        is_stat = panel["type"] == "stat"
        series = []
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "30s")
            for name, value in {"namespace": ".*", "table": ".*", **settings}.items():
                expr = expr.replace(f"${name}", value)
            for found in ask(prometheus, "query_range", query=expr, start=begin, end=end, step=5):
                points = [(at, float(value)) for at, value in found["values"]]
                points = [(at, value) for at, value in points if value == value]
                if points:
                    series.append((legend(target, found["metric"]), points))
        inner = [left + 0.028, bottom + (0.3 if is_stat else 1.9) / top, at["w"] / 24 - 0.04, (at["h"] - (1.4 if is_stat else 3.2)) / top]
        axes = figure.add_axes(inner)
        axes.set_title(panel["title"], fontsize=9, loc="left", pad=4)
        stat(axes, panel, series) if is_stat else graph(axes, panel, series, begin, end)
    figure.savefig(out, dpi=72)
    Image.open(out).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(out, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
