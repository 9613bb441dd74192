use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::*;
use crate::agent::page::board::tests::{node, pod, runs};

/// A node whose pods are all new at every look.
struct Restless {
    pods: usize,
    looks: Arc<AtomicU32>,
}

impl Eyes for Restless {
    fn look(&self) -> Seen<'_> {
        let look = self.looks.fetch_add(1, Ordering::SeqCst);
        let status =
            |name: &str| if look.is_multiple_of(2) { runs() } else { json!({"phase": "Failed", "reason": name}) };
        let pods = (0..self.pods).map(|n| format!("pod-{n:04}")).map(|name| pod(&name, status(&name))).collect();
        let at = Time::from_secs(100 + u64::from(look));
        Seen { at, agent: Agent::default(), node: node(), pods, nearest: Box::new(|_| None) }
    }
}

fn restless(pods: usize) -> (Arc<Watch>, Arc<AtomicU32>, signal::Sender<u64>) {
    let (tell, changes) = signal::channel(0);
    let eyes = Restless { pods, looks: Arc::default() };
    let looks = eyes.looks.clone();
    (Arc::new(Watch::new(eyes, changes)), looks, tell)
}

/// The name and the data of an event.
fn read(event: &Bytes) -> (String, Value) {
    let text = std::str::from_utf8(event).unwrap();
    let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
    (name.to_owned(), serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn who_comes_is_told_all_rows_in_parts_and_then_what_changes() {
    let (watch, _, _tell) = restless(600);
    let mut events = pin!(watch.events().unwrap());
    let mut told = Vec::new();
    for _ in 0..5 {
        told.push(read(&events.next().await.unwrap().unwrap()));
    }
    let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["agent", "rows", "rows", "rows", "change"]);
    let part = |n: usize| (told[n].1["from"].as_u64(), told[n].1["rows"].as_array().map(Vec::len), &told[n].1["of"]);
    assert_eq!(part(1), (Some(0), Some(250), &600.into()));
    assert_eq!(part(3), (Some(500), Some(100), &600.into()));
    assert_eq!(told[4].1["rows"].as_array().map(Vec::len), Some(600));
}

#[tokio::test(start_paused = true)]
async fn a_node_without_pods_is_told_as_such_and_silence_is_broken() {
    let (watch, _, _tell) = restless(0);
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
async fn nobody_looks_while_nobody_watches_and_all_share_a_look() {
    let (watch, looks, tell) = restless(3);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(looks.load(Ordering::SeqCst), 0);

    let mut all: Vec<_> = (0..10).map(|_| Box::pin(watch.events().unwrap())).collect();
    let begun = Instant::now();
    for events in &mut all {
        for _ in 0..5 {
            events.next().await.unwrap().unwrap();
        }
    }
    // However often something changes.
    for n in 0..1000 {
        tell.send_replace(n);
        sleep(Duration::from_millis(5)).await;
    }
    let most = begun.elapsed().as_millis() / PAUSE.as_millis() + 2;
    let looked = looks.load(Ordering::SeqCst);
    assert!(looked > 10 && u128::from(looked) <= most, "{looked} looks in {:?}", begun.elapsed());

    drop(all);
    sleep(2 * TICK).await;
    let looked = looks.load(Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(looks.load(Ordering::SeqCst), looked);
    assert!(watch.sight.lock().board.rows().is_empty(), "nothing is kept");
}

#[tokio::test(start_paused = true)]
async fn who_reads_too_slowly_is_told_everything_anew() {
    let (watch, _, _tell) = restless(3);
    let mut events = pin!(watch.events().unwrap());
    for _ in 0..2 {
        events.next().await.unwrap().unwrap();
    }
    sleep(2 * TICK * u32::try_from(UNREAD).unwrap()).await;
    let again: Vec<String> =
        [events.next().await, events.next().await].into_iter().map(|event| read(&event.unwrap().unwrap()).0).collect();
    assert_eq!(again, ["agent", "rows"]);
}

#[tokio::test(start_paused = true)]
async fn seats_are_bounded_and_given_back() {
    let (watch, _, _tell) = restless(0);
    let all: Vec<_> = (0..SEATS).map(|_| watch.events().unwrap()).collect();
    assert!(watch.events().is_none());
    drop(all);
    assert!(watch.events().is_some());
}
