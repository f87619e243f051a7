// The store: guarantees, warnings, primitives, and the cost of this dashboard.

import { byId, duration, element, plural, visible } from "./dom.js";
import { Stream } from "./stream.js";

const milliseconds = (seconds) => (seconds === null ? "–" : seconds < 1 ? `${Math.max(1, Math.round(seconds * 1000))} ms` : duration(seconds));

function draw(store) {
  byId("url").textContent = visible(store.url);
  byId("warnings").replaceChildren(
    ...(store.warnings.length
      ? store.warnings.map((warning) => element("li", { class: "warning" }, visible(warning)))
      : [element("li", { class: "fine" }, "The store reports no problem.")]),
  );
  byId("guarantees").replaceChildren(
    ...store.guarantees.map((guarantee) =>
      element(
        "div",
        {},
        element("dt", {}, guarantee.title),
        element("dd", {}, element("strong", {}, visible(guarantee.value)), scale(guarantee), element("p", { class: "muted" }, guarantee.meaning)),
      ),
    ),
  );
  byId("primitives").replaceChildren(
    ...store.primitives.map((primitive) =>
      element(
        "li",
        { class: primitive.missing === null ? "has" : "lacks" },
        element("code", {}, primitive.name),
        element("span", { class: "visually-hidden" }, primitive.missing === null ? ": available" : ": missing"),
        primitive.missing === null ? null : element("p", { class: "muted" }, visible(primitive.missing)),
      ),
    ),
  );
  const facts = {
    "Reads the store": `every ${milliseconds(store.interval)} while a page is open; one read serves all pages`,
    "Last read took": milliseconds(store.poll_seconds),
    "Open connections": plural(store.pages, "page"),
    holdfast: store.version,
  };
  byId("reads").replaceChildren(
    ...Object.entries(facts).map(([title, value]) => element("div", {}, element("dt", {}, title), element("dd", {}, value))),
  );
}

// How strong the guarantee is, among those that stores give.
function scale({ strength, strengths }) {
  const steps = Array.from({ length: strengths }, (_, step) => element("i", { class: step <= strength ? "on" : "" }));
  return element("span", { class: "scale", role: "img", "aria-label": `strength ${strength + 1} of ${strengths}` }, ...steps);
}

async function load() {
  try {
    const response = await fetch("api/store");
    if (response.ok) draw(await response.json());
  } catch {
    // The banner shows that the connection is lost.
  }
  setTimeout(load, 5000);
}

new Stream("api/stream?view=status", () => {}); // for the state of the connection
load();
