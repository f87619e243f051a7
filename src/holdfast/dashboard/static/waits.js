// The wait-for graph as a picture. Waiters are on the left, the processes that they wait for on the right; the members
// of a deadlock are on a circle.

import { byId, element, lockLink, plural, processText, setHidden, setText, shortened, svg, visible } from "./dom.js";
import { Stream } from "./stream.js";

const BOX = { width: 186, height: 46 };
const GAP = { column: 168, row: 18, part: 36 };
const PARTS_MAX = 30;
const SCALE_MIN = 0.6;

let graph = { nodes: [], arrows: [], cycles: [], omitted: 0 };
let showAll = false;

// ── layout ─────────────────────────────────────────────────────────────────────────────────────────────────────────

// The parts of the graph that are not connected with each other; deadlocks first, then long chains, then long queues.
function parts() {
  const parent = graph.nodes.map((_, index) => index);
  const root = (index) => {
    while (parent[index] !== index) index = parent[index] = parent[parent[index]];
    return index;
  };
  for (const arrow of graph.arrows) parent[root(arrow.from)] = root(arrow.to);
  const found = new Map();
  graph.nodes.forEach((_, index) => {
    if (!found.has(root(index))) found.set(root(index), { nodes: [], arrows: [] });
    found.get(root(index)).nodes.push(index);
  });
  for (const arrow of graph.arrows) found.get(root(arrow.from)).arrows.push(arrow);
  const weighed = [...found.values()].map((part) => {
    const placed = layout(part);
    const waiters = part.nodes.reduce((sum, index) => sum + (graph.nodes[index].count ?? 0), 0);
    return { ...part, ...placed, rank: [part.arrows.some((arrow) => arrow.cycle) ? 1 : 0, placed.depth, waiters] };
  });
  return weighed.sort((one, other) => other.rank[0] - one.rank[0] || other.rank[1] - one.rank[1] || other.rank[2] - one.rank[2]);
}

// Places each node: a column for each step of the longest chain, blockers on the right.
function layout(part) {
  const blocks = circles(part);
  const blockOf = new Map(blocks.flatMap((block) => block.nodes.map((node) => [node, block])));
  for (const block of blocks) block.next = new Set();
  for (const arrow of part.arrows) {
    if (blockOf.get(arrow.from) !== blockOf.get(arrow.to)) blockOf.get(arrow.from).next.add(blockOf.get(arrow.to));
  }
  const depth = (block) => (block.depth ??= block.next.size ? 1 + Math.max(...[...block.next].map(depth)) : 0);
  const deepest = Math.max(...blocks.map(depth));
  const columns = Array.from({ length: deepest + 1 }, (_, level) => blocks.filter((block) => block.depth === level));
  const places = new Map();
  let x = 0;
  const left = [];
  for (let level = deepest; level >= 0; level -= 1) {
    left[level] = x;
    x += Math.max(...columns[level].map((block) => block.width)) + GAP.column;
  }
  let height = 0;
  columns.forEach((column, level) => {
    // Each block is as close as possible to the middle of those that it waits for.
    const wanted = (block) => {
      const targets = [...block.next].map((target) => target.y + target.height / 2);
      return targets.length ? targets.reduce((sum, y) => sum + y, 0) / targets.length : 0;
    };
    let y = 0;
    for (const block of column.sort((one, other) => wanted(one) - wanted(other))) {
      const span = block.waiting ?? 0;
      block.y = Math.max(y, wanted(block) - block.height / 2 - span);
      y = block.y + block.height + GAP.row;
    }
    height = Math.max(height, y - GAP.row);
    for (const block of column) {
      const column_width = Math.max(...column.map((other) => other.width));
      block.nodes.forEach((node, index) => {
        const [dx, dy] = block.offsets[index];
        places.set(node, { x: left[level] + (column_width - block.width) / 2 + dx, y: block.y + dy });
      });
    }
  });
  return { places, depth: deepest, width: x - GAP.column, height, blockOf };
}

// A block is a node, or the members of a deadlock on a circle (a strongly connected component, by Tarjan's algorithm).
function circles(part) {
  const next = new Map(part.nodes.map((node) => [node, []]));
  for (const arrow of part.arrows) next.get(arrow.from).push(arrow.to);
  const state = new Map();
  const stack = [];
  const blocks = [];
  const visit = (start) => {
    const work = [{ node: start, at: 0 }];
    while (work.length) {
      const frame = work.at(-1);
      if (frame.at === 0) {
        state.set(frame.node, { index: state.size, low: state.size, open: true });
        stack.push(frame.node);
      }
      const own = state.get(frame.node);
      const target = next.get(frame.node)[frame.at];
      frame.at += 1;
      if (target === undefined) {
        work.pop();
        const above = work.at(-1);
        if (above) state.get(above.node).low = Math.min(state.get(above.node).low, own.low);
        if (own.low === own.index) {
          const members = stack.splice(stack.indexOf(frame.node));
          for (const member of members) state.get(member).open = false;
          blocks.push(makeBlock(members));
        }
      } else if (!state.has(target)) work.push({ node: target, at: 0 });
      else if (state.get(target).open) own.low = Math.min(own.low, state.get(target).index);
    }
  };
  for (const node of part.nodes) if (!state.has(node)) visit(node);
  return blocks;
}

function makeBlock(nodes) {
  if (nodes.length === 1) return { nodes, offsets: [[0, 0]], width: BOX.width, height: BOX.height };
  const radius = Math.max(80, (nodes.length * 80) / Math.PI);
  const wide = nodes.length === 2 ? 0 : radius + 60; // labels of horizontal arrows need more room
  const offsets = nodes.map((_, index) => {
    const angle = -Math.PI / 2 + (2 * Math.PI * index) / nodes.length;
    return [Math.cos(angle) * wide, Math.sin(angle) * radius];
  });
  const [left, top] = [Math.min(...offsets.map(([x]) => x)), Math.min(...offsets.map(([, y]) => y))];
  const [right, bottom] = [Math.max(...offsets.map(([x]) => x)), Math.max(...offsets.map(([, y]) => y))];
  const margin = nodes.length === 2 ? 130 : 30; // for the bend of the arrows and their labels
  return {
    nodes,
    offsets: offsets.map(([x, y]) => [x - left + margin, y - top]),
    width: right - left + BOX.width + 2 * margin,
    height: bottom - top + BOX.height,
  };
}

// ── drawing ────────────────────────────────────────────────────────────────────────────────────────────────────────

function draw() {
  const all = parts();
  const shown = showAll ? all : all.slice(0, PARTS_MAX);
  const available = Math.max(300, byId("graph").clientWidth - 40);
  let [x, y, rowHeight, widest] = [0, 0, 0, 0];
  const drawn = [];
  for (const part of shown) {
    const scale = Math.max(SCALE_MIN, Math.min(1, available / part.width)); // a long chain is drawn smaller
    const [width, height] = [part.width * scale, part.height * scale];
    if (x > 0 && x + width > available) [x, y, rowHeight] = [0, y + rowHeight + GAP.part, 0];
    drawn.push(svg("g", { transform: `translate(${x} ${y}) scale(${scale.toFixed(3)})` }, ...drawPart(part)));
    widest = Math.max(widest, x + width);
    x += width + 2 * GAP.part;
    rowHeight = Math.max(rowHeight, height);
  }
  const size = { width: widest + 2, height: y + rowHeight + 2 };
  const picture = svg("svg", { ...size, viewBox: `-1 -1 ${size.width} ${size.height}`, "aria-hidden": "false" }, markers(), ...drawn);
  byId("graph").replaceChildren(picture);

  const empty = graph.arrows.length === 0;
  setHidden(byId("graph"), empty);
  setHidden(byId("empty"), !empty);
  const waiting = graph.nodes.reduce((sum, node, index) => sum + (node.count ?? (graph.arrows.some((arrow) => arrow.from === index) ? 1 : 0)), 0);
  const hidden = all.length - shown.length;
  const summary = empty ? "" : `${plural(waiting, "waiter")}, ${plural(graph.cycles.length, "deadlock")}`;
  setText(byId("summary"), summary + (graph.omitted ? `; ${plural(graph.omitted, "arrow")} not shown` : ""));
  setHidden(byId("all"), hidden === 0);
  setText(byId("all"), `Show ${hidden.toLocaleString("en")} more groups`);
  drawCycles();
}

function markers() {
  const marker = (id) =>
    svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M 0 0.5 L 8 4 L 0 7.5 z", class: id }));
  return svg("defs", {}, marker("head"), marker("head-cycle"));
}

function drawPart({ nodes, arrows, places, blockOf }) {
  const labels = [];
  const lines = arrows.map((arrow) => {
    const bend = blockOf.get(arrow.from) === blockOf.get(arrow.to) ? bent(places.get(arrow.from), places.get(arrow.to)) : straight(places.get(arrow.from), places.get(arrow.to));
    const cycle = arrow.cycle ? " cycle" : "";
    const place = { x: bend.middle[0].toFixed(1), y: bend.middle[1].toFixed(1), "text-anchor": bend.anchor ?? "middle" };
    const text = svg("text", { class: `arrow-label${cycle}`, ...place }, shortened(arrow.lock, 22));
    const link = svg("a", { href: `lock?name=${encodeURIComponent(arrow.lock)}`, "aria-label": arrowText(arrow) }, svg("title", {}, arrowText(arrow)), text);
    labels.push(link);
    return svg("path", { class: `arrow${cycle}`, d: bend.path, "marker-end": `url(#head${arrow.cycle ? "-cycle" : ""})` });
  });
  const waits = new Set(arrows.map((arrow) => arrow.from));
  const inCycle = new Set(arrows.filter((arrow) => arrow.cycle).map((arrow) => arrow.from));
  const boxes = nodes.map((index) => {
    const node = graph.nodes[index];
    const { x, y } = places.get(index);
    const kind = inCycle.has(index) ? "cycle" : node.count ? "waiters" : waits.has(index) ? "both" : "holder";
    const [title, sub] = nodeText(node);
    return svg(
      "g",
      { class: `node ${kind}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
      svg("title", {}, `${visible(processText(node))} ${visible(node.agent)} ${visible(node.program)}`),
      svg("rect", { ...BOX, rx: 8 }),
      svg("text", { class: "node-title", x: 12, y: 20 }, title),
      svg("text", { class: "node-sub", x: 12, y: 36 }, sub),
    );
  });
  return [...lines, ...boxes, ...labels];
}

function nodeText(node) {
  if (node.count > 1) return [`${node.count.toLocaleString("en")} waiters`, `first: ${shortened(processText(node), 20)}`];
  return [shortened(processText(node), 22), shortened(node.agent || node.program, 26)];
}

function arrowText(arrow) {
  const [waiter, blocker] = [graph.nodes[arrow.from], graph.nodes[arrow.to]];
  const who = waiter.count > 1 ? plural(waiter.count, "waiter") : visible(processText(waiter));
  return `${who} ${waiter.count > 1 ? "wait" : "waits"} for ${visible(arrow.lock)}, held by ${visible(processText(blocker))}`;
}

function straight(from, to) {
  const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x - 3, to.y + BOX.height / 2];
  const half = (x2 - x1) / 2;
  return { path: `M ${x1} ${y1} C ${x1 + half} ${y1} ${x2 - half} ${y2} ${x2} ${y2}`, middle: [Math.min((x1 + x2) / 2, x1 + GAP.column / 2), labelY(x1, y1, x2, y2) - 6] };
}

// A label is close to the waiter if the arrow is long, because other boxes may be in the middle.
const labelY = (x1, y1, x2, y2) => (x2 - x1 > 1.5 * GAP.column ? y1 : (y1 + y2) / 2);

// On a circle: two arrows between the same boxes must not cover each other, so each is bent to its right.
function bent(from, to) {
  const a = [from.x + BOX.width / 2, from.y + BOX.height / 2];
  const b = [to.x + BOX.width / 2, to.y + BOX.height / 2];
  const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
  const length = Math.hypot(dx, dy) || 1;
  const bend = Math.min(70, length / 4);
  const control = [(a[0] + b[0]) / 2 + (dy / length) * bend, (a[1] + b[1]) / 2 - (dx / length) * bend];
  const start = edge(a, control);
  const end = edge(b, control);
  const middle = [(start[0] + 2 * control[0] + end[0]) / 4, (start[1] + 2 * control[1] + end[1]) / 4];
  const path = `M ${start} Q ${control} ${end}`;
  // The label is outside of the circle: beside an upright arrow, above or below the others.
  if (Math.abs(dy) > Math.abs(dx)) return dy > 0 ? { path, middle: [middle[0] + 8, middle[1]], anchor: "start" } : { path, middle: [middle[0] - 8, middle[1]], anchor: "end" };
  return { path, middle: [middle[0], middle[1] + (dx > 0 ? -7 : 15)] };
}

// Where the line from the centre of a box to a point leaves the box.
function edge(centre, point) {
  const [dx, dy] = [point[0] - centre[0], point[1] - centre[1]];
  const scale = Math.min((BOX.width / 2 + 3) / Math.abs(dx || 1e-9), (BOX.height / 2 + 3) / Math.abs(dy || 1e-9));
  return [centre[0] + dx * scale, centre[1] + dy * scale];
}

function drawCycles() {
  setHidden(byId("cycle-card"), graph.cycles.length === 0);
  const member = (edge) =>
    element(
      "li",
      {},
      element("bdi", { class: "process" }, shortened(processText(edge.waiter), 40)),
      element("span", { class: "muted" }, edge.waiter.agent ? ` (${shortened(edge.waiter.agent, 30)})` : ""),
      " waits for ",
      lockLink(edge.lock, 40),
      ", held by ",
      element("bdi", { class: "process" }, shortened(processText(edge.blocker), 40)),
      element("span", { class: "muted" }, edge.blocker.fence ? ` with fence ${edge.blocker.fence}` : ""),
    );
  byId("cycles").replaceChildren(...graph.cycles.map((cycle) => element("li", {}, element("ul", {}, ...cycle.map(member)))));
}

byId("all").addEventListener("click", () => {
  showAll = true;
  draw();
});

let width = 0;
new ResizeObserver(([entry]) => {
  if (Math.abs(entry.contentRect.width - width) > 20) {
    width = entry.contentRect.width;
    draw();
  }
}).observe(byId("main"));

new Stream("api/stream?view=waits", (message) => {
  if (!message.waits) return;
  graph = message.waits;
  draw();
});
