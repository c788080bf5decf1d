"use strict";

const trace = JSON.parse(document.getElementById("trace").textContent);
const [SEQ, TIME, LANE, WHAT, SOURCE, TARGET, THREAD, REST] = [0, 1, 2, 3, 4, 5, 6, 7];
const at = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en-US");

/* A new element with its text and its children. Text is never read as HTML. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/* -- what follows from the events: each lane's states, each pool's bytes, both by the index of the event they begin with -- */

const steps = trace.lanes.map(() => []);
const mine = trace.lanes.map(() => []);
trace.events.forEach((event, index) => {
  mine[event[LANE]].push(index);
  if (event[TARGET] === null) return;
  const known = steps[event[LANE]];
  if (!known.length) known.push([trace.lanes[event[LANE]].from, event[SOURCE]]);
  if (known.at(-1)[1] !== event[TARGET]) known.push([index, event[TARGET]]);
});
const sizes = trace.lanes.map(() => []);
for (const [index, lane, size] of trace.bytes) sizes[lane].push([index, size]);

/* The last pair that begins at or before an index; undefined if there is none. */
function before(pairs, index) {
  let low = 0, high = pairs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (pairs[middle][0] <= index) low = middle + 1; else high = middle;
  }
  return pairs[low - 1];
}

/* -- the page that does not change -- */

const order = trace.lanes.map((_, lane) => lane).sort((one, other) =>
  trace.order.indexOf(trace.lanes[one].machine) - trace.order.indexOf(trace.lanes[other].machine) || one - other);
const labels = trace.lanes.map((lane) => `${lane.machine} ${lane.name}`);
const look = (state) => trace.looks[state] ?? 0;

const versions = Object.entries(trace.head.versions).map(([name, version]) => `${name} ${version}`).join(", ");
at("about").textContent = `${trace.head.device || "no device"}, ${trace.head.started}, ${versions}; ${number(trace.events.length)} events, `
  + `${number(trace.lanes.length)} entities`;
at("verdict").textContent = trace.violations
  ? `violated: ${number(trace.violations)} times`
  : trace.missing
    ? `what is there obeys the tables; ${number(trace.missing)} events were not kept by the recorder`
    : "holds: every event obeys the tables, from the first to the last";
at("verdict").classList.toggle("broken", trace.violations > 0);
const indexOf = new Map(trace.events.map((event, index) => [event[SEQ], index]));
for (const found of trace.broken) {
  const text = `${found.seq ? `event ${number(found.seq)}` : "at the end"}: ${found.rule}: ${found.what} (${found.entity})`;
  const button = make("button", {className: "link", onclick: () => go(indexOf.get(found.seq) ?? trace.events.length - 1)}, text);
  at("findings").append(make("li", {}, button));
}
trace.legend.forEach((meaning, index) => at("legend").append(make("span", {className: `state look${index}`}, meaning), "  "));

const rows = new Map();
for (const lane of order) {
  const {machine, name} = trace.lanes[lane];
  const canvas = make("canvas", {onclick: (click) => {
    const box = canvas.getBoundingClientRect();
    choose(lane);
    go(Math.floor((click.clientX - box.left) / box.width * trace.events.length));
  }});
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `states of ${labels[lane]}`);
  const strip = make("div", {className: "lane"}, make("button", {className: "link", title: labels[lane], onclick: () => choose(lane)}, name), canvas);
  at("lanes").append(strip);
  const state = make("span"), since = make("td", {className: "number"});
  const row = make("tr", {}, make("td", {}, machine),
    make("td", {}, make("button", {className: "link", onclick: () => choose(lane)}, name)), make("td", {}, state), since);
  at("states").tBodies[0].append(row);
  rows.set(lane, {strip, canvas, row, state, since});
}
const pools = new Map();
for (const lane of order.filter((lane) => trace.lanes[lane].machine === "pool")) {
  const state = make("span"), size = make("td", {className: "number"}), bar = make("span", {className: "bar"});
  const row = make("tr", {}, make("td", {}, trace.lanes[lane].name), make("td", {}, state), size, make("td", {}, bar));
  at("pools").tBodies[0].append(row);
  pools.set(lane, {row, state, size, bar});
}
const largest = trace.bytes.reduce((most, [, , size]) => Math.max(most, size), 1);

/* -- what does: the chosen event and the chosen entity -- */

let index = 0, chosen = null;

function go(wanted) {
  index = Math.max(0, Math.min(trace.events.length - 1, wanted));
  show();
}

function choose(lane) {
  chosen = chosen === lane ? null : lane;
  show();
}

function step(direction, ofChosen) {
  if (!ofChosen || chosen === null) return go(index + direction);
  const others = mine[chosen].filter((each) => direction > 0 ? each > index : each < index);
  if (others.length) go(direction > 0 ? others[0] : others.at(-1));
}

function paint(element, state) {
  element.textContent = state;
  element.className = state ? `state look${look(state)}` : "";
}

function show() {
  const event = trace.events[index];
  at("position").value = index;
  at("first").disabled = at("back").disabled = index <= 0;
  at("last").disabled = at("forward").disabled = index >= trace.events.length - 1;
  describe(event);
  for (const [lane, {strip, row, state, since}] of rows) {
    const there = trace.lanes[lane].from <= index ? before(steps[lane], index) : undefined;
    paint(state, there ? there[1] : "");
    since.textContent = there && there[0] < trace.events.length ? number(trace.events[there[0]][SEQ]) : "";
    row.classList.toggle("now", event !== undefined && event[LANE] === lane);
    strip.classList.toggle("chosen", chosen === lane);
  }
  let total = 0;
  for (const [lane, {row, state, size, bar}] of pools) {
    const bytes = before(sizes[lane], index)?.[1] ?? 0;
    total += bytes;
    row.hidden = !bytes;
    paint(state, before(steps[lane], index)?.[1] ?? "");
    size.textContent = number(bytes);
    bar.style.width = `${100 * bytes / largest}%`;
  }
  at("total").textContent = `${number(total)} bytes in pools that are not given up`;
  draw();
}

function describe(event) {
  at("details").replaceChildren();
  if (event === undefined) {
    at("event").textContent = "no events";
    return;
  }
  const when = `${((event[TIME] - trace.events[0][TIME]) / 1e6).toFixed(3)} ms`;
  const rest = event[REST];
  const happened = event[TARGET] === null ? `${event[WHAT]}: ${rest.value}` : `${event[WHAT]}, ${event[SOURCE]} → ${event[TARGET]}`;
  at("event").textContent = `event ${number(event[SEQ])} at ${when}, thread ${event[THREAD]}: ${labels[event[LANE]]}: ${happened}`;
  const details = {...rest, ...rest.values};
  delete details.values;
  delete details.value;
  for (const [name, value] of Object.entries(details)) {
    at("details").append(make("div", {}, make("dt", {}, name), make("dd", {}, typeof value === "number" ? number(value) : String(value))));
  }
}

/* -- the lanes: a column of pixels stands for as many events as fit, and shows the most telling state there -- */

const RANK = [0, 2, 3, 4, 1, 5];
const painted = new Map();

function columns(lane, width) {
  const filled = new Array(width).fill(-1);
  const count = Math.max(1, trace.events.length);
  steps[lane].forEach(([begin, state], place) => {
    const end = steps[lane][place + 1]?.[0] ?? count;
    const kind = look(state);
    const last = Math.max(Math.floor(begin * width / count), Math.ceil(end * width / count) - 1);
    for (let column = Math.floor(begin * width / count); column <= Math.min(last, width - 1); column++) {
      if (filled[column] < 0 || RANK[kind] > RANK[filled[column]]) filled[column] = kind;
    }
  });
  return filled;
}

function draw() {
  const style = getComputedStyle(document.documentElement);
  const colours = trace.legend.map((_, kind) => style.getPropertyValue(`--look${kind}`));
  const scale = window.devicePixelRatio || 1;
  for (const [lane, {strip, canvas}] of rows) {
    if (strip.hidden) continue;
    const width = Math.max(1, Math.round(canvas.clientWidth * scale)), height = Math.max(1, Math.round(canvas.clientHeight * scale));
    let filled = painted.get(lane);
    if (filled?.length !== width) painted.set(lane, filled = columns(lane, width));
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d");
    filled.forEach((kind, column) => {
      if (kind < 0) return;
      pen.fillStyle = colours[kind];
      const thin = kind === 0;
      pen.fillRect(column, thin ? height * 0.45 : height * 0.15, 1, thin ? Math.max(1, height * 0.1) : height * 0.7);
    });
    pen.fillStyle = style.getPropertyValue("--text");
    pen.fillRect(Math.floor(index * width / Math.max(1, trace.events.length)), 0, Math.max(1, scale), height);
  }
}

/* -- hands -- */

at("position").max = Math.max(0, trace.events.length - 1);
at("position").oninput = (change) => go(Number(change.target.value));
at("first").onclick = () => go(0);
at("back").onclick = (click) => step(-1, click.shiftKey);
at("forward").onclick = (click) => step(1, click.shiftKey);
at("last").onclick = () => go(trace.events.length - 1);
at("filter").oninput = (change) => {
  for (const [lane, {strip, row}] of rows) strip.hidden = row.hidden = !labels[lane].includes(change.target.value);
  draw();
};
document.addEventListener("keydown", (key) => {
  if (key.target === at("filter") || key.altKey || key.ctrlKey || key.metaKey) return;
  const tenth = Math.max(1, Math.round(trace.events.length / 10));
  const keys = {
    ArrowLeft: () => step(-1, key.shiftKey), ArrowRight: () => step(1, key.shiftKey), Home: () => go(0), End: () => go(trace.events.length - 1),
    PageUp: () => go(index - tenth), PageDown: () => go(index + tenth),
  };
  if (keys[key.key]) {
    key.preventDefault();
    keys[key.key]();
  }
});
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
go(0);
