// Loads the shown page again when the gateway says that something on it has changed.
"use strict";

const main = document.getElementById("main");
const shown = (main.dataset.live || "").split(" ");

function isBusy() {
  const fields = [...main.querySelectorAll("input:not([type=hidden]), textarea, select")];
  const filled = fields.some((field) => field === document.activeElement || (field.defaultValue ?? field.value) !== field.value);
  return filled || !getSelection().isCollapsed;
}

async function renew() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || isBusy()) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("main");
  if (!fresh || isBusy()) return;
  const focused = main.contains(document.activeElement) ? document.activeElement : null;
  const opened = [...main.querySelectorAll("details[open][id]")].map((each) => each.id);
  main.replaceChildren(...fresh.childNodes);
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  const again = focused?.id ? `#${CSS.escape(focused.id)}` : `[href="${CSS.escape(focused?.getAttribute("href") ?? "")}"]`;
  if (focused) main.querySelector(again)?.focus({ preventScroll: true });
}

if ("live" in main.dataset) {
  let events = null;
  const follow = () => {
    events?.close();
    events = document.hidden ? null : new EventSource(main.dataset.events);
    if (events) events.onmessage = (change) => {
      if (change.data.split(" ").some((topic) => shown.includes(topic))) renew();
    };
  };
  follow();
  document.addEventListener("visibilitychange", () => {
    follow();
    if (!document.hidden) renew();
  });
}
