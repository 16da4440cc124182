// The page: live by server-sent events, each a whole overview or what has changed since the one before.
import * as actions from "./actions.js";
import { Chart } from "./charts.js";
import { element, find, prose, say, show } from "./elements.js";
import { beginMembers, drawMembers } from "./members.js";
import { drawMap } from "./plan_map.js";
import { clock, count, duration, figure, firstUp, many, size } from "./words.js";

let overview = null, heardAt = 0, curvesOf = -1, curvesAt = 0;
const curves = { stride: 0, points: [], evaluations: [] };
let loss, speed, time;

async function begin() {
  beginMembers(actions);
  loss = new Chart(find("curves"), "Loss", [{ name: "training", style: "first" }, { name: "evaluation", style: "second", dots: true }], (value, isTick) => (isTick ? figure(value) : value.toFixed(4)), false);
  speed = new Chart(find("curves"), "Tokens a second", [{ name: "trained", style: "first" }], (value, isTick) => (isTick ? many(value).replace(" thousand", "k").replace(" million", "M") : count(value)), true);
  time = new Chart(find("curves"), "Time of a step", [{ name: "measured", style: "first" }, { name: "planned", style: "third" }], (value, isTick) => (isTick ? figure(value) : duration(value)), true, true);
  find("invite").addEventListener("click", actions.invite);
  addEventListener("hashchange", () => enter().then(session));
  await enter();
  await session();
  listen();
  setInterval(tick, 1000);
  setInterval(() => actions.mayAct() && !document.hidden && actions.drawInvites(), 5000);
}

// A link brings its key behind the #; it moves into a cookie that scripts cannot read.
async function enter() {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (!key) return;
  history.replaceState(null, "", "/");
  const answer = await fetch("/api/enter", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ key }) });
  if (!answer.ok) notice((await answer.json()).error);
}

async function session() {
  try {
    const answer = await fetch("/api/session");
    const values = await answer.json();
    if (!answer.ok) return notice(values.error);
    actions.asOwner(values.request_key || null);
    drawMembers(overview);
    if (overview) actions.offerCourse(overview);
  } catch {
    // the stream says that the coordinator does not answer
  }
}

function notice(text) {
  prose(find("notice"), firstUp(text));
  show("notice", Boolean(text));
}

function listen() {
  const stream = new EventSource("/api/events");
  stream.addEventListener("whole", (event) => heard(JSON.parse(event.data)));
  stream.addEventListener("patch", (event) => heard(patched(overview, JSON.parse(event.data))));
  stream.addEventListener("open", () => notice(""));
  stream.addEventListener("error", async () => {
    tick();
    if (stream.readyState !== EventSource.CLOSED) return;
    stream.close();
    await session(); // says why, where this page is not let in
    setTimeout(listen, 3000);
  });
}

// RFC 7386; keys whose value is null are left out on both sides.
function patched(target, patch) {
  const made = target !== null && typeof target === "object" && !Array.isArray(target) ? { ...target } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete made[key];
    else if (typeof value === "object" && !Array.isArray(value)) made[key] = patched(made[key] ?? null, value);
    else made[key] = value;
  }
  return made;
}

function heard(newest) {
  overview = newest;
  heardAt = Date.now();
  tick();
  document.title = title();
  say("job", overview.job);
  say("swarm", overview.swarm);
  show("swarm-said", Boolean(overview.swarm));
  find("hero").dataset.level = overview.health.level;
  prose(find("health"), overview.health.sentence);
  prose(find("advice"), overview.health.advice);
  show("advice", Boolean(overview.health.advice));
  drawProgress();
  show("curves-empty", !overview.progress.step);
  actions.offerCourse(overview);
  drawMap(overview);
  drawMembers(overview);
  drawNews();
  drawStorage();
  fetchCurves();
}

function title() {
  const { step, steps } = overview.progress;
  const mark = { bad: "failed", warn: "look", done: "done" }[overview.health.level];
  return `${mark ? `${mark}: ` : ""}${steps ? `${Math.floor((100 * step) / steps)} % ` : ""}${overview.job}`;
}

function fact(name, value, more = "") {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, more && " ", more && element("small", {}, more)));
}

function drawProgress() {
  const { progress, figures } = overview;
  find("bar").value = progress.steps ? progress.step / progress.steps : 0;
  const facts = [fact("Step", count(progress.step), `of ${count(progress.steps)}`)];
  if (progress.ends_at && progress.seconds_left > 0) facts.push(fact("Done", `in ${duration(progress.seconds_left)}`, `about ${clock(progress.ends_at)}`));
  if (figures.loss != null) facts.push(fact("Loss", figures.loss.toFixed(4), figures.eval_loss != null ? `evaluation ${figures.eval_loss.toFixed(4)}` : ""));
  for (const set of figures.sets || []) facts.push(fact(`Loss on ${set.name}`, set.loss.toFixed(4), `perplexity ${set.perplexity.toPrecision(4)}, ${(100 * set.accuracy).toFixed(1)} % of tokens foretold`));
  if (figures.tokens_per_second != null) facts.push(fact("Tokens a second", count(figures.tokens_per_second), `${many(progress.tokens)} so far`));
  if (progress.step_seconds != null) facts.push(fact("A step takes", duration(progress.step_seconds), figures.predicted_seconds ? `planned ${duration(figures.predicted_seconds)}` : ""));
  if (figures.sent_bytes) facts.push(fact("Sent for a step", size(figures.sent_bytes), "by all together"));
  find("facts").replaceChildren(...facts);
  say("pace", figures.pace || "");
  show("pace", Boolean(figures.pace));
}

let newsOf = "";
function drawNews() {
  const items = Object.entries(overview.news).sort((a, b) => b[0] - a[0]);
  const what = items.length ? `${items[0][0]} ${items.length}` : "";
  if (what === newsOf && items.length) return;
  newsOf = what;
  find("news").replaceChildren(
    ...items.map(([, one]) =>
      element("li", {}, element("time", { datetime: new Date(one.at * 1000).toISOString() }, clock(one.at)), element("span", { "data-level": one.level }, prose(element("span", {}), one.text), one.advice ? prose(element("span", { class: "quiet" }), one.advice) : "")),
    ),
    ...(items.length ? [] : [element("li", { class: "quiet" }, "Nothing yet.")]),
  );
}

let storageOf = "";
function drawStorage() {
  const { checkpoints, free_bytes } = overview.storage;
  const what = JSON.stringify(checkpoints);
  if (what !== storageOf) {
    storageOf = what;
    find("storage").replaceChildren(
      ...checkpoints.map((one) => element("li", {}, element("span", {}, `Model after step ${count(one.step)}`), element("span", { class: "quiet" }, `${clock(one.at)}, ${size(one.size)}`))),
      ...(checkpoints.length ? [] : [element("li", { class: "quiet" }, "No checkpoint yet.")]),
    );
  }
  say("disk", free_bytes != null ? `${size(free_bytes)} are free on this disk.` : "");
}

async function fetchCurves() {
  const step = overview.progress.step;
  if (step === curvesOf || document.hidden || Date.now() - curvesAt < (curves.points.length ? 2000 : 500)) return;
  curvesAt = Date.now();
  const known = curves.points;
  const after = step > curvesOf && known.length > 1 ? known[known.length - 2][0] : 0;
  try {
    const answer = await fetch(`/api/curves?stride=${curves.stride}&after=${after}`);
    if (!answer.ok) return;
    const found = await answer.json();
    curves.points = [...known.filter((point) => found.after && point[0] <= found.after), ...found.points];
    curves.stride = found.stride;
    curves.evaluations = found.evaluations;
    curvesOf = step;
  } catch {
    return;
  }
  show("curves", curves.points.length > 0);
  const part = (index) => curves.points.map((point) => [point[0], point[index]]);
  loss.set([part(1), curves.evaluations]);
  speed.set([part(2)]);
  time.set([part(3), part(4)]);
}

function tick() {
  const quiet = (Date.now() - heardAt) / 1000;
  const isLive = heardAt > 0 && quiet < 5;
  find("connection").dataset.level = isLive ? "good" : "warn";
  say("connection", isLive ? "live" : heardAt ? `no word from the coordinator for ${duration(quiet)}` : "connecting");
}

addEventListener("visibilitychange", () => overview && fetchCurves());
begin();
