// Map of the plan: a row for each pipeline, a column for each stage, and the links between.
import { element, find, say, show } from "./elements.js";
import { count, firstUp, named, percent, rate } from "./words.js";

const FEW = 8;
let wide = false, drawnOf = "", version = 0;

export function drawMap(overview) {
  const plan = overview.plan;
  if (!plan) {
    say("map-text", overview.phase === "standing-by" ? "This is shown once this coordinator leads." : "There is no plan yet: it comes as soon as enough machines are here.");
    find("map").replaceChildren();
    show("map-more", false);
    drawnOf = "";
    return;
  }
  const serving = new Set(plan.stages.flatMap((stage) => stage.members));
  const what = JSON.stringify([plan, wide, [...serving].map((peer) => overview.members[peer] && [overview.members[peer].name, overview.members[peer].level])]);
  if (what === drawnOf) return;
  drawnOf = what;
  const lines = plan.pipelines.length, stages = plan.stages.length;
  say("map-text", `Plan ${plan.version}: ${stages === 1 ? "the whole model on each machine" : `the model's ${plan.layers} layers, cut into ${stages} parts`}; ${lines === 1 ? "1 pipeline" : `${count(lines)} pipelines`}. ${firstUp(plan.reason)}`);
  const before = places();
  const links = new Map((plan.hops || []).map((hop) => [`${hop.sender} ${hop.receiver}`, hop]));
  const speeds = [...links.values()].map((hop) => hop.gbps).filter((gbps) => gbps !== null && gbps !== undefined);
  const slowest = speeds.length > 1 ? Math.min(...speeds) : null;
  const head = element("tr", {}, element("th", { scope: "col" }, "Pipeline: share"));
  plan.stages.forEach((stage, index) => {
    const layers = stage.first === stage.last ? `layer ${stage.first}` : `layers ${stage.first}-${stage.last}`;
    if (index) head.append(element("td"));
    head.append(element("th", { scope: "col" }, layers));
  });
  const rows = plan.pipelines.slice(0, wide ? lines : FEW).map((pipeline, number) => {
    const share = `${pipeline.micro_batches} of the ${plan.micro_batches} parts of each batch`;
    const row = element("tr", {}, element("th", { scope: "row", title: share }, `${number + 1}: ${percent(pipeline.micro_batches / plan.micro_batches)}`));
    pipeline.members.forEach((peer, index) => {
      if (index) row.append(element("td", {}, hop(links.get(`${pipeline.members[index - 1]} ${peer}`), slowest)));
      const member = overview.members[peer];
      const changed = version && plan.version !== version && !before.has(peer);
      row.append(element("td", {}, element("span", { class: changed ? "peer changed" : "peer", "data-peer": peer, "data-level": member ? member.level : "wait", title: member ? member.does : peer }, named(peer, member))));
    });
    return row;
  });
  find("map").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  if (plan.version !== version) move(before);
  version = plan.version;
  show("map-more", lines > FEW);
  say("map-more", wide ? "Show fewer pipelines" : `Show all ${count(lines)} pipelines`).onclick = () => {
    wide = !wide;
    drawMap(overview);
  };
}

function hop(link, slowest) {
  const known = link && link.gbps !== null && link.gbps !== undefined;
  const text = known ? rate(link.gbps) : "not measured";
  const round = link && link.latency_ms !== null && link.latency_ms !== undefined ? `${Number(link.latency_ms.toPrecision(2))} ms` : "";
  const way = link && link.way !== "direct" ? `, ${link.way}` : "";
  const isSlowest = known && link.gbps === slowest;
  return element("span", { class: isSlowest ? "hop slowest" : "hop", title: `${text}${round && `, ${round} one way`}${way}${isSlowest ? ", the slowest link" : ""}` }, element("span", {}, text));
}

function places() {
  const found = new Map();
  for (const one of find("map").querySelectorAll(".peer")) {
    if (!found.has(one.dataset.peer)) found.set(one.dataset.peer, one.getBoundingClientRect());
  }
  return found;
}

function move(before) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const moved = new Set();
  for (const one of find("map").querySelectorAll(".peer")) {
    const from = before.get(one.dataset.peer);
    if (!from || moved.has(one.dataset.peer)) continue;
    moved.add(one.dataset.peer);
    const to = one.getBoundingClientRect();
    const [x, y] = [from.left - to.left, from.top - to.top];
    if (x || y) one.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration: 700, easing: "ease-in-out" });
  }
}
