// Lines of the last ten minutes.

import { element, say, svg } from "/console/api.js";

const MINUTES = 10;
const HEIGHT = 96;
const LABELS = 16;

/** A round number that is at least this one. */
function above(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/**
 * How a plot places values: the value at its top, the values with a line across, and the share of the height of a value. Waits differ
 * by powers of ten, so `least` makes the scale one of powers that begins there.
 */
function scale(most, least) {
  if (!least) {
    const top = above(most);
    return { top, lines: [top / 2, top], share: (value) => value / top };
  }
  const powers = Math.max(2, Math.ceil(Math.log10(most / least) - 0.001));
  const lines = Array.from({ length: powers }, (_, at) => least * 10 ** (at + 1));
  const share = (value) => Math.max(0, Math.log10(value / least)) / powers;
  return { top: lines.at(-1), lines, share };
}

/** The parts of a line: it is broken where there is no value. */
function path(points, value, x, y) {
  let drawn = "";
  let isOpen = false;
  points.forEach((point, at) => {
    const now = value(point);
    if (now === null) {
      isOpen = false;
      return;
    }
    drawn += `${isOpen ? "L" : "M"}${x(point).toFixed(1)} ${y(now).toFixed(1)}`;
    // One value alone would be no line.
    const next = points[at + 1];
    if (!isOpen && (!next || value(next) === null)) drawn += "h1.5";
    isOpen = true;
  });
  return drawn;
}

/** A plot in `place`, of lines with a name and a value of a point. `format` writes a value; `least` as in `scale`. */
export function plot(place, { title, lines, format, least }) {
  const latest = lines.map(() => element("span"));
  const legend = lines.map(({ name }, at) =>
    element("span", { class: `line-${at}` }, element("i", { "aria-hidden": "true" }), name ? `${name} ` : "", latest[at]));
  const picture = svg("svg", { role: "img", class: "plot" });
  place.append(element("figure", {}, element("figcaption", {}, element("b", {}, title), ...legend), picture));

  return (points) => {
    const width = Math.max(200, picture.clientWidth);
    const values = lines.map(({ value }) => points.map(value));
    const { top, lines: across, share } = scale(Math.max(least || 0, ...values.flat().filter((value) => value !== null)), least);
    const x = ({ ago }) => width - 1 - (ago / (MINUTES * 60)) * (width - 2);
    const y = (value) => HEIGHT - LABELS - 1 - share(value) * (HEIGHT - 2 * LABELS - 2);
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const base = HEIGHT - LABELS;
    picture.replaceChildren(
      svg("path", { class: "grid", d: `${across.map((value) => `M0 ${y(value)}H${width}`).join("")}M0 ${base}H${width}` }),
      svg("text", { x: 0, y: LABELS - 4 }, format(top)),
      ...(least ? [svg("text", { x: 0, y: base - 4 }, format(least))] : []),
      svg("text", { x: 0, y: HEIGHT - 3 }, `${MINUTES} min ago`),
      svg("text", { x: width, y: HEIGHT - 3, "text-anchor": "end" }, "now"),
      ...lines.map(({ value }, at) => svg("path", { class: `line line-${at}`, d: path(points, value, x, y) })),
    );
    const told = lines.map(({ name }, at) => {
      const known = values[at].filter((value) => value !== null);
      const last = values[at].at(-1) ?? null;
      say(latest[at], last === null ? "–" : format(last));
      return `${name || "now"} ${last === null ? "none" : format(last)}, at most ${known.length ? format(Math.max(...known)) : "none"}`;
    });
    picture.setAttribute("aria-label", `${title}: ${told.join("; ")}`);
  };
}
