// The agent's state, the counts and the filters.

let agent;

function showAgent() {
  if (!agent) return;
  setText($("node"), `on ${agent.name}`);
  document.title = `${agent.name} · podwright`;
  $("stopping").hidden = !agent.stopping;
  const value = (health, text) => ({ health, text });
  const failure = (text, { since, error }) => ({ health: "failing", text: `${text} `, age: ["for #", since], cause: error });
  const runtime = agent.outage ? failure("does not answer", agent.outage) : agent.runtime ? value("healthy", "answers") : value("failing", "does not answer");
  const passes = agent.passFailure ? failure("passes fail", agent.passFailure) : agent.housekeeping === undefined ? value("waiting", "no pass yet")
    : { ...value(agent.late ? "failing" : "healthy", "last pass "), age: ["# ago", agent.housekeeping] };
  const sources = [...new Set(agent.locations.map((location) => location.source))].map((source) =>
    agent.missing.includes(source) ? value("waiting", `${source} has not delivered`) : value("healthy", `${source} delivered`));
  const resources = agent.pressures.length ? agent.pressures.map(({ condition, since, cause }) => failure(condition, { since, error: cause })) : [value("healthy", "enough")];
  const facts = [["Runtime", runtime, ...agent.conditions.map((condition) => value("failing", condition))], ["Resources", ...resources], ["Housekeeping", passes], ["Sources", ...sources], ["Version", { text: agent.version }],
    ["Up", { text: "", age: ["#", agent.started] }]];
  const definitions = $("agent").firstElementChild;
  if (!definitions.children.length) definitions.append(...facts.map(([name]) => el("div", {}, el("dt", {}, name))));
  facts.forEach(([, ...values], index) => showFact(definitions.children[index], values));
  $("problems").hidden = agent.problemCount === 0;
  // A source that has never delivered has no version that could run.
  const kept = agent.missing.length ? "" : ": the last good version keeps running";
  setText($("problems-title"), `${plural(agent.problemCount, "manifest problem")}${kept}`);
  replaceIfChanged($("problems").querySelector("ul"), [agent.problems, agent.problemCount], () => [
    ...agent.problems.map((problem) => el("li", {}, el("span", { className: "mono" }, problem.what), ": ", problem.message)),
    ...(agent.problemCount > agent.problems.length ? [el("li", {}, `and ${agent.problemCount - agent.problems.length} more, in the agent's log`)] : [])]);
  if (!pods.size) showEmpty();
}

// A fact has one `dd` for each value. If only the age of a value changes, only the age is replaced.
function showFact(fact, values) {
  while (fact.children.length > values.length + 1) fact.lastElementChild.remove();
  values.forEach(({ health, text, age, cause }, index) => {
    const value = fact.children[index + 1] ?? fact.appendChild(el("dd"));
    replaceIfChanged(value, [health, text, age?.[0], cause], () => [
      health && el("span", { className: health }, glyph()), health && " ", text,
      age && ageElement({ "data-words": age[0] }, "since", age[1]), cause && el("p", { className: "soft" }, cause)].filter(Boolean));
    const element = value.querySelector("[data-since]");
    if (!element || element.dataset.since === String(age[1])) return;
    element.dataset.since = age[1];
    updateAge(element);
  });
}

// Replaces the content of an element only if the data for it changed, so that a selection in it survives.
function replaceIfChanged(element, data, make) {
  const key = JSON.stringify(data);
  if (element.contentKey === key) return;
  element.contentKey = key;
  element.replaceChildren(...make());
}

function showEmpty() {
  if (!agent) return;
  const explanation = agent.missing.length
    ? `The ${agent.missing.join(" and ")} source has not delivered yet. Pods start when it does. The agent reads manifests from:`
    : "This node has no manifests. A pod starts when you add its manifest to one of these locations:";
  const sample = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: hello\nspec:\n  containers:\n  - name: main\n    image: none\n    command: [sh, -c, \"while date; do sleep 5; done\"]\n";
  const file = agent.locations.find((location) => location.source === "file");
  replaceIfChanged($("empty"), [agent.missing, agent.locations], () => [
    el("h2", {}, "No pods yet"),
    el("p", {}, explanation),
    el("ul", {}, agent.locations.map(({ location }) => el("li", {}, el("code", {}, location)))),
    el("p", {}, file ? "For example, as hello.yaml:" : "For example:"),
    el("pre", { tabIndex: 0, ariaLabel: "An example manifest" }, sample),
    el("p", {}, "If a manifest is there and no pod starts, run ", el("code", {}, `podwright validate ${file?.location ?? "FILE"}`), ". It prints each fault with its line and field.")]);
}

// Buttons are replaced only when the set of buttons changes. Counts are updated in place, so that no button loses the focus.
function filterButtons(parent, filters) {
  const buttons = new Map([...parent.children].map((button) => [button.dataset.name, button]));
  const visible = filters.filter((item) => item.count || item.on || item.always);
  if (visible.length !== buttons.size || visible.some((item) => !buttons.has(item.name))) {
    const focus = document.activeElement?.dataset?.name;
    parent.replaceChildren(...visible.map((item) => {
      const button = buttons.get(item.name) ?? el("button", { type: "button", "data-name": item.name },
        item.health ? glyph() : "", el("b"), el("span", {}, item.label));
      button.onclick = item.toggle;
      if (item.health) button.className = item.health;
      buttons.set(item.name, button);
      return button;
    }));
    if (focus) buttons.get(focus)?.focus({ preventScroll: true });
  }
  for (const item of visible) {
    const button = buttons.get(item.name);
    setText(button.querySelector("b"), (item.count ?? 0).toLocaleString("en"));
    const pressed = String(Boolean(item.on));
    if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
  }
}

function toggleFilter(set, value) {
  if (!set.delete(value)) set.add(value);
  filterChanged();
}

function drawSummary() {
  const counts = countPods(), all = pods.size;
  filterButtons($("healths"), [
    ...HEALTHS.map((health) => ({
      name: health, health, label: health, count: counts.health[health], always: true,
      on: filter.healths.has(health), toggle: () => toggleFilter(filter.healths, health),
    })),
    { name: "long", label: "waiting > 1 min", count: counts.long, always: true, on: filter.long, toggle: () => { filter.long = !filter.long; filterChanged(); } },
    { name: "recent", label: "restarted < 10 min", count: counts.recent, always: true, on: filter.recent, toggle: () => { filter.recent = !filter.recent; filterChanged(); } },
  ]);
  filterButtons($("phases"), PHASES.map((phase) => ({
    name: phase, label: phase, count: counts.phase[phase], on: filter.phases.has(phase), toggle: () => toggleFilter(filter.phases, phase),
  })));
  const share = $("share");
  if (!share.children.length) share.append(...HEALTHS.map((health) => el("span", { className: health })));
  for (const part of share.children) {
    part.style.flexGrow = counts.health[part.className] ?? 0;
    part.hidden = !counts.health[part.className];
  }
  fillSelect($("namespace"), "All namespaces", counts.namespaces, filter.namespace);
  fillSelect($("wait"), "Any wait", counts.waits, filter.wait);
  $("namespace").parentElement.hidden = counts.namespaces.size < 2 && !filter.namespace;
  setText($("count"), `${list.matching.length < all ? `${list.matching.length.toLocaleString("en")} of ` : ""}${all.toLocaleString("en")}, ${counts.active.toLocaleString("en")} active`);
  const loaded = agent !== undefined && !list.loading;
  $("summary").hidden = !all;
  $("split").hidden = !all && openPod === undefined;
  $("empty").hidden = Boolean(all) || !loaded || openPod !== undefined;
  $("none").hidden = list.matching.length > 0 || !all;
  $("grid").hidden = !list.matching.length;
  if (!all) showEmpty();
}

function fillSelect(select, every, counts, value) {
  const names = [...counts.keys()].sort();
  if (value && !counts.has(value)) names.push(value);
  const key = names.map((name) => `${name} ${counts.get(name) ?? 0}`).join("\n");
  // An open menu is not changed.
  if (select.contentKey === key || document.activeElement === select && select.contentKey !== undefined) return;
  select.contentKey = key;
  select.replaceChildren(el("option", { value: "" }, every),
    ...names.map((name) => el("option", { value: name }, `${name} (${counts.get(name) ?? 0})`)));
  select.value = value;
}

function filterChanged() {
  writeAddress();
  draw(true);
}

$("search").addEventListener("submit", (event) => event.preventDefault());
$("query").addEventListener("input", () => { filter.query = $("query").value.trim(); filterChanged(); });
for (const name of ["namespace", "wait", "sort"]) {
  $(name).addEventListener("change", () => { filter[name] = $(name).value; filterChanged(); });
}
$("clear").addEventListener("click", () => {
  Object.assign(filter, { query: "", healths: new Set(), phases: new Set(), namespace: "", wait: "", long: false, recent: false });
  $("query").value = "";
  for (const name of ["namespace", "wait"]) $(name).value = "";
  filterChanged();
  $("query").focus();
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    event.preventDefault();
    $("query").focus();
  }
});
