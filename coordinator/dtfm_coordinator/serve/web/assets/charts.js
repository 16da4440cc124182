// Line charts as SVG, of at most some thousand points.
import { drawn, element } from "./elements.js";
import { count } from "./words.js";

const LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 20;

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}

export class Chart {
  // series: [{name, style, dots}]; say: how a value is written; cuts: whether values far above the usual ones are marked
  // at the top, and flatten no others
  constructor(parent, title, series, say, fromZero, cuts) {
    this.series = series.map((one) => ({ ...one, points: [] }));
    this.title = title;
    this.say = say;
    this.fromZero = fromZero;
    this.cuts = cuts;
    this.at = null;
    this.svg = drawn("svg", { class: "chart", role: "img", tabindex: "0" });
    this.keys = this.series.map((one) => element("span", { class: `key ${one.style}` }));
    this.where = element("span", { class: "quiet" });
    this.above = element("span", { class: "quiet", hidden: true });
    const figure = element("figure", {}, element("figcaption", {}, element("b", {}, title), ...this.keys, this.where, this.above), this.svg);
    parent.append(figure);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.look(null));
    this.svg.addEventListener("blur", () => this.look(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  set(lists) {
    this.series.forEach((one, index) => (one.points = lists[index]));
    this.draw();
  }

  get steps() {
    return this.series[0].points.map((point) => point[0]);
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    if (this.scale) this.look(this.scale.step(event.clientX - box.left));
  }

  key(event) {
    const steps = this.steps;
    if (!steps.length || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const here = this.at === null ? steps.length : nearest(steps, this.at);
    const next = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: steps.length - 1 }[event.key];
    this.look(steps[Math.min(steps.length - 1, Math.max(0, next))]);
  }

  look(step) {
    this.at = step;
    this.label();
    this.cross();
  }

  shown(one) {
    const known = one.points.filter((point) => point[1] !== null);
    if (!known.length) return null;
    return this.at === null ? known[known.length - 1] : known[nearest(known.map((point) => point[0]), this.at)];
  }

  label() {
    const parts = [];
    this.series.forEach((one, index) => {
      const point = this.shown(one);
      const text = point ? `${one.name} ${this.say(point[1])}` : "";
      this.keys[index].textContent = text;
      this.keys[index].hidden = !point;
      if (text) parts.push(text);
    });
    const first = this.shown(this.series[0]);
    this.where.textContent = this.at !== null && first ? `step ${count(first[0])}` : "";
    this.svg.setAttribute("aria-label", `${this.title}: ${parts.join(", ") || "nothing yet"}${first ? `, step ${count(first[0])}` : ""}`);
  }

  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (!width || !height) return;
    this.svg.replaceChildren();
    this.label();
    const points = this.series.flatMap((one) => one.points.filter((point) => point[1] !== null));
    if (!points.length) {
      this.scale = null;
      this.svg.append(drawn("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "There is something to see after the first steps."));
      return;
    }
    const most = points.reduce((high, point) => Math.max(high, point[1]), -Infinity);
    const top = this.cuts ? ceiling(this.series[0].points, most) : most;
    this.above.textContent = `▲ above: up to ${this.say(most)}`;
    this.above.hidden = most <= top;
    const values = points.map((point) => Math.min(top, point[1]));
    let low = this.fromZero ? 0 : Math.min(...values), high = Math.max(...values);
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    [low, high] = [this.fromZero ? 0 : low - pad, high + pad];
    const first = Math.min(...points.map((point) => point[0])), last = Math.max(first + 1, ...points.map((point) => point[0]));
    const x = (step) => LEFT + ((step - first) / (last - first)) * (width - LEFT - RIGHT);
    const level = (value) => height - BOTTOM - ((value - low) / (high - low)) * (height - TOP - BOTTOM);
    const y = (value) => level(Math.min(top, value));
    this.scale = { x, y, step: (at) => first + ((at - LEFT) / (width - LEFT - RIGHT)) * (last - first) };
    for (const value of ticks(low, high, 4)) {
      this.svg.append(drawn("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: level(value), y2: level(value) }));
      this.svg.append(drawn("text", { x: LEFT - 6, y: level(value) + 4, "text-anchor": "end" }, this.say(value, true)));
    }
    for (const step of ticks(first, last, Math.max(2, width / 110))) {
      if (step % 1 === 0) this.svg.append(drawn("text", { x: Math.min(x(step), width - 18), y: height - 5, "text-anchor": "middle" }, count(step)));
    }
    for (const one of [...this.series].reverse()) {
      let line = "", pen = "M";
      for (const [step, value] of one.points) {
        if (value === null) pen = "M";
        else {
          line += `${pen}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
          pen = "L";
        }
      }
      this.svg.append(drawn("path", { class: one.style, d: line }));
      if (one.dots && one.points.length <= 60) {
        for (const [step, value] of one.points) this.svg.append(drawn("circle", { class: one.style, cx: x(step), cy: y(value), r: 2.6 }));
      }
      for (const step of runsAbove(one.points, top)) this.svg.append(drawn("path", { class: `above ${one.style}`, d: `M${x(step).toFixed(1)} ${y(top).toFixed(1)}l5 8h-10z` }));
    }
    this.marks = drawn("g");
    this.svg.append(this.marks);
    this.cross();
  }

  cross() {
    if (!this.scale || !this.marks) return;
    this.marks.replaceChildren();
    if (this.at === null) return;
    const { x, y } = this.scale;
    const first = this.shown(this.series[0]);
    if (first) this.marks.append(drawn("line", { class: "cross", x1: x(first[0]), x2: x(first[0]), y1: TOP, y2: this.svg.clientHeight - BOTTOM }));
    for (const one of this.series) {
      const point = this.shown(one);
      if (point) this.marks.append(drawn("circle", { class: one.style, cx: x(point[0]), cy: y(point[1]), r: 3.4 }));
    }
  }
}

// The value at which a chart is cut; the highest of all, where none lies far above the usual ones.
function ceiling(usual, most) {
  const values = usual.map((point) => point[1]).filter((value) => value !== null).sort((a, b) => a - b);
  const high = values[Math.floor(0.98 * (values.length - 1))];
  return high > 0 && most > 3 * high ? 1.5 * high : most;
}

// The middle of each run of points above the top.
function runsAbove(points, top) {
  const found = [];
  let run = [];
  for (const [step, value] of [...points, [null, null]]) {
    if (value !== null && value > top) run.push(step);
    else if (run.length) {
      found.push(run[run.length >> 1]);
      run = [];
    }
  }
  return found;
}

function nearest(steps, wanted) {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - steps[low - 1] < steps[low] - wanted ? low - 1 : low;
}
