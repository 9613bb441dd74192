//! Calls to drivers, and the connections to their instances.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use podwright_dra::{CallError, Drivers};
use podwright_dra_api::health::dra_resource_health_client::DraResourceHealthClient;
use podwright_dra_api::health::{DeviceHealth, NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use podwright_dra_tests::fake_driver::{Answer, Call, FakeDriver, Serve};
use podwright_fixtures::polling::{PATIENCE, until};
use podwright_model::ids::DriverName;
use podwright_ports::DriverError;

use super::{NAME, Node, claim, name, positive};

/// The claims as the fake driver records them.
fn recorded(uids: &[&str]) -> Vec<[String; 3]> {
    uids.iter().map(|uid| ["shop".to_owned(), "cam".to_owned(), (*uid).to_owned()]).collect()
}

/// The source of a failed call.
fn call_error(error: &DriverError) -> &CallError {
    std::error::Error::source(error).unwrap().downcast_ref().unwrap()
}

/// DRA-C1: one connection for all calls and streams, also after a pause.
#[tokio::test]
async fn an_instance_has_one_connection() {
    let node = Node::started();
    let (driver, _served) = node.connected_driver().await;
    let device = vec![("c-1".to_owned(), Ok(vec!["acme.test/gpu=c-1".to_owned()]))];
    assert_eq!(node.prepare(&["c-1"]).await.unwrap(), device);
    assert_eq!(node.prepare(&["c-1"]).await.unwrap(), device);
    assert_eq!(node.unprepare(&["c-1"]).await.unwrap(), [("c-1".to_owned(), Ok(()))]);
    let instance = node.plugins().registered().choose(&name()).unwrap().clone();
    assert!(instance.services().health);
    let mut client = DraResourceHealthClient::new(instance.connected().await.unwrap());
    let mut stream = client.node_watch_resources(NodeWatchResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().devices.len(), 0);
    driver.send_health(NodeWatchResourcesResponse { devices: vec![DeviceHealth::default()] });
    assert_eq!(stream.message().await.unwrap().unwrap().devices.len(), 1);
    // Every timer of the client and of the driver that a long pause would end is due at once.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(24 * 3600)).await;
    tokio::time::resume();
    assert_eq!(node.prepare(&["c-1"]).await.unwrap(), device);
    assert_eq!(driver.accepted(), 1);
}

/// DRA-C2: a driver that is not registered is named by the error.
#[tokio::test]
async fn an_unknown_driver_is_an_error() {
    let node = Node::started();
    let error = node.prepare(&["c-1"]).await.unwrap_err();
    assert!(matches!(&error, DriverError::NotRegistered(driver) if *driver == name()), "{error:?}");
    assert!(error.to_string().contains(NAME), "{error}");
    let error = node.plugins().drivers().unprepare(&DriverName::from(""), &[claim("c-1")]).await.unwrap_err();
    assert_eq!(call_error(&error), &CallError::NoName);
}

/// DRA-C3: a driver of the older version gets calls of that version.
#[tokio::test]
async fn an_older_driver_is_called_by_its_version() {
    let node = Node::started();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.versions = vec!["v1beta1.DRAPlugin".to_owned()]);
    let served = [driver.serve(Serve::V1Beta1), driver.announce(&node.registry("gpu.sock"))];
    driver.registered().await;
    let answers = node.plugins().drivers().prepare(&name(), &[claim("c-1")]).await.unwrap();
    let devices = answers.into_values().next().unwrap().unwrap();
    assert_eq!(devices[0].cdi_devices, ["acme.test/gpu=c-1"]);
    assert_eq!((&*devices[0].pool, &*devices[0].device, &*devices[0].requests), ("n7", "g0", &["r0".to_owned()][..]));
    assert_eq!(devices[0].share_id, None, "the version has no share ids");
    assert_eq!(node.unprepare(&["c-1"]).await.unwrap(), [("c-1".to_owned(), Ok(()))]);
    let calls = driver.calls();
    assert_eq!(
        calls[2..],
        [Call::Prepare("v1beta1", recorded(&["c-1"])), Call::Unprepare("v1beta1", recorded(&["c-1"])),]
    );
    let [endpoint, _registration] = served;
    drop(endpoint);
    node.until("the connection ends", |drivers| !drivers.is_usable(&name())).await;
    let _other = driver.serve(Serve::V1);
    for error in [node.prepare(&["c-1"]).await.unwrap_err(), node.unprepare(&["c-1"]).await.unwrap_err()] {
        assert_eq!(call_error(&error).code(), "Unimplemented", "{error:?}");
    }
}

/// DRA-C4, DRA-P7: a call ends at its time limit, which the driver knows.
#[tokio::test]
async fn a_call_without_an_answer_ends_at_its_time_limit() {
    // Within this time, also a slow machine delivers the call to the driver.
    const LIMIT: Duration = Duration::from_secs(10);
    let mut node = Node::new();
    node.start_with(|config| config.call_limit = LIMIT);
    let (driver, _served) = node.connected_driver().await;
    driver.set(|behaviour| behaviour.delay = Duration::from_secs(600));
    let start = Instant::now();
    let error = node.prepare(&["c-1"]).await.unwrap_err();
    let took = start.elapsed();
    assert!(took >= LIMIT, "{took:?}");
    assert_eq!(call_error(&error), &CallError::DeadlineExceeded { driver: name(), limit: LIMIT });
    let deadlines = driver.deadlines();
    let deadline = deadlines[0].as_ref().unwrap();
    let micros: u64 = deadline.strip_suffix('u').unwrap().parse().unwrap();
    assert!(u128::from(micros) <= LIMIT.as_micros() && u128::from(micros) > LIMIT.as_micros() / 2, "{deadline}");
    let counted = node.metric("dra_grpc_operations_duration_seconds_count");
    assert_eq!(counted.len(), 1, "{counted:?}");
    for part in [
        "driver_name=\"gpu.acme.test\"",
        "method_name=\"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources\"",
        "grpc_status_code=\"DeadlineExceeded\"",
    ] {
        assert!(counted[0].contains(part), "{counted:?}");
    }
}

/// DRA-C5: an endpoint registers once; the newest instance is preferred; removals are harmless.
#[tokio::test]
async fn instances_of_a_driver_come_and_go() {
    let node = Node::started();
    let (old, [old_endpoint, old_registration]) = node.connected_driver().await;
    let twice = node.driver();
    let twice_registration = twice.announce(&node.registry("again.sock"));
    let calls = twice.until(|calls| calls.len() >= 2).await;
    let Call::Notified(false, text) = &calls[1] else { panic!("{calls:?}") };
    assert!(text.contains("registered already") && text.contains(NAME), "{text}");
    drop(twice_registration);

    let new = FakeDriver::new(NAME, node.path("dra-2.sock"));
    let new_served = [new.serve(Serve::All), new.announce(&node.registry("gpu-2-reg.sock"))];
    new.registered().await;
    let all_connected = |drivers: &Drivers| {
        let instances = drivers.instances(&name());
        instances.len() == 2 && instances.iter().all(|state| state.is_connected)
    };
    node.until("both are connected", all_connected).await;
    node.prepare(&["c-1"]).await.unwrap();
    drop(old_registration);
    node.until("the old one has left", |drivers| drivers.instances(&name()).len() == 1).await;
    node.prepare(&["c-2"]).await.unwrap();
    drop(old_endpoint);
    assert_eq!(old.calls(), [Call::GetInfo, positive()], "the newer one got the calls");
    drop(new_served);
    node.until("no instance is left", |drivers| !drivers.is_registered(&name())).await;
    assert!(matches!(node.prepare(&["c-1"]).await, Err(DriverError::NotRegistered(_))));
}

/// DRA-C6: a driver may serve its endpoint after it has registered.
#[tokio::test]
async fn an_endpoint_may_be_served_later() {
    let node = Node::started();
    let driver = node.driver();
    let _registration = driver.announce(&node.registry("gpu.sock"));
    driver.registered().await;
    let start = Instant::now();
    for _ in 0..10 {
        let unreachable = node.prepare(&["c-1"]).await.unwrap_err();
        let error = call_error(&unreachable);
        assert_eq!(error.code(), "Unavailable");
        assert!(matches!(unreachable, DriverError::Unreachable(_)), "nothing was sent");
        assert!(error.to_string().contains(node.path("dra.sock").to_str().unwrap()), "{error}");
    }
    // If the calls waited for a connection, each would take 10 s.
    assert!(start.elapsed() < Duration::from_secs(60), "a call without a connection fails fast");
    let _endpoint = driver.serve(Serve::All);
    // A call connects at once, whatever the delay before the next attempt is.
    assert_eq!(node.prepare(&["c-1"]).await.unwrap().len(), 1);
    assert_eq!(driver.accepted(), 1);
    node.until("it is usable", |drivers| drivers.is_usable(&name())).await;
}

/// The endpoint that a plugin names is used only if nobody but root and the user of the agent could have put a socket there.
#[tokio::test]
async fn an_endpoint_that_others_can_replace_is_refused() {
    let node = Node::started();
    let open = node.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let driver = FakeDriver::new(NAME, open.join("dra.sock"));
    let _served = [driver.serve(Serve::All), driver.announce(&node.registry("gpu.sock"))];
    driver.registered().await;
    let error = node.prepare(&["c-1"]).await.unwrap_err();
    let text = call_error(&error).to_string();
    for part in [NAME, open.to_str().unwrap(), "other users can write to it (mode 0777)", "chmod go-w"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(driver.accepted(), 0);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(node.prepare(&["c-1"]).await.unwrap().len(), 1);
}

/// DRA-C7: while the newer of two instances is away, the older one gets the calls.
#[tokio::test]
async fn the_older_instance_takes_over() {
    let node = Node::started();
    let (old, _old_served) = node.connected_driver().await;
    let new = FakeDriver::new(NAME, node.path("dra-2.sock"));
    let [new_endpoint, _registration] = [new.serve(Serve::All), new.announce(&node.registry("gpu-2-reg.sock"))];
    new.registered().await;
    let is_connected = |drivers: &Drivers| drivers.instances(&name()).get(1).is_some_and(|state| state.is_connected);
    node.until("the new one is connected", is_connected).await;
    new_endpoint.kill();
    node.until("the new one is gone", |drivers| !is_connected(drivers)).await;
    assert_eq!(node.prepare(&["c-1"]).await.unwrap().len(), 1);
    assert_eq!(old.calls().last(), Some(&Call::Prepare("v1", recorded(&["c-1"]))));
    assert!(node.plugins().registered().is_usable(&name()));
}

/// The end of a connection is noticed without a call, and the next connection is made without one.
#[tokio::test]
async fn a_connection_is_opened_again_by_itself() {
    let node = Node::started();
    let (driver, [endpoint, _registration]) = node.connected_driver().await;
    drop(endpoint);
    node.until("the end is noticed", |drivers| !drivers.is_usable(&name())).await;
    assert!(node.plugins().drivers().is_registered(&name()), "the socket is still there");
    // The node is connected before the driver accepts, so the endpoint may have ended before it accepted anything.
    let before = driver.accepted();
    let _endpoint = driver.serve(Serve::All);
    node.until("it is connected again", |drivers| drivers.is_usable(&name())).await;
    until("the driver has accepted it", || driver.accepted() > before).await;
}

/// A driver that limits the age of its connections gets its calls over new ones, while a stream goes on.
#[tokio::test]
async fn a_connection_that_takes_no_more_calls_is_replaced() {
    let node = Node::started();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.max_age = Some(Duration::from_secs(5)));
    let _served = [driver.serve(Serve::All), driver.announce(&node.registry("gpu.sock"))];
    driver.registered().await;
    node.until("the driver is connected", |drivers| drivers.is_usable(&name())).await;
    let instance = node.plugins().registered().choose(&name()).unwrap().clone();
    let mut client = DraResourceHealthClient::new(instance.connected().await.unwrap());
    let mut stream = client.node_watch_resources(NodeWatchResourcesRequest {}).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    until("the node has connected again", || driver.accepted() >= 2).await;
    node.until("the driver is connected again", |drivers| drivers.is_usable(&name())).await;
    assert_eq!(node.prepare(&["c-1"]).await.unwrap().len(), 1);
    driver.send_health(NodeWatchResourcesResponse { devices: vec![DeviceHealth::default()] });
    assert_eq!(stream.message().await.unwrap().unwrap().devices.len(), 1, "the stream goes on");
}

/// Calls and streams end with the registration of their instance.
#[tokio::test]
async fn a_removed_instance_ends_its_calls_and_streams() {
    let node = Node::started();
    let (driver, [_endpoint, registration]) = node.connected_driver().await;
    driver.set(|behaviour| behaviour.delay = Duration::from_secs(600));
    let instance = node.plugins().registered().choose(&name()).unwrap().clone();
    let mut client = DraResourceHealthClient::new(instance.connected().await.unwrap());
    let mut stream = client.node_watch_resources(NodeWatchResourcesRequest {}).await.unwrap().into_inner();
    stream.message().await.unwrap();
    let (call, ()) = tokio::join!(node.prepare(&["c-1"]), async {
        driver.until(|calls| matches!(calls.last(), Some(Call::Prepare(..)))).await;
        drop(registration);
    });
    let error = call.unwrap_err();
    assert_eq!(call_error(&error).code(), "Unavailable");
    // The driver may have performed the call.
    let text = call_error(&error).to_string();
    assert!(text.starts_with("the connection to DRA driver gpu.acme.test ended during the call: "), "{text}");
    assert!(ends_soon(stream.message()).await.is_err());
    instance.removed().await;
    assert!(instance.connected().await.is_none());
}

/// The answers for claims, and the errors of whole calls, as the driver gave them.
#[tokio::test]
async fn answers_reach_the_caller() {
    let node = Node::started();
    let (driver, _served) = node.connected_driver().await;
    let ok = |uid: &str, devices: Vec<String>| (uid.to_owned(), Ok(devices));
    for (answer, expected) in [
        (Answer::Default, vec![ok("c-1", vec![]), ok("c-2", vec![])]),
        (Answer::Empty, vec![]),
        (
            Answer::Error("no\nroom".to_owned()),
            vec![("c-1".to_owned(), Err("no\\nroom".to_owned())), ("c-2".to_owned(), Err("no\\nroom".to_owned()))],
        ),
    ] {
        driver.set(|behaviour| behaviour.answer = answer);
        assert_eq!(node.prepare(&["c-1", "c-2"]).await.unwrap(), expected);
    }
    assert_eq!(driver.calls().last(), Some(&Call::Prepare("v1", recorded(&["c-1", "c-2"]))));
    driver.set(|behaviour| behaviour.answer = Answer::Error("x".repeat(5 << 20)));
    let error = node.prepare(&["c-1"]).await.unwrap_err();
    assert_eq!(call_error(&error).code(), "OutOfRange", "the answer is too long: {error:?}");
    driver.set(|behaviour| behaviour.call_fails = Some((tonic::Code::ResourceExhausted, "full\u{1b}[2J".to_owned())));
    let error = node.prepare(&["c-1"]).await.unwrap_err();
    let text = call_error(&error).to_string();
    assert_eq!(text, "DRA driver gpu.acme.test answered with ResourceExhausted: full\\u{1b}[2J");
    let codes = node.metric("dra_grpc_operations_duration_seconds_count");
    assert!(codes.iter().any(|line| line.contains("\"OK\"") && line.ends_with(" 3")), "{codes:?}");
}

/// After a stop nothing runs on, and the sockets of the drivers see their connections closed.
#[tokio::test]
async fn a_stop_closes_all_connections() {
    let mut node = Node::started();
    let (driver, _served) = node.connected_driver().await;
    let drivers = node.plugins().drivers();
    node.stop().await;
    let claims = [claim("c-1")];
    let name = name();
    let call = drivers.prepare(&name, &claims);
    assert!(ends_soon(call).await.is_err());
    assert!(!driver.calls().iter().any(|call| matches!(call, Call::Prepare(..))));
}

async fn ends_soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it ends")
}
