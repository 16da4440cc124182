// The table of members: sorted, searched, and redrawn where something has changed.
import { element, find, prose, say, show } from "./elements.js";
import { ago, count, many, named, nobodyLeadsHere, percent, rate, size } from "./words.js";

const FEW = matchMedia("(max-width: 46rem)").matches ? 8 : 30;
const SEEN_AT_ONCE = 6; // members of whom nobody is looked for
const ORDER = { bad: 0, warn: 1, wait: 2, good: 3, done: 3 };
const COLUMNS = [
  ["name", "Member", (peer, one) => named(peer, one).toLowerCase()],
  ["does", "What it does", (peer, one) => (one.stage ?? 1e6) * 10 + ORDER[one.level]],
  ["share", "Share of the work", (peer, one) => -one.share],
  ["tokens", "Tokens", (peer, one) => -one.tokens],
  ["seen", "Last seen", (peer, one) => -(one.seen_at ?? Infinity)],
  ["device", "Device", (peer, one) => one.device],
];
let sorted = "does", backward = false, wide = false;
const rows = new Map();
let latest = null, owner = null;

export function beginMembers(actions) {
  owner = actions;
  find("find").addEventListener("input", () => drawMembers(latest));
  const head = element("tr");
  for (const [key, title] of COLUMNS) {
    head.append(element("th", { scope: "col", "data-key": key, class: key === "share" || key === "tokens" ? "number" : "" }, element("button", { type: "button", onclick: () => sort(key) }, title)));
  }
  head.append(element("td", { class: "row-actions" }));
  find("members").append(element("thead", {}, head), element("tbody"));
  find("members-more").addEventListener("click", () => {
    wide = !wide;
    drawMembers(latest);
  });
}

function sort(key) {
  backward = sorted === key && !backward;
  sorted = key;
  drawMembers(latest);
}

export function drawMembers(overview) {
  if (!overview) return;
  latest = overview;
  const all = Object.entries(overview.members);
  const here = all.filter(([, one]) => one.role !== "gone");
  const working = here.filter(([, one]) => one.role === "trains").length;
  say("members-count", all.length ? `${count(here.length)} here, ${count(working)} at work` : "");
  const wanted = find("find").value.trim().toLowerCase();
  const mayFind = Boolean(wanted) || all.length > SEEN_AT_ONCE;
  show("find", mayFind);
  show("find-label", mayFind);
  const by = COLUMNS.find(([key]) => key === sorted)[2];
  const found = all
    .filter(([peer, one]) => !wanted || `${peer} ${one.name} ${one.does} ${one.device} ${one.role}`.toLowerCase().includes(wanted))
    .map(([peer, one]) => [one.role === "gone" ? 1 : 0, by(peer, one), peer, one])
    .sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : a[1] > b[1] ? 1 : a[2] < b[2] ? -1 : 1) * (backward ? -1 : 1));
  const shown = wide ? found : found.slice(0, FEW);
  const body = find("members").tBodies[0];
  const kept = new Set();
  shown.forEach(([, , peer, one], index) => {
    const row = rowOf(peer, one, overview.version);
    kept.add(peer);
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] || null);
  });
  for (const [peer, { row }] of rows) {
    if (!kept.has(peer)) {
      row.remove();
      rows.delete(peer);
    }
  }
  for (const cell of find("members").tHead.querySelectorAll("th")) {
    if (cell.dataset.key === sorted) cell.setAttribute("aria-sort", backward ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  }
  find("members").hidden = !shown.length;
  show("members-empty", !shown.length);
  prose(find("members-empty"), wanted && all.length ? "Nobody like that is here." : overview.phase === "standing-by" ? "Members are shown once this coordinator leads." : nobodyLeadsHere(overview) ? "Nobody can join yet." : "Nobody is here yet. Hand out the invite: whoever runs `dtfm-node join` with it appears here.");
  show("members-more", found.length > FEW);
  say("members-more", wide ? "Show fewer members" : `Show all ${count(found.length)} members`);
}

function rowOf(peer, one, version) {
  const seen = one.seen_at ? ago(one.seen_at) : "now";
  const may = owner.mayAct();
  const what = JSON.stringify([one, version, seen, may]);
  const known = rows.get(peer);
  if (known && known.what === what) return known.row;
  const row = known ? known.row : element("tr");
  row.className = one.role === "gone" ? "gone" : "";
  const offered = `${one.role === "gone"} ${one.is_banned}`;
  const kept = may && known && known.may && known.offered === offered ? row.lastChild : null;
  const traffic = one.sent_bytes || one.received_bytes ? `sent ${size(one.sent_bytes)}, received ${size(one.received_bytes)}` : "";
  const off = one.line_spread ? ` (estimated, to within a factor of ${one.line_spread})` : "";
  const line = [one.up_gbps ? `up to ${rate(one.up_gbps)}${off}` : "", traffic].filter(Boolean).join("; ");
  const cells = [
    element("th", { scope: "row", "data-level": one.level }, element("span", { class: "dot" }), named(peer, one), one.name ? " " : "", one.name ? element("code", {}, peer.slice(-6)) : ""),
    element("td", { class: "does" }, one.does),
    element("td", { class: "number", "data-label": "Share" }, one.tokens ? percent(one.share) : "-"),
    element("td", { class: "number", "data-label": "Tokens" }, one.tokens ? many(one.tokens) : "-"),
    element("td", { class: "seen", "data-label": "Seen" }, seen),
    element("td", { class: "device" }, one.device || "not measured yet", one.version && element("span", { class: "quiet line" }, `dtfm ${one.version}${one.version === version ? "" : ` (the coordinator has ${version})`}`), line && element("span", { class: "quiet line" }, line)),
    kept || actionsOf(peer, one, may),
  ];
  row.replaceChildren(...cells);
  rows.set(peer, { row, what, may, offered });
  return row;
}

function actionsOf(peer, one, may) {
  if (!may) return element("td", { class: "row-actions" });
  const name = named(peer, one);
  return element(
    "td",
    { class: "row-actions" },
    one.role === "gone" ? "" : element("button", { type: "button", class: "plain", "aria-label": `Send away ${name}`, onclick: () => owner.kick(peer, name) }, "Send away"),
    " ",
    one.is_banned
      ? element("button", { type: "button", class: "plain", "aria-label": `Unban ${name}`, onclick: () => owner.unban(peer, name) }, "Unban")
      : element("button", { type: "button", class: "plain", "aria-label": `Ban ${name}`, onclick: () => owner.ban(peer, name) }, "Ban"),
  );
}
