//! Handlers that are added and removed while the controller runs.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use super::*;

/// A handler that sends the text of each event.
fn sender() -> (impl FnMut(&WatchEvent<Pod>) + Send + 'static, Receiver<String>) {
    let (sender, events) = channel();
    (move |event: &WatchEvent<Pod>| drop(sender.send(text(event))), events)
}

fn text(event: &WatchEvent<Pod>) -> String {
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap();
    match event {
        WatchEvent::Apply(pod) => format!("apply {}", name(pod)),
        WatchEvent::Delete(pod) => format!("delete {}", name(pod)),
        WatchEvent::Init => "init".to_owned(),
        WatchEvent::InitApply(pod) => format!("list {}", name(pod)),
        WatchEvent::InitDone => "done".to_owned(),
        WatchEvent::Undecodable { object, .. } => {
            format!("undecodable {}", object.metadata.name.as_deref().unwrap_or_default())
        }
    }
}

fn received(events: &Receiver<String>) -> Vec<String> {
    events.try_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn handler_receives_the_present_objects_and_then_the_events() {
    let fixture = Fixture::new(Reply::Success);
    fixture.list(&["a"], true);
    rest().await;
    let (handler, events) = sender();
    let _kept = fixture.controller.add_handler(handler);
    assert_eq!(received(&events), ["init", "list a", "done"]);
    fixture.controller.pod_event(WatchEvent::Apply(pod("b")));
    fixture.controller.pod_event(WatchEvent::Delete(pod("a")));
    fixture.controller.template_event(WatchEvent::Apply(template()));
    assert_eq!(received(&events), ["apply b", "delete a"]);
    let (handler, later) = sender();
    let _kept = fixture.controller.add_handler(handler);
    assert_eq!((received(&events), received(&later)), (vec![], ["init", "list b", "done"].map(str::to_owned).into()));
}

#[tokio::test(start_paused = true)]
async fn handler_that_is_added_during_a_list_receives_the_whole_list() {
    let fixture = Fixture::new(Reply::Success);
    let (handler, early) = sender();
    let _early = fixture.controller.add_handler(handler);
    assert_eq!(received(&early), Vec::<String>::new());
    fixture.list(&["a", "gone"], true);
    assert_eq!(received(&early), ["init", "list a", "list gone", "done"]);
    fixture.controller.pod_event(WatchEvent::Init);
    fixture.controller.pod_event(WatchEvent::InitApply(pod("a")));
    let (handler, events) = sender();
    let _kept = fixture.controller.add_handler(handler);
    assert_eq!(received(&events), ["init", "list a"]);
    fixture.controller.pod_event(WatchEvent::InitApply(pod("b")));
    fixture.controller.pod_event(WatchEvent::InitDone);
    assert_eq!(received(&events), ["list b", "done"]);
}

#[tokio::test(start_paused = true)]
async fn removed_handler_is_dropped_at_once_and_the_others_go_on() {
    let fixture = Fixture::new(Reply::Success);
    fixture.list(&[], true);
    let (handler, removed) = sender();
    let first = fixture.controller.add_handler(handler);
    let (handler, kept) = sender();
    let _kept = fixture.controller.add_handler(handler);
    drop(first);
    assert_eq!(received(&removed), ["init", "done"]);
    assert_eq!(removed.try_recv(), Err(TryRecvError::Disconnected));
    fixture.controller.pod_event(WatchEvent::Apply(pod("p")));
    assert_eq!(received(&kept), ["init", "done", "apply p"]);
    rest().await;
    assert_eq!(fixture.calls(), ["create p-res-1", "apply shop/p"]);
}

#[tokio::test(start_paused = true)]
async fn handler_that_panics_is_counted_logged_and_receives_the_next_event() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(Reply::Success);
    fixture.list(&[], true);
    let (mut send, events) = sender();
    let _kept = fixture.controller.add_handler(move |event: &WatchEvent<Pod>| {
        send(event);
        assert!(!matches!(event, WatchEvent::Apply(_)), "a fault of the handler");
    });
    let (handler, others) = sender();
    let _others = fixture.controller.add_handler(handler);
    fixture.controller.pod_event(WatchEvent::Apply(pod("p")));
    fixture.controller.pod_event(WatchEvent::Delete(pod("p")));
    assert_eq!(received(&events), ["init", "done", "apply p", "delete p"]);
    assert_eq!(received(&others), ["init", "done", "apply p", "delete p"]);
    assert_eq!(fixture.series("podwright_hook_panics_total"), Some(1.0));
    let panicked = |line: &&String| line.contains("panicked");
    let lines = log.lines();
    let [line] = &lines.iter().filter(panicked).collect::<Vec<_>>()[..] else { panic!("{lines:?}") };
    assert!(line.contains("kind=\"Pod\"") && line.contains("object=shop/p"), "{line}");
}

#[tokio::test(start_paused = true)]
async fn handler_may_use_the_controller_and_add_and_remove_handlers() {
    let fixture = Fixture::new(Reply::Success);
    fixture.list(&[], true);
    let controller = Arc::new(fixture.controller);
    let (weak, (nested, events)) = (Arc::downgrade(&controller), sender());
    let mut nested = Some(nested);
    let own = Arc::new(Mutex::new(None::<WatchHandler>));
    let added = Arc::new(Mutex::new(None));
    let (removes_itself, adds) = (own.clone(), added.clone());
    let (calls, called) = channel();
    let handler = controller.add_handler(move |event: &WatchEvent<Pod>| {
        let controller = weak.upgrade().unwrap();
        calls.send((text(event), controller.explain(&ObjectKey::new("shop", "p-res")).keys.len())).unwrap();
        if matches!(event, WatchEvent::Apply(_)) {
            *adds.lock() = nested.take().map(|nested| controller.add_handler(nested));
            removes_itself.lock().take();
        }
    });
    *own.lock() = Some(handler);
    controller.pod_event(WatchEvent::Apply(pod("p")));
    controller.pod_event(WatchEvent::Apply(pod("q")));
    assert_eq!(received(&events), ["init", "list p", "done", "apply q"]);
    let called: Vec<_> = called.iter().map(|(event, _)| event).collect();
    assert_eq!(called, ["init", "done", "apply p"], "the handler is dropped, so its channel has ended");
}

#[tokio::test(start_paused = true)]
async fn handler_that_is_removed_during_an_event_does_not_receive_that_event() {
    let fixture = Fixture::new(Reply::Success);
    fixture.list(&[], true);
    let second = Arc::new(Mutex::new(None));
    let removed = second.clone();
    let _first = fixture.controller.add_handler(move |event: &WatchEvent<Pod>| {
        if matches!(event, WatchEvent::Apply(_)) {
            removed.lock().take();
        }
    });
    let (handler, events) = sender();
    *second.lock() = Some(fixture.controller.add_handler(handler));
    fixture.controller.pod_event(WatchEvent::Apply(pod("p")));
    assert_eq!(received(&events), ["init", "done"]);
    assert_eq!(events.try_recv(), Err(TryRecvError::Disconnected), "the handler is dropped");
}

/// A handler that another thread adds misses no event, and receives no event twice.
#[test]
fn handlers_that_are_added_during_events_receive_each_object() {
    // No pass runs, because nothing polls the tasks of this runtime.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = runtime.enter();
    let fixture = Fixture::with_workers(Reply::Hang, 1);
    fixture.list(&[], true);
    let controller = &fixture.controller;
    let names: Vec<_> = (0..2000).map(|at| format!("p{at:04}")).collect();
    let added = thread::scope(|scope| {
        let add = scope.spawn(|| {
            let add_at = |count: usize| {
                while controller.shared.core.lock().pods().count() < count {
                    thread::yield_now();
                }
                let (handler, events) = sender();
                (controller.add_handler(handler), events)
            };
            (0..names.len()).step_by(100).map(add_at).collect::<Vec<_>>()
        });
        names.iter().for_each(|name| controller.pod_event(WatchEvent::Apply(pod(name))));
        add.join().unwrap()
    });
    for (_, events) in &added {
        let name = |event: String| event.split_once(' ').map(|(_, name)| name.to_owned());
        let mut seen: Vec<_> = received(events).into_iter().filter_map(name).collect();
        seen.sort_unstable();
        assert_eq!(seen, names);
    }
}

/// While a slow handler receives the present objects, the watch waits as soon as many of its events are queued.
#[tokio::test]
async fn events_that_wait_for_a_slow_handler_are_bounded() {
    let fixture = Fixture::new(Reply::Hang);
    fixture.list(&["first"], true);
    let controller = Arc::new(fixture.controller);
    let (list_began, began) = tokio::sync::oneshot::channel();
    let (resume, resumed) = channel::<()>();
    let mut list_began = Some(list_began);
    let (mut send, events) = sender();
    let adding = controller.clone();
    let add = thread::spawn(move || {
        adding.add_handler(move |event: &WatchEvent<Pod>| {
            if let Some(list_began) = list_began.take() {
                list_began.send(()).unwrap();
                resumed.recv().unwrap();
            }
            send(event);
        })
    });
    began.await.unwrap();
    for at in 0..1000 {
        controller.until_room::<Pod>().now_or_never().expect("there is room");
        controller.pod_event(WatchEvent::Apply(pod(&format!("p{at}"))));
    }
    let mut room = Box::pin(controller.until_room::<Pod>());
    assert_eq!(room.as_mut().now_or_never(), None, "the watch waits");
    controller.until_room::<ResourceClaim>().now_or_never().expect("other watches do not wait");
    resume.send(()).unwrap();
    room.await;
    let _kept = add.join().unwrap();
    assert_eq!(received(&events).len(), 3 + 1000);
}

#[tokio::test(start_paused = true)]
async fn stop_removes_all_handlers() {
    let fixture = Fixture::new(Reply::Success);
    fixture.list(&[], true);
    let (handler, events) = sender();
    let _kept = fixture.controller.add_handler(handler);
    fixture.controller.stop().await;
    fixture.controller.pod_event(WatchEvent::Apply(pod("p")));
    let (handler, late) = sender();
    let _late = fixture.controller.add_handler(handler);
    for (events, expected) in [(events, vec!["init", "done"]), (late, vec![])] {
        assert_eq!(received(&events), expected);
        assert_eq!(events.try_recv(), Err(TryRecvError::Disconnected), "the handler is dropped");
    }
}
