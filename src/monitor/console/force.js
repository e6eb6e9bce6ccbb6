// Ends an entry or a session by force, after a reason and a confirmation.

import { Failed, call, element, plain, say } from "/console/api.js";

const dialog = document.getElementById("force");
const form = dialog.querySelector("form");
const [reason, by, confirm, result, go] = ["reason", "by", "confirm", "result", "go"].map((part) =>
  document.getElementById(`force-${part}`));

/** What is to be ended; null after its end. */
let target = null;
/** The table that the dialog was opened from, and how often it was opened. */
let origin = null;
let opened = 0;

function allowed() {
  const isNamed = !by.required || by.value.trim() !== "";
  go.disabled = !target || !isNamed || reason.value.trim() === "" || confirm.value !== target.expected;
}

/** Where nobody logs in, a name tells in the audit log who it was. */
export function needName(isNeeded) {
  by.required = isNeeded;
  say(document.getElementById("force-by-label"), isNeeded ? "Your name" : "Your name (optional)");
}

/** Shows `given`: its title, facts, warning, the label of the reason, the text to type, and the call. */
function show(given) {
  target = given;
  confirm.value = "";
  say(document.getElementById("force-title"), given.title);
  say(document.getElementById("force-warning"), given.warning);
  say(document.getElementById("force-reason-label"), given.reason);
  say(document.getElementById("force-expected"), given.expected);
  say(go, "End it by force");
  document.getElementById("force-facts").replaceChildren(...given.facts.flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, value)]));
  allowed();
}

function open(given) {
  origin = document.activeElement.closest("[tabindex='-1']");
  opened += 1;
  const name = by.value;
  form.reset();
  by.value = name;
  say(result, "");
  show(given);
  dialog.showModal();
  reason.focus();
}

/** Tells the open dialog what became of its entry: a waiter may be granted while its end is typed. */
export function follow(entries, isWhole) {
  if (!dialog.open || !target?.entry) return;
  const now = entries.find(({ name }) => name === target.entry.name);
  if (now && now.holds !== target.entry.holds) {
    show(ofEntry({ ...target.entry, ...now, age: target.entry.age }));
    say(result, now.holds ? "It holds the key by now. Read on, and confirm again." : "It waits by now. Confirm again.");
  } else if (!now && isWhole) {
    target = null;
    say(result, "It has ended meanwhile.");
    say(go, "Close");
    go.disabled = false;
  }
}

export function forceRelease(entry) {
  open(ofEntry(entry));
}

function ofEntry(entry) {
  const { table, key, name, holds, who, session, age } = entry;
  return {
    entry,
    title: holds ? "End the holder" : "End a waiter",
    reason: "Reason, told to its client and written into the audit log",
    facts: [["lockRef", name], [holds ? "Holder" : "Waiter", who], ["Session", session || "none"], ["Age", age]],
    warning: holds
      ? "The lock passes on at once. The former holder is not stopped: it may go on working until it hears of this. Only resources "
        + "that check fencing tokens are safe from it."
      : "The entry leaves the queue, and its client is told.",
    expected: plain(key),
    make: async (request) => {
      const answer = await call("ForceRelease", { name, ...request });
      if (answer.alreadyReleased) return `${name} had ended before.`;
      return `${name} has ended${answer.wasHolder ? ": it held " : ": it waited for "}${table}/${key}.`;
    },
  };
}

export function endSession({ id, who, entries }) {
  open({
    title: "End a session",
    reason: "Reason, written into the audit log",
    facts: [["Session", id], ["Of", who], ["lockRefs", entries]],
    warning: "All its entries end at once, the locks that it holds among them. Its client is not stopped.",
    expected: id.slice(0, 8),
    make: async (request) => {
      const answer = await call("EndSession", { sessionId: id, ...request });
      if (answer.alreadyEnded) return "The session had ended before.";
      return `The session has ended.${answer.mayBeServed ? " A replica that does not answer may serve it a little longer." : ""}`;
    },
  });
}

for (const input of [reason, by, confirm]) input.addEventListener("input", allowed);
dialog.addEventListener("close", () => {
  // The row may be gone.
  if (document.activeElement === document.body) origin?.focus();
});
document.getElementById("force-cancel").addEventListener("click", () => dialog.close());

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  // The second press closes it.
  if (!target) return dialog.close();
  const [asked, mine] = [target, opened];
  go.disabled = true;
  say(result, "…");
  try {
    const ended = await asked.make({ reason: reason.value.trim(), forcedBy: by.value.trim() });
    dialog.dispatchEvent(new CustomEvent("ended"));
    // The dialog was opened for another one meanwhile.
    if (opened !== mine) return say(document.getElementById("told"), ended);
    target = null;
    say(go, "Close");
    say(result, ended);
    go.disabled = false;
    go.focus();
  } catch (failed) {
    if (!(failed instanceof Failed)) throw failed;
    if (opened !== mine) return;
    say(result, failed.reason ? `${failed.reason}: ${failed.message}` : failed.message);
    allowed();
  }
});
