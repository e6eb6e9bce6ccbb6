// Ends an entry or a session by force, after a reason and a confirmation.

import { Failed, call, element, plain, say } from "/console/api.js";

const dialog = document.getElementById("force");
const form = dialog.querySelector("form");
const [reason, by, confirm, result, go] = ["reason", "by", "confirm", "result", "go"].map((part) =>
  document.getElementById(`force-${part}`));

/** What is to be ended; null after its end. */
let target = null;

function allowed() {
  go.disabled = !target || reason.value.trim() === "" || confirm.value !== target.expected;
}

/** Opens the dialog. `target`: its title, facts, warning, the text to type, the text of the button, and the call. */
function open(given) {
  target = given;
  form.reset();
  say(document.getElementById("force-title"), given.title);
  say(document.getElementById("force-warning"), given.warning);
  say(document.getElementById("force-expected"), given.expected);
  say(go, given.button);
  say(result, "");
  document.getElementById("force-facts").replaceChildren(...given.facts.flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, value)]));
  allowed();
  dialog.showModal();
  reason.focus();
}

export function forceRelease({ table, key, name, holds, who, session, age }) {
  open({
    title: holds ? "End the holder" : "End a waiter",
    facts: [["lockRef", name], [holds ? "Holder" : "Waiter", who], ["Session", session || "none"], ["Age", age]],
    warning: holds
      ? "The lock passes on at once. The former holder is not stopped: it may go on working until it hears of this. Only resources "
        + "that check fencing tokens are safe from it."
      : "The entry leaves the queue, and its client is told.",
    expected: plain(key),
    button: "End it by force",
    make: async (request) => {
      const answer = await call("ForceRelease", { name, ...request });
      if (answer.alreadyReleased) return `${name} had ended before.`;
      return `${name} has ended${answer.wasHolder ? ": it held " : ": it waited for "}${table}/${key}.`;
    },
  });
}

export function endSession({ id, who, entries }) {
  open({
    title: "End a session",
    facts: [["Session", id], ["Of", who], ["lockRefs", entries]],
    warning: "All its entries end at once, the locks that it holds among them. Its client is not stopped.",
    expected: id.slice(0, 8),
    button: "End it by force",
    make: async (request) => {
      const answer = await call("EndSession", { sessionId: id, ...request });
      return answer.alreadyEnded ? "The session had ended before." : "The session has ended.";
    },
  });
}

for (const input of [reason, confirm]) input.addEventListener("input", allowed);
document.getElementById("force-cancel").addEventListener("click", () => dialog.close());

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  // The second press closes it.
  if (!target) return dialog.close();
  const { make } = target;
  go.disabled = true;
  say(result, "…");
  try {
    const ended = await make({ reason: reason.value.trim(), forcedBy: by.value.trim() });
    target = null;
    say(go, "Close");
    say(result, ended);
    go.disabled = false;
    go.focus();
    dialog.dispatchEvent(new CustomEvent("ended"));
  } catch (failed) {
    if (!(failed instanceof Failed)) throw failed;
    say(result, failed.reason ? `${failed.reason}: ${failed.message}` : failed.message);
    allowed();
  }
});
