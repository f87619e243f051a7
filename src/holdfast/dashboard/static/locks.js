// The table of all locks.

import { byId, clockTime, duration, element, lockLink, plural, processText, setHidden, setText, shortened, showLeft, visible } from "./dom.js";
import { Stream, now } from "./stream.js";

const PAGE = 300; // rows; more on request
const CHANGES_MAX = 100;

const locks = new Map(); // by name, as the server sends them
const elements = new Map(); // by name: the row and its cells
let limit = PAGE;
let sort = { key: "wait", descending: true };
let paused = false;
let pending = false; // a redraw is requested

// ── order and filter ───────────────────────────────────────────────────────────────────────────────────────────────

const first = (lock) => lock.holders[0];
const oldest = (lock) => (lock.waiting_since ? -lock.waiting_since : -Infinity);
const KEYS = {
  name: (lock) => lock.name,
  holder: (lock) => (first(lock) ? processText(first(lock)) : ""),
  fence: (lock) => Number(first(lock)?.fence ?? 0),
  held: (lock) => (first(lock)?.since ? -first(lock).since : -Infinity),
  left: (lock) => -(first(lock)?.expires_at ?? Infinity),
  waiters: (lock) => lock.waiters,
  wait: oldest,
};
const TEXT_KEYS = new Set(["name", "holder"]);

function compare(one, other) {
  const key = KEYS[sort.key];
  const [a, b] = [key(one), key(other)];
  const order = TEXT_KEYS.has(sort.key) ? a.localeCompare(b) : a - b || 0;
  return (sort.descending ? -order : order) || one.name.localeCompare(other.name);
}

function matches(lock, words, contended) {
  if (contended && !lock.waiters) return false;
  if (!words.length) return true;
  const text = [lock.name, lock.kind, ...lock.holders.flatMap((holder) => [processText(holder), holder.program, holder.fence])]
    .join("\n")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

function sortBy(key) {
  sort = { key, descending: sort.key === key ? !sort.descending : !TEXT_KEYS.has(key) };
  byId("sort").value = key;
  redraw();
}

// ── rows ───────────────────────────────────────────────────────────────────────────────────────────────────────────

function makeRow(lock) {
  const cell = (label, ...attributes) => element("td", { role: "cell", "data-label": label, ...Object.assign({}, ...attributes) });
  const numeric = { class: "number" };
  const bar = element("span", { class: "bar", "aria-hidden": "true" }, element("span"));
  const leftText = element("span", { class: "bar-text" });
  const badge = element("span", { class: "badge" });
  const process = element("bdi", { class: "process" });
  const program = element("bdi", { class: "sub" });
  const row = {
    tr: element("tr", { role: "row" }),
    badge,
    process,
    program,
    fence: cell("Fence", numeric),
    held: cell("Held for", numeric),
    left: cell("TTL left", { class: "ttl" }),
    waiters: cell("Waiters", numeric),
    wait: cell("Longest wait", numeric),
    bar,
    leftText,
  };
  row.left.append(bar, leftText);
  const name = element("th", { scope: "row", role: "rowheader", class: "name" }, lockLink(lock.name), badge);
  const holder = cell("Holder", { class: "holder" });
  holder.append(process, program);
  row.tr.append(name, holder, row.fence, row.held, row.left, row.waiters, row.wait);
  return row;
}

function fillRow(row, lock) {
  const holder = first(lock);
  const others = lock.holder_count - 1;
  setText(row.badge, lock.kind === "lock" ? "" : lock.limit ? `${lock.kind} ${lock.limit}` : lock.kind);
  setHidden(row.badge, lock.kind === "lock");
  setText(row.process, holder ? shortened(processText(holder), 40) : "no holder");
  row.process.classList.toggle("muted", !holder);
  setText(row.program, holder ? [shortened(holder.program, 44), others > 0 ? `and ${others} more` : ""].filter(Boolean).join(" · ") : "");
  setText(row.fence, holder && holder.fence !== "0" ? holder.fence : "");
  setText(row.waiters, lock.waiters ? lock.waiters.toLocaleString("en") : "0");
  row.waiters.classList.toggle("some", lock.waiters > 0);
  row.tr.classList.toggle("cycle", lock.in_cycle);
  fillTimes(row, lock, now());
}

function fillTimes(row, lock, time) {
  const holder = first(lock);
  setText(row.held, holder?.since ? duration(time - holder.since) : "");
  setText(row.wait, lock.waiting_since ? duration(time - lock.waiting_since) : lock.waiters ? "–" : "");
  showLeft(row.bar, row.leftText, holder, time);
}

// ── drawing ────────────────────────────────────────────────────────────────────────────────────────────────────────

function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    draw();
  });
}

function draw() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const contended = byId("contended").checked;
  const shown = [...locks.values()].filter((lock) => matches(lock, words, contended)).sort(compare);
  const rows = byId("rows");
  const page = shown.slice(0, limit);
  const names = new Set(page.map((lock) => lock.name));
  for (const [name, row] of elements) {
    if (!names.has(name)) {
      row.tr.remove();
      elements.delete(name);
    }
  }
  let next = rows.firstChild;
  for (const lock of page) {
    let row = elements.get(lock.name);
    if (row === undefined) {
      row = makeRow(lock);
      elements.set(lock.name, row);
    }
    if (row.shown !== lock) {
      fillRow(row, lock);
      row.shown = lock;
    }
    if (row.tr === next) next = next.nextSibling;
    else rows.insertBefore(row.tr, next);
  }
  for (const heading of document.querySelectorAll("th[data-sort]")) {
    const sorted = heading.dataset.sort === sort.key;
    if (sorted) heading.setAttribute("aria-sort", sort.descending ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
  }
  setHidden(byId("table"), page.length === 0);
  setHidden(byId("empty"), page.length > 0);
  setText(byId("empty").firstElementChild, locks.size ? "No lock matches the filter." : "No lock is in use.");
  setHidden(byId("more"), shown.length <= limit);
  setText(byId("more"), `Show more (${(shown.length - limit).toLocaleString("en")} are not shown)`);
  setText(byId("result"), words.length || contended ? `${shown.length.toLocaleString("en")} of ${plural(locks.size, "lock")}` : plural(locks.size, "lock"));
  drawTiles();
}

function drawTiles() {
  let [held, waiting, wait, hold] = [0, 0, Infinity, Infinity];
  for (const lock of locks.values()) {
    held += lock.holder_count;
    waiting += lock.waiters;
    if (lock.waiting_since) wait = Math.min(wait, lock.waiting_since);
    for (const holder of lock.holders) if (holder.since) hold = Math.min(hold, holder.since);
  }
  setText(byId("held"), held.toLocaleString("en"));
  setText(byId("waiting"), waiting.toLocaleString("en"));
  setText(byId("longest-wait"), duration(now() - wait));
  setText(byId("longest-hold"), duration(now() - hold));
}

function drawTimes() {
  if (paused) return;
  const time = now();
  for (const row of elements.values()) fillTimes(row, row.shown, time);
  drawTiles();
}

const WORDS = { holds: "holds", acquired: "acquired", released: "released", waits: "waits", left: "left the queue" };

function addChanges(changes) {
  const list = byId("changes");
  for (const change of changes.slice(-CHANGES_MAX)) {
    list.prepend(
      element(
        "li",
        { "data-kind": change.kind },
        element("time", {}, clockTime(change.at)),
        element("span", { class: "change-kind" }, WORDS[change.kind] ?? visible(change.kind)),
        lockLink(change.lock, 40),
        element("bdi", { class: "sub" }, `${shortened(processText(change), 32)}${change.seconds ? ` · after ${duration(change.seconds)}` : ""}`),
      ),
    );
  }
  while (list.childElementCount > CHANGES_MAX) list.lastElementChild.remove();
}

// ── messages and keys ──────────────────────────────────────────────────────────────────────────────────────────────

new Stream("api/stream", (message) => {
  if (message.full) locks.clear();
  for (const lock of message.locks ?? []) locks.set(lock.name, lock);
  for (const name of message.gone ?? []) locks.delete(name);
  setText(byId("cycles"), String(message.cycles ?? 0));
  byId("cycles-tile").classList.toggle("alarm", Boolean(message.cycles));
  if (!paused) {
    addChanges(message.changes ?? []);
    if (message.full || message.locks?.length || message.gone?.length) redraw();
  }
});
setInterval(drawTimes, 500);

byId("filter").addEventListener("input", redraw);
byId("contended").addEventListener("change", redraw);
byId("more").addEventListener("click", () => {
  limit += PAGE;
  redraw();
});
byId("sort").addEventListener("change", (event) => {
  sort = { key: event.target.value, descending: !TEXT_KEYS.has(event.target.value) };
  redraw();
});
for (const heading of document.querySelectorAll("th[data-sort]")) {
  heading.firstElementChild.addEventListener("click", () => sortBy(heading.dataset.sort));
}

function togglePause() {
  paused = !paused;
  const button = byId("pause");
  button.setAttribute("aria-pressed", String(paused));
  setText(button, paused ? "Resume" : "Pause");
  document.body.classList.toggle("paused", paused);
  if (!paused) redraw();
}
byId("pause").addEventListener("click", togglePause);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const filter = byId("filter");
  const typing = event.target.matches("input[type=search], select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    filter.focus();
  } else if (event.key === "Escape" && event.target === filter) {
    filter.value = "";
    redraw();
  } else if (event.key === "p" && !typing) {
    togglePause();
  } else if (["ArrowDown", "ArrowUp"].includes(event.key)) {
    const links = [...byId("rows").querySelectorAll(".lock-link")];
    const at = links.indexOf(document.activeElement);
    if (at < 0 && event.target !== filter) return;
    event.preventDefault();
    links[Math.max(0, Math.min(links.length - 1, at + (event.key === "ArrowDown" ? 1 : -1)))]?.focus();
  }
});
