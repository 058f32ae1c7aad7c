const words = { waiting: "waiting for the first samples", learning: "learning", finished: "finished",
  lost: "connection lost, trying again" };
const place = name => document.getElementById(name);
function show(state) {
  document.body.dataset.state = state;
  place("status").textContent = words[state];
}
const events = new EventSource(document.body.dataset.events);
events.addEventListener("view", event => {
  const view = JSON.parse(event.data);
  // Everything in it was made, and escaped, by the server that this page is from.
  for (const part of ["alarm", "cards", "charts"]) place(part).innerHTML = view[part];
  place("at").textContent = view.at && "· last row " + view.at;
  attach(place("charts"));
  show(view.status);
  document.body.dataset.version = event.lastEventId;
});
events.addEventListener("error", () => show("lost"));
