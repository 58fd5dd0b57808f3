// The page of `sampleforge serve`. It only reads. Everything that comes from a run folder may be
// hostile: it is put into the page as text (`textContent`), never as markup.
"use strict";

// ---- small helpers ----

const POLL_MS = 2000;
/** Curves that one request asks for, and letters of its address: a server takes no longer ones. */
const PORTION = 200, PORTION_LETTERS = 30_000;
/** A range that is narrower, as a part of its numbers, is drawn as flat: they are not exact enough
    to tell its ends apart. */
const NARROW = 1e-9;
const COLOURS = ["#3d74e0", "#e07b39", "#2a9d63", "#c8456f", "#8a63d2", "#139fb3", "#b0860a",
  "#c95fc4", "#7d8b2f", "#6b7a8f"];
const STATUSES = ["running", "finished", "interrupted", "failed", "killed"];
const $ = (id) => document.getElementById(id);

/** Return a new element with classes, text or children, and attributes. */
function el(name, classes = "", content = null, attributes = {}) {
  const node = document.createElement(name);
  if (classes) node.className = classes;
  if (Array.isArray(content)) node.append(...content);
  else if (content !== null && content !== undefined) node.textContent = String(content);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function svg(name, attributes = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  if (text !== null) node.textContent = text;
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Return a number with three or four digits and a unit, such as 45.2k. */
function short(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= 0.9995 * limit) {
      return `${Number((value / (unit === "k" ? 1e3 : limit)).toPrecision(3))}${unit}`;
    }
  }
  if (size !== 0 && size < 1e-3) return value.toExponential(1);
  return String(size < 1000 ? Number(value.toPrecision(3)) : Math.round(value));
}

/** Return a return or another measured value with at most two decimals. */
function score(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size !== 0 && size < 0.01)) return short(value);
  return value.toLocaleString("en", { maximumFractionDigits: size >= 1000 ? 0 : size >= 100 ? 1 : 2 });
}

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  const s = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)}:${two(s % 60)}`;
  return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}

function ago(seconds) {
  if (seconds < 5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} d ago`;
}

function bytes(count) {
  for (const [limit, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (count >= limit) return `${(count / limit).toFixed(1)} ${unit}`;
  }
  return `${count} B`;
}

const percent = (share) => (isNumber(share) ? `${Math.round(100 * share)}%` : "–");
const list = (value) => (Array.isArray(value) ? value : []);
const dict = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : {});

/** The policies of a run with several, from the names of its metrics: those that have what every
    policy has. Environments and callbacks name metrics as they like, such as env_level/score. */
function policiesOf(names) {
  const all = new Set(names);
  const before = new Set(names.filter((name) => name.includes("/")).map((name) => name.split("/")[0]));
  return [...before].filter((id) => all.has(`${id}/episodes`) && all.has(`${id}/updates`));
}

function parsed(text) {
  try { return dict(JSON.parse(text)); } catch { return {}; }
}

// ---- what the page knows ----

const state = {
  tab: "curves", focus: "", selected: new Map(), x: "env_steps", smooth: 1, log: false,
  metrics: ["return_mean", "env_steps_per_s", "loss", "entropy"], chosen: false,
  runs: new Map(), names: [], statuses: new Set(), search: "", sort: "updated", skew: 0,
  leftOut: 0, unsearched: false,
};

/** Fetch JSON. The server's clock is kept, so that ages do not depend on the browser's. */
async function get(path, parameters = []) {
  const query = new URLSearchParams(parameters);
  const reply = await fetch(`${path}?${query}`, { cache: "no-cache" });
  const sent = Date.parse(reply.headers.get("Date"));
  if (isNumber(sent)) state.skew = sent - Date.now();
  const values = await reply.json();
  if (!reply.ok) throw new Error(values.error || reply.statusText);
  return values;
}

const serverNow = () => (Date.now() + state.skew) / 1000;

// ---- what the address has: #tab=run&run=ID&show=ID&show=ID ----

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  if (["runs", "curves", "run"].includes(words.get("tab"))) state.tab = words.get("tab");
  state.focus = words.get("run") || state.focus;
  if (words.has("x")) state.x = words.get("x") === "wall_s" ? "wall_s" : "env_steps";
  if (words.has("smooth")) state.smooth = Math.max(1, parseInt(words.get("smooth"), 10) || 1);
  if (words.has("log")) state.log = words.get("log") === "1";
  if (words.has("metric")) { state.metrics = words.getAll("metric"); state.chosen = true; }
  if (words.has("show")) {
    state.selected.clear();
    for (const id of words.getAll("show")) if (id) select(id, true);
  }
}

let written = "";
function writeAddress() {
  const words = new URLSearchParams({ tab: state.tab });
  if (state.focus) words.set("run", state.focus);
  if (state.x !== "env_steps") words.set("x", state.x);
  if (state.smooth !== 1) words.set("smooth", state.smooth);
  if (state.log) words.set("log", "1");
  if (state.chosen) for (const metric of state.metrics) words.append("metric", metric);
  if (state.touched) {
    for (const id of state.selected.keys()) words.append("show", id);
    if (!state.selected.size) words.append("show", "");
  }
  written = `#${words}`;
  history.replaceState(null, "", written);
}

/** Select a run for the curves, with the first colour that is free. */
function select(id, yes) {
  if (!yes) { state.selected.delete(id); return; }
  if (state.selected.has(id)) return;
  const used = new Set(state.selected.values());
  let number = 0;
  while (used.has(number)) number += 1;
  state.selected.set(id, number);
}

const colourOf = (number) => COLOURS[number % COLOURS.length];
const nameOf = (id) => state.runs.get(id)?.name ?? id;

// ---- charts ----

/** Return about `count` round numbers between two others. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? 10 * power;
  return multiples(step, low, high + step * 1e-9, count);
}

/** Return the multiples of `step` from `low` to `high`, if there are about `count` of them: no more
    than two others. They are counted, because adding to a number beyond 2^53 may leave it as it is. */
function multiples(step, low, high, count) {
  const first = Math.ceil(low / step), found = new Set();
  const number = Math.min(Math.floor(high / step) - first + 1, Math.ceil(Math.max(1, count)) + 2);
  for (let i = 0; i < number; i += 1) found.add((first + i) * step);
  return [...found];
}

function powers(low, high) {
  const found = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) found.push(10 ** p);
  if (found.length > 7) return found.filter((_, i) => i % Math.ceil(found.length / 7) === 0);
  if (found.length < 4) return found.flatMap((p) => [p, 2 * p, 5 * p]);
  return found;
}

function timeTicks(low, high, count) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const rough = (high - low) / Math.max(1, count);
  const step = steps.find((s) => s >= rough) ?? Math.ceil(rough / 86400) * 86400;
  return multiples(step, low, high, count);
}

/** A line chart on a canvas: grid, lines, values under the pointer, and zoom by dragging. */
class Chart {
  constructor() {
    this.series = [];
    this.zoom = null;
    this.pointer = null;
    this.canvas = el("canvas");
    this.none = el("div", "none", "");
    this.tip = el("div", "tip");
    this.tip.hidden = true;
    this.node = el("div", "plot", [this.canvas, this.none, this.tip]);
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerleave", () => { this.pointer = null; this.tip.hidden = true; this.draw(); });
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse") { this.dragFrom = event.offsetX; this.canvas.setPointerCapture(event.pointerId); }
    });
    this.canvas.addEventListener("pointerup", (event) => this.endDrag(event));
    this.canvas.addEventListener("dblclick", () => { this.zoom = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  /** Show series [{name, colour, dash, x, y}]; `options`: {x, log, none}. */
  show(series, options) {
    if (options.x !== this.options?.x) this.zoom = null;
    this.series = series.filter((each) => each.x.length);
    this.options = options;
    setText(this.none, this.series.length ? "" : options.none);
    this.draw();
  }

  move(event) {
    this.pointer = { x: event.offsetX, y: event.offsetY };
    this.draw();
  }

  endDrag(event) {
    const from = this.dragFrom;
    this.dragFrom = undefined;
    if (from === undefined || Math.abs(event.offsetX - from) < 6 || !this.toX) { this.draw(); return; }
    const ends = [from, event.offsetX].sort((a, b) => a - b).map((p) => this.toX(p));
    this.zoom = ends;
    this.draw();
  }

  /** Return the ranges of x and y, of what is shown. */
  ranges() {
    let [x0, x1] = this.zoom ?? [Infinity, -Infinity];
    if (!this.zoom) {
      for (const { x } of this.series) { x0 = Math.min(x0, x[0]); x1 = Math.max(x1, x[x.length - 1]); }
      if (x0 > 0 && x0 < 0.3 * x1) x0 = 0;
    }
    let y0 = Infinity, y1 = -Infinity;
    for (const { x, y } of this.series) {
      for (let i = 0; i < y.length; i += 1) {
        if (x[i] < x0 || x[i] > x1 || (this.log && y[i] <= 0)) continue;
        if (y[i] < y0) y0 = y[i];
        if (y[i] > y1) y1 = y[i];
      }
    }
    const leastX = NARROW * Math.max(Math.abs(x0), Math.abs(x1));
    if (x1 - x0 <= leastX) x1 = x0 + Math.max(1, 2 * leastX);
    if (!(y1 >= y0)) return null;
    const finite = (value) => Math.max(-Number.MAX_VALUE, Math.min(Number.MAX_VALUE, value));
    if (this.log) return { x0, x1, y0: y0 / 1.1, y1: finite(Math.max(y1, y0 * 1.01) * 1.1) };
    if (y0 > 0 && y0 < 0.4 * y1) y0 = 0;
    const isFlat = y1 - y0 <= NARROW * Math.max(Math.abs(y0), Math.abs(y1));
    const room = (isFlat ? 0 : 0.06 * (y1 - y0)) || Math.max(0.5, 0.05 * Math.abs(y1));
    return { x0, x1, y0: y0 === 0 ? 0 : finite(y0 - room), y1: finite(y1 + room) };
  }

  draw() {
    const width = this.node.clientWidth, height = this.node.clientHeight;
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (!this.series.length) { this.tip.hidden = true; return; }
    this.log = this.options.log && this.series.some(({ y }) => y.some((value) => value > 0));
    const range = this.ranges();
    if (range === null) return;
    const style = getComputedStyle(document.body), ink = (name) => style.getPropertyValue(name).trim();
    pen.font = `11px ${ink("--sans")}`;
    const inRange = (t) => t >= range.y0 && t <= range.y1;
    let yTicks = this.log ? powers(range.y0, range.y1).filter(inRange) : [];
    if (yTicks.length < 2) yTicks = ticks(range.y0, range.y1, Math.max(3, height / 48)).filter(inRange);
    const left = 10 + Math.max(...yTicks.map((t) => pen.measureText(short(t)).width), 14);
    const box = { l: left, r: width - 8, t: 6, b: height - 20 };
    const scale = this.log ? Math.log : (v) => v;
    const [low, high] = [scale(range.y0), scale(range.y1)];
    const px = (x) => box.l + ((x - range.x0) / (range.x1 - range.x0)) * (box.r - box.l);
    const py = (y) => box.b - ((scale(y) - low) / (high - low)) * (box.b - box.t);
    this.toX = (p) => range.x0 + ((Math.min(box.r, Math.max(box.l, p)) - box.l) / (box.r - box.l)) * (range.x1 - range.x0);
    this.grid(pen, box, range, yTicks, px, py, ink);
    pen.save();
    pen.beginPath();
    pen.rect(box.l, box.t - 2, box.r - box.l, box.b - box.t + 4);
    pen.clip();
    for (const each of this.series) this.line(pen, each, px, py);
    pen.restore();
    if (this.dragFrom !== undefined && this.pointer) {
      pen.fillStyle = ink("--accent");
      pen.globalAlpha = 0.12;
      pen.fillRect(this.dragFrom, box.t, this.pointer.x - this.dragFrom, box.b - box.t);
      pen.globalAlpha = 1;
    }
    if (this.pointer) this.values(pen, box, px, py, ink);
  }

  grid(pen, box, range, yTicks, px, py, ink) {
    pen.lineWidth = 1;
    pen.strokeStyle = ink("--line");
    pen.fillStyle = ink("--soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of yTicks) {
      const y = Math.round(py(tick)) + 0.5;
      pen.beginPath(); pen.moveTo(box.l, y); pen.lineTo(box.r, y); pen.stroke();
      pen.fillText(short(tick), box.l - 6, y);
    }
    pen.textBaseline = "top";
    const isTime = this.options.x === "wall_s", count = (box.r - box.l) / 64;
    const xTicks = (isTime ? timeTicks : ticks)(range.x0, range.x1, count);
    for (const tick of xTicks) {
      const text = isTime ? duration(tick) : short(tick), half = pen.measureText(text).width / 2;
      const x = Math.min(box.r - half, Math.max(box.l + half - 4, px(tick)));
      pen.textAlign = "center";
      pen.fillText(text, x, box.b + 6);
    }
  }

  line(pen, { x, y, colour, dash, faint, dots }, px, py) {
    pen.strokeStyle = colour;
    pen.lineWidth = faint ? 1 : 1.6;
    pen.globalAlpha = faint ? 0.45 : 1;
    pen.lineJoin = "round";
    pen.setLineDash(dash || []);
    pen.beginPath();
    let down = false;
    for (let i = 0; i < x.length; i += 1) {
      if (this.log && y[i] <= 0) { down = false; continue; }
      if (down) pen.lineTo(px(x[i]), py(y[i])); else pen.moveTo(px(x[i]), py(y[i]));
      down = true;
    }
    pen.stroke();
    pen.setLineDash([]);
    if (dots || x.length < 30) {
      pen.fillStyle = colour;
      for (let i = 0; i < x.length; i += 1) {
        if (this.log && y[i] <= 0) continue;
        pen.beginPath(); pen.arc(px(x[i]), py(y[i]), 2.2, 0, 7); pen.fill();
      }
    }
    pen.globalAlpha = 1;
  }

  /** Show the values under the pointer. */
  values(pen, box, px, py, ink) {
    const at = this.toX(this.pointer.x), near = [];
    for (const each of this.series) {
      const { x, y } = each;
      if (at < x[0] - (x[x.length - 1] - x[0]) * 0.02 || at > x[x.length - 1] * 1.02) continue;
      let [low, high] = [0, x.length - 1];
      while (high - low > 1) { const middle = (low + high) >> 1; if (x[middle] <= at) low = middle; else high = middle; }
      const i = Math.abs(x[low] - at) <= Math.abs(x[high] - at) ? low : high;
      near.push({ each, x: x[i], y: y[i] });
    }
    this.tip.hidden = !near.length;
    if (!near.length) return;
    pen.strokeStyle = ink("--faint");
    pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(this.pointer.x, box.t); pen.lineTo(this.pointer.x, box.b); pen.stroke();
    for (const { each, x, y } of near) {
      if (this.log && y <= 0) continue;
      pen.fillStyle = each.colour;
      pen.beginPath(); pen.arc(px(x), py(y), 3, 0, 7); pen.fill();
    }
    near.sort((a, b) => b.y - a.y);
    const rows = near.slice(0, 12).map(({ each, y }) => {
      const key = el("span", "key");
      key.style.background = each.colour;
      return el("div", "v", [key, el("span", "", each.name), el("b", "", score(y))]);
    });
    if (near.length > 12) rows.push(el("div", "at", `and ${near.length - 12} more`));
    const where = this.options.x === "wall_s" ? duration(at) : `${short(at)} env steps`;
    this.tip.replaceChildren(el("div", "at", where), ...rows);
    const width = this.tip.offsetWidth, right = this.pointer.x + 14 + width < box.r + 8;
    this.tip.style.left = `${right ? this.pointer.x + 14 : Math.max(0, this.pointer.x - width - 14)}px`;
    this.tip.style.top = `${Math.max(0, Math.min(this.pointer.y - 20, box.b - this.tip.offsetHeight))}px`;
  }
}

/** A chart of one metric of several runs, which fetches its curves. `runs()` returns
    [{id, name, colour, dash}]; `metric` may be changed by the user. */
class MetricChart {
  constructor(metric, runs, { onRemove = null, onChange = () => {} } = {}) {
    this.metric = metric;
    this.runs = runs;
    this.curves = new Map();
    this.chart = new Chart();
    this.choice = el("select", "", null, { "aria-label": "Metric" });
    this.note = el("span", "soft");
    this.choice.addEventListener("change", () => { this.metric = this.choice.value; this.forget(); onChange(); this.update(); });
    const head = el("header", "", [this.choice, this.note, el("span", "grow")]);
    if (onRemove) {
      const remove = el("button", "", "✕", { title: "Remove this chart", "aria-label": "Remove this chart" });
      remove.addEventListener("click", onRemove);
      head.append(remove);
    }
    this.node = el("section", "card chart", [head, this.chart.node]);
  }

  forget() { this.curves.clear(); this.key = ""; }

  /** Offer the names of all metrics. */
  offer(names) {
    const all = names.includes(this.metric) ? names : [this.metric, ...names];
    if (all.join("\n") === this.offered) return;
    this.offered = all.join("\n");
    this.choice.replaceChildren(...all.map((name) => {
      const option = el("option", "", name, { value: name });
      option.selected = name === this.metric;
      return option;
    }));
  }

  /** Fetch what is new, and draw. Curves that the server had no time to read in full are asked for
      again at once. */
  async update() {
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    try {
      do {
        this.again = false;
        await this.fetchOnce();
      } while (this.again);
    } finally { this.busy = false; }
  }

  async fetchOnce() {
    const key = JSON.stringify([this.metric, state.x, state.smooth]);
    if (key !== this.key) { this.curves.clear(); this.key = key; }
    const runs = this.runs();
    const words = [["metric", this.metric], ["x", state.x], ["smooth", state.smooth], ["of", runs.length]];
    let isDrawn = false;
    for (const portion of this.portions(runs)) {
      const reply = await get("api/curves", [...words, ...portion]);
      if (key !== JSON.stringify([this.metric, state.x, state.smooth])) { this.again = true; return; }
      const curves = Object.entries(reply.curves);
      for (const [id, curve] of curves) {
        if (curve.x) this.curves.set(id, curve);
        if (this.curves.get(id) && !this.curves.get(id).exact) this.again = true;
      }
      isDrawn = curves.some(([, curve]) => curve.x);
      if (isDrawn) this.draw(runs);
    }
    if (!isDrawn) this.draw(runs);
  }

  /** Return what the requests for the curves of `runs` ask for, and which curves the page has. */
  portions(runs) {
    const found = [];
    let letters = 0;
    for (const { id } of runs) {
      const words = [["run", id], ["have", this.curves.get(id)?.stamp ?? ""]];
      const more = String(new URLSearchParams(words)).length + 1;
      if (!found.length || found.at(-1).length >= 2 * PORTION || letters + more > PORTION_LETTERS) {
        found.push([]);
        letters = 0;
      }
      found.at(-1).push(...words);
      letters += more;
    }
    return found;
  }

  draw(runs = this.runs()) {
    const series = [];
    let sampled = 0;
    for (const run of runs) {
      const curve = this.curves.get(run.id);
      if (!curve) continue;
      if (!curve.exact) sampled += 1;
      series.push({ ...run, x: curve.x, y: curve.y, dots: this.metric.includes("eval_") });
    }
    setText(this.note, sampled ? `reading ${sampled} ${sampled === 1 ? "run" : "runs"} …` : "");
    const none = runs.length ? "not reported yet" : "select runs on the left";
    this.chart.show(series, { x: state.x, log: state.log, none });
  }
}

// ---- the list of runs ----

const rows = new Map();

function newRow(id) {
  const swatch = el("button", "swatch", null, { title: "Show in the curves", "aria-pressed": "false" });
  const row = { swatch, dot: el("span", "dot"), name: el("span"), about: el("div", "about"), score: el("div", "score"), steps: el("div", "steps") };
  row.node = el("li", "", [
    swatch,
    el("div", "", [el("div", "name", [row.dot, row.name]), row.about]),
    el("div", "", [row.score, row.steps]),
  ]);
  swatch.addEventListener("click", (event) => {
    event.stopPropagation();
    state.touched = true;
    select(id, !state.selected.has(id));
    changed();
  });
  row.node.addEventListener("click", () => { state.focus = id; state.tab = "run"; changed(); });
  return row;
}

function fits(run) {
  if (state.statuses.size && !state.statuses.has(run.status)) return false;
  const text = `${run.name} ${run.env} ${run.algo} ${run.status}`.toLowerCase();
  return state.search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** Return the return of a run in the list: that of its evaluation if there is one. */
const listedReturn = (run) => (isNumber(run.evaluated) ? run.evaluated : run.return);

function shownRuns() {
  const runs = [...state.runs.values()].filter(fits), by = state.sort;
  const value = (run) => (by === "return" ? listedReturn(run) : run[by]) ?? -Infinity;
  if (by === "name") runs.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  else runs.sort((a, b) => value(b) - value(a) || 0);
  return runs;
}

function drawList() {
  const shown = shownRuns(), now = serverNow(), nodes = [];
  for (const run of shown) {
    if (!rows.has(run.id)) rows.set(run.id, newRow(run.id));
    const row = rows.get(run.id), number = state.selected.get(run.id);
    row.node.classList.toggle("focused", run.id === state.focus && state.tab === "run");
    row.swatch.style.background = number === undefined ? "" : colourOf(number);
    row.swatch.style.borderColor = number === undefined ? "" : colourOf(number);
    row.swatch.setAttribute("aria-pressed", String(number !== undefined));
    row.dot.className = `dot ${STATUSES.includes(run.status) ? run.status : ""}`;
    setText(row.name, run.name);
    row.node.title = `${run.name}\n${run.status}, ${ago(now - run.updated)}`;
    const about = [run.env, run.algo, run.seed && `seed ${run.seed}`].filter(Boolean).join(" · ");
    const when = run.status === "running" ? "" : ` · ${ago(now - run.updated)}`;
    setText(row.about, run.env ? about + when : `population of runs${when}`);
    setText(row.score, score(listedReturn(run)));
    setText(row.steps, run.env_steps === null ? run.status : `${short(run.env_steps)} steps`);
    nodes.push(row.node);
  }
  const target = $("runs");
  if (nodes.length !== target.children.length || nodes.some((node, i) => node !== target.children[i])) {
    target.replaceChildren(...nodes);
  }
  const total = state.runs.size, selected = selectedRuns().length;
  const count = [shown.length === total ? `${total} runs` : `${shown.length} of ${total} runs`];
  if (state.leftOut) count.push(`${state.leftOut} left out`);
  if (state.unsearched) count.push("not all folders searched");
  setText($("count"), count.join(", "));
  setText($("selected"), `${selected} ${selected === 1 ? "run" : "runs"} shown`);
  drawStatuses();
}

function drawStatuses() {
  const counts = new Map();
  for (const run of state.runs.values()) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
  const present = STATUSES.filter((status) => counts.has(status) || state.statuses.has(status));
  const key = present.map((s) => `${s}${counts.get(s)}${state.statuses.has(s)}`).join();
  if (key === drawStatuses.key) return;
  drawStatuses.key = key;
  $("statuses").replaceChildren(...present.map((status) => {
    const chip = el("button", "", `${status} ${counts.get(status) ?? 0}`, { "aria-pressed": String(state.statuses.has(status)) });
    chip.addEventListener("click", () => {
      if (!state.statuses.delete(status)) state.statuses.add(status);
      drawList();
    });
    return chip;
  }));
}

// ---- the tab of curves ----

let charts = [];

function selectedRuns() {
  return [...state.selected].filter(([id]) => state.runs.has(id)).map(([id, number]) => ({
    id, name: nameOf(id), colour: colourOf(number),
    dash: [[], [6, 3], [2, 3], [8, 3, 2, 3]][Math.floor(number / COLOURS.length) % 4],
  }));
}

function newChart(metric) {
  const chart = new MetricChart(metric, selectedRuns, {
    onRemove: () => { charts = charts.filter((each) => each !== chart); chart.node.remove(); keepMetrics(); },
    onChange: keepMetrics,
  });
  chart.offer(state.names);
  return chart;
}

function keepMetrics() {
  state.metrics = charts.map((chart) => chart.metric);
  state.chosen = true;
  writeAddress();
}

/** Until the user chooses, the charts show what the runs have: more of them when the first return or
    loss is reported. A chart that is shown stays. */
function firstMetrics() {
  if (state.chosen || !state.names.length) return;
  const has = (name) => state.names.includes(name);
  const wishes = [["return_mean"], ["eval_return_mean"], ["env_steps_per_s"], ["loss"], ["entropy", "q_mean"],
    ["policy_lag_mean", "replay_fill"], ["q_mean"]];
  const found = [];
  for (const wish of wishes) {
    const name = wish.find((each) => has(each) && !found.includes(each));
    if (name) found.push(name);
  }
  const even = Math.max(1, found.length - (found.length % 2));
  state.metrics = found.filter((name, i) => i < even || charts.some((chart) => chart.metric === name));
}

/** Make the charts those of `state.metrics`. A chart of the same metric is kept, with its zoom. */
function arrangeCharts() {
  if (JSON.stringify(charts.map((chart) => chart.metric)) === JSON.stringify(state.metrics)) return;
  const kept = [...charts];
  charts = state.metrics.map((metric) => {
    const at = kept.findIndex((chart) => chart.metric === metric);
    return at < 0 ? newChart(metric) : kept.splice(at, 1)[0];
  });
  $("charts").replaceChildren(...charts.map((chart) => chart.node));
}

async function updateCurves() {
  firstMetrics();
  arrangeCharts();
  for (const chart of charts) chart.offer(state.names);
  await Promise.all(charts.map((chart) => chart.update()));
}

// ---- the tab of one run ----

/** The view of one run. Its parts are made once and then only updated. */
class RunView {
  constructor(id) {
    this.id = id;
    this.log = { end: -1, node: el("pre", "log", null, { tabindex: "0" }), stick: true };
    this.log.node.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this.log.node;
      this.log.stick = scrollTop + clientHeight > scrollHeight - 24;
    });
    this.title = el("h1");
    this.pill = el("span", "pill");
    this.about = el("span", "soft");
    this.tiles = el("div", "tiles");
    this.limit = el("section", "card limit");
    this.workers = el("section", "card");
    this.queues = el("section", "card");
    this.state = el("div", "two", [this.workers, this.queues]);
    this.population = el("section", "card");
    this.videos = el("section", "card");
    const debug = el("input", "", null, { type: "checkbox" });
    debug.addEventListener("change", () => this.log.node.classList.toggle("all", debug.checked));
    this.logs = el("section", "card", [
      el("header", "", [el("h2", "", "Log"), el("span", "grow"), el("label", "soft", [debug, " debug lines"])]),
      this.log.node,
    ]);
    this.config = el("pre", "text");
    this.summary = el("pre", "text");
    this.files = el("section", "card");
    this.files.append(
      el("details", "", [el("summary", "", "config.yaml"), this.config]),
    );
    this.ending = el("details", "", [el("summary", "", "summary.json"), this.summary]);
    this.files.append(this.ending);
    this.charts = el("div", "charts");
    this.own = [];
    this.node = [
      el("div", "head", [this.title, this.pill, this.about]), this.tiles, this.limit, this.state,
      this.population, this.charts, this.videos, this.logs, this.files,
    ];
    for (const part of [this.limit, this.state, this.population, this.videos, this.logs, this.files]) part.hidden = true;
  }

  async update() {
    const run = state.runs.get(this.id);
    if (!run) return;
    this.head(run);
    const details = await get("api/run", [["run", this.id]]);
    const states = parsed(details.workers ?? "");
    this.drawTiles(run, details);
    this.drawLimit(run, dict(states.limit));
    this.drawWorkers(run, states);
    this.drawQueues(details.last);
    this.drawVideos(list(details.videos));
    this.files.hidden = details.config === null;
    setText(this.config, details.config ?? "");
    this.ending.hidden = details.summary === null || run.status === "running";
    setText(this.summary, details.summary ?? "");
    const parts = [this.updateLog()];
    if (details.lineage) parts.push(this.updatePopulation());
    if (details.metrics.length) parts.push(this.updateCharts(details.metrics));
    await Promise.all(parts);
  }

  head(run) {
    setText(this.title, run.name);
    this.pill.className = `pill ${STATUSES.includes(run.status) ? run.status : ""}`;
    setText(this.pill, run.status);
    const age = run.status === "running" ? `written ${ago(serverNow() - run.updated)}` : `ended ${ago(serverNow() - run.updated)}`;
    setText(this.about, [run.env, run.algo, run.seed && `seed ${run.seed}`, age].filter(Boolean).join(" · "));
  }

  drawTiles(run, { last }) {
    const spread = isNumber(last.return_std) ? ` ± ${score(last.return_std)}` : "";
    const values = [
      ["return", run.return === null ? "–" : score(run.return) + spread],
      ["best return", score(run.best)],
      ["evaluated", isNumber(run.evaluated) ? score(run.evaluated) : isNumber(last.eval_return_mean) ? score(last.eval_return_mean) : null],
      ["env steps", short(run.env_steps)],
      ["env steps/s", run.status === "running" ? short(run.rate) : null],
      ["trained/s", run.status === "running" ? short(last.trained_per_s) : null],
      ["time", duration(run.wall_s)],
      ["updates", short(last.updates)],
      ["episodes", short(last.episodes)],
      ["restarts", run.restarts ? String(run.restarts) : null],
    ].filter(([, value]) => value !== null);
    const key = JSON.stringify(values);
    if (key === this.tilesKey || run.env_steps === null) { this.tiles.hidden = run.env_steps === null; return; }
    this.tilesKey = key;
    this.tiles.hidden = false;
    this.tiles.replaceChildren(...values.map(([what, value]) =>
      el("div", "tile", [el("div", "what", what), el("div", "value", value)])));
  }

  drawLimit(run, limit) {
    this.limit.hidden = run.status !== "running" || !limit.part;
    if (this.limit.hidden) return;
    const flags = list(limit.flags).slice(0, 4).map(String);
    const parts = [
      el("h2", "", `Bottleneck: ${limit.part} (${limit.in_words})`),
      el("div", "soft", limit.reason),
    ];
    if (flags.length) {
      const advice = el("div", "soft", "try ");
      flags.forEach((flag, i) => advice.append(...(i ? [" or "] : []), el("code", "", flag)));
      parts.push(advice);
    }
    this.limit.replaceChildren(...parts);
  }

  drawWorkers(run, states) {
    const workers = list(states.workers).map(dict);
    // Of a run that did not finish, what its workers did last is of interest.
    this.state.hidden = run.status === "finished" || !workers.length;
    if (this.state.hidden) return;
    const isRunning = run.status === "running";
    const head = el("header", "", [el("h2", "", isRunning ? "Workers" : "Workers at the last report")]);
    const age = serverNow() - Number(states.time);
    if (isRunning && age > 30) head.append(el("span", "pill stalled", `no report for ${duration(age)}`));
    const body = workers.slice(0, 500).map((worker) => {
      const meter = el("span", "meter", [el("i")]);
      meter.firstChild.style.width = `${100 * Math.min(1, Math.max(0, Number(worker.busy) || 0))}%`;
      const known = isNumber(worker.busy);
      const since = worker.state === "stalled" ? ` ${duration(worker.seconds)}` : "";
      const mark = ["starting", "running", "waiting", "stalled", "ended"].includes(worker.state) ? worker.state : "";
      return el("tr", "", [
        el("td", "", worker.name),
        el("td", "", [el("span", `pill ${mark}`, `${worker.state}${since}`), worker.detail ? ` ${worker.detail}` : ""]),
        el("td", "", known ? [meter, percent(worker.busy)] : "–"),
        el("td", "num", isNumber(worker.rate) ? `${short(worker.rate)} ${worker.unit}` : "–"),
        el("td", "num", worker.restarts ? String(worker.restarts) : "–"),
        el("td", "num soft", worker.pid ?? "–"),
      ]);
    });
    const titles = ["worker", "state", "busy", "rate", "restarts", "process"];
    const table = el("table", "", [
      el("thead", "", [el("tr", "", titles.map((t, i) => el("th", i > 2 ? "num" : "", t)))]),
      el("tbody", "", body),
    ]);
    this.workers.replaceChildren(head, el("div", "scroll", [table]));
  }

  drawQueues(last) {
    // Of several policies the mean is shown.
    const prefixes = ["", ...policiesOf(Object.keys(last)).map((policy) => `${policy}/`)];
    const mean = (name) => {
      const values = prefixes.map((prefix) => last[prefix + name]).filter(isNumber);
      return values.length ? values.reduce((a, b) => a + b) / values.length : null;
    };
    const rowsOf = [], fill = (name, text) => {
      const share = mean(name);
      if (share === null) return;
      const meter = el("span", "meter", [el("i")]);
      meter.firstChild.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
      rowsOf.push(el("span", "soft", text), meter, el("span", "num", percent(share)));
    };
    fill("ready_slots_fill", mean("replay_fill") === null ? "slots waiting for the learner" : "slots waiting for the replay");
    fill("free_slots_fill", "slots free for actors");
    fill("replay_fill", "replay");
    const figures = [], of = (name, text, format) => {
      if (mean(name) !== null) figures.push([text, format(mean(name))]);
    };
    of("policy_lag_batches_mean", "policy lag, mean (updates)", score);
    of("policy_lag_batches_max", "policy lag, largest (updates)", score);
    if (mean("replay_fill") === null) of("stale_fraction", "rows too old to learn from", percent);
    of("samples_per_insert", "samples per insert", score);
    of("sample_age_mean", "age of samples (env steps)", short);
    const table = el("table", "", [el("tbody", "", figures.map(([a, b]) => el("tr", "", [el("td", "soft", a), el("td", "num", b)])))]);
    this.queues.replaceChildren(el("header", "", [el("h2", "", "Queues and lag")]), el("div", "fills", rowsOf), table);
    this.queues.hidden = !rowsOf.length && !figures.length;
  }

  drawVideos(videos) {
    this.videos.hidden = !videos.length;
    const key = JSON.stringify(videos);
    if (key === this.videosKey) return;
    this.videosKey = key;
    const figures = videos.map((video) => {
      const source = `file?${new URLSearchParams({ run: this.id, video: video.id })}`;
      const still = String(video.type).startsWith("image/");
      const screen = still ? el("img", "", null, { src: source, alt: video.name, loading: "lazy" })
        : el("video", "", null, { src: source, controls: "", preload: "metadata", playsinline: "" });
      return el("figure", "", [screen, el("figcaption", "", `${video.name} · ${bytes(video.bytes)}`)]);
    });
    this.videos.replaceChildren(el("header", "", [el("h2", "", "Videos")]), el("div", "videos", figures));
  }

  async updateLog() {
    const { node } = this.log;
    let part;
    try { part = await get("api/log", [["run", this.id], ["from", this.log.end]]); } catch { return; }
    if (part.reset) node.replaceChildren();
    this.log.end = part.end;
    this.logs.hidden = false;
    const lines = part.text.split("\n").filter(Boolean).map((line) => {
      const level = /^\S+ \S+ .{16} (debug|info|warning|error|result)\b/.exec(line);
      return el("div", level ? level[1] : "", line);
    });
    node.append(...lines);
    while (node.children.length > 2000) node.firstChild.remove();
    if (this.log.stick) node.scrollTop = node.scrollHeight;
  }

  async updatePopulation() {
    let found;
    try { found = await get("api/lineage", [["run", this.id]]); } catch (error) {
      this.population.hidden = false;
      this.population.replaceChildren(el("h2", "", "Population"), el("div", "soft", error.message));
      return;
    }
    const key = JSON.stringify(found);
    if (key === this.populationKey) return;
    this.populationKey = key;
    this.population.hidden = !found.members.length;
    this.population.replaceChildren(...drawPopulation(found));
  }

  /** Show the first of the metrics that the run has, more when it has more. A chart that is shown
      stays, also where the user has it show another metric. */
  async updateCharts(names) {
    const policies = policiesOf(names);
    const has = (name) => names.includes(name);
    const wishes = policies.length
      ? ["return_mean", "loss", "entropy", "q_mean", "approx_kl", "length_mean"].filter((n) => policies.some((p) => has(`${p}/${n}`)))
      : ["return_mean", "eval_return_mean", "loss", "value_loss", "q_mean", "entropy", "env_steps_per_s"].filter(has);
    const key = JSON.stringify(policies), before = key === this.policies ? this.own : [];
    this.policies = key;
    const shown = wishes.filter((wish, i) => i < 4 || before.some((chart) => chart.wish === wish));
    const own = shown.map((wish) => before.find((chart) => chart.wish === wish) ?? this.newChart(wish, policies));
    const isNew = own.length !== this.own.length || own.some((chart, i) => chart !== this.own[i]);
    this.own = own;
    if (isNew) this.charts.replaceChildren(...own.map((chart) => chart.node));
    const plainOf = (name) => (policies.includes(name.split("/")[0]) ? name.slice(name.indexOf("/") + 1) : name);
    const plain = [...new Set(names.map(plainOf))];
    for (const chart of own) chart.offer(plain);
    await Promise.all(own.map((chart) => chart.update()));
  }

  newChart(wish, policies) {
    const runs = () => [{ id: this.id, name: nameOf(this.id), colour: COLOURS[0] }];
    const chart = policies.length ? new PolicyChart(wish, this.id, policies) : new MetricChart(wish, runs);
    chart.wish = wish;
    return chart;
  }
}

/** Lines of a chart by policy: with more of them none can be told from the others. */
const MAX_LINES = 16;

/** A chart of one metric with a line for each policy of a run. */
class PolicyChart extends MetricChart {
  constructor(metric, run, policies) {
    super(metric, () => policies.slice(0, MAX_LINES).map((policy, number) => ({
      id: policy, name: policy, colour: colourOf(number), dash: number >= COLOURS.length ? [5, 3] : [],
    })));
    this.run = run;
    this.what = policies.length > MAX_LINES ? `${MAX_LINES} of ${policies.length} policies` : "by policy";
    setText(this.note, this.what);
    const keys = this.runs().map(({ name, colour }) => {
      const key = el("i", "key");
      key.style.background = colour;
      return el("span", "", [key, name]);
    });
    this.node.append(el("div", "legend", keys));
  }

  async fetchOnce() {
    const key = JSON.stringify([this.metric, state.x, state.smooth]);
    if (key !== this.key) { this.curves.clear(); this.key = key; }
    for (const { id: policy } of this.runs()) {
      const words = [["metric", `${policy}/${this.metric}`], ["x", state.x], ["smooth", state.smooth],
        ["run", this.run], ["have", this.curves.get(policy)?.stamp ?? ""]];
      const curve = (await get("api/curves", words)).curves[this.run];
      if (curve.x) this.curves.set(policy, curve);
      if (this.curves.get(policy) && !this.curves.get(policy).exact) this.again = true;
    }
    this.draw();
    setText(this.note, this.what);
  }
}

// ---- populations ----

const VIRIDIS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];

function viridis(share) {
  const at = Math.min(0.999, Math.max(0, share)) * (VIRIDIS.length - 1), i = Math.floor(at);
  const part = (colour, k) => parseInt(colour.slice(1 + 2 * k, 3 + 2 * k), 16);
  const mix = [0, 1, 2].map((k) => Math.round(part(VIRIDIS[i], k) * (1 - at + i) + part(VIRIDIS[i + 1], k) * (at - i)));
  return `rgb(${mix.join(",")})`;
}

/** Return the header, the table and the figure of a population. */
function drawPopulation(found) {
  const objectives = found.stretches.flatMap((s) => s.scores.map(([, value]) => value)).filter(isNumber);
  objectives.sort((a, b) => a - b);
  const low = objectives[Math.floor(objectives.length * 0.05)] ?? 0, high = objectives[objectives.length - 1] ?? 1;
  const share = (value) => (high > low ? (value - low) / (high - low) : 1);
  const names = found.hyperparameters.slice(0, 8);
  const heads = ["member", "objective", "env steps", "copied from", "copies", "mutations", ...names.map((n) => n.replaceAll("_", " "))];
  const numeric = (i) => i > 0 && i !== 3;
  const ranked = [...found.members].sort((a, b) => (b.objective ?? -Infinity) - (a.objective ?? -Infinity));
  const body = ranked.map((member) => {
    const cells = [member.id, score(member.objective), short(member.env_steps),
      member.copied_from ?? "–", String(member.copies), String(member.mutations),
      ...names.map((name) => short(member.hyperparameters[name]))];
    return el("tr", "", cells.map((cell, i) => {
      const classes = [numeric(i) ? "num" : "", i === 0 && member.id === found.best ? "best" : ""].join(" ").trim();
      if (i) return el("td", classes, cell);
      const key = el("span", "key");
      key.style.background = isNumber(member.objective) ? viridis(share(member.objective)) : "transparent";
      return el("td", classes, [key, ` ${cell}`]);
    }));
  });
  const table = el("table", "", [
    el("thead", "", [el("tr", "", heads.map((head, i) => el("th", numeric(i) ? "num" : "", head)))]),
    el("tbody", "", body),
  ]);
  const ramp = el("canvas", "", null, { width: 90, height: 8 }), pen = ramp.getContext("2d");
  for (let i = 0; i < 90; i += 1) { pen.fillStyle = viridis(i / 89); pen.fillRect(i, 0, 1, 8); }
  const key = el("span", "ramp", [score(low), ramp, score(high)]);
  const head = el("header", "", [el("h2", "", "Population"), el("span", "soft", `${found.members.length} members · best: ${found.best}`), el("span", "grow"), key]);
  return [head, drawLineage(found, share), el("div", "scroll", [table])];
}

/** Draw the lanes of the members over their env steps: colour is the objective, curves are copies,
    thick lanes are the ancestry of the best member. */
function drawLineage(found, share) {
  const members = found.members.map((member) => member.id), lane = new Map(members.map((m, i) => [m, i]));
  const pitch = members.length > 24 ? 12 : members.length > 8 ? 20 : 28, width = 860;
  const left = Math.min(130, 14 + 6.4 * Math.max(6, ...members.map((m) => m.length))), right = width - 10;
  const height = members.length * pitch + 30;
  const last = Math.max(1, ...found.stretches.map((s) => s.end));
  const px = (steps) => left + (steps / last) * (right - left), py = (member) => 10 + (lane.get(member) + 0.5) * pitch;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "lineage", role: "img", "aria-label": "Lineage of the population" });
  const copies = svg("g", { fill: "none" }), lanes = svg("g", { "stroke-linecap": "butt" }), dots = svg("g");
  for (const tick of ticks(0, last, 8)) {
    root.append(svg("line", { x1: px(tick), x2: px(tick), y1: 6, y2: height - 18, stroke: "var(--line)" }));
    root.append(svg("text", { x: px(tick), y: height - 5, "text-anchor": tick ? "middle" : "start" }, tick ? short(tick) : "0 env steps"));
  }
  for (const member of members) {
    root.append(svg("text", { x: left - 8, y: py(member) + 4, "text-anchor": "end", "font-weight": member === found.best ? 700 : 400 },
      member.length > 18 ? `${member.slice(0, 17)}…` : member));
  }
  for (const stretch of found.stretches) {
    const y = py(stretch.member), points = stretch.scores.filter(([, value]) => isNumber(value));
    const thick = (at) => (stretch.best_until !== null && at < stretch.best_until ? 0.5 * pitch
      : stretch.kept_until !== null && at < stretch.kept_until ? 0.3 * pitch : 0.12 * pitch);
    let begin = stretch.begin, value = null;
    const edges = [...points.map(([at, v]) => [at, v]), [stretch.end, null]];
    for (const [at, next] of edges) {
      const v = next ?? value;
      if (at > begin) {
        const line = svg("line", { x1: px(begin), x2: px(at), y1: y, y2: y, "stroke-width": Math.max(1.5, thick(begin)),
          stroke: isNumber(v) ? viridis(share(v)) : "var(--faint)" });
        line.append(svg("title", {}, `${stretch.member}: ${score(v)} at ${short(at)} env steps`));
        lanes.append(line);
        begin = at;
      }
      value = v;
    }
    if (stretch.parent !== null) {
      const donor = found.stretches[stretch.parent], x0 = px(stretch.copied_at ?? stretch.begin), x1 = px(stretch.begin), y0 = py(donor.member);
      const bend = Math.max(8, Math.min(30, Math.abs(x1 - x0) / 2 + 8));
      const kept = stretch.best_until !== null;
      const path = svg("path", { d: `M${x0},${y0} C${x0 + bend},${y0} ${x1 - bend},${y} ${x1},${y}`, stroke: kept ? "var(--ink)" : "var(--soft)",
        "stroke-width": kept ? 1.7 : 1.1, opacity: kept ? 0.95 : 0.75 });
      path.append(svg("title", {}, `${stretch.member} copied ${donor.member} at ${short(stretch.begin)} env steps`));
      copies.append(path);
    }
    for (const [at, values, mutated] of stretch.settings) {
      if (!mutated.length) continue;
      const size = Math.min(3, pitch / 5), x = px(at);
      const mark = svg("path", { d: `M${x - size},${y} L${x},${y - size} L${x + size},${y} L${x},${y + size} Z`, fill: "var(--ink)" });
      const what = mutated.map((name) => `${name.replaceAll("_", " ")} ${short(values[name])}`).join(", ");
      mark.append(svg("title", {}, `${stretch.member} mutated at ${short(at)} env steps: ${what}`));
      dots.append(mark);
    }
  }
  root.append(lanes, copies, dots);
  return root;
}

// ---- the whole page ----

let view = null;

function drawTabs() {
  $("layout").dataset.tab = state.tab;
  for (const tab of document.querySelectorAll("[data-tab]")) {
    if (tab.getAttribute("role") === "tab") tab.setAttribute("aria-selected", String(tab.dataset.tab === state.tab));
  }
  $("curves").hidden = state.tab !== "curves";
  $("run").hidden = state.tab !== "run";
  for (const button of $("axis").children) button.setAttribute("aria-pressed", String(button.dataset.x === state.x));
  $("smooth").value = String(state.smooth);
  $("log").checked = state.log;
}

async function updateTab() {
  if (state.tab === "curves") { await updateCurves(); return; }
  if (state.tab !== "run") return;
  if (!state.runs.has(state.focus)) {
    const newest = [...state.runs.values()][0];
    if (!newest) { $("run").replaceChildren(el("div", "empty", "There is no run yet.")); view = null; return; }
    state.focus = newest.id;
    drawList();
  }
  if (view?.id !== state.focus) {
    view = new RunView(state.focus);
    $("run").replaceChildren(...view.node);
    document.querySelector("main").scrollTop = 0;
  }
  await view.update();
}

/** The user has changed something: show it now. */
function changed() {
  drawTabs();
  drawList();
  writeAddress();
  updateTab().catch(lost);
}

function lost(error) {
  $("link").className = "link lost";
  setText($("link"), error instanceof TypeError ? "no connection" : error.message);
}

async function poll() {
  try {
    const found = await get("api/runs");
    state.runs = new Map(found.runs.map((run) => [run.id, run]));
    state.names = found.metrics;
    state.leftOut = found.left_out;
    state.unsearched = found.unsearched;
    setText($("root"), found.root);
    if (!state.touched && !state.selected.size) {
      const newest = found.runs.filter((run) => run.bytes > 0);
      for (const run of newest.slice(0, 8)) select(run.id, true);
    }
    drawList();
    await updateTab();
    const running = found.runs.filter((run) => run.status === "running").length;
    $("link").className = "link live";
    setText($("link"), running ? `live · ${running} running` : "live");
    document.title = running ? `(${running}) SampleForge` : "SampleForge";
    document.body.dataset.ready = "1";
  } catch (error) { lost(error); }
}

async function pollForever() {
  for (;;) {
    if (!document.hidden) await poll();
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function listen() {
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.addEventListener("click", () => { state.tab = tab.dataset.tab; changed(); });
  }
  $("search").addEventListener("input", () => { state.search = $("search").value.trim(); drawList(); });
  $("sort").addEventListener("change", () => { state.sort = $("sort").value; drawList(); });
  $("all").addEventListener("click", () => { state.touched = true; for (const run of shownRuns()) select(run.id, true); changed(); });
  $("none").addEventListener("click", () => { state.touched = true; state.selected.clear(); changed(); });
  for (const button of $("axis").children) button.addEventListener("click", () => { state.x = button.dataset.x; changed(); });
  $("smooth").addEventListener("change", () => { state.smooth = Number($("smooth").value); changed(); });
  $("log").addEventListener("change", () => { state.log = $("log").checked; changed(); });
  $("add").addEventListener("click", () => {
    const unused = state.names.find((name) => !charts.some((chart) => chart.metric === name)) ?? "return_mean";
    const chart = newChart(unused);
    charts.push(chart);
    $("charts").append(chart.node);
    keepMetrics();
    changed();
  });
  addEventListener("hashchange", () => { if (location.hash !== written) { state.touched = true; readAddress(); changed(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const chart of [...charts, ...(view?.own ?? [])]) chart.chart.draw();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
}

readAddress();
state.touched = location.hash.includes("show=");
listen();
drawTabs();
pollForever();
