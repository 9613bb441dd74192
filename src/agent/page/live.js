// What the agent tells, and what happens when it does not.

const SILENCE = 12_000;
const RETRIES = [1, 2, 4, 8, 10];
const live = { source: undefined, heard: 0, state: "connecting", tries: 0, next: 0, lostAt: 0, why: undefined, stale: new Set() };

function connect() {
  live.source?.close();
  live.heard = performance.now();
  if (live.state !== "lost") state("connecting");
  const source = (live.source = new EventSource("/watch"));
  const on = (name, take) => source.addEventListener(name, (event) => {
    if (source !== live.source) return;
    const message = JSON.parse(event.data);
    live.heard = performance.now();
    clock.set(message.now);
    if (live.state !== "live") found();
    take(message);
  });
  on("agent", (message) => {
    // An agent of another version has come: its page knows what it tells.
    if (agent && agent.page !== message.page) return location.reload();
    agent = message;
    showAgent();
    draw(true);
  });
  on("rows", (message) => {
    if (message.from === 0) live.stale = new Set(pods.keys());
    for (const row of message.rows) {
      pods.set(row.uid, known(row));
      live.stale.delete(row.uid);
    }
    list.loading = message.from + message.rows.length < message.of;
    if (!list.loading) {
      for (const uid of live.stale) pods.delete(uid);
      refreshDetail();
    }
    draw(true);
  });
  on("change", (message) => {
    for (const row of message.rows) {
      pods.set(row.uid, known(row));
      list.told.add(row.uid);
      if (`${row.namespace}/${row.name}` === chosen?.key) refreshDetail();
    }
    for (const uid of message.gone) {
      if (pods.get(uid)?.key === chosen?.key) refreshDetail();
      pods.delete(uid);
    }
    draw(true);
  });
  on("beat", () => {});
  source.onerror = () => {
    if (source !== live.source) return;
    lose();
    askWhy();
  };
}

// A source of events keeps to itself what it was answered with: this asks for the same once, and lets go of it again.
async function askWhy() {
  const asked = new AbortController();
  let why;
  try {
    const answer = await fetch("/watch", { signal: asked.signal, cache: "no-store" });
    if (!answer.ok) why = (await answer.text()).trim();
  } catch { /* Nobody answers. */ }
  asked.abort();
  live.why = why;
  if (live.state === "lost") tellLost();
}

function state(name) {
  live.state = name;
  document.body.classList.toggle("stale", name === "lost");
  $("lost").hidden = name !== "lost";
  $("link").className = { live: "healthy", connecting: "waiting", lost: "failing", paused: "finished" }[name];
  text($("link-text"), { live: "live", connecting: "connecting", lost: "not connected", paused: "paused" }[name]);
}

function found() {
  live.tries = 0;
  state("live");
}

function lose() {
  live.source?.close();
  live.source = undefined;
  clock.stop();
  if (live.state !== "lost") {
    live.lostAt = Date.now();
    state("lost");
  }
  live.next = Date.now() + 1000 * RETRIES[Math.min(live.tries, RETRIES.length - 1)];
  live.tries += 1;
  tellLost();
}

function tellLost() {
  const why = live.why ? `The agent says: ${live.why}.` : agent ? "" : "No agent answers here. Is it running?";
  const stale = agent ? `What is here is from ${timeOfDay(live.lostAt)}, and may be wrong by now.` : "";
  text($("lost-text"), `${why} ${stale}`.trim());
  const left = Math.ceil((live.next - Date.now()) / 1000);
  text($("lost-next"), live.source ? "Trying now." : `Next try in ${Math.max(1, left)} s.`);
}

$("lost-now").addEventListener("click", connect);

// A page that nobody sees asks for nothing.
let hidden;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hidden);
  if (document.hidden) {
    hidden = setTimeout(() => {
      live.source?.close();
      live.source = undefined;
      if (live.state === "lost") return;
      clock.stop();
      state("paused");
    }, 30_000);
  } else if (!live.source) connect();
});

setInterval(() => {
  if (live.state === "lost") {
    if (!live.source && Date.now() >= live.next && !document.hidden) connect();
    else if (live.source && performance.now() - live.heard > SILENCE) lose();
    tellLost();
    return;
  }
  if (live.source && performance.now() - live.heard > SILENCE) return lose();
  if (live.state !== "live") return;
  for (const element of document.querySelectorAll("[data-since], [data-until]")) retell(element);
  detailTick();
  // What is long or recent changes with time alone; so does what each row says of it.
  draw(wish.long || wish.recent || pods.size < 1000 || Math.floor(Date.now() / 1000) % 5 === 0);
}, 1000);

recall();
route();
// A tab may be opened behind others.
if (document.hidden) state("paused");
else connect();
