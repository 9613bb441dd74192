// The agent itself, and the numbers.

let agent;

function showAgent() {
  if (!agent) return;
  text($("node"), `on ${agent.name}`);
  document.title = `${agent.name} · podwright`;
  $("stopping").hidden = !agent.stopping;
  const told = (health, words) => ({ health, words });
  const fails = (words, ill) => ({ health: "failing", words: `${words} `, age: ["for #", ill.since], why: ill.error });
  const runtime = agent.outage ? fails("does not answer", agent.outage) : agent.runtime ? told("healthy", "answers") : told("failing", "does not answer");
  const passes = agent.early ? fails("passes end early", agent.early) : agent.housekeeping === undefined ? told("waiting", "has not passed yet")
    : { ...told(agent.late ? "failing" : "healthy", "passed "), age: ["# ago", agent.housekeeping] };
  const sources = [...new Set(agent.places.map((place) => place.source))].map((source) =>
    agent.missing.includes(source) ? told("waiting", `${source} has not delivered`) : told("healthy", `${source} delivered`));
  const facts = [["Runtime", runtime, ...agent.lacks.map((why) => told("failing", why))], ["Housekeeping", passes], ["Sources", ...sources], ["Version", { words: agent.version }],
    ["Up", { words: "", age: ["#", agent.started] }]];
  const into = $("agent").firstElementChild;
  if (!into.children.length) into.append(...facts.map(([name]) => el("div", {}, el("dt", {}, name))));
  facts.forEach(([, ...values], index) => showFact(into.children[index], values));
  $("problems").hidden = agent.problemCount === 0;
  // Of a source that never delivered nothing runs.
  const kept = agent.missing.length ? "" : ": what runs is the last good version";
  text($("problems-title"), `${plural(agent.problemCount, "manifest problem")}${kept}`);
  hold($("problems").querySelector("ul"), [agent.problems, agent.problemCount], () => [
    ...agent.problems.map((problem) => el("li", {}, el("span", { className: "mono" }, problem.what), ": ", problem.message)),
    ...(agent.problemCount > agent.problems.length ? [el("li", {}, `and ${agent.problemCount - agent.problems.length} more, in the agent's log`)] : [])]);
  if (!pods.size) showEmpty();
}

// A fact is a `dd` for each value; of one that only grew older, only the age is told anew.
function showFact(fact, values) {
  while (fact.children.length > values.length + 1) fact.lastElementChild.remove();
  values.forEach(({ health, words, age, why }, index) => {
    const value = fact.children[index + 1] ?? fact.appendChild(el("dd"));
    hold(value, [health, words, age?.[0], why], () => [
      health && el("span", { className: health }, glyph()), health && " ", words,
      age && aged({ "data-words": age[0] }, "since", age[1]), why && el("p", { className: "soft" }, why)].filter(Boolean));
    const told = value.querySelector("[data-since]");
    if (!told || told.dataset.since === String(age[1])) return;
    told.dataset.since = age[1];
    retell(told);
  });
}

// Replaces what an element holds only if that is told of differs: what somebody has selected there stays so.
function hold(element, told, make) {
  const said = JSON.stringify(told);
  if (element.said === said) return;
  element.said = said;
  element.replaceChildren(...make());
}

function showEmpty() {
  if (!agent) return;
  const waits = agent.missing.length
    ? `The ${agent.missing.join(" and ")} source has not delivered yet; pods start when it does. Manifests are read from:`
    : "Nothing is wanted here, and nothing runs. A pod starts as soon as its manifest is put where manifests are read from:";
  const sample = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: hello\nspec:\n  containers:\n  - name: main\n    image: none\n    command: [sh, -c, \"while date; do sleep 5; done\"]\n";
  const file = agent.places.find((place) => place.source === "file");
  hold($("empty"), [agent.missing, agent.places], () => [
    el("h2", {}, "No pods yet"),
    el("p", {}, waits),
    el("ul", {}, agent.places.map((place) => el("li", {}, el("code", {}, place.place)))),
    el("p", {}, file ? "For instance, as hello.yaml:" : "For instance:"),
    el("pre", { tabIndex: 0, ariaLabel: "An example manifest" }, sample),
    el("p", {}, "Is there one, and nothing happens? ", el("code", {}, `podwright validate ${file?.place ?? "FILE"}`), " tells what is wrong with it, by line and field.")]);
}

// Which buttons there are changes seldom; their numbers are set in place, so that none loses the focus.
function chips(into, all) {
  const have = new Map([...into.children].map((button) => [button.dataset.name, button]));
  const want = all.filter((chip) => chip.count || chip.on || chip.always);
  if (want.length !== have.size || want.some((chip) => !have.has(chip.name))) {
    const focus = document.activeElement?.dataset?.name;
    into.replaceChildren(...want.map((chip) => {
      const button = have.get(chip.name) ?? el("button", { type: "button", "data-name": chip.name },
        chip.health ? glyph() : "", el("b"), el("span", {}, chip.words));
      button.onclick = chip.toggle;
      if (chip.health) button.className = chip.health;
      have.set(chip.name, button);
      return button;
    }));
    if (focus) have.get(focus)?.focus({ preventScroll: true });
  }
  for (const chip of want) {
    const button = have.get(chip.name);
    text(button.querySelector("b"), (chip.count ?? 0).toLocaleString("en"));
    const pressed = String(Boolean(chip.on));
    if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
  }
}

function flip(set, value) {
  if (!set.delete(value)) set.add(value);
  asked();
}

function summarise() {
  const sum = tally(), all = pods.size;
  chips($("healths"), [
    ...HEALTHS.map((health) => ({
      name: health, health, words: health, count: sum.health[health], always: true,
      on: wish.healths.has(health), toggle: () => flip(wish.healths, health),
    })),
    { name: "long", words: "waiting > 1 min", count: sum.long, always: true, on: wish.long, toggle: () => { wish.long = !wish.long; asked(); } },
    { name: "recent", words: "restarted < 10 min", count: sum.recent, always: true, on: wish.recent, toggle: () => { wish.recent = !wish.recent; asked(); } },
  ]);
  chips($("phases"), PHASES.map((phase) => ({
    name: phase, words: phase, count: sum.phase[phase], on: wish.phases.has(phase), toggle: () => flip(wish.phases, phase),
  })));
  const share = $("share");
  if (!share.children.length) share.append(...HEALTHS.map((health) => el("span", { className: health })));
  for (const part of share.children) {
    part.style.flexGrow = sum.health[part.className] ?? 0;
    part.hidden = !sum.health[part.className];
  }
  options($("namespace"), "All namespaces", sum.namespaces, wish.namespace);
  options($("wait"), "Any wait", sum.waits, wish.wait);
  $("namespace").parentElement.hidden = sum.namespaces.size < 2 && !wish.namespace;
  text($("count"), `${list.shown.length < all ? `${list.shown.length.toLocaleString("en")} of ` : ""}${all.toLocaleString("en")}, ${sum.active.toLocaleString("en")} active`);
  const loaded = agent !== undefined && !list.loading;
  $("summary").hidden = !all;
  $("split").hidden = !all && chosen === undefined;
  $("empty").hidden = Boolean(all) || !loaded || chosen !== undefined;
  $("none").hidden = list.shown.length > 0 || !all;
  $("grid").hidden = !list.shown.length;
  if (!all) showEmpty();
}

function options(select, every, counts, value) {
  const names = [...counts.keys()].sort();
  if (value && !counts.has(value)) names.push(value);
  const said = names.map((name) => `${name} ${counts.get(name) ?? 0}`).join("\n");
  // An open choice is left alone.
  if (select.said === said || document.activeElement === select && select.said !== undefined) return;
  select.said = said;
  select.replaceChildren(el("option", { value: "" }, every),
    ...names.map((name) => el("option", { value: name }, `${name} (${counts.get(name) ?? 0})`)));
  select.value = value;
}

function asked() {
  remember();
  draw(true);
}

$("search").addEventListener("submit", (event) => event.preventDefault());
$("query").addEventListener("input", () => { wish.query = $("query").value.trim(); asked(); });
for (const name of ["namespace", "wait", "sort"]) {
  $(name).addEventListener("change", () => { wish[name] = $(name).value; asked(); });
}
$("clear").addEventListener("click", () => {
  Object.assign(wish, { query: "", healths: new Set(), phases: new Set(), namespace: "", wait: "", long: false, recent: false });
  $("query").value = "";
  for (const name of ["namespace", "wait"]) $(name).value = "";
  asked();
  $("query").focus();
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    event.preventDefault();
    $("query").focus();
  }
});
