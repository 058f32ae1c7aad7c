// The live page: asks for the data again and again, and draws them when they have changed.
const words = { waiting: "waiting for the first samples", learning: "learning", finished: "finished",
  lost: "connection lost, trying again" };
function say(state) {
  document.body.dataset.state = state;
  document.getElementById("status").textContent = words[state];
}
let version = "";
async function look() {
  try {
    const answer = await fetch("data", { headers: { "If-None-Match": version } });
    if (answer.status === 200) {
      const data = await answer.json();
      version = answer.headers.get("ETag");
      show(data);
      document.getElementById("at").textContent = data.at && "· last row " + data.at;
      say(data.status);
      document.body.dataset.version = version;
    } else if (document.body.dataset.state === "lost") {
      version = "";
    }
  } catch {
    say("lost");
  }
  setTimeout(look, 500);
}
say("waiting");
look();
