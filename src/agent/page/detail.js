// The details of one pod: its waits, transitions, containers and events.

const RANGES = { "all": Infinity, "1 h": 3_600_000, "10 min": 600_000, "1 min": 60_000 };
const detail = { request: undefined, got: undefined, at: 0, range: "all", from: undefined, scrolled: 0 };
// The open pod by full name, and by UID if the address has one, because several pods may have a full name.
let chosen;

const isChosen = (pod) => pod.key === chosen?.key && pod.row.uid === (chosen.uid ?? detail.got?.uid ?? pod.row.uid);

function choose(pod) {
  if (chosen === undefined) detail.scrolled = scrollY;
  detail.from = pod.row.uid;
  if (isChosen(pod)) $("detail-title").focus();
  else location.hash = hashOf(pod.row);
}

// Opens or closes the details according to the address.
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

function closeDetail() {
  history.pushState(null, "", location.pathname + location.search);
  route();
}
addEventListener("hashchange", route);
addEventListener("popstate", route);
$("close").addEventListener("click", closeDetail);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen !== undefined && !event.defaultPrevented) closeDetail();
});

// Fetches the details again, at most twice a second, however often the pod's row changes.
let scheduled;
function refreshDetail() {
  if (chosen === undefined || scheduled) return;
  scheduled = setTimeout(fetchDetail, Math.max(0, detail.at + 500 - Date.now()));
}

async function fetchDetail() {
  scheduled = undefined;
  detail.at = Date.now();
  if (chosen === undefined) return;
  const of = chosen;
  detail.request?.abort();
  const request = (detail.request = new AbortController());
  try {
    const path = [of.namespace, of.name].map(encodeURIComponent).join("/");
    const which = of.uid === undefined ? "" : `&uid=${encodeURIComponent(of.uid)}`;
    const answer = await fetch(`/explain/${path}?output=json${which}`, { signal: request.signal, cache: "no-store" });
    const got = answer.ok ? await answer.json() : { missing: await answer.text() };
    if (of !== chosen) return;
    detail.got = got;
    showDetail();
  } catch (error) {
    if (error.name !== "AbortError" && of === chosen && !detail.got) {
      $("facts").replaceChildren(el("p", { className: "soft" }, "The agent does not answer. The details appear when it does."));
    }
  }
}

// Some details change without the row, such as the count of a repeated event. They are fetched every 10 s.
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
  if (row?.started) facts.push(aged({ "data-words": "age #" }, "since", row.started));
  const source = { file: "from a file", http: "from a URL", api: "from the API server" }[got.source];
  facts.push(!source ? "runtime-only pod" : got.desired ? source : `${source}, no longer desired`);
  $("facts").replaceChildren(
    el("p", {}, facts.flatMap((fact, index) => (index ? [" · ", fact] : [fact]))),
    ...(got.reason || got.message ? [el("p", {}, [got.reason, got.message].filter(Boolean).join(": "))] : []),
    el("h3", {}, "Waits for"), chain(got.chain, health));
  drawTimeline();
  $("more").replaceChildren(...containers(got), ...transitions(got), ...eventsAndProblems(got), ...others(got),
    el("p", { className: "soft" }, "uid ", el("span", { className: "mono" }, got.uid)));
}

// Other pods with the same full name.
function others(got) {
  if (!got.others.length) return [];
  const item = ({ uid, lifecycle }) => el("li", {}, el("a", { className: "mono", href: hashOf(got, uid) }, uid), lifecycle ? `, ${lifecycle}` : "");
  return [el("h3", {}, "Other pods with this name"), el("ul", {}, got.others.map(item))];
}

// The waits of a pod as a flat list. The indentation shows which wait causes which.
function chain(waits, health) {
  return el("ol", { className: "chain" }, waits.map((wait) => {
    const notes = [];
    if (wait.since) notes.push(aged({ "data-words": "for #" }, "since", at(wait.since)));
    if (wait.tries) notes.push(plural(wait.tries, "try", "tries"));
    if (wait.next) notes.push(el("span", {}, "next: ", aged({}, "until", at(wait.next))));
    const item = el("li", { className: wait.what === "nothing" ? "no-wait" : health },
      wait.depth ? el("p", { className: "soft" }, "caused by") : "",
      el("p", {}, el("b", {}, wait.detail)),
      notes.length ? el("p", { className: "soft" }, notes.flatMap((note, index) => (index ? [" · ", note] : [note]))) : "",
      el("p", { className: "soft" }, `released by: ${wait.releasedBy}`));
    item.style.marginLeft = `${Math.min(wait.depth, 5) * 1.1}rem`;
    return item;
  }));
}

function drawTimeline() {
  const got = detail.got, steps = got.transitions;
  $("timeline").hidden = !steps.length;
  if (!steps.length) return;
  detail.drawn = Date.now();
  const now = clock.now();
  const lifecycle = { name: "pod", spans: steps.map((step, index) => ({
    from: at(step.at), to: at(steps[index + 1]?.at) ?? now, kind: SPANS[step.to] ?? "finished", label: step.to,
    words: `${step.to}: ${step.cause}`,
  })) };
  const events = { name: "events", marks: got.events.flatMap((event) => [event.first, event.last].map((when) => ({
    at: at(when), kind: event.type === "Warning" ? "failing" : "note", words: `${timeOfDay(at(when))} ${event.reason}: ${event.message}`,
  }))) };
  const lanes = [lifecycle, ...containerLanes(got, now), ...(got.events.length ? [events] : [])];
  const start = Math.min(...lanes.flatMap((lane) => [...(lane.spans ?? []).map((span) => span.from), ...(lane.marks ?? []).map((mark) => mark.at)]));
  const choices = Object.keys(RANGES).filter((name) => name === "all" || RANGES[name] < now - start);
  if (!choices.includes(detail.range)) detail.range = "all";
  ranges(choices);
  const from = Math.max(start, now - RANGES[detail.range]);
  const width = Math.max(240, $("drawing").clientWidth);
  $("drawing").replaceChildren(drawing(lanes, from, now, width), legend(),
    el("p", { id: "timeline-words", className: "sr" }, `${plural(steps.length, "transition")} and ${plural(got.events.length, "event")}, listed below`));
}

function ranges(choices) {
  const into = $("range");
  into.hidden = choices.length < 2;
  if ([...into.children].map((button) => button.textContent).join() !== choices.join()) {
    into.replaceChildren(...choices.map((name) => el("button", { type: "button", onclick: () => { detail.range = name; drawTimeline(); } }, name)));
  }
  for (const button of into.children) button.ariaPressed = String(button.textContent === detail.range);
}

function transitions(got) {
  if (!got.transitions.length) return [];
  const rows = got.transitions.map((step, index) => {
    const next = at(got.transitions[index + 1]?.at);
    return el("tr", {},
      el("td", { className: "when" }, el("time", { dateTime: step.at, title: step.at }, timeOfDay(at(step.at), true))),
      el("td", { className: "when" }, step.to), el("td", {}, step.cause),
      el("td", { className: "when" }, next === undefined ? aged({}, "since", at(step.at)) : shortOrPrecise(next - at(step.at))));
  });
  return [el("h3", {}, "Transitions"), table(["Time", "To", "Cause", "Duration"], rows)];
}

const shortOrPrecise = (ms) => (ms < 10_000 ? `${(ms / 1000).toFixed(ms < 100 ? 3 : 1)}s` : short(ms));

function table(heads, rows) {
  return el("div", { className: "scrolls" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, rows)));
}

// Lets a long reason such as CreateContainerConfigError break between its words.
const breakable = (word) => word.replace(/([a-z])([A-Z])/g, "$1\u200b$2");

function eventsAndProblems(got) {
  const parts = [];
  if (got.problems?.length) {
    parts.push(el("h3", {}, "Manifest problems"), el("ul", {}, got.problems.map((problem) => el("li", { className: "event" }, problem))));
  }
  if (got.events.length) {
    parts.push(el("h3", {}, "Events"), el("ul", {}, [...got.events].reverse().map((event) => el("li", { className: "event" },
      el("span", { className: event.type === "Warning" ? "failing" : "finished" }, event.type === "Warning" ? glyph() : ""), " ",
      el("b", {}, event.reason), event.count > 1 ? ` ×${event.count}` : "", ": ", event.message, " ",
      aged({ className: "soft", "data-words": "# ago" }, "since", at(event.last))))));
  }
  return parts;
}

const exitHealth = (run) => (run.exitCode === 0 ? "finished" : "failing");
const exitWords = (run) => `ended with exit code ${run.exitCode}${run.reason ? ` (${run.reason})` : ""}`;

// The lane of each container: its previous run, the pause after it, and its current or last run.
function containerLanes(got, now) {
  return got.containers.map((container) => {
    const spans = [];
    const addRun = (run) => {
      if (!run?.startedAt) return;
      const until = at(run.finishedAt);
      spans.push({
        from: at(run.startedAt), to: until ?? now, kind: until ? exitHealth(run) : "healthy",
        label: until ? `exit ${run.exitCode}` : "running", words: `${container.name} ${until ? exitWords(run) : "is running"}`,
      });
    };
    addRun(container.last);
    const pause = at(container.last?.finishedAt);
    if (pause) {
      const until = at(container.run?.startedAt) ?? now;
      spans.push({ from: pause, to: until, kind: "waiting", label: "waiting", words: `${container.name} waits to restart` });
    }
    addRun(container.run);
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
    const exit = container.state === "terminated" ? run : last;
    return el("tr", {},
      el("th", { scope: "row" }, container.name, container.kind === "regular" ? "" : el("span", { className: "soft" }, ` ${container.kind}`)),
      el("td", {}, el("span", { className: container.standing }, glyph()), " ", state),
      el("td", {}, String(container.restarts)),
      el("td", {}, exit ? [`${exit.exitCode}${exit.reason ? ` ${exit.reason}` : ""}`,
        exit.finishedAt ? [", ", aged({ "data-words": "# ago" }, "since", at(exit.finishedAt))] : []].flat() : "none"));
  });
  return [el("h3", {}, "Containers"), table(["Name", "State", "Restarts", "Last exit"], rows)];
}

new ResizeObserver(() => { if (detail.got && !detail.got.missing) drawTimeline(); }).observe($("detail"));
