"use strict";
// Draws the rows of a record: what is wrong, numbers on cards, and line charts, in the places that the page has.
const SVG = "http://www.w3.org/2000/svg", HEIGHT = 280, LEFT = 62, RIGHT = 14, TOP = 12, BOTTOM = 32;

function make(name, attributes, ...children) {
  const svg = ["svg", "path", "line", "text", "polygon", "circle", "clipPath", "rect", "g"].includes(name);
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function short(value) {
  const size = Math.abs(value), cut = (x, n) => String(Number(x.toPrecision(n)));
  if (value === 0) return "0";
  if (size >= 1e9 || size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  if (size >= 1e6) return cut(value / 1e6, 4) + "M";
  return size >= 1e4 ? cut(value / 1e3, 4) + "k" : cut(value, 4);
}

class Axis {
  constructor(low, high, start, end, log) {
    if (!(high - low > 1e-12 * Math.max(Math.abs(low), Math.abs(high), 1e-280))) {
      const pad = Math.abs(low) * 0.1 || 1;
      [low, high] = log ? [low / 2, high * 2] : [low - pad, high + pad];
    }
    Object.assign(this, { log, start, end, low: this.scale(low, log), high: this.scale(high, log) });
  }
  // A band may reach down to zero where its line does not: it leaves the chart.
  scale(value, log = this.log) { return log ? Math.log10(Math.max(value, 1e-300)) : value; }
  at(value) { return this.start + (this.scale(value) - this.low) / (this.high - this.low) * (this.end - this.start); }
  holds(value) { return this.low <= this.scale(value) && this.scale(value) <= this.high; }
  ticks(count) {
    const found = [];
    if (this.log && this.high - this.low >= 2) {
      const every = Math.max(1, Math.ceil((this.high - this.low) / count));
      for (let power = Math.ceil(this.low - 1e-9); power <= this.high + 1e-9; power += every) found.push(10 ** power);
      return found;
    }
    const [low, high] = this.log ? [10 ** this.low, 10 ** this.high] : [this.low, this.high];
    const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map(m => m * size).find(s => s >= rough * 0.999);
    for (let k = Math.ceil(low / step - 1e-9); k <= Math.floor(high / step + 1e-9); k++) found.push(k * step);
    return found;
  }
}

function vertical(lines) {
  const means = lines.flatMap(line => line.y), least = Math.min(...means), most = Math.max(...means);
  const log = least > 0 && most > 100 * least;
  // A few wild values must not flatten everything else: the band may leave the chart at its ends.
  const order = values => values.slice().sort((a, b) => a - b);
  const lows = order(lines.flatMap(line => line.low || line.y)), highs = order(lines.flatMap(line => line.high || line.y));
  const skipped = Math.floor(highs.length / 50);
  const low = log ? least / 1.5 : Math.min(least, lows[skipped]), high = Math.max(most, highs[highs.length - 1 - skipped]);
  const pad = log ? 0 : (high - low) * 0.06;
  return new Axis(low >= 0 && !log ? Math.max(low - pad, 0) : low - pad, high + pad, HEIGHT - BOTTOM, TOP, log);
}

function draw(figure, chart) {
  const old = figure.querySelector("svg"), width = figure.clientWidth - 36, right = width - RIGHT, base = HEIGHT - BOTTOM;
  const all = chart.lines.flatMap(line => line.x), y = vertical(chart.lines);
  const x = new Axis(Math.min(...all), Math.max(...all), LEFT, right, false);
  const svg = make("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": chart.title });
  const clip = "clip-" + chart.title.replace(/\W/g, "-");
  svg.append(make("clipPath", { id: clip }, make("rect", { x: LEFT, y: TOP - 2, width: right - LEFT, height: base - TOP + 2 })));
  for (const tick of y.ticks(5)) {
    const at = y.at(tick);
    svg.append(make("line", { class: "grid", x1: LEFT, x2: right, y1: at, y2: at }));
    svg.append(make("text", { class: "tick", x: LEFT - 8, y: at + 4, "text-anchor": "end" }, short(tick)));
  }
  for (const tick of x.ticks(Math.max(2, Math.floor(width / 110))))
    svg.append(make("text", { class: "tick", x: x.at(tick), y: base + 18, "text-anchor": "middle" }, short(tick)));
  svg.append(make("line", { class: "axis", x1: LEFT, x2: right, y1: base, y2: base }));
  svg.append(make("text", { class: "name", x: right, y: HEIGHT - 1, "text-anchor": "end" }, "samples"));
  const group = svg.appendChild(make("g", { "clip-path": `url(#${clip})` }));
  chart.lines.forEach((line, k) => {
    const points = values => line.x.map((step, i) => `${x.at(step).toFixed(1)},${y.at(values[i]).toFixed(1)}`);
    if (line.low) group.append(make("polygon", { class: `band k${k + 1}`, points: [...points(line.high), ...points(line.low).reverse()].join(" ") }));
    group.append(make("path", { class: `line k${k + 1}${line.faint ? " faint" : ""}`, d: "M" + points(line.y).join("L") }));
    if (line.x.length === 1) group.append(make("circle", { class: `dot k${k + 1}`, cx: x.at(line.x[0]), cy: y.at(line.y[0]), r: 3 }));
  });
  let written = -Infinity;
  for (const at of chart.marks.filter(mark => x.holds(mark)).map(mark => x.at(mark)).sort((a, b) => a - b)) {
    svg.append(make("line", { class: "mark", x1: at, x2: at, y1: TOP, y2: base }));
    const end = at > right - 90;
    if (at - written > (end ? 180 : 90)) {
      svg.append(make("text", { class: "mark-name", x: at + (end ? -4 : 4), y: TOP + 10, "text-anchor": end ? "end" : "start" }, "resumed"));
      written = at;
    }
  }
  point(figure, svg, chart, x);
  if (old) old.replaceWith(svg); else figure.append(svg);
  figure.querySelector(".tip").style.visibility = "hidden";
  figure.querySelector(".scale").hidden = !y.log;
}

// What the pointer is at, in a box beside it.
function point(figure, svg, chart, x) {
  const cross = svg.appendChild(make("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM }));
  const tip = figure.querySelector(".tip"), first = chart.lines[0];
  const show = seen => { cross.style.visibility = tip.style.visibility = seen ? "visible" : "hidden"; };
  svg.addEventListener("pointerleave", () => show(false));
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), at = event.clientX - box.left, outer = figure.getBoundingClientRect();
    let best = 0;
    first.x.forEach((step, k) => { if (Math.abs(x.at(step) - at) < Math.abs(x.at(first.x[best]) - at)) best = k; });
    const place = x.at(first.x[best]), alike = chart.lines.filter(line => line.x.length === first.x.length);
    cross.setAttribute("x1", place); cross.setAttribute("x2", place);
    tip.replaceChildren(...["at " + short(first.x[best]), ...alike.map(line => line.name + "  " + short(line.y[best]))]
      .map(text => make("div", {}, text)));
    const left = box.left - outer.left + place;
    tip.style.left = (left + tip.offsetWidth + 24 > outer.width ? left - tip.offsetWidth - 12 : left + 12) + "px";
    tip.style.top = event.clientY - outer.top - 12 + "px";
    show(true);
  });
}

function figure(chart) {
  const keys = chart.lines.map((line, k) => make("span", { class: "key" }, make("i", { class: `k${k + 1}` }),
    line.name + " ", make("b", {}, short(line.last ?? line.y[line.y.length - 1]))));
  const scale = make("span", { class: "scale", hidden: "" }, "log scale");
  return make("figure", {}, make("figcaption", {}, make("h2", {}, chart.title), make("p", {}, chart.note, scale),
    make("div", { class: "legend" }, ...keys)), make("div", { class: "tip" }));
}

// Rows of a record to lines of charts. A line is {name, x, y} and, if it stands for many values, {low, high}.
const POINTS = 240, LARGEST = 1e300, COUNTS = { dropped: "samples", late: "labels, too late", bad: "messages" };
const KNOWN = ["step", "t", "tau", "loss", "hamiltonian", "h", "z", "omega", "theta", "seconds", ...Object.keys(COUNTS)];
const SCORE = /^(.*?)(?: \((window|last value|mean|last class|majority)\))?$/;

const isNumber = value => typeof value === "number" && Number.isFinite(value);
// Near the largest number the height of a chart would be infinite.
const drawn = value => Math.max(-LARGEST, Math.min(LARGEST, value));
const mean = values => values.reduce((a, b) => a + b / values.length, 0);
const median = values => values.slice().sort((a, b) => a - b)[Math.floor(values.length / 2)];

function lineOf(rows, column, name = column) {
  const kept = rows.filter(row => isNumber(row[column]));
  return { name, x: kept.map(row => row.step), y: kept.map(row => drawn(row[column])) };
}

// At most POINTS points: means of equal shares, with the band that they cover.
function thinned(line) {
  const n = line.x.length;
  if (n <= POINTS) return line;
  const shares = Array.from({ length: POINTS }, (_, k) => [Math.round(k * n / POINTS), Math.round((k + 1) * n / POINTS)]);
  const each = (values, make) => shares.map(([a, b]) => make(values.slice(a, b)));
  return { ...line, last: line.y[n - 1], x: each(line.x, mean), y: each(line.y, mean),
    low: each(line.y, values => Math.min(...values)), high: each(line.y, values => Math.max(...values)) };
}

// A noisy line behind its running mean over a twentieth of it.
function withMean(line) {
  if (line.x.length < 10) return [line];
  const n = Math.max(5, Math.floor(line.y.length / 20));
  const means = line.y.map((_, k) => mean(line.y.slice(Math.max(0, k + 1 - n), k + 1)));
  return [{ ...line, faint: true }, { name: "running mean", x: line.x, y: means }];
}

// For each metric its lines: over the window, over everything, and of the baselines.
function scoresOf(rows, size) {
  const found = {};
  for (const column of Object.keys(rows[rows.length - 1])) {
    const [, metric, part] = SCORE.exec(column) || [];
    if (metric === undefined || KNOWN.includes(column)) continue;
    const line = lineOf(rows, column, { undefined: "all samples", window: `last ${size ? size.toLocaleString("en") + " " : ""}samples` }[part] || part);
    const lines = found[metric] || (found[metric] = []);
    // A window that was never full is everything.
    if (!line.x.length || (part === "window" && lines.length && String(lines[0].y) === String(line.y))) continue;
    if (part === "window") lines.unshift(line); else lines.push(line);
  }
  return Object.entries(found).filter(([, lines]) => lines.length);
}

// Whether H is nothing but φ times the loss: a network without state has no other part of it.
function isLoss(rows) {
  const pairs = rows.filter(row => isNumber(row.loss)).map(row => [row.loss, row.hamiltonian]);
  if (!pairs.length || !pairs.every(([, h]) => isNumber(h))) return false;
  const [loss, h] = pairs.reduce((a, b) => Math.abs(b[0]) > Math.abs(a[0]) ? b : a), phi = loss ? h / loss : 1;
  return pairs.every(([l, g]) => Math.abs(g - phi * l) <= Math.max(1e-12, 1e-5 * Math.abs(g)));
}

function ratesOf(timed) {
  const line = { name: "samples a second", x: [], y: [] };
  timed.slice(1).forEach((row, k) => {
    // After a resume the clock starts again: that pair says nothing.
    const passed = row.seconds - timed[k].seconds, done = row.step - timed[k].step;
    if (passed > 0 && done > 0) { line.x.push(row.step); line.y.push(drawn(done / passed)); }
  });
  return line;
}

function cardsOf(rows, timed, rates, scores) {
  const last = rows[rows.length - 1], cards = [["samples", last.step.toLocaleString("en"), "seen"]];
  const losses = rows.filter(row => isNumber(row.loss)).map(row => drawn(row.loss)), tenth = Math.ceil(losses.length / 10);
  if (tenth) cards.push(["loss", short(mean(losses.slice(-tenth))), "at first " + short(mean(losses.slice(0, tenth)))]);
  const end = line => short(line.y[line.y.length - 1]);
  for (const [metric, [own, ...others]] of scores)
    cards.push([metric, end(own), others.map(line => line.name + " " + end(line)).join(", ") || own.name]);
  if (rates.y.length) cards.push(["speed", short(median(rates.y)), "samples a second, median"]);
  for (const [name, note] of Object.entries(COUNTS)) {
    const count = isNumber(last[name]) ? last[name] : (timed[timed.length - 1] || {})[name];
    if (isNumber(count) && count) cards.push([name, count.toLocaleString("en"), note]);
  }
  return cards;
}

function viewOf({ rows, timed, resumed, result }) {
  if (!rows.length) return { alarms: [], cards: [], charts: [] };
  const scores = scoresOf(rows, result.window_size), rates = ratesOf(timed), column = name => lineOf(rows, name);
  const feed = Object.keys(COUNTS).map(name => [isNumber(rows[rows.length - 1][name]) ? rows : timed, name]);
  const panels = [
    ["Loss", "L(y, target) before each sample was learned", withMean(column("loss"))],
    ...scores.map(([metric, lines]) => [metric, "Scored before each sample was learned", lines]),
    ["Norms", "Euclidean norms of state, costates and weights", ["h", "z", "omega", "theta"].map(column)],
    ["Hamiltonian", "H = φL + ⟨z, f_h⟩", isLoss(rows) ? [] : [column("hamiltonian")]],
    ["Speed", "Samples a second, by the clock", [rates]],
    ["Feed", "Samples dropped, labels that came too late, bad messages", feed
      .filter(([source, name]) => source.length && source[source.length - 1][name]).map(pair => lineOf(...pair))],
  ];
  const charts = panels.map(([title, note, lines]) =>
    ({ title, note, marks: resumed, lines: lines.filter(line => line.x.length).map(thinned) }));
  return { alarms: result.behind || [], cards: cardsOf(rows, timed, rates, scores),
    charts: charts.filter(chart => chart.lines.length) };
}

function show(data) {
  const place = name => document.getElementById(name), view = viewOf(data);
  place("alarm").replaceChildren(...view.alarms.map(text => make("p", { class: "alarm" }, text)));
  place("cards").replaceChildren(...view.cards.map(([name, value, note]) => make("div", { class: "card" },
    make("span", {}, name), make("strong", {}, value), make("small", {}, note))));
  const figures = view.charts.map(figure);
  place("charts").replaceChildren(...figures);
  // An odd one out takes both columns.
  if (figures.length % 2) figures[0].classList.add("wide");
  const again = () => figures.forEach((one, k) => draw(one, view.charts[k]));
  again();
  window.onresize = again;
}

const embedded = document.getElementById("data");
if (embedded) show(JSON.parse(embedded.textContent));
