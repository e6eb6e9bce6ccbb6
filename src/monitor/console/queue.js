// The queue of one key as a picture that moves: each entry is a card; the holder is the first one. Cards slide to their next place,
// and one that has ended fades out.

import { plain, span, svg } from "/console/api.js";

const HEIGHT = 62;
const GAP = 8;
const WIDTH_MIN = 98;
const ROWS_MAX = 4;
/** Longer than the transition in the style sheet. */
const GONE_AFTER_MS = 700;

/** A text that fits into so many pixels. */
function cut(text, width) {
  const most = Math.floor(width / 7);
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("")}…`;
}

export class QueuePicture {
  /** The cards by the names of their entries. */
  #cards = new Map();
  #picture;
  #key = "";

  constructor(picture) {
    this.#picture = picture;
  }

  /** How many entries have room. */
  #layout() {
    const width = Math.max(WIDTH_MIN, this.#picture.clientWidth);
    const columns = Math.max(1, Math.floor((width + GAP) / (WIDTH_MIN + GAP)));
    return { width, columns, card: (width - GAP * (columns - 1)) / columns };
  }

  /** Shows the entries of a key, the holder first; returns how many. */
  show(key, entries) {
    if (this.#key !== key) {
      this.#key = key;
      this.#cards.clear();
      this.#picture.replaceChildren();
    }
    const { width, columns, card } = this.#layout();
    const shown = entries.slice(0, columns * ROWS_MAX);
    const rows = Math.max(1, Math.ceil(shown.length / columns));
    const height = rows * (HEIGHT + GAP) - GAP;
    this.#picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.#picture.style.height = `${height}px`;
    const names = new Set(shown.map(({ name }) => name));
    for (const [name, gone] of this.#cards) {
      if (!names.has(name)) this.#remove(name, gone);
    }
    shown.forEach((entry, at) => {
      const x = (at % columns) * (card + GAP);
      const y = Math.floor(at / columns) * (HEIGHT + GAP);
      const isNew = !this.#cards.has(entry.name);
      const one = isNew ? this.#add(entry.name) : this.#cards.get(entry.name);
      this.#fill(one, entry, card);
      one.style.transform = `translate(${x}px, ${y}px)`;
      if (isNew) requestAnimationFrame(() => one.classList.remove("coming"));
    });
    const holder = entries.find(({ holds }) => holds);
    const waiting = entries.filter(({ holds }) => !holds);
    const first = waiting.length ? `; next is #${waiting[0].seq}` : "";
    this.#picture.setAttribute("aria-label",
      `${holder ? `#${holder.seq} holds the key` : "nobody holds the key"}, ${waiting.length} shown waiting${first}`);
    return shown.length;
  }

  #add(name) {
    const card = svg("g", { class: "entry coming" });
    card.append(
      svg("rect", { class: "box", height: HEIGHT, rx: 6 }),
      svg("text", { class: "seq", x: 8, y: 18 }),
      svg("text", { class: "place", y: 18, "text-anchor": "end" }),
      svg("text", { x: 8, y: 34 }),
      svg("text", { class: "age", x: 8, y: 49 }),
      svg("rect", { class: "lease-all", x: 8, y: 54, height: 3, rx: 1.5 }),
      svg("rect", { class: "lease", x: 8, y: 54, height: 3, rx: 1.5 }),
    );
    this.#cards.set(name, card);
    this.#picture.append(card);
    return card;
  }

  #fill(card, entry, width) {
    const [box, seq, place, label, age, whole, lease] = card.children;
    const left = entry.ttl > 0 && entry.left !== undefined ? Math.min(1, Math.max(0, entry.left / entry.ttl)) : 0;
    card.classList.toggle("holder", entry.holds);
    box.setAttribute("width", width);
    whole.setAttribute("width", width - 16);
    lease.setAttribute("width", left * (width - 16));
    lease.classList.toggle("short", entry.holds && left < 0.25);
    place.setAttribute("x", width - 8);
    seq.textContent = cut(`#${entry.seq}`, width - 62);
    place.textContent = entry.holds ? "holds" : entry.place;
    label.textContent = cut(plain(entry.who), width - 16);
    age.textContent = `age ${span(entry.age)}`;
  }

  #remove(name, card) {
    this.#cards.delete(name);
    card.classList.add("gone");
    setTimeout(() => card.remove(), GONE_AFTER_MS);
  }
}
