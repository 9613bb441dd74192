// One pod: what it waits for, how it came there, what was told of it.

const RANGES = { "all": Infinity, "1 h": 3_600_000, "10 min": 600_000, "1 min": 60_000 };
const detail = { asked: undefined, got: undefined, at: 0, range: "all", from: undefined, scrolled: 0 };
// By name, and by UID where the address has one: several pods may have a name, one after the other.
let chosen;

const isChosen = (pod) => pod.key === chosen?.key && pod.row.uid === (chosen.uid ?? detail.got?.uid ?? pod.row.uid);

function choose(pod) {
  if (chosen === undefined) detail.scrolled = scrollY;
  detail.from = pod.row.uid;
  if (isChosen(pod)) $("detail-title").focus();
  else location.hash = hashOf(pod.row);
}

// What the address says is chosen.
function route() {
  let parts;
  try { parts = location.hash.slice(1).split("/").map(decodeURIComponent); } catch { parts = []; }
  const [namespace, name, uid] = parts;
  const next = name ? { namespace, name, key: `${namespace}/${name}`, uid: uid || undefined } : undefined;
  if (next?.key === chosen?.key && next?.uid === chosen?.uid) return;
  const before = chosen;
  chosen = next;
  detail.got = undefined;
  $("split").classList.toggle("open", chosen !== undefined);
  document.body.classList.toggle("open", chosen !== undefined);
  $("detail").hidden = chosen === undefined;
  if (chosen !== undefined) {
    $("detail-title").replaceChildren(el("span", { className: "ns" }, `${namespace}/`), name);
    for (const id of ["facts", "drawing", "more"]) $(id).replaceChildren();
    $("timeline").hidden = true;
    if ($("pods").offsetParent === null) scrollTo(0, 0);
    if (before !== undefined || detail.from !== undefined) $("detail-title").focus({ preventScroll: true });
    refreshDetail();
  }
  draw(true);
  if (chosen === undefined && before !== undefined) {
    if (detail.scrolled) scrollTo(0, detail.scrolled);
    const index = list.shown.findIndex((pod) => pod.row.uid === list.cursor);
    if (index >= 0) requestAnimationFrame(() => moveTo(index));
  }
}

function leave() {
  history.pushState(null, "", location.pathname + location.search);
  route();
}
addEventListener("hashchange", route);
addEventListener("popstate", route);
$("close").addEventListener("click", leave);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen !== undefined && !event.defaultPrevented) leave();
});

// Asks again, at most twice a second however often its row changes.
let soon;
function refreshDetail() {
  if (chosen === undefined || soon) return;
  soon = setTimeout(fetchDetail, Math.max(0, detail.at + 500 - Date.now()));
}

async function fetchDetail() {
  soon = undefined;
  detail.at = Date.now();
  if (chosen === undefined) return;
  const of = chosen;
  detail.asked?.abort();
  const asked = (detail.asked = new AbortController());
  try {
    const path = [of.namespace, of.name].map(encodeURIComponent).join("/");
    const which = of.uid === undefined ? "" : `&uid=${encodeURIComponent(of.uid)}`;
    const answer = await fetch(`/explain/${path}?output=json${which}`, { signal: asked.signal, cache: "no-store" });
    const got = answer.ok ? await answer.json() : { missing: await answer.text() };
    if (of !== chosen) return;
    detail.got = got;
    showDetail();
  } catch (error) {
    if (error.name !== "AbortError" && of === chosen && !detail.got) {
      $("facts").replaceChildren(el("p", { className: "soft" }, "The agent does not answer. This is asked again when it does."));
    }
  }
}

// Some of what it shows changes without a row that does: an event that repeats.
function detailTick() {
  if (chosen === undefined) return;
  if (Date.now() - detail.at > 10_000) refreshDetail();
  else if (detail.got && !detail.got.missing && Date.now() - detail.drawn > 900) drawTimeline();
}

const at = (text) => (text ? Date.parse(text) : undefined);

function showDetail() {
  const got = detail.got;
  if (got.missing !== undefined) {
    $("facts").replaceChildren(...got.missing.trim().split("\n").map((line) => el("p", {}, line)));
    $("timeline").hidden = true;
    $("more").replaceChildren();
    return;
  }
  const row = [...pods.values()].find((pod) => pod.row.uid === got.uid)?.row;
  const health = row?.health ?? "finished";
  const facts = [el("span", { className: `state ${health}` }, glyph(), " ", got.state)];
  if (got.state !== got.phase) facts.push(`phase ${got.phase}`);
  if (row?.containers) facts.push(`${row.ready} of ${row.containers} ready`, plural(row.restarts, "restart"));
  if (row?.born) facts.push(aged({ "data-words": "age #" }, "since", row.born));
  const source = { file: "from a file", http: "from a URL", api: "from the API server" }[got.source] ?? "known to the runtime only";
  facts.push(got.desired ? source : `${source}, wanted by nobody any more`);
  $("facts").replaceChildren(
    el("p", {}, facts.flatMap((fact, index) => (index ? [" · ", fact] : [fact]))),
    ...(got.reason || got.message ? [el("p", {}, [got.reason, got.message].filter(Boolean).join(": "))] : []),
    el("h3", {}, "Waits for"), chain(got.chain, health));
  drawTimeline();
  $("more").replaceChildren(...containers(got), ...moves(got), ...told(got), ...others(got),
    el("p", { className: "soft" }, "uid ", el("span", { className: "mono" }, got.uid)));
}

// The pods that had the name before, or have it after.
function others(got) {
  if (!got.others.length) return [];
  const item = ({ uid, lifecycle }) => el("li", {}, el("a", { className: "mono", href: hashOf(got, uid) }, uid), lifecycle ? `, ${lifecycle}` : "");
  return [el("h3", {}, "Also known under this name"), el("ul", {}, got.others.map(item))];
}

// Flat: how deep one stands tells what it waits for in turn.
function chain(waits, health) {
  return el("ol", { className: "chain" }, waits.map((wait) => {
    const notes = [];
    if (wait.since) notes.push(aged({ "data-words": "for #" }, "since", at(wait.since)));
    if (wait.tries) notes.push(plural(wait.tries, "try", "tries"));
    if (wait.next) notes.push(el("span", {}, "next: ", aged({}, "until", at(wait.next))));
    const item = el("li", { className: wait.what === "nothing" ? "calm" : health },
      wait.depth ? el("p", { className: "soft" }, "which waits for") : "",
      el("p", {}, el("b", {}, wait.detail)),
      notes.length ? el("p", { className: "soft" }, notes.flatMap((note, index) => (index ? [" · ", note] : [note]))) : "",
      el("p", { className: "soft" }, `released by: ${wait.releasedBy}`));
    item.style.marginLeft = `${Math.min(wait.depth, 5) * 1.1}rem`;
    return item;
  }));
}

function drawTimeline() {
  const got = detail.got, moves = got.transitions;
  $("timeline").hidden = !moves.length;
  if (!moves.length) return;
  detail.drawn = Date.now();
  const now = clock.now();
  const life = { name: "pod", spans: moves.map((move, index) => ({
    from: at(move.at), to: at(moves[index + 1]?.at) ?? now, kind: SPANS[move.to] ?? "finished", label: move.to,
    words: `${move.to}: ${move.cause}`,
  })) };
  const events = { name: "events", marks: got.events.flatMap((event) => [event.first, event.last].map((when) => ({
    at: at(when), kind: event.type === "Warning" ? "failing" : "note", words: `${timeOfDay(at(when))} ${event.reason}: ${event.message}`,
  }))) };
  const lanes = [life, ...containerLanes(got, now), ...(got.events.length ? [events] : [])];
  const born = Math.min(...lanes.flatMap((lane) => [...(lane.spans ?? []).map((span) => span.from), ...(lane.marks ?? []).map((mark) => mark.at)]));
  const choices = Object.keys(RANGES).filter((name) => name === "all" || RANGES[name] < now - born);
  if (!choices.includes(detail.range)) detail.range = "all";
  ranges(choices);
  const from = Math.max(born, now - RANGES[detail.range]);
  const width = Math.max(240, $("drawing").clientWidth);
  $("drawing").replaceChildren(drawing(lanes, from, now, width), legend(),
    el("p", { id: "timeline-words", className: "sr" }, `${plural(moves.length, "transition")} and ${plural(got.events.length, "event")}, as the tables below tell`));
}

function ranges(choices) {
  const into = $("range");
  into.hidden = choices.length < 2;
  if ([...into.children].map((button) => button.textContent).join() !== choices.join()) {
    into.replaceChildren(...choices.map((name) => el("button", { type: "button", onclick: () => { detail.range = name; drawTimeline(); } }, name)));
  }
  for (const button of into.children) button.ariaPressed = String(button.textContent === detail.range);
}

function moves(got) {
  if (!got.transitions.length) return [];
  const rows = got.transitions.map((move, index) => {
    const next = at(got.transitions[index + 1]?.at);
    return el("tr", {},
      el("td", { className: "when" }, el("time", { dateTime: move.at, title: move.at }, timeOfDay(at(move.at), true))),
      el("td", { className: "when" }, move.to), el("td", {}, move.cause),
      el("td", { className: "when" }, next === undefined ? aged({}, "since", at(move.at)) : fine(next - at(move.at))));
  });
  return [el("h3", {}, "Transitions"), table(["Time", "To", "Cause", "Duration"], rows)];
}

const fine = (ms) => (ms < 10_000 ? `${(ms / 1000).toFixed(ms < 100 ? 3 : 1)}s` : short(ms));

function table(heads, rows) {
  return el("div", { className: "scrolls" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, rows)));
}

// A long word of several may be broken between them.
const breakable = (word) => word.replace(/([a-z])([A-Z])/g, "$1\u200b$2");

function told(got) {
  const parts = [];
  if (got.problems?.length) {
    parts.push(el("h3", {}, "Problems of its source"), el("ul", {}, got.problems.map((problem) => el("li", { className: "event" }, problem))));
  }
  if (got.events.length) {
    parts.push(el("h3", {}, "Events"), el("ul", {}, [...got.events].reverse().map((event) => el("li", { className: "event" },
      el("span", { className: event.type === "Warning" ? "failing" : "finished" }, event.type === "Warning" ? glyph() : ""), " ",
      el("b", {}, event.reason), event.count > 1 ? ` ×${event.count}` : "", ": ", event.message, " ",
      aged({ className: "soft", "data-words": "# ago" }, "since", at(event.last))))));
  }
  return parts;
}

const ended = (run) => (run.exitCode === 0 ? "finished" : "failing");
const end = (run) => `ended with exit code ${run.exitCode}${run.reason ? ` (${run.reason})` : ""}`;

// The run before, the pause after it, and the run that goes on or was the last.
function containerLanes(got, now) {
  return got.containers.map((container) => {
    const spans = [];
    const ran = (run) => {
      if (!run?.startedAt) return;
      const until = at(run.finishedAt);
      spans.push({
        from: at(run.startedAt), to: until ?? now, kind: until ? ended(run) : "healthy",
        label: until ? `exit ${run.exitCode}` : "runs", words: `${container.name} ${until ? end(run) : "runs"}`,
      });
    };
    ran(container.last);
    const pause = at(container.last?.finishedAt);
    if (pause) {
      const until = at(container.run?.startedAt) ?? now;
      spans.push({ from: pause, to: until, kind: "waiting", label: "waiting", words: `${container.name} waits to be started again` });
    }
    ran(container.run);
    return { name: `container ${container.name}`, spans };
  }).filter((lane) => lane.spans.length);
}

function containers(got) {
  if (!got.containers.length) return [];
  const rows = got.containers.map((container) => {
    const { run, last } = container;
    const state = [breakable(container.reason ?? container.state)];
    if (container.state === "running" && container.kind !== "ephemeral") state.push(container.ready ? ", ready" : ", not ready");
    if (run?.startedAt && !run.finishedAt) state.push(", ", aged({ "data-words": "for #" }, "since", at(run.startedAt)));
    const gone = container.state === "terminated" ? run : last;
    return el("tr", {},
      el("th", { scope: "row" }, container.name, container.kind === "regular" ? "" : el("span", { className: "soft" }, ` ${container.kind}`)),
      el("td", {}, el("span", { className: container.standing }, glyph()), " ", state),
      el("td", {}, String(container.restarts)),
      el("td", {}, gone ? [`${gone.exitCode}${gone.reason ? ` ${gone.reason}` : ""}`,
        gone.finishedAt ? [", ", aged({ "data-words": "# ago" }, "since", at(gone.finishedAt))] : []].flat() : "none"));
  });
  return [el("h3", {}, "Containers"), table(["Name", "State", "Restarts", "Last exit"], rows)];
}

new ResizeObserver(() => { if (detail.got && !detail.got.missing) drawTimeline(); }).observe($("detail"));
