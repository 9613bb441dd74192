// The details of one pod: its waits, transitions, containers and events.

const RANGES_MS = { "all": Infinity, "1 h": 3_600_000, "10 min": 600_000, "1 min": 60_000 };
const detail = { request: undefined, explanation: undefined, fetchedAt: 0, range: "all", openedFromUid: undefined, listScrollY: 0, drawnAt: undefined };
// The open pod by full name, and by UID if the address has one, because several pods may have a full name.
let openPod;

const isOpenPod = (pod) => pod.key === openPod?.key && pod.row.uid === (openPod.uid ?? detail.explanation?.uid ?? pod.row.uid);

function openDetail(pod) {
  if (openPod === undefined) detail.listScrollY = scrollY;
  detail.openedFromUid = pod.row.uid;
  if (isOpenPod(pod)) $("detail-title").focus();
  else location.hash = hashOf(pod.row);
}

// Opens or closes the details according to the address.
function followAddress() {
  if (location.hash.startsWith(TOKEN_PREFIX)) return;
  let parts;
  try { parts = location.hash.slice(1).split("/").map(decodeURIComponent); } catch { parts = []; }
  const [namespace, name, uid] = parts;
  const next = name ? { namespace, name, key: `${namespace}/${name}`, uid: uid || undefined } : undefined;
  if (next?.key === openPod?.key && next?.uid === openPod?.uid) return;
  const before = openPod;
  openPod = next;
  detail.explanation = undefined;
  $("split").classList.toggle("open", openPod !== undefined);
  document.body.classList.toggle("open", openPod !== undefined);
  $("detail").hidden = openPod === undefined;
  if (openPod !== undefined) {
    $("detail-title").replaceChildren(el("span", { className: "ns" }, `${namespace}/`), name);
    for (const id of ["facts", "drawing", "more"]) $(id).replaceChildren();
    $("timeline").hidden = true;
    if ($("pods").offsetParent === null) scrollTo(0, 0);
    if (before !== undefined || detail.openedFromUid !== undefined) $("detail-title").focus({ preventScroll: true });
    refreshDetail();
  }
  draw(true);
  if (openPod === undefined && before !== undefined) {
    if (detail.listScrollY) scrollTo(0, detail.listScrollY);
    const index = list.matching.findIndex((pod) => pod.row.uid === list.cursorUid);
    if (index >= 0) requestAnimationFrame(() => moveTo(index));
  }
}

function closeDetail() {
  history.pushState(null, "", location.pathname + location.search);
  followAddress();
}
addEventListener("hashchange", followAddress);
addEventListener("popstate", followAddress);
$("close").addEventListener("click", closeDetail);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && openPod !== undefined && !event.defaultPrevented) closeDetail();
});

// Fetches the details again, at most twice a second, however often the pod's row changes.
let scheduled;
function refreshDetail() {
  if (openPod === undefined || scheduled) return;
  scheduled = setTimeout(fetchDetail, Math.max(0, detail.fetchedAt + 500 - Date.now()));
}

async function fetchDetail() {
  scheduled = undefined;
  detail.fetchedAt = Date.now();
  if (openPod === undefined) return;
  const pod = openPod;
  detail.request?.abort();
  const request = (detail.request = new AbortController());
  try {
    const path = [pod.namespace, pod.name].map(encodeURIComponent).join("/");
    const uidParameter = pod.uid === undefined ? "" : `&uid=${encodeURIComponent(pod.uid)}`;
    const answer = await fetchFromAgent(`/explain/${path}?output=json${uidParameter}`, request.signal);
    const explanation = answer.ok ? await answer.json() : { missing: await answer.text() };
    if (pod !== openPod) return;
    detail.explanation = explanation;
    showDetail();
  } catch (error) {
    if (error.name !== "AbortError" && pod === openPod && !detail.explanation) {
      $("facts").replaceChildren(el("p", { className: "soft" }, "The agent does not answer. The details appear when it does."));
    }
  }
}

// Some details change without the row, such as the count of a repeated event. They are fetched every 10 s.
function detailTick() {
  if (openPod === undefined) return;
  if (Date.now() - detail.fetchedAt > 10_000) refreshDetail();
  else if (detail.explanation && !detail.explanation.missing && Date.now() - detail.drawnAt > 900) drawTimeline();
}

const parseTime = (text) => (text ? Date.parse(text) : undefined);

function showDetail() {
  const explanation = detail.explanation;
  if (explanation.missing !== undefined) {
    $("facts").replaceChildren(...explanation.missing.trim().split("\n").map((line) => el("p", {}, line)));
    $("timeline").hidden = true;
    $("more").replaceChildren();
    return;
  }
  const row = [...pods.values()].find((pod) => pod.row.uid === explanation.uid)?.row;
  const health = row?.health ?? "finished";
  const facts = [el("span", { className: `state ${health}` }, glyph(), " ", explanation.state)];
  if (explanation.state !== explanation.phase) facts.push(`phase ${explanation.phase}`);
  if (row?.containers) facts.push(`${row.ready} of ${row.containers} ready`, plural(row.restarts, "restart"));
  if (row?.started) facts.push(ageElement({ "data-words": "age #" }, "since", row.started));
  const source = { file: "from a file", http: "from a URL", api: "from the API server" }[explanation.source];
  facts.push(!source ? "runtime-only pod" : explanation.desired ? source : `${source}, no longer desired`);
  $("facts").replaceChildren(
    el("p", {}, facts.flatMap((fact, index) => (index ? [" · ", fact] : [fact]))),
    ...(explanation.reason || explanation.message ? [el("p", {}, [explanation.reason, explanation.message].filter(Boolean).join(": "))] : []),
    el("h3", {}, "Waits for"), waitList(explanation.chain, health));
  drawTimeline();
  $("more").replaceChildren(...containerTable(explanation), ...transitionTable(explanation), ...eventsAndProblems(explanation), ...sameNamePods(explanation),
    el("p", { className: "soft" }, "uid ", el("span", { className: "mono" }, explanation.uid)));
}

// Other pods with the same full name.
function sameNamePods(explanation) {
  if (!explanation.others.length) return [];
  const item = ({ uid, lifecycle }) => el("li", {}, el("a", { className: "mono", href: hashOf(explanation, uid) }, uid), lifecycle ? `, ${lifecycle}` : "");
  return [el("h3", {}, "Other pods with this name"), el("ul", {}, explanation.others.map(item))];
}

// The waits of a pod as a flat list. The indentation shows which wait causes which.
function waitList(waits, health) {
  return el("ol", { className: "chain" }, waits.map((wait) => {
    const notes = [];
    if (wait.since) notes.push(ageElement({ "data-words": "for #" }, "since", parseTime(wait.since)));
    if (wait.tries) notes.push(plural(wait.tries, "try", "tries"));
    if (wait.next) notes.push(el("span", {}, "next: ", ageElement({}, "until", parseTime(wait.next))));
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
  const explanation = detail.explanation, steps = explanation.transitions;
  $("timeline").hidden = !steps.length;
  if (!steps.length) return;
  detail.drawnAt = Date.now();
  const now = clock.now();
  const lifecycle = { name: "pod", spans: steps.map((step, index) => ({
    from: parseTime(step.at), to: parseTime(steps[index + 1]?.at) ?? now, kind: SPAN_COLOURS[step.to] ?? "finished", label: step.to,
    tooltip: `${step.to}: ${step.cause}`,
  })) };
  const events = { name: "events", marks: explanation.events.flatMap((event) => [event.first, event.last].map((when) => ({
    at: parseTime(when), kind: event.type === "Warning" ? "failing" : "note", tooltip: `${timeOfDay(parseTime(when))} ${event.reason}: ${event.message}`,
  }))) };
  const lanes = [lifecycle, ...containerLanes(explanation, now), ...(explanation.events.length ? [events] : [])];
  const start = Math.min(...lanes.flatMap((lane) => [...(lane.spans ?? []).map((span) => span.from), ...(lane.marks ?? []).map((mark) => mark.at)]));
  const choices = Object.keys(RANGES_MS).filter((name) => name === "all" || RANGES_MS[name] < now - start);
  if (!choices.includes(detail.range)) detail.range = "all";
  rangeButtons(choices);
  const from = Math.max(start, now - RANGES_MS[detail.range]);
  const width = Math.max(240, $("drawing").clientWidth);
  $("drawing").replaceChildren(timelineSvg(lanes, from, now, width), legend(),
    el("p", { id: "timeline-words", className: "sr" }, `${plural(steps.length, "transition")} and ${plural(explanation.events.length, "event")}, listed below`));
}

function rangeButtons(choices) {
  const buttons = $("range");
  buttons.hidden = choices.length < 2;
  if ([...buttons.children].map((button) => button.textContent).join() !== choices.join()) {
    buttons.replaceChildren(...choices.map((name) => el("button", { type: "button", onclick: () => { detail.range = name; drawTimeline(); } }, name)));
  }
  for (const button of buttons.children) button.ariaPressed = String(button.textContent === detail.range);
}

function transitionTable(explanation) {
  if (!explanation.transitions.length) return [];
  const rows = explanation.transitions.map((step, index) => {
    const next = parseTime(explanation.transitions[index + 1]?.at);
    return el("tr", {},
      el("td", { className: "when" }, el("time", { dateTime: step.at, title: step.at }, timeOfDay(parseTime(step.at), true))),
      el("td", { className: "when" }, step.to), el("td", {}, step.cause),
      el("td", { className: "when" }, next === undefined ? ageElement({}, "since", parseTime(step.at)) : preciseDuration(next - parseTime(step.at))));
  });
  return [el("h3", {}, "Transitions"), table(["Time", "To", "Cause", "Duration"], rows)];
}

const preciseDuration = (ms) => (ms < 10_000 ? `${(ms / 1000).toFixed(ms < 100 ? 3 : 1)}s` : duration(ms));

function table(heads, rows) {
  return el("div", { className: "scrolls" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, rows)));
}

// Lets a long reason such as CreateContainerConfigError break between its words.
const breakable = (word) => word.replace(/([a-z])([A-Z])/g, "$1\u200b$2");

function eventsAndProblems(explanation) {
  const parts = [];
  if (explanation.problems?.length) {
    parts.push(el("h3", {}, "Manifest problems"), el("ul", {}, explanation.problems.map((problem) => el("li", { className: "event" }, problem))));
  }
  if (explanation.events.length) {
    parts.push(el("h3", {}, "Events"), el("ul", {}, [...explanation.events].reverse().map((event) => el("li", { className: "event" },
      el("span", { className: event.type === "Warning" ? "failing" : "finished" }, event.type === "Warning" ? glyph() : ""), " ",
      el("b", {}, event.reason), event.count > 1 ? ` ×${event.count}` : "", ": ", event.message, " ",
      ageElement({ className: "soft", "data-words": "# ago" }, "since", parseTime(event.last)),
      ...Object.entries(event.annotations ?? {}).map(([key, text]) => el("p", { className: "soft" }, `${key}: ${text}`))))));
  }
  return parts;
}

const exitHealth = (run) => (run.exitCode === 0 ? "finished" : "failing");
const exitText = (run) => `ended with exit code ${run.exitCode}${run.reason ? ` (${run.reason})` : ""}`;

// The lane of each container: its previous run, the pause after it, and its current or last run.
function containerLanes(explanation, now) {
  return explanation.containers.map((container) => {
    const spans = [];
    const addRun = (run) => {
      if (!run?.startedAt) return;
      const until = parseTime(run.finishedAt);
      spans.push({
        from: parseTime(run.startedAt), to: until ?? now, kind: until ? exitHealth(run) : "healthy",
        label: until ? `exit ${run.exitCode}` : "running", tooltip: `${container.name} ${until ? exitText(run) : "is running"}`,
      });
    };
    addRun(container.last);
    const pause = parseTime(container.last?.finishedAt);
    if (pause) {
      const until = parseTime(container.run?.startedAt) ?? now;
      spans.push({ from: pause, to: until, kind: "waiting", label: "waiting", tooltip: `${container.name} waits to restart` });
    }
    addRun(container.run);
    return { name: `container ${container.name}`, spans };
  }).filter((lane) => lane.spans.length);
}

function containerTable(explanation) {
  if (!explanation.containers.length) return [];
  const rows = explanation.containers.map((container) => {
    const { run, last } = container;
    const state = [breakable(container.reason ?? container.state)];
    if (container.state === "running" && container.kind !== "ephemeral") state.push(container.ready ? ", ready" : ", not ready");
    if (run?.startedAt && !run.finishedAt) state.push(", ", ageElement({ "data-words": "for #" }, "since", parseTime(run.startedAt)));
    const exit = container.state === "terminated" ? run : last;
    return el("tr", {},
      el("th", { scope: "row" }, container.name, container.kind === "regular" ? "" : el("span", { className: "soft" }, ` ${container.kind}`)),
      el("td", {}, el("span", { className: container.standing }, glyph()), " ", state),
      el("td", {}, String(container.restarts)),
      el("td", {}, exit ? [`${exit.exitCode}${exit.reason ? ` ${exit.reason}` : ""}`,
        exit.finishedAt ? [", ", ageElement({ "data-words": "# ago" }, "since", parseTime(exit.finishedAt))] : []].flat() : "none"));
  });
  return [el("h3", {}, "Containers"), table(["Name", "State", "Restarts", "Last exit"], rows)];
}

new ResizeObserver(() => { if (detail.explanation && !detail.explanation.missing) drawTimeline(); }).observe($("detail"));
