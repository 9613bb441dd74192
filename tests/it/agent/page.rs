//! The page at `/` of a real agent, in a real browser.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::json;

use super::harness::{Agent, AgentHome, manifest};
use crate::support::browser::{Browser, Key};
use crate::support::processes::PATIENCE;

const SLEEPS: &str = "exec sleep 1000";
const ESCAPE: Key = Key("Escape", 27);
const ENTER: Key = Key("Enter", 13);
const DOWN: Key = Key("ArrowDown", 40);

/// JavaScript that returns every visible text whose contrast is below the limit of WCAG 2.2 AA.
const FAINT: &str = r#"(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
  const faint = [];
  for (const e of document.body.querySelectorAll("*")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest("svg, noscript, select, .sr") || !e.checkVisibility()) continue;
    const [a, b] = [light(rgba(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(`${e.className}: ${e.textContent.slice(0, 40)}`);
  }
  return faint.join("; ");
})()"#;

/// The address of the page without its token.
fn url(agent: &Agent) -> String {
    agent.link().split_once("#token=").unwrap().0.to_owned()
}

/// JavaScript that checks whether one row contains all these words.
fn row(words: &[&str]) -> String {
    let all: Vec<String> = words.iter().map(|word| format!("r.innerText.includes({word:?})")).collect();
    format!("[...document.querySelectorAll('#rows .row')].some((r) => {})", all.join(" && "))
}

async fn readable(browser: &mut Browser) {
    for scheme in ["light", "dark"] {
        browser.scheme(scheme).await;
        assert_eq!(browser.eval(FAINT).await, "", "{scheme}");
    }
    let grounds = "getComputedStyle(document.body).backgroundColor";
    let dark = browser.eval(grounds).await;
    browser.scheme("light").await;
    assert_ne!(browser.eval(grounds).await, dark);
}

async fn fits(browser: &mut Browser) {
    let wide = browser.eval("document.documentElement.scrollWidth").await;
    assert_eq!(wide, 360, "scrolls sideways");
}

#[tokio::test]
async fn page_shows_pods_with_their_waits_and_reconnects() {
    let Some(mut browser) = Browser::start().await else { return };
    let home = AgentHome::new();
    home.put("crash.yaml", &manifest("crash", "exit 3", ""));
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    let agent = home.start(&[]).await;
    let address = agent.admin().to_string();
    browser.size(1280, 900).await;
    browser.open(&agent.link()).await;
    browser.until("a row shows the running pod", &row(&["default/web-n1", "Running", "1/1"])).await;
    browser
        .until(
            "a row shows the crash backoff",
            &row(&["crash-n1", "CrashLoopBackOff", "the crash backoff of container main", " left"]),
        )
        .await;
    browser
        .until(
            "the failing pod is listed first",
            "document.querySelector('#rows .row[aria-rowindex=\"2\"] .name').innerText === 'crash-n1'",
        )
        .await;
    browser
        .until("the failing pod is counted", "document.querySelector('[data-name=failing] b').innerText === '1'")
        .await;

    home.put("late.yaml", &manifest("late", SLEEPS, ""));
    browser.until("a new pod is shown", &row(&["late-n1", "Running"])).await;
    home.remove("late.yaml");
    browser.until("the removed pod is no longer shown", &format!("!{}", row(&["late-n1"]))).await;

    // By keyboard alone.
    browser.eval("document.querySelector('#rows .row').focus()").await;
    browser.press(DOWN).await;
    browser.until("the next row has the focus", "document.activeElement.innerText.includes('web-n1')").await;
    browser.press(ENTER).await;
    browser
        .until(
            "the pod is opened",
            "location.hash === '#default/web-n1' && document.activeElement.id === 'detail-title'",
        )
        .await;
    browser.press(ESCAPE).await;
    browser
        .until(
            "the focus is on the row again",
            "document.activeElement.innerText.includes('web-n1') && document.querySelector('#detail').hidden",
        )
        .await;

    browser.eval("location.hash = '#default/crash-n1'").await;
    let has_text = |words: &str| format!("document.querySelector('#detail').innerText.includes({words:?})");
    browser.until("the detail shows the wait", &has_text("container \"main\" waits out its crash backoff")).await;
    browser.until("the detail shows what releases the wait", &has_text("released by:")).await;
    browser
        .until("the timeline shows the healthy phases", "document.querySelectorAll('#drawing rect.healthy').length > 0")
        .await;
    browser.until("the timeline shows the events", "document.querySelectorAll('#drawing .mark').length > 2").await;
    browser.until("the detail shows the last exit", &has_text("3 Error")).await;
    let lane = "[...document.querySelectorAll('#drawing text')].some((t) => t.textContent === 'container main')";
    browser.until("the timeline shows the runs of the container", lane).await;
    browser.until("the detail lists the transitions", &has_text("allowed to start")).await;
    readable(&mut browser).await;
    browser.size(360, 740).await;
    browser
        .until("the detail hides the list on a narrow screen", "document.querySelector('#pods').offsetParent === null")
        .await;
    fits(&mut browser).await;
    browser.eval("document.querySelector('#close').click()").await;
    browser.until("the list is shown again", &row(&["crash-n1"])).await;
    fits(&mut browser).await;
    readable(&mut browser).await;
    assert_eq!(browser.complaints(&url(&agent)), Vec::<String>::new());

    agent.crash().await;
    browser.until("the page reports the lost connection", "!document.querySelector('#lost').hidden").await;
    fits(&mut browser).await;
    // Before each attempt to connect, the page reads whether it is hidden. The test counts these reads.
    let hide = |hidden: bool| {
        format!(
            "{{ window.reads = 0; \
             Object.defineProperty(document, 'hidden', {{ configurable: true, get: () => {{ window.reads += 1; return {hidden}; }} }}); \
             document.dispatchEvent(new Event('visibilitychange')); }}"
        )
    };
    browser.eval(&hide(true)).await;
    let mut agent = home.start(&["--admin", &address]).await;
    browser.until("the page reads whether it is hidden", "window.reads > 3").await;
    let lost = browser.eval("!document.querySelector('#lost').hidden").await;
    assert_eq!(lost, true, "a hidden page does not connect");
    browser.eval(&hide(false)).await;
    browser
        .until("the page asks for the new link", "document.querySelector('#lost').innerText.includes('podwright link')")
        .await;
    browser.eval(&format!("location.href = {:?}", agent.link())).await;
    browser.until("the page is connected again", "document.querySelector('#lost').hidden").await;
    assert_eq!(browser.eval("location.href").await, url(&agent), "the address does not keep the token");
    browser.until("the page shows the pods again", &row(&["web-n1", "Running"])).await;

    // The agent does not wait for its open page to be closed.
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0), "{}", agent.logged());
    browser.close().await;
}

#[tokio::test]
async fn page_renders_pod_and_manifest_content_as_text() {
    let Some(mut browser) = Browser::start().await else { return };
    let home = AgentHome::new();
    let hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
    let command = format!("[{}]", serde_json::to_string(&format!("/nowhere/{hostile}")).unwrap());
    let pod = manifest("hostile", SLEEPS, "").replace("[/bin/sh, -c, \"exec sleep 1000\"]", &command);
    assert!(pod.contains("onerror"), "{pod}");
    home.put("hostile.yaml", &pod);
    home.put("<img src=x onerror=alert(1)>.yaml", "kind: [\n");
    let agent = home.start(&[]).await;
    browser.open(&agent.link()).await;
    browser.until("the page lists the pod", &row(&["hostile-n1"])).await;
    browser.eval("location.hash = '#default/hostile-n1'").await;
    browser
        .until(
            "the detail shows the message",
            "document.querySelector('#detail').innerText.includes('<script>document')",
        )
        .await;
    browser.eval("document.querySelector('#problems details').open = true").await;
    browser
        .until("the problems name the manifest", "document.querySelector('#problems').innerText.includes('<img src=x')")
        .await;
    assert_eq!(browser.eval("document.querySelectorAll('img, script').length").await, 1);
    assert_ne!(browser.eval("document.title").await, "owned");
    browser.eval("location.hash = '#default/' + encodeURIComponent('<img src=x onerror=alert(1)>')").await;
    browser
        .until(
            "the page reports that the pod does not exist",
            "document.querySelector('#facts').innerText.includes('there is no pod')",
        )
        .await;
    assert_eq!(browser.eval("document.querySelectorAll('img').length").await, 0);

    // Even if a script could be inserted, the content security policy would not let it run.
    browser.eval("document.body.append(Object.assign(document.createElement('script'), { textContent: 'document.title = \"owned\"' }))").await;
    assert_ne!(browser.eval("document.title").await, "owned");
    browser.close().await;
}

#[tokio::test]
async fn page_without_pods_shows_the_manifest_paths() {
    let Some(mut browser) = Browser::start().await else { return };
    let home = AgentHome::new();
    let agent = home.start(&[]).await;
    browser.size(360, 740).await;
    browser.open(&agent.link()).await;
    let where_ = format!("document.querySelector('#empty').innerText.includes({:?})", home.manifests());
    browser.until("the page shows the manifest directory", &where_).await;
    fits(&mut browser).await;
    readable(&mut browser).await;
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    browser.until("the first pod is shown", &row(&["web-n1"])).await;
    browser.until("the hint is hidden", "document.querySelector('#empty').hidden").await;
    assert_eq!(browser.complaints(&url(&agent)), Vec::<String>::new());
    browser.close().await;
}

/// JavaScript that replaces the agent: `feed.send` sends an event to the page, and `answer` answers what the page fetches. On a slow
/// machine the page may connect again, because it gets no event for some seconds. As from an agent, it gets everything then.
const FAKE_AGENT: &str = r#"
  const encoder = new TextEncoder();
  window.fetched = [];
  window.sent = [];
  window.fetch = async (path) => {
    window.fetched.push(path);
    if (path !== "/watch" || window.refusal) return window.refusal?.() ?? window.answer(path);
    return new Response(new ReadableStream({ start(to) {
      const pass = ([name, what]) => to.enqueue(encoder.encode(`event: ${name}\ndata: ${JSON.stringify({ now: Date.now(), ...what })}\n\n`));
      window.sent.forEach(pass);
      window.feed = {
        send: (...event) => { window.sent.push(event); pass(event); },
        end: () => to.close(),
      };
    } }));
  };
  window.sendAgent = (more) => feed.send("agent", { page: "p", version: "1", name: "n1", started: 0, stopping: false, pressures: [],
    locations: [{ source: "http", location: "http://home" }], missing: ["http"], conditions: ["no disk"], problemCount: 1,
    problems: [{ what: "http://home", message: "no answer (refused)" }],
    runtime: true, housekeeping: Date.now(), late: false, ...more });
  window.row = (uid, health) => ({ uid, namespace: "default", name: "web", health, phase: "Running", state: "Running", ready: 1, containers: 1, restarts: 0 });
"#;

#[tokio::test]
async fn page_header_shows_runtime_outage_and_keeps_the_selection() {
    let Some(mut browser) = Browser::start().await else { return };
    let home = AgentHome::new();
    let agent = home.start(&[]).await;
    browser.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": FAKE_AGENT})).await;
    browser.size(360, 740).await;
    browser.open(&agent.link()).await;
    browser.until("the page connects", "window.feed !== undefined").await;
    browser.eval("sendAgent({})").await;
    browser.eval("feed.send('rows', { rows: [row('one', 'healthy')], from: 0, of: 1 })").await;
    browser.eval("document.querySelector('#problems details').open = true").await;
    let select = "getSelection().selectAllChildren(document.querySelector('#problems li'))";
    browser.eval(select).await;
    let gone = "{ since: Date.now() - 90000, error: 'nobody listens at ' + '/run'.repeat(50) }";
    browser.eval(&format!("sendAgent({{ outage: {gone}, passFailure: {gone}, runtime: false }})")).await;
    let has_text = |words: &str| format!("document.querySelector('#agent').innerText.includes({words:?})");
    browser.until("the page reports the runtime outage", &has_text("does not answer for 90s")).await;
    browser.until("the page reports the failing passes", &has_text("passes fail for 90s")).await;
    assert_eq!(browser.eval(&has_text("nobody listens")).await, true);
    fits(&mut browser).await;
    readable(&mut browser).await;
    browser.eval("sendAgent({})").await;
    browser
        .until(
            "the page no longer reports the outage",
            &format!("{} && !{}", has_text("last pass "), has_text("nobody")),
        )
        .await;
    assert_eq!(browser.eval("getSelection().toString()").await, "http://home: no answer (refused)");

    assert_eq!(browser.eval(&has_text("no disk")).await, true, "the page shows the missing condition");

    // A source that never delivered has no good version that could keep running.
    let kept = "document.querySelector('#problems-title').innerText.endsWith('the last good version keeps running')";
    assert_eq!(browser.eval(kept).await, false);
    browser.eval("sendAgent({ missing: [] })").await;
    browser.until("the page reports that the last good version keeps running", kept).await;

    browser
        .eval("window.refusal = () => new Response('64 pages are open, which is the limit: close one of them\\n', { status: 503 })")
        .await;
    browser.eval("feed.end()").await;
    let lost = "document.querySelector('#lost-text').innerText.includes('64 pages are open')";
    browser.until("the page shows why the connection was refused", lost).await;
    browser.eval("window.refusal = () => new Response('this path needs a token\\n', { status: 401 })").await;
    browser.eval("document.querySelector('#lost-now').click()").await;
    let link = "document.querySelector('#lost').innerText.includes('podwright link')";
    browser.until("the page says how to get its link", link).await;
    fits(&mut browser).await;
    readable(&mut browser).await;

    // A program of another version answers. It may be any program that listens while the agent is away.
    browser.eval("window.refusal = undefined").await;
    browser.eval("document.querySelector('#lost-now').click()").await;
    browser.until("the page is connected again", "document.querySelector('#lost').hidden").await;
    browser.eval("window.isFirstDocument = true").await;
    browser.eval("{ window.sent.length = 0; sendAgent({ page: 'q', name: 'node-q' }); }").await;
    let asks = format!("!document.querySelector('#lost').hidden && {link}");
    browser.until("the page asks for the link of the other agent", &asks).await;
    assert_eq!(browser.eval("window.isFirstDocument").await, true, "the page was loaded again");
    assert_eq!(browser.eval(&has_text("node-q")).await, false, "the page shows the other agent");
    browser.close().await;
}

#[tokio::test]
async fn page_opens_each_of_two_pods_with_one_name() {
    let Some(mut browser) = Browser::start().await else { return };
    let home = AgentHome::new();
    let agent = home.start(&[]).await;
    browser.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": FAKE_AGENT})).await;
    browser.size(1280, 900).await;
    browser.open(&agent.link()).await;
    browser.until("the page connects", "window.feed !== undefined").await;
    let answer = "window.answer = (path) => { const uid = new URL(path, location).searchParams.get('uid'); \
        return Response.json({ uid, namespace: 'default', name: 'web', state: 'Running', phase: 'Running', desired: true, chain: [], \
        transitions: [], events: [], others: [{ uid: uid === 'old' ? 'new' : 'old', lifecycle: 'sync' }], \
        containers: [{ name: 'main', kind: 'regular', state: 'waiting', standing: 'failing', ready: false, restarts: 0 }] }); }";
    browser.eval(&format!("{{ {answer} }}")).await;
    browser.eval("sendAgent({})").await;
    browser.eval("feed.send('rows', { rows: [row('new', 'waiting'), row('old', 'healthy')], from: 0, of: 2 })").await;
    browser.until("the page lists both pods", "document.querySelectorAll('#rows .row').length === 2").await;
    browser.eval("document.querySelector('#rows .row.healthy').click()").await;
    browser.until("the page opens the older pod", "location.hash === '#default/web/old'").await;
    browser
        .until("the page fetches the older pod by UID", "window.fetched.some((path) => path.endsWith('&uid=old'))")
        .await;
    browser
        .until("the detail marks the failing container", "document.querySelector('#more td .failing') !== null")
        .await;
    let selected = "[...document.querySelectorAll('[aria-selected=true]')].map((row) => row.className).join()";
    browser.until("only the row of the older pod is marked", &format!("{selected} === 'row healthy'")).await;
    browser.eval("document.querySelector('#more a').click()").await;
    browser.until("a link opens the newer pod", "location.hash === '#default/web/new'").await;
    browser.until("the row of the newer pod is marked", &format!("{selected} === 'row waiting'")).await;
    browser.close().await;
}

#[tokio::test]
async fn page_lists_searches_and_scrolls_five_thousand_pods() {
    let Some(mut browser) = Browser::start().await else { return };
    let home = AgentHome::new();
    let one = manifest("NAME", "exit 0", "");
    let all: Vec<String> = (0..5000).map(|n| one.replace("NAME", &format!("pod-{n:04}"))).collect();
    for (n, some) in all.chunks(500).enumerate() {
        home.put(&format!("{n}.yaml"), &some.join("---\n"));
    }
    // The node admits 500 pods, whose containers end soon after each start. It rejects the other pods.
    let lives = ["--runtime", "simulated", "--max-pods", "500", "--simulate", "run-for=100ms..5s"];
    let agent = home.start(&lives).await;
    browser.size(1280, 900).await;
    browser.open(&agent.link()).await;
    browser.until("the page counts all pods", "document.querySelector('#count').innerText.startsWith('5,000')").await;
    let drawn = "document.querySelectorAll('#rows .row').length";
    let elements = browser.eval(drawn).await;
    assert!(elements.as_u64().is_some_and(|rows| rows > 5 && rows < 60), "{elements}");
    browser.eval("scrollTo(0, document.documentElement.scrollHeight)").await;
    browser
        .until(
            "the page shows the last row",
            "[...document.querySelectorAll('#rows .row')].some((r) => r.ariaRowIndex === '5001')",
        )
        .await;

    let search = |query: &str| {
        format!(
            "{{ const q = document.querySelector('#query'); q.value = '{query}'; q.dispatchEvent(new Event('input')) }}"
        )
    };
    browser.eval(&search("pod-47")).await;
    browser
        .until("the search narrows the list", "document.querySelector('#count').innerText.startsWith('100 of 5,000')")
        .await;
    browser.until("the address contains the search", "location.search === '?q=pod-47'").await;
    // The list follows state changes of the pods without another search.
    browser.eval(&search("crashloopbackoff")).await;
    browser.until("some pods back off", "/^[1-9]\\d* of 5,000/.test(document.querySelector('#count').innerText)").await;
    browser.until("more pods back off", "parseInt(document.querySelector('#count').innerText) > 20").await;
    // The list became shorter than the place that was scrolled to. The scroll event of that draws the rows.
    browser.until("the page draws a part of the list", &format!("{drawn} > 5 && {drawn} < 60")).await;
    assert_eq!(browser.complaints(&url(&agent)), Vec::<String>::new());
    browser.close().await;
}

#[tokio::test]
async fn page_is_cached_and_cross_site_requests_are_refused() {
    let home = AgentHome::new();
    let agent = home.start(&[]).await;
    let token = agent.authorization();
    let get = |path: &str, headers: &str| {
        let mut stream = TcpStream::connect(agent.admin()).unwrap();
        // An accepted `/watch` request never ends, so reads have a timeout.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n{token}{headers}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let page = get("/", "");
    let head = page.split_once("\r\n\r\n").unwrap().0.to_ascii_lowercase();
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'sha256-"), "{head}");
    assert!(!head.contains("unsafe"), "{head}");
    let etag = page.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    assert!(get("/", &format!("If-None-Match: {etag}\r\n")).starts_with("HTTP/1.0 304"));
    for site in ["cross-site", "same-site"] {
        let script = format!("Sec-Fetch-Site: {site}\r\n");
        let link = format!("{script}Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n");
        let frame = format!("{script}Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n");
        // A window that another site opens sends the same headers as a link.
        for path in ["/recording", "/watch", "/explain"] {
            for how in [&script, &link, &frame] {
                assert!(get(path, how).starts_with("HTTP/1.0 403"), "{path} {how}");
            }
        }
        assert!(get("/", &link).starts_with("HTTP/1.0 200"), "a link on another site opens the page");
        assert!(get("/", &frame).starts_with("HTTP/1.0 403"), "another site cannot embed the page");
    }
    let answer = get("/explain", "Sec-Fetch-Site: same-origin\r\n");
    assert!(answer.starts_with("HTTP/1.0 200") && answer.contains("x-content-type-options: nosniff"), "{answer}");
    assert!(get("/", "Host: evil.example\r\n").starts_with("HTTP/1.0 403"));
}
