// Loads the shown page again when the gateway says that it has changed.
"use strict";

const main = document.getElementById("main");

async function renew() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.getElementById("main");
  const busy = main.contains(document.activeElement) && document.activeElement !== main;
  if (fresh && !busy) main.replaceChildren(...fresh.childNodes);
}

if (main.hasAttribute("data-live")) {
  const events = new EventSource(main.dataset.events);
  events.onmessage = renew;
}
