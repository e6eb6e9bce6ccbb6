// Tables that are shown again and again. A row stays the same element, so that the focus stays where it is.

import { element, say } from "/console/api.js";

/**
 * A table in `place`. `columns` have a title and, for a row, either `text` or `button` (its text, or "") with `press`, and perhaps
 * `numeric`. `id` names a row.
 */
export function table(place, { columns, id, nothing, label }) {
  const heads = columns.map(({ title, numeric }) =>
    element("th", { scope: "col", role: "columnheader", class: numeric ? "numeric" : "" }, title));
  const body = element("tbody", { role: "rowgroup" });
  const whole = element("table", { role: "table", "aria-label": label },
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads)), body);
  const message = element("p", { class: "hint" });
  place.append(whole, message);
  const shown = new Map();

  function added(key) {
    const made = { row: null, buttons: [], element: element("tr", { role: "row" }) };
    for (const { title, numeric, press } of columns) {
      const cell = element("td", { role: "cell", "data-title": title, class: numeric ? "numeric" : "" });
      if (press) {
        const button = element("button", { type: "button" });
        button.addEventListener("click", () => press(made.row));
        cell.append(button);
      }
      made.element.append(cell);
    }
    shown.set(key, made);
    return made;
  }

  function show(rows) {
    whole.classList.remove("stale");
    const focused = document.activeElement;
    const keys = new Set(rows.map(id));
    for (const [key, gone] of shown) {
      if (keys.has(key)) continue;
      gone.element.remove();
      shown.delete(key);
    }
    let next = body.firstElementChild;
    for (const row of rows) {
      const one = shown.get(id(row)) || added(id(row));
      one.row = row;
      columns.forEach(({ text, button, describe }, at) => {
        const cell = one.element.children[at];
        if (!button) return say(cell, text(row));
        const pressed = cell.firstElementChild;
        say(pressed, button(row));
        pressed.hidden = button(row) === "";
        if (describe) pressed.setAttribute("aria-label", describe(row));
      });
      if (one.element === next) next = next.nextElementSibling;
      else body.insertBefore(one.element, next);
    }
    whole.hidden = rows.length === 0;
    say(message, rows.length === 0 ? nothing : "");
    // Whoever was at a row that is gone goes on at the table.
    if (focused !== document.activeElement) (focused.isConnected ? focused : place).focus();
  }

  place.tabIndex = -1;
  return {
    show,
    /** Says why there is nothing to show, beside the last rows if nobody knows better. */
    fail({ message: why, isOutage }) {
      if (!isOutage) show([]);
      whole.classList.add("stale");
      say(message, why);
    },
  };
}
