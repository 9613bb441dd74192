use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const A: &str = "/r/a.sock";
const B: &str = "/r/b.sock";

fn plugin(name: &str) -> Plugin {
    Plugin {
        kind: "DRAPlugin".to_owned(),
        name: name.to_owned(),
        endpoint: "/s.sock".into(),
        versions: vec!["v1.DRAPlugin".to_owned()],
    }
}

/// A listing of paths with inode numbers, and the paths that were created.
fn listing(sockets: &[(&str, u64)], created: &[&str]) -> Event {
    let identity = |inode: u64| Identity { inode, ..Identity::default() };
    Event::Listed(Listing {
        sockets: sockets.iter().map(|(path, inode)| (path.into(), identity(*inode))).collect(),
        created: created.iter().map(PathBuf::from).collect(),
    })
}

fn register(path: &str) -> Operation {
    Operation::Register(path.into())
}

fn deregister(path: &str, name: &str) -> Operation {
    Operation::Deregister(path.into(), plugin(name))
}

fn entered(path: &str, name: &str) -> Event {
    Event::Entered(path.into(), plugin(name))
}

fn succeeded(path: &str) -> Event {
    Event::Done(path.into(), Ok(()))
}

fn failed(path: &str) -> Event {
    Event::Done(path.into(), Err("no answer".to_owned()))
}

fn millis(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

/// Runs events, and compares what each starts.
fn run(events: Vec<(u64, Event, Vec<Operation>)>) -> Sockets {
    let mut sockets = Sockets::default();
    for (index, (at, event, expected)) in events.into_iter().enumerate() {
        let text = format!("event {index}: {event:?}");
        assert_eq!(sockets.step(event, millis(at)), expected, "{text}");
    }
    sockets
}

/// DRA-R3: the plugin of a removed socket is deregistered, and the path is forgotten.
#[test]
fn a_socket_is_registered_once_and_deregistered_when_it_is_gone() {
    let sockets = run(vec![
        (0, listing(&[(A, 1)], &[A]), vec![register(A)]),
        (0, listing(&[(A, 1)], &[]), vec![]),
        (0, entered(A, "a"), vec![]),
        (0, succeeded(A), vec![]),
        (0, listing(&[(A, 1)], &[]), vec![]),
        (0, listing(&[], &[]), vec![deregister(A, "a")]),
        (0, succeeded(A), vec![]),
    ]);
    assert_eq!(sockets.iter().count(), 0);
}

/// DRA-R4: a socket that was created again is a new one, even if no walk saw that it was gone.
#[test]
fn a_socket_that_was_created_again_is_registered_again() {
    for (inode, created) in [(2, vec![]), (1, vec![A]), (2, vec![A])] {
        run(vec![
            (0, listing(&[(A, 1)], &[A]), vec![register(A)]),
            (0, entered(A, "a"), vec![]),
            (0, succeeded(A), vec![]),
            (1, listing(&[(A, inode)], &created), vec![deregister(A, "a")]),
            (1, succeeded(A), vec![register(A)]),
            (1, entered(A, "b"), vec![]),
            (1, succeeded(A), vec![]),
            (1, listing(&[(A, inode)], &[]), vec![]),
        ]);
    }
}

/// A socket that is removed during its registration is deregistered after it, because the plugin had already entered.
#[test]
fn a_removal_during_a_registration_is_not_lost() {
    run(vec![
        (0, listing(&[(A, 1)], &[A]), vec![register(A)]),
        (0, entered(A, "a"), vec![]),
        (0, listing(&[], &[]), vec![]),
        (0, succeeded(A), vec![deregister(A, "a")]),
    ]);
    // The plugin had not entered yet, and its registration failed with its socket.
    let sockets = run(vec![
        (0, listing(&[(A, 1)], &[A]), vec![register(A)]),
        (0, listing(&[], &[]), vec![]),
        (0, failed(A), vec![]),
    ]);
    assert_eq!(sockets.iter().count(), 0);
}

/// DRA-R9: operations on different paths overlap, those on one path do not.
#[test]
fn one_path_has_one_operation_at_a_time() {
    run(vec![
        (0, listing(&[(A, 1)], &[A]), vec![register(A)]),
        (0, listing(&[(A, 1), (B, 2)], &[B]), vec![register(B)]),
        (0, listing(&[(A, 3), (B, 2)], &[A]), vec![]),
        (5_000, Event::Due, vec![]),
        (5_000, entered(A, "a"), vec![]),
        (5_000, succeeded(A), vec![deregister(A, "a")]),
        (5_000, listing(&[(A, 4), (B, 2)], &[A]), vec![]),
        (5_000, succeeded(A), vec![register(A)]),
    ]);
}

#[test]
fn deregistrations_start_before_registrations() {
    run(vec![
        (0, listing(&[(B, 1)], &[B]), vec![register(B)]),
        (0, entered(B, "b"), vec![]),
        (0, succeeded(B), vec![]),
        (0, listing(&[(A, 2)], &[A]), vec![deregister(B, "b"), register(A)]),
    ]);
}

/// DRA-R6, DRA-R7: a registration that failed is tried again after a delay that doubles.
#[test]
fn failures_delay_a_path_and_no_other() {
    let mut sockets = run(vec![(0, listing(&[(A, 1)], &[A]), vec![register(A)]), (0, failed(A), vec![])]);
    let mut now = 0;
    for expected in [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 122_000, 122_000, 122_000] {
        assert_eq!(sockets.next_due(), Some(millis(now + expected)));
        assert_eq!(sockets.step(Event::Due, millis(now + expected - 1)), vec![]);
        now += expected;
        assert_eq!(sockets.step(Event::Due, millis(now)), vec![register(A)]);
        assert_eq!(sockets.next_due(), None);
        assert_eq!(sockets.step(failed(A), millis(now)), vec![]);
    }
    let other = sockets.step(listing(&[(A, 1), (B, 2)], &[B]), millis(now));
    assert_eq!(other, vec![register(B)], "another path does not wait");
    now += 122_000;
    assert_eq!(sockets.step(Event::Due, millis(now)), vec![register(A)]);
    assert_eq!(sockets.step(entered(A, "a"), millis(now)), vec![]);
    assert_eq!(sockets.step(succeeded(A), millis(now)), vec![]);
    assert_eq!(sockets.step(listing(&[(B, 2)], &[]), millis(now)), vec![deregister(A, "a")]);
    assert_eq!(sockets.step(failed(A), millis(now)), vec![], "the deregistration failed");
    assert_eq!(sockets.iter().count(), 1, "nothing can be done about a handler that failed");
}

/// A plugin that restarts is registered at once, however often its predecessor failed.
#[test]
fn a_new_generation_does_not_wait() {
    run(vec![
        (0, listing(&[(A, 1)], &[A]), vec![register(A)]),
        (0, failed(A), vec![]),
        (500, Event::Due, vec![register(A)]),
        (500, failed(A), vec![]),
        (600, listing(&[(A, 2)], &[A]), vec![register(A)]),
        // The failure is the first one of its generation, so the delay is the first one too.
        (600, failed(A), vec![]),
        (1_100, Event::Due, vec![register(A)]),
        // The socket was replaced during the operation, so the failure belongs to the earlier socket.
        (1_100, listing(&[(A, 3)], &[A]), vec![]),
        (1_100, failed(A), vec![register(A)]),
    ]);
}

/// DRA-R7: a failure after the plugin entered leaves nothing registered.
#[test]
fn a_plugin_whose_notification_failed_is_not_registered() {
    let mut sockets = run(vec![
        (0, listing(&[(A, 1)], &[A]), vec![register(A)]),
        (0, entered(A, "a"), vec![]),
        (0, Event::Left(A.into()), vec![]),
        (0, failed(A), vec![]),
    ]);
    assert!(sockets.iter().all(|(_, socket)| socket.registered.is_none()));
    assert_eq!(sockets.step(Event::Due, millis(500)), vec![register(A)]);
}

/// A random event. Operations end in random order, with random results.
#[derive(Clone, Debug)]
enum Random {
    Listed(Vec<(usize, u64, bool)>),
    Entered(usize),
    Done(usize, bool),
    Wait(u64),
}

fn random() -> impl Strategy<Value = Random> {
    prop_oneof![
        proptest::collection::vec((0..3_usize, 0..3_u64, any::<bool>()), 0..4).prop_map(Random::Listed),
        (0..3_usize).prop_map(Random::Entered),
        (0..3_usize, any::<bool>()).prop_map(|(path, ok)| Random::Done(path, ok)),
        (0..200_000_u64).prop_map(Random::Wait),
    ]
}

/// The calls that a handler would have got.
#[derive(Default)]
struct Handler {
    running: HashMap<PathBuf, Option<u64>>,
    registered: HashSet<PathBuf>,
}

impl Handler {
    fn start(&mut self, operations: Vec<Operation>) {
        for operation in operations {
            let path = match operation {
                Operation::Register(path) => {
                    assert!(!self.registered.contains(&path), "registered twice");
                    path
                }
                Operation::Deregister(path, plugin) => {
                    assert_eq!(plugin, self::plugin("p"));
                    assert!(self.registered.remove(&path), "deregistered what is not registered");
                    path
                }
            };
            assert!(self.running.insert(path, None).is_none(), "two operations on one path");
        }
    }
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    /// In any order of events, a handler never gets two calls for one path at once, and in the end exactly the sockets that exist
    /// are registered.
    #[test]
    fn the_registered_plugins_become_the_existing_sockets(events in proptest::collection::vec(random(), 0..60)) {
        let paths = [A, B, "/r/c.sock"];
        let (mut sockets, mut handler, mut now) = (Sockets::default(), Handler::default(), 0);
        let mut existing = HashMap::new();
        let finish = |sockets: &mut Sockets, handler: &mut Handler, path: &str, ok: bool, now: u64| {
            let path = PathBuf::from(path);
            let Some(entered) = handler.running.remove(&path) else { return };
            if entered.is_some() && ok {
                handler.registered.insert(path.clone());
            }
            let result = if ok { Ok(()) } else { Err(String::new()) };
            let started = sockets.step(Event::Done(path, result), millis(now));
            handler.start(started);
        };
        for event in events {
            match event {
                Random::Listed(found) => {
                    let found: HashMap<_, _> = found.iter().map(|(path, inode, new)| (paths[*path], (*inode, *new))).collect();
                    let sockets_found: Vec<_> = found.iter().map(|(path, (inode, _))| (*path, *inode)).collect();
                    let created: Vec<_> = found.iter().filter(|(_, (_, new))| *new).map(|(path, _)| *path).collect();
                    existing = found.keys().map(|path| (PathBuf::from(path), ())).collect();
                    let started = sockets.step(listing(&sockets_found, &created), millis(now));
                    handler.start(started);
                }
                Random::Entered(path) => {
                    let is_registration = |socket: &Socket| matches!(socket.work, Work::Running { generation: Some(_), .. });
                    let socket = sockets.sockets.get(Path::new(paths[path]));
                    if socket.is_some_and(is_registration) {
                        handler.running.insert(paths[path].into(), Some(now));
                        let started = sockets.step(entered(paths[path], "p"), millis(now));
                        handler.start(started);
                    }
                }
                Random::Done(path, ok) => {
                    // A registration cannot succeed before the plugin has entered.
                    let socket = sockets.sockets.get(Path::new(paths[path]));
                    let needs_entry = socket.is_some_and(|socket| {
                        matches!(socket.work, Work::Running { generation: Some(_), .. }) && socket.registered.is_none()
                    });
                    finish(&mut sockets, &mut handler, paths[path], ok && !needs_entry, now);
                }
                Random::Wait(by) => {
                    now += by;
                    let started = sockets.step(Event::Due, millis(now));
                    handler.start(started);
                }
            }
        }
        // Everything succeeds from now on.
        for _ in 0..20 {
            now += 122_000;
            let started = sockets.step(Event::Due, millis(now));
            handler.start(started);
            for path in paths {
                let socket = sockets.sockets.get(Path::new(path));
                if socket.is_some_and(|socket| matches!(socket.work, Work::Running { generation: Some(_), .. })) {
                    handler.running.insert(path.into(), Some(now));
                    let started = sockets.step(entered(path, "p"), millis(now));
                    handler.start(started);
                }
                finish(&mut sockets, &mut handler, path, true, now);
            }
        }
        let expected: HashSet<_> = existing.into_keys().collect();
        prop_assert_eq!(&handler.registered, &expected);
        prop_assert!(handler.running.is_empty());
        prop_assert_eq!(sockets.sockets.len(), expected.len(), "what is gone is forgotten");
    }
}
