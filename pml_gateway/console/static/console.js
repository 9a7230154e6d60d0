// Loads the shown page again when the gateway says that it has changed.
"use strict";

const main = document.getElementById("main");

function isFilledIn() {
  const fields = [...main.querySelectorAll("input:not([type=hidden]), textarea")];
  return fields.some((field) => field === document.activeElement || field.value !== field.defaultValue);
}

async function renew() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || isFilledIn()) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("main");
  if (!fresh) return;
  const focused = main.contains(document.activeElement) ? document.activeElement.id : "";
  const opened = [...main.querySelectorAll("details[open][id]")].map((each) => each.id);
  main.replaceChildren(...fresh.childNodes);
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

if (main.hasAttribute("data-live")) {
  const events = new EventSource(main.dataset.events);
  events.onmessage = renew;
}
