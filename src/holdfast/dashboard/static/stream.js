// The session, the stream of the server (SSE), and the state of the connection at the top of every page.

import { byId, setHidden, setText, shortened, visible } from "./dom.js";

const GRACE = 2500; // ms without a connection before the banner; the server ends each stream after a while on purpose
const SILENCE = 10000; // ms without a message after which the connection is taken for dead
const RETRY = 1000; // ms
const HIDDEN_FOR = 15000; // ms; a hidden page then closes its connection, of which a browser has few for one server

let offset = 0; // of the server's clock, in ms
export const now = () => (Date.now() + offset) / 1000;

export const session = loadSession();

async function loadSession() {
  for (;;) {
    try {
      const response = await fetch("api/session", { headers: { accept: "application/json" } });
      if (response.ok) return await response.json();
      if (response.status === 401) location.reload();
    } catch {
      showConnection("lost", "offline");
      showBanner("The dashboard does not answer. Trying again…");
    }
    await new Promise((resume) => setTimeout(resume, RETRY));
  }
}

session.then(({ store }) => {
  const url = byId("store-url");
  url.textContent = shortened(store, 48);
  url.title = visible(store);
});

for (const link of document.querySelectorAll("nav a")) {
  const target = new URL(link.href).pathname;
  if (target === location.pathname) link.setAttribute("aria-current", "page");
}

// ── the state of the connection ────────────────────────────────────────────────────────────────────────────────────

function showConnection(state, text) {
  byId("live").dataset.state = state;
  setText(byId("live-text"), text);
}

function showBanner(text) {
  const banner = byId("banner");
  setText(banner, text);
  setHidden(banner, !text);
}

// ── the stream ─────────────────────────────────────────────────────────────────────────────────────────────────────

export class Stream {
  #path;
  #onMessage;
  #source = null;
  #receivedAt = performance.now();
  #lostAt = null;
  #hiddenAt = null;
  #unavailable = null;
  #readAt = 0;

  // `onMessage` is called with each message of the server, in order.
  constructor(path, onMessage) {
    this.#path = path;
    this.#onMessage = onMessage;
    this.#open();
    setInterval(() => this.#check(), 500);
    document.addEventListener("visibilitychange", () => {
      this.#hiddenAt = document.hidden ? performance.now() : null;
      if (!document.hidden && this.#source === null) this.#open();
    });
  }

  #open() {
    this.#close();
    const source = new EventSource(this.#path);
    this.#source = source;
    this.#receivedAt = performance.now();
    source.onmessage = (event) => {
      this.#receivedAt = performance.now();
      this.#lostAt = null;
      const message = JSON.parse(event.data);
      offset = message.now * 1000 - Date.now();
      this.#unavailable = message.unavailable ?? null;
      this.#readAt = message.read_at;
      this.#show(message);
      this.#onMessage(message);
    };
    source.onerror = () => {
      this.#lostAt ??= performance.now();
      if (source.readyState === EventSource.CLOSED) this.#retry();
    };
  }

  #close() {
    this.#source?.close();
    this.#source = null;
  }

  async #retry() {
    this.#close();
    await new Promise((resume) => setTimeout(resume, RETRY));
    try {
      const response = await fetch("api/session");
      if (response.status === 401) location.reload();
    } catch {
      // The server does not answer yet. The stream tries again.
    }
    if (this.#source === null && this.#hiddenAt === null) this.#open();
  }

  #check() {
    const time = performance.now();
    if (this.#hiddenAt !== null && time - this.#hiddenAt > HIDDEN_FOR) {
      this.#close();
      this.#lostAt = null;
      return;
    }
    if (this.#source !== null && time - this.#receivedAt > SILENCE) {
      this.#lostAt ??= this.#receivedAt;
      this.#open();
    }
    if (this.#lostAt !== null && time - this.#lostAt > GRACE) {
      showConnection("lost", "offline");
      showBanner("The connection to the dashboard is lost. This page shows the last known state. Trying again…");
      document.body.classList.add("stale");
    }
  }

  #show(message) {
    const badge = byId("cycle-badge");
    setText(badge, String(message.cycles ?? 0));
    setHidden(badge, !message.cycles);
    document.body.classList.toggle("stale", this.#unavailable !== null);
    if (this.#unavailable !== null) {
      const since = this.#readAt ? ` Last read at ${new Date(this.#readAt * 1000).toLocaleTimeString([], { hour12: false })}.` : "";
      showConnection("lost", "store unavailable");
      showBanner(`The store is not available: ${visible(this.#unavailable)}.${since}`);
    } else if (message.search) {
      showConnection("search", message.search);
      showBanner("");
    } else {
      showConnection("live", "live");
      showBanner("");
    }
  }
}
