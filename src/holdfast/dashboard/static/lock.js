// The page of one lock: its holders, its queue, and a timeline of the holders since the page was opened.

import { byId, clockTime, dateTime, duration, element, plural, processText, setHidden, setText, shortened, showLeft, visible } from "./dom.js";
import { Stream, now, session } from "./stream.js";
import { Timeline } from "./timeline.js";

const name = new URLSearchParams(location.search).get("name") ?? "";
const timeline = new Timeline(byId("timeline"));
let csrfToken = null; // with it, leases can be broken
let lock = null;
let holderCards = new Map(); // by fence and process
let target = null; // the holder that the dialog is about

document.title = `${shortened(name, 40)} · holdfast`;
setText(byId("name"), visible(name));

// ── drawing ────────────────────────────────────────────────────────────────────────────────────────────────────────

function draw() {
  setText(byId("kind"), lock.limit ? `${lock.kind} ${lock.limit}` : lock.kind);
  const state = byId("state");
  const free = !lock.holders.length;
  setText(state, free ? (lock.waiter_count ? "no holder" : "free") : lock.waiter_count ? "contended" : "held");
  state.dataset.state = free ? "free" : lock.waiter_count ? "contended" : "held";
  drawHolders();
  drawQueue();
  drawTimes();
}

function drawHolders() {
  const cards = new Map();
  lock.holders.forEach((holder, index) => {
    const text = JSON.stringify({ ...holder, expires_at: null, ttl: null, canBreak: csrfToken !== null });
    const key = `${text} ${index}`;
    const card = holderCards.get(key) ?? makeHolder(holder);
    card.holder = holder;
    cards.set(key, card);
  });
  const nodes = [...cards.values()].map((card) => card.node);
  if (!nodes.length) {
    const text = lock.waiter_count ? "No holder: the first waiter is about to acquire the lock." : "No process holds this lock.";
    nodes.push(element("p", { class: "card note muted" }, text));
  }
  const holders = byId("holders");
  const unchanged = nodes.length === holders.childElementCount && nodes.every((node, index) => holders.children[index] === node);
  if (!unchanged) holders.replaceChildren(...nodes);
  holderCards = cards;
}

function makeHolder(holder) {
  const held = element("dd");
  const left = element("dd", { class: "ttl" });
  const bar = element("span", { class: "bar", "aria-hidden": "true" }, element("span"));
  const leftText = element("span", { class: "bar-text" });
  left.append(bar, leftText);
  const facts = element(
    "dl",
    { class: "facts compact" },
    fact("Fence", element("dd", { class: "mono" }, holder.fence === "0" ? "none" : holder.fence)),
    fact("Held for", held),
    fact("TTL left", left),
    fact("Since", element("dd", {}, holder.since ? dateTime(holder.since) : "unknown")),
    fact("Thread or task", element("dd", {}, element("bdi", {}, shortened(holder.agent || "–", 80)))),
    holder.owner ? fact("Owner", element("dd", {}, element("bdi", {}, shortened(holder.owner, 80)))) : null,
    fact("Revocable", element("dd", {}, holder.revocable ? "yes" : "no")),
  );
  const node = element(
    "article",
    { class: "card holder-card" },
    element(
      "h3",
      {},
      element("span", { class: `swatch c${timeline.color(holder)}`, "aria-hidden": "true" }),
      element("bdi", {}, shortened(processText(holder), 60)),
      holder.role === "holder" ? null : element("span", { class: "badge" }, holder.role),
    ),
    element("p", { class: "muted program" }, element("bdi", {}, shortened(holder.program, 120))),
    facts,
    metaList(holder.meta),
  );
  const card = { node, holder, held, bar, leftText };
  if (csrfToken !== null && holder.fence !== "0") {
    const revoke = element("button", { type: "button", disabled: !holder.revocable }, "Request release");
    const breaks = element("button", { type: "button", class: "danger" }, "Break…");
    if (!holder.revocable) revoke.title = "This holder is not revocable: it does not poll for requests.";
    revoke.addEventListener("click", async () => {
      notify((await send("revoke", card.holder.fence)) ?? "The holder receives the request at its next renewal.");
    });
    breaks.addEventListener("click", () => openDialog(card.holder));
    node.append(element("div", { class: "buttons" }, revoke, breaks));
  }
  return card;
}

const fact = (title, value) => element("div", {}, element("dt", {}, title), value);

function metaList(meta) {
  if (!meta.length) return null;
  const entry = ([key, value]) =>
    element("div", {}, element("dt", {}, element("bdi", {}, shortened(key, 60))), element("dd", {}, element("bdi", {}, shortened(value, 400))));
  return element("dl", { class: "meta" }, ...meta.map(entry));
}

function drawQueue() {
  const rows = lock.waiters.map((waiter, index) => {
    const cell = (label, ...children) => element("td", { role: "cell", "data-label": label }, ...children);
    const wait = element("td", { role: "cell", class: "number", "data-label": "Waiting for", "data-since": waiter.since ?? "" });
    const meta = waiter.meta.map(([key, value]) => `${shortened(key, 20)}=${shortened(value, 40)}`).join(" ");
    return element(
      "tr",
      { role: "row" },
      element("td", { role: "cell", class: "number position" }, String(index + 1)),
      element(
        "th",
        { scope: "row", role: "rowheader" },
        element("bdi", { class: "process" }, shortened(processText(waiter), 48)),
        element("bdi", { class: "sub" }, shortened(waiter.program, 60)),
      ),
      cell("Thread or task", element("bdi", {}, shortened(waiter.agent, 40))),
      cell("Waits as", waiter.role === "waiter" ? (waiter.owner ? `owner ${shortened(waiter.owner, 30)}` : "holder") : waiter.role),
      wait,
      cell("Meta", element("bdi", { class: "sub" }, meta)),
    );
  });
  byId("waiters").replaceChildren(...rows);
  setHidden(byId("queue"), !rows.length);
  setHidden(byId("no-queue"), rows.length > 0);
  const hidden = lock.waiter_count - rows.length;
  const count = lock.waiter_count ? plural(lock.waiter_count, "waiter") : "";
  setText(byId("queue-count"), hidden > 0 ? `${count}, the first ${rows.length} are shown` : count);
}

function drawTimes() {
  if (!lock) return;
  const time = now();
  for (const { holder, held, bar, leftText } of holderCards.values()) {
    setText(held, holder.since ? duration(time - holder.since) : "unknown");
    showLeft(bar, leftText, holder, time);
  }
  for (const cell of document.querySelectorAll("#waiters td[data-since]")) {
    setText(cell, cell.dataset.since ? duration(time - Number(cell.dataset.since)) : "–");
  }
  timeline.draw(time);
}

// ── break and revoke ───────────────────────────────────────────────────────────────────────────────────────────────

// Returns an error text, or null if it is done.
async function send(verb, fence) {
  try {
    const response = await fetch(`api/${verb}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrf-token": csrfToken },
      body: JSON.stringify({ lock: name, fence }),
    });
    if (response.ok) return null;
    return `Not done: ${visible((await response.json()).error ?? `status ${response.status}`)}.`;
  } catch {
    return "The dashboard does not answer.";
  }
}

function openDialog(holder) {
  target = holder;
  setText(byId("confirm-text"), `${shortened(name, 120)} is held by ${shortened(processText(holder), 80)} (${shortened(holder.program, 80)}).`);
  setText(byId("confirm-fence"), holder.fence);
  setText(byId("confirm-error"), "");
  byId("typed").value = "";
  byId("confirm").showModal();
  byId("typed").focus();
}

byId("confirm-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const typed = byId("typed").value.trim();
  if (typed !== target.fence) {
    setText(byId("confirm-error"), `This is not the fence of the lease, which is ${target.fence}.`);
    byId("typed").select();
    return;
  }
  byId("confirm-break").disabled = true;
  const error = await send("break", typed);
  byId("confirm-break").disabled = false;
  if (error === null) {
    byId("confirm").close();
    notify(`The lease with the fence ${typed} is broken.`);
  } else setText(byId("confirm-error"), error);
});
byId("confirm-cancel").addEventListener("click", () => byId("confirm").close());

let toastTimer = 0;
function notify(text) {
  const toast = byId("toast");
  setText(toast, text);
  toast.classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => toast.classList.remove("shown"), 6000);
}

// ── messages ───────────────────────────────────────────────────────────────────────────────────────────────────────

session.then((answer) => {
  csrfToken = answer.csrf_token;
  if (lock) draw();
});

new Stream(`api/stream?lock=${encodeURIComponent(name)}`, (message) => {
  if (!message.lock) return;
  lock = message.lock;
  timeline.update(lock, message.read_at);
  setText(byId("timeline-note"), `since ${clockTime(timeline.openedAt)}, when this page was opened`);
  draw();
});
setInterval(drawTimes, 500);
