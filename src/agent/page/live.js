// The connection to the agent, and the message that the page shows while it is lost.

const MAX_SILENCE_MS = 12_000;
const RETRY_SECONDS = [1, 2, 4, 8, 10];
const live = { source: undefined, receivedAt: 0, state: "connecting", retries: 0, retryAt: 0, lostAt: 0, cause: undefined, needsLink: false, missingUids: new Set() };

function connect() {
  live.source?.close();
  live.receivedAt = performance.now();
  if (live.state !== "lost") setState("connecting");
  const on = (handle) => (message) => {
    live.receivedAt = performance.now();
    clock.set(message.now);
    if (live.state !== "live") setLive();
    handle(message);
  };
  const agentMessage = (message) => {
    agent = message;
    showAgent();
    draw(true);
  };
  const rowsMessage = (message) => {
    if (message.from === 0) live.missingUids = new Set(pods.keys());
    for (const row of message.rows) {
      pods.set(row.uid, podOf(row));
      live.missingUids.delete(row.uid);
    }
    list.loading = message.from + message.rows.length < message.of;
    if (!list.loading) {
      for (const uid of live.missingUids) pods.delete(uid);
      refreshDetail();
    }
    draw(true);
  };
  const changeMessage = (message) => {
    for (const row of message.rows) {
      pods.set(row.uid, podOf(row));
      list.changedUids.add(row.uid);
      if (`${row.namespace}/${row.name}` === openPod?.key) refreshDetail();
    }
    for (const uid of message.gone) {
      if (pods.get(uid)?.key === openPod?.key) refreshDetail();
      pods.delete(uid);
    }
    draw(true);
  };
  const agentOfAnyVersion = (message) => {
    if (!agent || agent.page === message.page) return on(agentMessage)(message);
    // An agent of another version has started, or another program has its address. The page does not load what that program serves,
    // because it would get the rights of this page. The link of the agent leads to its own page.
    live.needsLink = true;
    setLost();
  };
  const handlers = { agent: agentOfAnyVersion, rows: on(rowsMessage), change: on(changeMessage), beat: on(() => {}) };
  live.source = new EventStream("/watch", handlers, (refusal) => {
    live.cause = refusal?.message;
    live.needsLink = refusal?.status === 401;
    setLost();
  });
}

function setState(name) {
  live.state = name;
  document.body.classList.toggle("stale", name === "lost");
  $("lost").hidden = name !== "lost";
  $("link").className = { live: "healthy", connecting: "waiting", lost: "failing", paused: "finished" }[name];
  setText($("link-text"), { live: "live", connecting: "connecting", lost: "not connected", paused: "paused" }[name]);
}

function setLive() {
  live.retries = 0;
  live.cause = undefined;
  live.needsLink = false;
  setState("live");
}

function setLost() {
  live.source?.close();
  live.source = undefined;
  clock.stop();
  if (live.state !== "lost") {
    live.lostAt = Date.now();
    setState("lost");
  }
  live.retryAt = Date.now() + 1000 * RETRY_SECONDS[Math.min(live.retries, RETRY_SECONDS.length - 1)];
  live.retries += 1;
  showLost();
}

function showLost() {
  setText($("lost-title"), live.needsLink ? "This page needs its link." : "Connection lost.");
  $("lost-link").hidden = !live.needsLink;
  const cause = live.needsLink ? "" : live.cause ? `The agent answers: ${live.cause}.` : agent ? "" : "No agent answers at this address. Check that it is running.";
  const stale = agent ? `The page shows the state at ${timeOfDay(live.lostAt)}, which may be out of date.` : "";
  setText($("lost-text"), `${cause} ${stale}`.trim());
  const left = Math.ceil((live.retryAt - Date.now()) / 1000);
  setText($("lost-next"), live.source ? "Connecting." : `Next attempt in ${Math.max(1, left)} s.`);
}

$("lost-now").addEventListener("click", connect);

// A hidden page disconnects after 30 s.
let hidden;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hidden);
  if (document.hidden) {
    hidden = setTimeout(() => {
      live.source?.close();
      live.source = undefined;
      if (live.state === "lost") return;
      clock.stop();
      setState("paused");
    }, 30_000);
  } else if (!live.source) connect();
});

setInterval(() => {
  if (live.state === "lost") {
    if (!live.source && Date.now() >= live.retryAt && !document.hidden) connect();
    else if (live.source && performance.now() - live.receivedAt > MAX_SILENCE_MS) setLost();
    showLost();
    return;
  }
  if (live.source && performance.now() - live.receivedAt > MAX_SILENCE_MS) return setLost();
  if (live.state !== "live") return;
  for (const element of document.querySelectorAll("[data-since], [data-until]")) updateAge(element);
  detailTick();
  // The filters for long waits and recent restarts depend on time, and so do the ages in the rows.
  draw(filter.long || filter.recent || pods.size < 1000 || Math.floor(Date.now() / 1000) % 5 === 0);
}, 1000);

// The link was opened in a tab that already has the page.
addEventListener("hashchange", () => {
  if (!location.hash.startsWith(TOKEN_PREFIX)) return;
  access.read();
  connect();
});

readAddress();
followAddress();
// A tab may be opened in the background.
if (document.hidden) setState("paused");
else connect();
