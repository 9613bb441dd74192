//! The task with a fake API server and fake drivers, in paused time, and the core.

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use podwright_model::time::Time;
use tonic::Status;

use self::rig::{Call, DELAYS, Rig, Sent};
use super::state::{Delays, Effect, Event, InstanceFacts, NodeSlices};
use super::stream::{Stream, StreamEnd};
use super::wiping::Wipe;

/// DRA-W2: the driver deregisters, its connection ends, or its service never answers.
#[tokio::test(start_paused = true)]
async fn slices_of_a_driver_that_is_not_usable_are_deleted_after_30_seconds() {
    for last in [&[][..], &[(1, false, false)]] {
        let rig = Rig::start().await;
        rig.set_all("gpu", &[(1, true, false)]);
        rig.until(10).await;
        rig.set_all("gpu", last);
        rig.until(39).await;
        assert_eq!(rig.log(), [""; 0]);
        rig.until(1000).await;
        assert_eq!(rig.log(), ["40 wipe gpu"]);
    }
    let rig = Rig::start().await;
    rig.set_all("gpu", &[(1, false, false)]);
    rig.until(1000).await;
    assert_eq!(rig.log(), ["30 wipe gpu"]);
}

/// DRA-W3
#[tokio::test(start_paused = true)]
async fn driver_that_is_back_within_the_delay_keeps_its_slices() {
    let rig = Rig::start().await;
    rig.set_all("gpu", &[(1, true, false)]);
    rig.until(10).await;
    rig.set_all("gpu", &[(1, false, false)]);
    rig.until(39).await;
    rig.set_all("gpu", &[(1, true, false)]);
    rig.until(1000).await;
    assert_eq!(rig.log(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn first_deadline_of_a_deletion_stands() {
    let rig = Rig::start().await;
    rig.set_all("gpu", &[(1, false, false)]);
    rig.until(20).await;
    rig.set_all("gpu", &[(2, false, false)]);
    rig.until(1000).await;
    assert_eq!(rig.log(), ["30 wipe gpu"]);
}

/// DRA-W5
#[tokio::test(start_paused = true)]
async fn nothing_is_deleted_while_one_of_two_instances_is_connected() {
    let rig = Rig::start().await;
    rig.set("gpu", &[(1, true), (2, true)]);
    rig.send(2, Sent::Device("g0"));
    rig.until(10).await;
    assert_eq!(rig.log(), ["0 open 2", "0 publish gpu g0"]);
    rig.set("gpu", &[(2, true)]);
    rig.until(100).await;
    rig.set("gpu", &[(2, true), (3, true)]);
    rig.until(200).await;
    rig.set("gpu", &[(2, true)]);
    rig.until(1000).await;
    assert_eq!(rig.log(), ["100 open 3", "200 open 2"]);
}

#[tokio::test(start_paused = true)]
async fn deletion_is_tried_until_it_works_or_the_driver_is_back() {
    let rig = Rig::start().await;
    rig.set_all("gpu", &[(1, false, false)]);
    rig.until(29).await;
    *rig.fake.calls.lock() = Call::Fails;
    rig.until(10_000).await;
    let tries = rig.log();
    assert!((30..60).contains(&tries.len()), "{tries:?}");
    rig.set_all("gpu", &[(1, true, false)]);
    rig.until(20_000).await;
    assert_eq!(rig.log(), [""; 0], "a driver that is back stops the tries");

    rig.set_all("gpu", &[]);
    rig.until(20_100).await;
    rig.log();
    *rig.fake.calls.lock() = Call::Works;
    rig.until(30_000).await;
    assert_eq!(rig.log().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn deletion_that_runs_is_stopped_when_the_driver_is_back() {
    let rig = Rig::start().await;
    rig.set_all("gpu", &[(1, false, false)]);
    rig.until(29).await;
    *rig.fake.calls.lock() = Call::Hangs;
    rig.until(31).await;
    rig.set_all("gpu", &[(1, true, false)]);
    rig.until(40).await;
    *rig.fake.calls.lock() = Call::Works;
    rig.set_all("gpu", &[]);
    rig.until(1000).await;
    assert_eq!(rig.log(), ["30 wipe gpu", "70 wipe gpu"]);
}

/// The API server may perform a deletion that was sent. The slices that the driver has after it are published from a new list.
#[tokio::test(start_paused = true)]
async fn driver_that_is_back_during_its_deletion_is_published_after_it() {
    let rig = Rig::start().await;
    rig.set("gpu", &[(1, true)]);
    rig.send(1, Sent::Device("g0"));
    rig.until(10).await;
    rig.set("gpu", &[(1, false)]);
    *rig.fake.calls.lock() = Call::Takes(20);
    rig.until(41).await;
    rig.set("gpu", &[(1, true)]);
    rig.send(1, Sent::Device("g1"));
    rig.until(59).await;
    assert_eq!(rig.log(), ["0 open 1", "0 publish gpu g0", "10 hold gpu", "40 wipe gpu"]);
    rig.until(1000).await;
    assert_eq!(rig.log(), ["60 forget gpu", "60 publish gpu g1"]);
}

/// The slices of the other drivers are deleted after the deletion of all.
#[tokio::test(start_paused = true)]
async fn first_deletion_that_was_sent_ends_before_drivers_are_listed() {
    let rig = Rig::start_with(DELAYS, |fake| *fake.calls.lock() = Call::Takes(20));
    rig.until(1).await;
    *rig.fake.calls.lock() = Call::Works;
    rig.fake.with_slices.lock().insert("nic".into());
    rig.set("gpu", &[(1, true)]);
    rig.send(1, Sent::Device("g0"));
    rig.until(1000).await;
    assert_eq!(rig.log(), ["0 wipe all", "1 open 1", "20 list", "20 publish gpu g0", "20 wipe nic"]);
}

/// The driver leaves once more while a deletion that it has overtaken runs.
#[test]
fn deletion_that_was_overtaken_is_followed_by_the_next_one() {
    let mut wipe = Wipe::Running { failures: 3 };
    assert!(wipe.cancel() && !wipe.cancel());
    wipe.schedule(Time::from_secs(50));
    assert_eq!(wipe.due(), None);
    assert!(wipe.ended(Err(0.5), Time::from_secs(20)));
    assert_eq!(wipe, Wipe::Scheduled { due: Time::from_secs(50), failures: 0 });
}

#[tokio::test(start_paused = true)]
async fn slices_of_an_earlier_agent_are_deleted_after_a_failure() {
    let rig = Rig::start_with(DELAYS, |fake| *fake.calls.lock() = Call::Fails);
    rig.until(2).await;
    assert_eq!(rig.log(), ["0 wipe all", "1 wipe all"]);
    *rig.fake.calls.lock() = Call::Works;
    // A driver that is usable now keeps its slices.
    rig.fake.with_slices.lock().extend(["gpu".into(), "nic".into()]);
    rig.set("gpu", &[(1, true)]);
    rig.send(1, Sent::Device("g0"));
    rig.until(1000).await;
    assert_eq!(rig.log(), ["2 open 1", "3 list", "3 publish gpu g0", "3 wipe nic"]);
}

#[tokio::test(start_paused = true)]
async fn driver_that_connects_during_the_first_deletion_stops_it() {
    let rig = Rig::start_with(DELAYS, |fake| *fake.calls.lock() = Call::Hangs);
    rig.until(1).await;
    *rig.fake.calls.lock() = Call::Works;
    rig.fake.with_slices.lock().extend(["gpu".into(), "nic".into()]);
    rig.set_all("gpu", &[(1, true, false)]);
    rig.until(1000).await;
    assert_eq!(rig.log(), ["0 wipe all", "1 list", "1 wipe nic"]);
}

#[tokio::test(start_paused = true)]
async fn delayed_first_deletion_spares_drivers_that_are_back() {
    let rig = Rig::start_with(Delays { startup_wipe: Duration::from_secs(20), ..DELAYS }, |fake| {
        fake.with_slices.lock().extend(["gpu".into(), "nic".into()]);
    });
    rig.until(2).await;
    rig.set("gpu", &[(1, true)]);
    rig.send(1, Sent::Device("g0"));
    rig.until(1000).await;
    assert_eq!(rig.log(), ["2 open 1", "2 publish gpu g0", "20 list", "20 wipe nic"]);
}

#[tokio::test(start_paused = true)]
async fn each_message_replaces_what_is_published() {
    let rig = Rig::start().await;
    rig.set("gpu", &[(1, true)]);
    for sent in [Sent::Device("g0"), Sent::Nonsense, Sent::Device("g1")] {
        rig.send(1, sent);
    }
    rig.until(1).await;
    assert_eq!(rig.log(), ["0 open 1", "0 publish gpu g0", "0 publish gpu g1"]);
}

/// DRA-N2
#[tokio::test(start_paused = true)]
async fn finished_stream_is_opened_again_by_a_registration_only() {
    for (end, device) in [(Sent::End, "g0"), (Sent::Break(Status::unimplemented("no")), "g0")] {
        let rig = Rig::start().await;
        rig.set("gpu", &[(1, true)]);
        rig.send(1, Sent::Device(device));
        rig.send(1, end);
        rig.until(1000).await;
        assert_eq!(rig.log(), ["0 open 1", "0 publish gpu g0"]);
        rig.set("gpu", &[(2, true)]);
        rig.until(2000).await;
        assert_eq!(rig.log(), ["1000 open 2"]);
    }
}

/// A finished stream sends no further message, so the pools of its last message stay desired.
#[tokio::test(start_paused = true)]
async fn deleted_slices_of_a_finished_stream_come_back_with_the_driver() {
    let rig = Rig::start().await;
    rig.set("gpu", &[(1, true)]);
    rig.send(1, Sent::Device("g0"));
    rig.send(1, Sent::End);
    rig.until(10).await;
    rig.set("gpu", &[(1, false)]);
    rig.until(100).await;
    rig.set("gpu", &[(1, true)]);
    rig.until(1000).await;
    let expected =
        ["0 open 1", "0 publish gpu g0", "10 hold gpu", "40 wipe gpu", "40 forget gpu", "100 publish gpu g0"];
    assert_eq!(rig.log(), expected);
}

/// DRA-N3, DRA-N6
#[tokio::test(start_paused = true)]
async fn broken_stream_is_opened_again_and_disturbs_no_other_driver() {
    let rig = Rig::start().await;
    rig.set("gpu", &[(1, true)]);
    rig.set("nic", &[(2, true)]);
    rig.send(1, Sent::Panic);
    rig.send(2, Sent::Break(Status::unavailable("gone")));
    rig.send(2, Sent::Device("e0"));
    rig.until(200).await;
    let log = rig.log();
    let opened = |instance: u32| -> Vec<u64> {
        let ends = format!(" open {instance}");
        let times = log.iter().filter_map(|line| line.strip_suffix(&ends));
        times.map(|second| second.parse().unwrap()).collect()
    };
    for instance in [1, 2] {
        let opened = opened(instance);
        assert!(opened.len() == 2 && (5..=15).contains(&opened[1]), "{log:?}");
    }
    assert!(log.iter().any(|line| line.ends_with("publish nic e0")), "{log:?}");
}

/// DRA-N4
#[tokio::test(start_paused = true)]
async fn slices_stay_for_the_delay_and_until_the_first_message_of_a_new_registration() {
    let rig = Rig::start().await;
    rig.set("gpu", &[(1, true)]);
    rig.send(1, Sent::Device("g0"));
    rig.until(10).await;
    rig.log();
    rig.set("gpu", &[]);
    rig.until(20).await;
    rig.set("gpu", &[(2, true)]);
    rig.until(100).await;
    // The same resources again: the slices are compared, and not deleted.
    assert_eq!(rig.log(), ["10 hold gpu", "20 publish gpu g0", "20 open 2"]);
    rig.send(2, Sent::Device("g1"));
    rig.until(101).await;
    assert_eq!(rig.log(), ["100 publish gpu g1"]);

    rig.set("gpu", &[]);
    rig.until(200).await;
    assert_eq!(rig.log(), ["101 hold gpu", "131 wipe gpu", "131 forget gpu"]);
    rig.set("gpu", &[(3, true)]);
    rig.until(300).await;
    assert_eq!(rig.log(), ["200 open 3"], "slices that were deleted do not come back before a message");
}

/// DRA-N5
#[tokio::test(start_paused = true)]
async fn nothing_is_published_before_the_node_exists() {
    let rig = Rig::start_with(DELAYS, |fake| *fake.has_node.lock() = false);
    rig.set("gpu", &[(1, true)]);
    rig.send(1, Sent::Device("g0"));
    rig.until(20).await;
    assert!(!rig.log().iter().any(|line| line.contains("publish")));
    *rig.fake.has_node.lock() = true;
    rig.until(30).await;
    assert_eq!(rig.log(), ["21 publish gpu g0"]);
}

#[tokio::test(start_paused = true)]
async fn slices_of_a_driver_that_publishes_by_itself_are_left_to_it() {
    let rig = Rig::start().await;
    rig.set("gpu", &[(1, true)]);
    rig.send(1, Sent::Device("g0"));
    rig.until(10).await;
    rig.set("gpu", &[]);
    rig.until(11).await;
    rig.set_all("gpu", &[(2, true, false)]);
    rig.until(1000).await;
    assert_eq!(rig.log(), ["0 open 1", "0 publish gpu g0", "10 hold gpu", "11 forget gpu"]);
}

#[test]
fn delays_of_deletions_double_to_their_limit_and_vary() {
    let mut wipe = Wipe::default();
    let mut delay = |draw| {
        wipe.schedule(Time::ZERO);
        assert!(wipe.start(Time::from_secs(10_000)));
        assert!(!wipe.ended(Err(draw), Time::ZERO));
        wipe.due().unwrap().since(Time::ZERO).as_secs_f64()
    };
    let seconds: Vec<_> = (0..40).map(|_| delay(0.0)).collect();
    assert_eq!(seconds[..5], [1.0, 2.0, 4.0, 8.0, 16.0]);
    assert_eq!((seconds[8], seconds[9], seconds[39]), (256.0, 300.0, 300.0));
    let mut wipe = Wipe::Running { failures: 2 };
    wipe.ended(Err(1.0), Time::ZERO);
    assert_eq!(wipe.due().unwrap().since(Time::ZERO), Duration::from_millis(4800));
}

/// DRA-N3
#[test]
fn delays_of_streams_grow_until_a_message_or_a_quiet_time() {
    let (mut stream, mut now) = (Stream::Open { id: 1, instance: 0, failure: None }, Time::ZERO);
    let mut fail = |draw, after: u64, has_message| {
        now = now + Duration::from_secs(after);
        if let Stream::Delayed { failure, .. } = stream {
            stream = Stream::Open { id: 1, instance: 0, failure: Some(failure) };
        }
        if has_message {
            stream.received();
        }
        stream.ended(StreamEnd::Failed { draw }, now);
        stream.due().unwrap().since(now).as_secs_f64()
    };
    assert_eq!([fail(0.0, 0, false), fail(0.0, 9, false), fail(1.0, 9, false)], [5.0, 10.0, 40.0]);
    assert_eq!([fail(0.5, 99, false), fail(1.0, 359, false)], [120.0, 180.0]);
    assert_eq!(fail(1.0, 360, false), 15.0, "a quiet time");
    assert_eq!([fail(0.0, 1, false), fail(0.5, 1, true)], [30.0, 10.0]);
}

#[test]
fn message_of_a_stream_that_was_closed_is_ignored() {
    let mut core = NodeSlices::new(DELAYS, Time::ZERO);
    let facts = |instance| vec![InstanceFacts { instance, is_connected: true, publishes: true }];
    let with = |instance: u32| Event::Drivers(BTreeMap::from([("gpu".into(), facts(instance))]));
    let _ = core.step(Event::NodeFound, Time::ZERO);
    let _ = core.step(with(1), Time::ZERO);
    let _ = core.step(Event::Listed(Ok(BTreeSet::new())), Time::ZERO);
    let opened = core.step(with(2), Time::ZERO);
    assert!(matches!(opened[..], [Effect::CloseStream { .. }, Effect::OpenStream { stream: 2, instance: 2, .. }]));
    let received = |stream| Event::Received { driver: "gpu".into(), stream, resources: Arc::default() };
    assert_eq!(core.step(received(1), Time::ZERO), []);
    assert!(matches!(core.step(received(2), Time::ZERO)[..], [Effect::Publish(..)]));
    let ended = Event::Ended { driver: "gpu".into(), stream: 1, end: StreamEnd::Failed { draw: 0.0 } };
    assert_eq!((core.step(ended, Time::ZERO), core.next_due()), (vec![], None));
}
