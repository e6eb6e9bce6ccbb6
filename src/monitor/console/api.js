// The calls of the page, and the texts of what they answer. The token is kept in memory only: browsers write what a page stores to
// disk.

let token = "";
/** What the clock of the server is ahead of the browser's, in ms. */
let ahead = 0;

export class Failed extends Error {
  constructor(status, answer) {
    super(answer.message || `the server answered ${status}`);
    this.status = status;
    /** Nothing is known of what was asked for; what was shown before may still be so. */
    this.isOutage = status === 0 || status >= 500;
    this.reason = answer.reason || "";
  }
}

export function logIn(given) {
  token = given.trim();
}

export function isLoggedIn() {
  return token !== "";
}

async function answered(path, init) {
  let response;
  try {
    response = await fetch(path, { credentials: "omit", cache: "no-store", ...init });
  } catch {
    throw new Failed(0, { message: "the replica does not answer" });
  }
  const date = Date.parse(response.headers.get("date"));
  // The header has whole seconds.
  if (date && Math.abs(date + 500 - Date.now() - ahead) > 1000) ahead = date + 500 - Date.now();
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Failed(response.status, answer || {});
  if (!answer) throw new Failed(0, { message: "the answer of the replica was cut off" });
  return answer;
}

/** Calls a method of LockAdmin. */
export function call(method, request) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const body = JSON.stringify(request);
  return answered(`/api/fermata.v1.LockAdmin/${method}`, { method: "POST", headers, body });
}

/** What everybody may know of this replica. */
export function replica() {
  return answered("/api/replica");
}

/** The seconds of a Duration. */
export function seconds(duration) {
  return duration ? Number.parseFloat(duration) : undefined;
}

/** How long ago a Timestamp is, in seconds, by the clock of the server. */
export function ago(timestamp) {
  return timestamp ? Math.max(0, (Date.now() + ahead - Date.parse(timestamp)) / 1000) : undefined;
}

/** A time as people say it. */
export function span(time) {
  if (time === undefined || time === null) return "–";
  if (time > 0 && time < 0.995) return `${Math.max(1, Math.round(time * 1000))} ms`;
  if (time < 9.95) return `${Number(time.toFixed(1))} s`;
  if (time < 120) return `${Math.round(time)} s`;
  if (time < 7200) return `${Math.floor(time / 60)} min`;
  if (time < 172800) return `${Math.floor(time / 3600)} h`;
  return `${Math.floor(time / 86400)} d`;
}

export function number(value) {
  const digits = value < 9.95 ? 1 : 0;
  return Number(value).toLocaleString("en", { maximumFractionDigits: digits });
}

/** Who an entry or a session is of: its label, then its identity. */
export function who({ owner, identity }) {
  return [owner, identity && `(${identity})`].filter(Boolean).join(" ") || "–";
}

export function inBytes(bytes) {
  return bytes > 0 ? `${number(bytes / 1024 / 1024)} MiB` : "–";
}

/** A text of a client, with its hidden characters written out: they could make one name look like another. */
export function plain(text) {
  const code = (hidden) => `\\u{${hidden.codePointAt(0).toString(16)}}`;
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, code);
}

/** An element with texts and elements in it. A text is never read as HTML. */
export function element(name, attributes = {}, ...inside) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...inside.map((one) => (one instanceof Node ? one : plain(one))));
  return made;
}

export function svg(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  if (text) made.textContent = text;
  return made;
}

/** Sets a text, and leaves the page alone if it is there. */
export function say(where, text) {
  const shown = plain(text);
  if (where.textContent !== shown) where.textContent = shown;
}

/** Shows a text, or hides its place. */
export function sayOrHide(where, text) {
  say(where, text || "");
  where.hidden = !text;
}
