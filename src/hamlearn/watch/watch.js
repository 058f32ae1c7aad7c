const words = { waiting: "waiting for the first samples", learning: "learning", finished: "finished",
  lost: "connection lost, trying again" };
function say(state) {
  document.body.dataset.state = state;
  document.getElementById("status").textContent = words[state];
}
say("waiting");
const events = new EventSource("events");
events.addEventListener("data", event => {
  const data = JSON.parse(event.data);
  show(data);
  document.getElementById("at").textContent = data.at && "· last row " + data.at;
  say(data.status);
  document.body.dataset.version = event.lastEventId;
});
events.addEventListener("error", () => say("lost"));
