// A timeline of the holders of a lock since the page was opened, and of the length of its queue.

import { clockTime, duration, element, processText, shortened, svg, visible } from "./dom.js";

const COLORS = 8;
const WINDOW_MIN = 60; // seconds
const LANE = 28;
const LANES_MAX = 12;
const QUEUE = 48;
const STEPS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400];
const SAMPLES_MAX = 2000;

export class Timeline {
  openedAt = null;
  #box;
  #colors = new Map(); // by process
  #leases = []; // {holder, from, until}; until is null while it lasts
  #queue = []; // {at, length}

  constructor(box) {
    this.#box = box;
  }

  color(holder) {
    const key = processText(holder);
    if (!this.#colors.has(key)) this.#colors.set(key, this.#colors.size % COLORS);
    return this.#colors.get(key);
  }

  update(lock, time) {
    this.openedAt ??= time;
    const past = lock.past
      .filter((lease) => lease.until >= this.openedAt)
      .map((lease) => ({ holder: lease, from: Math.min(lease.from, lease.until), until: lease.until }));
    const present = lock.holders.map((holder) => ({ holder, from: Math.min(holder.since ?? this.openedAt, time), until: null }));
    this.#leases = [...past, ...present].sort((one, other) => one.from - other.from);
    if (this.#queue.at(-1)?.length !== lock.waiter_count) this.#queue.push({ at: time, length: lock.waiter_count });
    if (this.#queue.length > SAMPLES_MAX) this.#queue.shift();
  }

  draw(time) {
    const width = Math.max(280, this.#box.clientWidth);
    const start = this.openedAt;
    const span = Math.max(WINDOW_MIN, time - start);
    const x = (at) => Math.max(0, Math.min(width, ((at - start) / span) * width));
    const lanes = this.#lanes();
    const queueTop = Math.max(1, lanes.length) * LANE + 12;
    const bottom = queueTop + QUEUE;
    const longest = Math.max(0, ...this.#queue.map((sample) => sample.length));
    const parts = [];

    if (time < start + span) {
      parts.push(svg("rect", { class: "future", x: x(time).toFixed(1), y: 0, width: (width - x(time)).toFixed(1), height: bottom }));
    }
    const step = STEPS.find((seconds) => (seconds / span) * width >= 80) ?? STEPS.at(-1);
    for (let at = Math.ceil(start / step) * step; at <= start + span; at += step) {
      const place = x(at).toFixed(1);
      parts.push(svg("line", { class: "grid", x1: place, x2: place, y1: 0, y2: bottom }));
      if (x(at) > 26 && x(at) < width - 26) parts.push(svg("text", { class: "tick", x: place, y: bottom + 15 }, clockTime(at)));
    }
    lanes.forEach((lane, number) => parts.push(...lane.map((lease) => this.#lease(lease, number * LANE, x, time))));
    parts.push(svg("path", { class: "queue-area", d: this.#area(x, time, queueTop, Math.max(1, longest)) }));
    parts.push(svg("line", { class: "axis", x1: 0, x2: width, y1: bottom, y2: bottom }));
    parts.push(svg("text", { class: "axis-label", x: 4, y: queueTop + 10 }, `waiters (at most ${longest})`));

    const current = this.#leases.filter((lease) => lease.until === null).map((lease) => visible(processText(lease.holder)));
    const summary = `${this.#leases.length} leases; now ${current.length ? `held by ${current.slice(0, 3).join(", ")}` : "free"}`;
    const size = { viewBox: `0 0 ${width} ${bottom + 22}`, width, height: bottom + 22 };
    const hidden = this.#leases.length - lanes.reduce((sum, lane) => sum + lane.length, 0);
    this.#box.replaceChildren(
      svg("svg", { ...size, role: "img", "aria-label": summary }, ...parts),
      hidden > 0 ? element("p", { class: "muted" }, `${hidden} more leases are not drawn.`) : "",
    );
  }

  #lease(lease, top, x, time) {
    const left = x(Math.max(lease.from, this.openedAt));
    const right = Math.max(left + 2, x(lease.until ?? time));
    const label = processText(lease.holder);
    const until = lease.until === null ? "now" : clockTime(lease.until);
    const text = `${visible(label)}, fence ${lease.holder.fence}, ${clockTime(lease.from)} to ${until}, ${duration((lease.until ?? time) - lease.from)}`;
    const group = svg(
      "g",
      { class: `lease c${this.color(lease.holder)}${lease.until === null ? " present" : ""}` },
      svg("title", {}, text),
      svg("rect", { x: left.toFixed(1), y: top + 3, width: (right - left).toFixed(1), height: LANE - 6, rx: 4 }),
    );
    const room = Math.floor((right - left - 12) / 7.2);
    if (room >= 5) group.append(svg("text", { x: (left + 7).toFixed(1), y: top + LANE / 2 + 4 }, shortened(label, room)));
    return group;
  }

  // Leases that overlap are drawn below each other. Half a second is the distance between two reads of the store.
  #lanes() {
    const lanes = [];
    for (const lease of this.#leases) {
      const from = Math.max(lease.from, this.openedAt);
      let lane = lanes.find((candidate) => (candidate.at(-1).until ?? Infinity) <= from + 0.5);
      if (lane === undefined) {
        if (lanes.length === LANES_MAX) continue;
        lane = [];
        lanes.push(lane);
      }
      lane.push(lease);
    }
    return lanes;
  }

  #area(x, time, top, longest) {
    const base = top + QUEUE;
    const y = (length) => (base - (length / longest) * (QUEUE - 16)).toFixed(1);
    let path = `M ${x(this.openedAt).toFixed(1)} ${base}`;
    this.#queue.forEach((sample, index) => {
      const until = this.#queue[index + 1]?.at ?? time;
      path += ` L ${x(sample.at).toFixed(1)} ${y(sample.length)} L ${x(until).toFixed(1)} ${y(sample.length)}`;
    });
    return `${path} L ${x(time).toFixed(1)} ${base} Z`;
  }
}
