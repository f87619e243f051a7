// Elements and text. Names, programs and meta are untrusted: they reach the page through textContent and attributes
// only, and characters that would be invisible or would reverse the reading direction are shown as escapes.

const SVG = "http://www.w3.org/2000/svg";
const INVISIBLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const SHORT_ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Writes only if the text differs, so that an unchanged cell costs no layout.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

export function visible(text) {
  return String(text).replace(INVISIBLE, (character) => {
    const number = character.codePointAt(0);
    const digits = number.toString(16);
    return SHORT_ESCAPES[character] ?? (number > 0xffff ? `\\U${digits.padStart(8, "0")}` : `\\u${digits.padStart(4, "0")}`);
  });
}

// The middle is cut, because names often share a prefix and differ at the end.
export function shortened(text, max = 56) {
  const characters = Array.from(visible(text));
  if (characters.length <= max) return characters.join("");
  const tail = Math.floor(max / 3);
  return `${characters.slice(0, max - tail - 1).join("")}…${characters.slice(-tail).join("")}`;
}

export function processText(ticket) {
  return ticket.fence === "0" ? "another program" : `${ticket.host}/${ticket.pid}`;
}

export function lockLink(name, max) {
  const link = element("a", { href: `lock?name=${encodeURIComponent(name)}`, class: "lock-link" }, element("bdi", {}, shortened(name, max)));
  link.title = visible(name);
  return link;
}

// The bar and the text for the ttl that is left.
export function showLeft(bar, text, holder, time) {
  const left = holder?.expires_at ? holder.expires_at - time : null;
  setHidden(bar, left === null);
  setText(text, left === null ? (holder ? "does not expire" : "") : left > 0 ? duration(left) : "expired");
  if (left === null) return;
  const share = Math.max(0, Math.min(1, left / holder.ttl));
  bar.firstChild.style.transform = `scaleX(${share.toFixed(3)})`;
  bar.dataset.level = share < 0.2 ? "low" : share < 0.4 ? "middle" : "high";
}

// ── times ──────────────────────────────────────────────────────────────────────────────────────────────────────────

export function duration(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, seconds);
  if (whole < 10) return `${(Math.floor(whole * 10) / 10).toFixed(1)} s`;
  if (whole < 60) return `${Math.floor(whole)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${pad(Math.floor(whole % 60))} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export const clockTime = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });
export const dateTime = (at) => new Date(at * 1000).toLocaleString([], { hour12: false });
export const plural = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

const pad = (number) => String(number).padStart(2, "0");
