use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::*;
use crate::agent::page::rows::tests::{node, pod, running};

/// A node whose pods all change between two inspections.
struct ChangingNode {
    pods: usize,
    inspections: Arc<AtomicU32>,
}

impl InspectNode for ChangingNode {
    fn inspect(&self) -> NodeSnapshot<'_> {
        let inspection = self.inspections.fetch_add(1, Ordering::SeqCst);
        let status = |name: &str| {
            if inspection.is_multiple_of(2) { running() } else { json!({"phase": "Failed", "reason": name}) }
        };
        let pods = (0..self.pods).map(|n| format!("pod-{n:04}")).map(|name| pod(&name, status(&name))).collect();
        let now = Time::from_secs(100 + u64::from(inspection));
        NodeSnapshot { now, agent: AgentState::default(), node: node(), pods, nearest_wait: Box::new(|_| None) }
    }
}

fn changing_node(pods: usize) -> (Arc<NodeWatch>, Arc<AtomicU32>, signal::Sender<u64>) {
    let (signal, changes) = signal::channel(0);
    let node = ChangingNode { pods, inspections: Arc::default() };
    let inspections = node.inspections.clone();
    (Arc::new(NodeWatch::new(node, changes)), inspections, signal)
}

/// The name and the data of an event.
fn read(event: &Bytes) -> (String, Value) {
    let text = std::str::from_utf8(event).unwrap();
    let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
    (name.to_owned(), serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_watcher_receives_all_rows_in_parts_and_then_changes() {
    let (watch, _, _signal) = changing_node(600);
    let mut events = pin!(watch.events().unwrap());
    let mut messages = Vec::new();
    for _ in 0..5 {
        messages.push(read(&events.next().await.unwrap().unwrap()));
    }
    let names: Vec<&str> = messages.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["agent", "rows", "rows", "rows", "change"]);
    let part = |n: usize| {
        (messages[n].1["from"].as_u64(), messages[n].1["rows"].as_array().map(Vec::len), &messages[n].1["of"])
    };
    assert_eq!(part(1), (Some(0), Some(250), &600.into()));
    assert_eq!(part(3), (Some(500), Some(100), &600.into()));
    assert_eq!(messages[4].1["rows"].as_array().map(Vec::len), Some(600));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_of_an_empty_node_receives_no_rows_and_then_beats() {
    let (watch, _, _signal) = changing_node(0);
    let mut events = pin!(watch.events().unwrap());
    let begun = Instant::now();
    let mut names = Vec::new();
    for _ in 0..3 {
        names.push(read(&events.next().await.unwrap().unwrap()).0);
    }
    assert_eq!(names, ["agent", "rows", "beat"]);
    assert!(begun.elapsed() <= BEAT + TICK, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn watchers_share_inspections_and_without_watchers_there_are_none() {
    let (watch, inspections, signal) = changing_node(3);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(inspections.load(Ordering::SeqCst), 0);

    let mut all: Vec<_> = (0..10).map(|_| Box::pin(watch.events().unwrap())).collect();
    let begun = Instant::now();
    for events in &mut all {
        for _ in 0..5 {
            events.next().await.unwrap().unwrap();
        }
    }
    // The number of inspections is limited, however often pods change.
    for n in 0..1000 {
        signal.send_replace(n);
        sleep(Duration::from_millis(5)).await;
    }
    let most = begun.elapsed().as_millis() / PAUSE.as_millis() + 2;
    let inspected = inspections.load(Ordering::SeqCst);
    assert!(inspected > 10 && u128::from(inspected) <= most, "{inspected} inspections in {:?}", begun.elapsed());

    drop(all);
    sleep(2 * TICK).await;
    let inspected = inspections.load(Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(inspections.load(Ordering::SeqCst), inspected);
    assert!(watch.published.lock().rows.rows().is_empty(), "nothing is kept");
}

#[tokio::test(start_paused = true)]
async fn a_slow_watcher_receives_the_whole_state_again() {
    let (watch, _, _signal) = changing_node(3);
    let mut events = pin!(watch.events().unwrap());
    for _ in 0..2 {
        events.next().await.unwrap().unwrap();
    }
    sleep(2 * TICK * u32::try_from(MAX_UNREAD).unwrap()).await;
    let again: Vec<String> =
        [events.next().await, events.next().await].into_iter().map(|event| read(&event.unwrap().unwrap()).0).collect();
    assert_eq!(again, ["agent", "rows"]);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_watchers_is_limited() {
    let (watch, _, _signal) = changing_node(0);
    let all: Vec<_> = (0..MAX_WATCHERS).map(|_| watch.events().unwrap()).collect();
    assert!(watch.events().is_none());
    drop(all);
    assert!(watch.events().is_some());
}
