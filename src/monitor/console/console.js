// The page: what it asks for, how often, and what it shows.

import { Failed, ago, call, inBytes, isLoggedIn, logIn, number, replica, say, sayOrHide, seconds, span, who, element } from "/console/api.js";
import { endSession, follow, forceRelease, needName } from "/console/force.js";
import { plot } from "/console/plots.js";
import { QueuePicture } from "/console/queue.js";
import { table } from "/console/table.js";

const EVERY_MS = { queue: 1000, waits: 2000, replica: 5000, sessions: 5000, replicas: 5000 };
/** How much of a list is shown. */
const KEYS_MAX = 20;
const WAITERS_MAX = 100;
const SESSIONS_MAX = 100;
/** The entries that are listed until all are asked for. */
const ENTRIES_AT_FIRST = 6;
const ENDS_MAX = 5;
/** The pause after the last letter of a key, before keys are looked up. */
const TYPED_MS = 300;

const at = (id) => document.getElementById(id);
const short = (id) => (id || "").slice(0, 8);

/** The key that is shown. */
let chosen = null;
/** Whether all of its entries are listed. */
let listsAll = false;
/** How this page logs in: what `/api/replica` says. */
let login = null;
/** The names of replicas by their ids. */
const names = new Map();
/** The name of the replica that answers. */
let own = "";
/** The last holder that was told. */
let told = "";

const nameOf = (id) => names.get(id) || short(id) || "–";

const waits = table(at("waits"), {
  label: "Keys that are waited for longest",
  nothing: "No key has waiters or was granted in the last minute.",
  id: ({ name }) => name,
  columns: [
    { title: "Key", button: ({ name }) => name, press: (row) => choose(row.table, row.key, true), describe: ({ name }) => `Queue of ${name}` },
    { title: "Waiters", numeric: true, text: ({ waiters }) => number(waiters) },
    { title: "Held for", numeric: true, text: ({ held }) => span(held) },
    { title: "Holder", text: ({ holder }) => holder },
    { title: "Grants/min", numeric: true, text: ({ grants }) => number(grants) },
  ],
});

const entries = table(at("entries"), {
  label: "Entries of the queue",
  nothing: "Nobody holds this key or waits for it.",
  id: ({ name }) => name,
  columns: [
    { title: "lockRef", text: ({ seq }) => `#${seq}` },
    { title: "State", text: ({ holds, place }) => (holds ? "holds" : `waits (${place})`) },
    { title: "Who", text: (row) => row.who },
    { title: "Age", numeric: true, text: ({ age }) => span(age) },
    { title: "Lease left", numeric: true, text: ({ left, ttl }) => `${span(left)} of ${span(ttl)}` },
    { title: "Session", text: ({ session }) => short(session) || "–" },
    {
      title: "End", button: () => "End…", describe: ({ name }) => `End ${name}`,
      press: (row) => forceRelease({ ...row, ...chosen, age: span(row.age) }),
    },
  ],
});

const sessions = table(at("sessions"), {
  label: "Sessions",
  nothing: "No session is open.",
  id: ({ id }) => id,
  columns: [
    { title: "Session", text: ({ id }) => short(id) },
    { title: "Who", text: (row) => row.who },
    { title: "lockRefs", numeric: true, text: (row) => number(row.entries) },
    { title: "Lease left", numeric: true, text: ({ left, ttl }) => `${span(left)} of ${span(ttl)}` },
    { title: "Open for", numeric: true, text: ({ age }) => span(age) },
    { title: "Replica", text: (row) => nameOf(row.replica) },
    { title: "End", button: () => "End…", press: endSession, describe: ({ id }) => `End the session ${short(id)}` },
  ],
});

const replicas = table(at("replicas"), {
  label: "Replicas",
  nothing: "No replica is known.",
  id: ({ id }) => id,
  columns: [
    { title: "Replica", text: ({ id }) => nameOf(id) },
    { title: "Answers", text: ({ state }) => state },
    { title: "Address", text: ({ address }) => address || "–" },
    { title: "Zone", text: ({ zone }) => zone || "–" },
    { title: "Version", text: ({ version }) => version || "–" },
    { title: "Up for", numeric: true, text: ({ age }) => span(age) },
    { title: "Keys", numeric: true, text: ({ did }) => (did ? number(did.keys || 0) : "–") },
    { title: "Sessions", numeric: true, text: ({ did }) => (did ? number(did.sessions || 0) : "–") },
    { title: "Memory", numeric: true, text: ({ did }) => (did ? inBytes(Number(did.residentBytes)) : "–") },
  ],
});

const picture = new QueuePicture(at("picture"));
const perSecond = (value) => `${number(value)}/s`;
const plots = [
  plot(at("plots"), { title: "Grants", format: perSecond, lines: [{ value: ({ grants }) => grants }] }),
  plot(at("plots"), { title: "Calls of clients", format: perSecond, lines: [{ value: ({ calls }) => calls }] }),
  plot(at("plots"), {
    title: "Wait for a lock", format: span, least: 0.001,
    lines: [{ name: "p50", value: ({ wait_p50 }) => wait_p50 }, { name: "p99", value: ({ wait_p99 }) => wait_p99 }],
  }),
];

/** The replicas, and what each of them did, by its id. */
let listed = [];
let activity = new Map();

const tasks = {
  async replica() {
    const now = await replica();
    login = now;
    sayOrHide(at("problem"), now.refused);
    if (!now.refused && now.login === "no certificate") {
      sayOrHide(at("problem"), "This server knows its clients by certificates: open this page over https:// with one in the browser.");
    }
    showReady(now.notReady ? `not ready: ${now.notReady}` : "ready", Boolean(now.notReady));
    needName(now.login === "none");
    if (own) document.title = `${own} · Fermata`;
    say(at("replica"), [own, now.version, `${now.store} store`, now.identity].filter(Boolean).join(" · "));
    mode();
    for (const draw of plots) draw(now.points);
  },

  async waits() {
    const { replicas: all = [] } = await call("DescribeActivity", { keysMax: KEYS_MAX });
    activity = new Map(all.filter(({ answered: did }) => did).map((one) => [one.replica.replica, one]));
    const rows = all.flatMap(({ busiestKeys = [] }) => busiestKeys).map((key) => ({
      name: `${key.table}/${key.key}`,
      table: key.table,
      key: key.key,
      waiters: key.waiters || 0,
      held: seconds(key.heldFor),
      holder: who(key),
      grants: Number(key.lastMinute?.count || 0),
    }));
    // By whole seconds: keys that are held for milliseconds would change their places all the time.
    const held = (row) => Math.floor(row.held ?? -1);
    rows.sort((one, other) => held(other) - held(one) || other.grants - one.grants || (one.name < other.name ? -1 : 1));
    // A key that moved was granted at two replicas.
    const firsts = new Map(rows.reverse().map((row) => [row.name, row]));
    waits.show([...firsts.values()].reverse().slice(0, KEYS_MAX));
    if (listed.length > 0) showReplicas();
  },

  async queue() {
    if (!chosen) return;
    const asked = chosen;
    const answer = await call("DescribeLock", { ...asked, pageSize: WAITERS_MAX });
    // Another one was chosen meanwhile.
    if (asked !== chosen) return tasks.queue();
    showQueue(answer);
  },

  async sessions() {
    const { sessions: all = [], nextPageToken } = await call("ListSessions", { pageSize: SESSIONS_MAX });
    sayOrHide(at("sessions-more"), nextPageToken && `The first ${SESSIONS_MAX}. fermata sessions lists all.`);
    sessions.show(all.map((session) => ({
      id: session.sessionId,
      who: who(session),
      entries: session.lockRefs || 0,
      left: seconds(session.leaseLeft),
      ttl: seconds(session.ttl),
      age: ago(session.createTime),
      replica: session.replica,
    })));
  },

  async replicas() {
    const { replicas: all = [] } = await call("ListReplicas", {});
    for (const { replica: id, name, answering } of all) {
      const shown = name ? `${name} (${short(id)})` : short(id);
      names.set(id, shown);
      if (answering) own = shown;
    }
    listed = all;
    showReplicas();
  },
};

const failures = {
  replica: ({ message }) => {
    sayOrHide(at("problem"), message);
    showReady("no answer", true);
  },
  waits: waits.fail,
  queue: ({ message, isOutage }) => {
    if (!isOutage) at("queue").hidden = true;
    sayOrHide(at("queue-problem"), message);
  },
  sessions: sessions.fail,
  replicas: replicas.fail,
};

function showReady(text, isBad) {
  say(at("ready"), text);
  at("ready").classList.toggle("bad", isBad);
}

function showReplicas() {
  const state = ({ answering, replica: id }) => {
    if (answering) return "this page";
    return activity.has(id) || activity.size === 0 ? "yes" : "no answer";
  };
  replicas.show(listed.map((one) => ({
    id: one.replica, state: state(one), address: one.address, zone: one.zone, version: one.version, age: ago(one.startTime),
    did: activity.get(one.replica),
  })));
}

function showQueue(answer) {
  const entry = (holds) => (given, index) => ({
    name: given.name,
    seq: given.seq,
    holds,
    place: holds ? "" : answer.unordered ? "any" : `${index + 1}.`,
    who: who(given),
    age: ago(given.createTime),
    ttl: seconds(given.ttl),
    left: seconds(given.leaseLeft),
    session: given.sessionId || "",
  });
  const { holders = [], waiters = [], waiterCount = 0, ended = [], home } = answer;
  const all = [...holders.map(entry(true)), ...waiters.map(entry(false))];
  at("queue").hidden = false;
  sayOrHide(at("queue-problem"), "");
  const facts = [
    `${answer.table}/${answer.key}`,
    `${number(waiterCount)} waiting`,
    answer.unfenced ? "without fencing tokens" : `last fencing token ${answer.lastFencingToken || "none"}`,
    home && `home ${nameOf(home.replica)}`,
    answer.protocol !== "home" && `protocol ${answer.protocol}`,
    answer.unsynced && "the last holder did not release it cleanly",
    home && answer.fromRow && "read from the store: the home may know more",
  ];
  say(at("queue-facts"), facts.filter(Boolean).join(" · "));
  at("picture").toggleAttribute("hidden", all.length === 0);
  const shown = picture.show(`${answer.table}/${answer.key}`, all);
  const more = holders.length + waiterCount - shown;
  sayOrHide(at("queue-more"), more > 0 && `and ${number(more)} more behind them`);
  entries.show(listsAll ? all : all.slice(0, ENTRIES_AT_FIRST));
  const total = holders.length + waiterCount;
  const list = all.length < total ? `List the first ${all.length} of ${number(total)}` : `List ${all.length}`;
  sayOrHide(at("entries-all"), all.length > ENTRIES_AT_FIRST && (listsAll ? "List fewer" : list));
  follow(all, all.length >= total);
  at("ended").hidden = ended.length === 0;
  const ends = ended.slice(-ENDS_MAX).toReversed().map(({ seq, reason, endedBy, detail }) =>
    element("li", {}, [`#${seq}`, reason.replace("END_REASON_", ""), endedBy && `by ${endedBy}`, detail].filter(Boolean).join(" · ")));
  at("ended-list").replaceChildren(...ends);
  const holder = `${answer.key}: ${holders.length ? `${holders[0].name} holds it` : "nobody holds it"}`;
  if (told !== holder) say(at("told"), `${holder}, ${waiterCount} waiting`);
  told = holder;
}

/**
 * Chooses the key whose queue is shown, and goes there if its user chose it on the page. Its name in the address keeps it over a
 * reload; servers never see that part.
 */
function choose(tableName, key, goes) {
  chosen = { table: tableName, key };
  listsAll = false;
  if (![...at("table").options].some(({ value }) => value === tableName)) at("table").add(new Option(tableName, tableName));
  at("table").value = tableName;
  at("key").value = key;
  history.replaceState(null, "", `#${encodeURIComponent(tableName)}/${encodeURIComponent(key)}`);
  if (goes) {
    at("queue-title").scrollIntoView({ block: "start" });
    at("queue-title").focus();
  }
  run("queue");
}

function chooseByAddress() {
  const address = location.hash.slice(1);
  const end = address.indexOf("/");
  if (end < 1 || end === address.length - 1) return;
  choose(decoded(address.slice(0, end)), decoded(address.slice(end + 1)), false);
}

/** A part of the address; people write it by hand, too. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The login, or what is behind it. */
function mode() {
  const mustLogIn = login.login === "token" && !isLoggedIn();
  const isOpen = !login.refused && login.login !== "no certificate" && !mustLogIn;
  const asked = at("login").hidden;
  at("login").hidden = Boolean(login.refused) || !mustLogIn;
  if (asked && !at("login").hidden) at("token").focus();
  at("logout").hidden = !isLoggedIn();
  if (isOpen && at("shown").hidden) {
    at("shown").hidden = false;
    begin();
  } else if (!isOpen) {
    at("shown").hidden = true;
  }
}

async function begin() {
  try {
    const { tables = [] } = await call("ListTables", { pageSize: 1000 });
    at("table").replaceChildren(...tables.map(({ name }) => new Option(name, name)));
    if (tables.some(({ name }) => name === "default")) at("table").value = "default";
  } catch (failed) {
    if (isLogin(failed)) return;
  }
  chooseByAddress();
  for (const task of Object.keys(tasks)) run(task);
}

/** Whether the login failed; the page asks for another one. */
function isLogin(failed) {
  if (!(failed instanceof Failed)) throw failed;
  if (failed.status !== 401) return false;
  logOut(failed.message);
  return true;
}

function logOut(why) {
  logIn("");
  sayOrHide(at("login-problem"), why);
  mode();
  at("token").focus();
}

const timers = {};
const running = new Set();
/** What this login may not see. It is not asked for again and again: each denial is in the audit log. */
const denied = new Set();

/** Runs a task now, and again each time its interval has passed. */
async function run(task) {
  clearTimeout(timers[task]);
  if (running.has(task)) return;
  denied.delete(task);
  const isShown = task === "replica" || !at("shown").hidden;
  if (isShown && !document.hidden) {
    running.add(task);
    try {
      await tasks[task]();
    } catch (failed) {
      if (!(failed instanceof Failed)) {
        console.error(failed);
        failures[task]({ message: `this page failed: ${failed.message}`, isOutage: true });
      } else if (!isLogin(failed)) {
        failures[task](failed);
      }
      if (failed.status === 403) denied.add(task);
    } finally {
      running.delete(task);
    }
  }
  clearTimeout(timers[task]);
  if (!denied.has(task)) timers[task] = setTimeout(() => run(task), EVERY_MS[task]);
}

let typed;
let looksUp = false;
/** Keys that begin as the typed one, one lookup at a time. */
async function lookUp() {
  if (looksUp || denied.has("keys")) return;
  looksUp = true;
  const keyPrefix = at("key").value;
  try {
    const { locks = [] } = await call("ListLocks", { table: at("table").value, keyPrefix, pageSize: 10 });
    at("keys").replaceChildren(...locks.map(({ key }) => new Option(key, key)));
  } catch (failed) {
    if (failed.status === 403) denied.add("keys");
  }
  looksUp = false;
}
at("key").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(lookUp, TYPED_MS);
});

at("entries-all").addEventListener("click", () => {
  listsAll = !listsAll;
  run("queue");
});

at("choose").addEventListener("submit", (event) => {
  event.preventDefault();
  choose(at("table").value, at("key").value, false);
});

at("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  logIn(at("token").value);
  at("token").value = "";
  try {
    await call("ListTables", {});
    sayOrHide(at("login-problem"), "");
    mode();
    at("main").focus();
  } catch (failed) {
    if (!isLogin(failed)) {
      logIn("");
      sayOrHide(at("login-problem"), failed.message);
    }
  }
});

at("logout").addEventListener("click", () => location.reload());
at("force").addEventListener("ended", () => {
  for (const task of ["queue", "waits", "sessions"]) run(task);
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const task of Object.keys(tasks)) if (!denied.has(task)) run(task);
});
window.addEventListener("hashchange", chooseByAddress);

run("replica");
