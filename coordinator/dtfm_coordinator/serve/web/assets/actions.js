// What an owner may do, each after a question.
import { element, find, prose, say, show } from "./elements.js";
import { clock, firstUp, nobodyLeadsHere } from "./words.js";

let requestKey = null;

export const mayAct = () => requestKey !== null;

export function asOwner(key) {
  requestKey = key;
  show("role", true);
  say("role", mayAct() ? "you may act" : "you may look");
  if (mayAct()) drawInvites();
}

export async function act(values) {
  const answer = await fetch("/api/act", {
    method: "POST",
    headers: { "content-type": "application/json", "x-dtfm-request": requestKey },
    body: JSON.stringify(values),
  });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error);
  return said;
}

const COURSE = {
  pause: ["Pause", "Pause the run?", "The step under way is finished and its state kept here. Then the machines do nothing until you resume; their owners may leave meanwhile."],
  resume: ["Resume", "Go on with the run?", "A plan is made for the machines that are here."],
  checkpoint: ["Keep a checkpoint", "Keep the model as it is now?", "Training stops for a moment after the step under way, and goes on."],
  plan: ["Plan anew", "Look for a better plan?", "Links that nobody knows are measured, and a better plan is looked for while training goes on."],
  finish: ["Finish", "End the run?", "The step under way is the last one. Its state is kept, and all machines leave. `dtfm-coordinator resume` goes on from there."],
};
let offered = "";

// Offers what can be done now about the course of the run.
export function offerCourse(overview) {
  const over = ["done", "failed"].includes(overview.phase) || nobodyLeadsHere(overview);
  show("invite", mayAct() && !nobodyLeadsHere(overview));
  const names = !mayAct() || over ? [] : overview.is_paused ? ["resume", "set", "finish"] : ["pause", "checkpoint", "plan", "set", "finish"];
  show("actions", names.length > 0);
  if (String(names) === offered) return;
  offered = String(names);
  find("actions").replaceChildren(
    ...names.map((name) => {
      if (name === "set") return element("button", { type: "button", class: "plain", onclick: changeSettings }, "Change settings");
      const [button, title, text] = COURSE[name];
      return element("button", { type: "button", class: name === "resume" ? "" : "plain", onclick: () => ask(title, [prose(element("p"), text)], button, name === "finish", () => ({ action: name })) }, button);
    }),
  );
}

// Asks for one setting's new value.
async function changeSettings() {
  const answer = await fetch("/api/settings");
  const now = await answer.json();
  if (!answer.ok) {
    ask("Change a setting", [element("p", {}, firstUp(now.error))], "Change it", false, null);
    find("dialog-go").hidden = true;
    return;
  }
  const key = element("select", {}, ...Object.keys(now).map((name) => element("option", { value: name }, name)));
  const value = element("input", { autocomplete: "off", required: true });
  const step = element("input", { type: "number", min: "1", placeholder: "as soon as can be" });
  const show = () => (value.value = now[key.value] ?? "");
  key.value = "training.learning_rate" in now ? "training.learning_rate" : key.value;
  key.addEventListener("change", show);
  show();
  const typed = () => {
    const text = value.value.trim();
    if (text === "true" || text === "false") return text === "true";
    return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
  };
  ask(
    "Change a setting",
    [
      element("p", {}, "The names are those of the job file. All machines take the new value from the same step on."),
      element("label", {}, "Setting", key),
      element("label", {}, "New value", value),
      element("label", {}, "From step", step),
    ],
    "Change it",
    false,
    () => ({ action: "set", values: { [key.value]: typed() }, from_step: step.value ? Number(step.value) : null }),
  );
}

// Asks, with what `body` holds; `values` returns what to send. What comes back as a question is asked, too, before it
// is sent again as meant.
function ask(title, body, button, danger, values, done) {
  const dialog = find("dialog"), form = find("dialog-form"), go = find("dialog-go"), said = find("dialog-said");
  say("dialog-title", title);
  find("dialog-body").replaceChildren(...body);
  let asked = "";
  const begin = () => {
    asked = "";
    say(said, "");
    said.dataset.level = "";
    go.hidden = false;
    go.disabled = false;
    go.className = danger ? "danger" : "";
    say(go, button);
  };
  begin();
  say("dialog-cancel", "Cancel").onclick = () => dialog.close();
  form.oninput = () => {
    if (asked) begin();
  };
  form.onsubmit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    said.dataset.level = "";
    say(said, "One moment.");
    try {
      const wanted = values();
      const answer = await act(asked === JSON.stringify(wanted) ? { ...wanted, sure: true } : wanted);
      if (answer.question) {
        asked = JSON.stringify(wanted);
        said.dataset.level = "warn";
        say(said, answer.question);
        say(go, "Change it all the same");
        go.className = "danger";
        go.disabled = false;
        return;
      }
      say(said, answer.said);
      go.hidden = true;
      say("dialog-cancel", "Close").focus();
      if (done) done(answer);
    } catch (error) {
      said.dataset.level = "bad";
      say(said, error.message || "The coordinator does not answer.");
      go.disabled = false;
    }
  };
  dialog.showModal();
}

export function kick(peer, name) {
  ask(`Send ${name} away?`, [element("p", {}, "Its connections end at once and the swarm goes on without it. It stays away until its person types `dtfm-node join` again. A changed program may come back by itself: Ban keeps that out.")], "Send away", true, () => ({ action: "kick", peer }));
}

export function ban(peer, name) {
  const alone = element("input", { type: "checkbox", id: "ban-alone" });
  ask(
    `Ban ${name}?`,
    [
      element("p", {}, "It cannot come back unless you take the ban back, and neither can the others who came with the same invite: somebody may have made several keys."),
      element("label", { class: "check" }, alone, "Ban this one alone; the others of its invite stay"),
    ],
    "Ban",
    true,
    () => ({ action: "ban", peer, key_only: alone.checked }),
  );
}

export function unban(peer, name) {
  ask(`Take back the ban of ${name}?`, [element("p", {}, "Its person can join again, and so can others of its invite whom you have not banned themselves.")], "Take back", false, () => ({ action: "unban", peer }));
}

export function invite() {
  const name = element("input", { maxlength: "80", autocomplete: "off" });
  const uses = element("input", { type: "number", min: "1", max: "10000", value: "1", required: true });
  const days = element("input", { type: "number", min: "1", max: "3650", value: "7", required: true });
  ask(
    "Invite somebody",
    [element("label", {}, "Whom it is for", name), element("label", {}, "For how many machines", uses), element("label", {}, "Days within which they may join", days)],
    "Make the invite",
    false,
    () => ({ action: "invite", name: name.value, uses: Number(uses.value), days: Number(days.value) }),
    (answer) => {
      const text = element("textarea", { readonly: true, "aria-label": "The invite" });
      text.value = `dtfm-node join ${answer.invite}`;
      const copy = element("button", { type: "button", onclick: () => copied(text, copy) }, "Copy");
      find("dialog-body").replaceChildren(text, copy);
      drawInvites();
    },
  );
}

async function copied(text, button) {
  text.select();
  try {
    await navigator.clipboard.writeText(text.value);
  } catch {
    document.execCommand("copy");
  }
  say(button, "Copied");
}

let invitesOf = "";

// Others make and use invites, too: it is called again and again, and draws what has changed.
export async function drawInvites() {
  const answer = await fetch("/api/invites").catch(() => null); // the stream says that the coordinator does not answer
  if (!answer?.ok) return;
  const { invites } = await answer.json();
  const what = JSON.stringify(invites.map((one) => [one, one.expires * 1000 < Date.now()]));
  if (what === invitesOf) return;
  invitesOf = what;
  show("invites-section", invites.length > 0);
  find("invites").replaceChildren(
    ...invites.slice(0, 50).map((one) => {
      const isOver = one.expires * 1000 < Date.now();
      const state = one.revoked ? "taken back" : `${one.used} of ${one.uses} used, ${isOver ? "over since" : "until"} ${clock(one.expires)}`;
      const row = element("li", {}, element("span", {}, one.name || "Without a name"), element("code", {}, one.token), element("span", { class: "quiet" }, state));
      if (!one.revoked && !isOver) row.append(element("button", { type: "button", class: "plain", "aria-label": `Take back the invite ${one.name || one.token}`, onclick: () => takeBack(one) }, "Take back"));
      return row;
    }),
  );
}

function takeBack(one) {
  ask(`Take back the invite ${one.name || one.token}?`, [element("p", {}, "Nobody else can join with it. Those who have stay.")], "Take back", true, () => ({ action: "revoke", token: one.token }), drawInvites);
}
