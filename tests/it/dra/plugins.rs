//! The registration of drivers, and the calls to them. Real sockets need real time, so limits are short and all waits are for
//! conditions.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright::actors::ids::{ClaimName, ClaimUid, DriverName};
use podwright::adapters::dra::{
    ApiVersion, CallError, DraPlugins, Drivers, HandlerError, Plugin, PluginHandler, PluginsConfig, StartPluginsError,
};
use podwright::dra_api::health::dra_resource_health_client::DraResourceHealthClient;
use podwright::dra_api::health::{DeviceHealth, NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use podwright::metrics::{Format, Metrics};
use podwright::ports::{ClaimRef, DriverError};
use tokio_util::sync::CancellationToken;

use crate::support::fake_driver::{Answer, Call, FakeDriver, Serve, Served};

const NAME: &str = "gpu.acme.test";

/// A node with a registry directory.
struct Node {
    dir: tempfile::TempDir,
    metrics: Metrics,
    stop: CancellationToken,
    plugins: Option<Arc<DraPlugins>>,
}

impl Node {
    /// A node that has not started.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("plugins_registry")).unwrap();
        Node { dir, metrics: Metrics::new(), stop: CancellationToken::new(), plugins: None }
    }

    fn started() -> Self {
        let mut node = Node::new();
        node.start();
        node
    }

    fn start(&mut self) {
        self.start_with(|_| {});
    }

    fn start_with(&mut self, edit: impl FnOnce(&mut PluginsConfig)) {
        let mut config = PluginsConfig::new(self.registry(""));
        edit(&mut config);
        self.stop = CancellationToken::new();
        self.plugins = Some(DraPlugins::start(config, &self.metrics, &self.stop).unwrap());
    }

    async fn stop(&mut self) {
        self.stop.cancel();
        self.plugins.take().unwrap().stopped().await;
    }

    fn plugins(&self) -> &DraPlugins {
        self.plugins.as_ref().unwrap()
    }

    /// A path in the registry directory.
    fn registry(&self, name: &str) -> PathBuf {
        self.dir.path().join("plugins_registry").join(name)
    }

    /// A path beside it.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn driver(&self) -> FakeDriver {
        FakeDriver::new(NAME, self.path("dra.sock"))
    }

    /// A driver that is registered and connected.
    async fn connected_driver(&self) -> (FakeDriver, [Served; 2]) {
        let driver = self.driver();
        let served = [driver.serve(Serve::All), driver.announce(&self.registry("gpu-reg.sock"))];
        driver.registered().await;
        self.until("the driver is connected", |drivers| drivers.is_usable(&name())).await;
        (driver, served)
    }

    async fn until(&self, what: &str, condition: impl Fn(&Drivers) -> bool) {
        let mut drivers = self.plugins().subscribe();
        let met = drivers.wait_for(|drivers| condition(drivers));
        tokio::time::timeout(Duration::from_secs(30), met).await.expect(what).unwrap();
    }

    async fn prepare(&self, uids: &[&str]) -> Result<Vec<(String, Result<Vec<String>, String>)>, DriverError> {
        let claims: Vec<_> = uids.iter().map(|uid| claim(uid)).collect();
        let answers = self.plugins().drivers().prepare(&name(), &claims).await?;
        let devices = |devices: Vec<podwright::ports::PreparedDevice>| {
            devices.into_iter().map(|device| device.cdi_devices.join(",")).collect()
        };
        Ok(answers.into_iter().map(|(uid, answer)| (uid.as_str().to_owned(), answer.map(devices))).collect())
    }

    async fn unprepare(&self, uids: &[&str]) -> Result<Vec<(String, Result<(), String>)>, DriverError> {
        let claims: Vec<_> = uids.iter().map(|uid| claim(uid)).collect();
        let answers = self.plugins().drivers().unprepare(&name(), &claims).await?;
        Ok(answers.into_iter().map(|(uid, answer)| (uid.as_str().to_owned(), answer)).collect())
    }

    /// The lines of a metric.
    fn metric(&self, name: &str) -> Vec<String> {
        let text = self.metrics.encode(Format::Classic);
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }
}

fn name() -> DriverName {
    DriverName::from(NAME)
}

fn claim(uid: &str) -> ClaimRef {
    ClaimRef { name: ClaimName::new("shop", "cam"), uid: ClaimUid::from(uid) }
}

/// The claims as the fake driver records them.
fn recorded(uids: &[&str]) -> Vec<[String; 3]> {
    uids.iter().map(|uid| ["shop".to_owned(), "cam".to_owned(), (*uid).to_owned()]).collect()
}

/// The source of a failed call.
fn call_error(error: &DriverError) -> &CallError {
    std::error::Error::source(error).unwrap().downcast_ref().unwrap()
}

/// Polls a condition that nothing notifies of.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn positive() -> Call {
    Call::Notified(true, String::new())
}

/// A handler of another type that records its calls.
#[derive(Default)]
struct FakeHandler {
    calls: Mutex<Vec<(&'static str, Plugin)>>,
    /// Registrations of plugins of this name wait until it is cancelled.
    slow: Option<(String, CancellationToken)>,
    /// Registrations of plugins of this name panic.
    panics: Mutex<Option<String>>,
}

impl FakeHandler {
    /// The calls, each with the name of the plugin.
    fn calls(&self) -> Vec<String> {
        self.calls.lock().iter().map(|(call, plugin)| format!("{call} {}", plugin.name)).collect()
    }
}

impl PluginHandler for FakeHandler {
    fn validate(&self, plugin: &Plugin) -> Result<(), HandlerError> {
        self.calls.lock().push(("validate", plugin.clone()));
        Ok(())
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), HandlerError>> {
        self.calls.lock().push(("register", plugin.clone()));
        assert_ne!(self.panics.lock().as_ref(), Some(&plugin.name), "as the test wants it");
        let slow = self.slow.clone().filter(|(name, _)| *name == plugin.name);
        async move {
            if let Some((_, released)) = slow {
                released.cancelled().await;
            }
            Ok(())
        }
        .boxed()
    }

    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()> {
        self.calls.lock().push(("deregister", plugin.clone()));
        std::future::ready(()).boxed()
    }
}

/// Starts a node whose plugins of the type `Test` have this handler.
fn node_with(handler: FakeHandler) -> (Node, Arc<FakeHandler>) {
    let (mut node, handler) = (Node::new(), Arc::new(handler));
    let other: Arc<dyn PluginHandler> = handler.clone();
    node.start_with(|config| config.handlers.push(("Test".to_owned(), other)));
    (node, handler)
}

/// A plugin of the type `Test` that announces itself at a path.
fn test_plugin(name: &str, path: &Path) -> (FakeDriver, Served) {
    let plugin = FakeDriver::new(name, format!("/run/{name}.sock"));
    plugin.set(|behaviour| behaviour.kind = "Test".to_owned());
    let served = plugin.announce(path);
    (plugin, served)
}

/// DRA-R1: plugins that exist before the agent are registered once, at each of its starts.
#[tokio::test]
async fn plugins_that_exist_already_are_registered_once_per_start() {
    let mut node = Node::new();
    let drivers: Vec<_> = (0..10)
        .map(|number| {
            let driver = FakeDriver::new(&format!("d{number}.test"), node.path(&format!("{number}.sock")));
            let served = driver.announce(&node.registry(&format!("{number}-reg.sock")));
            (driver, served)
        })
        .collect();
    for starts in 1..=2 {
        node.start();
        for (driver, _) in &drivers {
            driver.until(|calls| calls.iter().filter(|call| **call == positive()).count() == starts).await;
        }
        node.until("ten drivers", |drivers| drivers.names().count() == 10).await;
        node.stop().await;
        for (driver, _) in &drivers {
            assert_eq!(driver.calls(), vec![[Call::GetInfo, positive()]; starts].concat());
        }
    }
}

/// DRA-R2: new sockets are found at any depth. Files and hidden names are not contacted.
#[tokio::test]
async fn new_sockets_are_registered_with_their_full_paths() {
    let (node, handler) = node_with(FakeHandler::default());
    let mut plugins = Vec::new();
    std::fs::create_dir_all(node.registry("x/y")).unwrap();
    std::fs::write(node.registry("file"), "").unwrap();
    let (hidden, _hidden_socket) = test_plugin("hidden", &node.registry(".hidden.sock"));
    for (name, path) in [("a", "a.sock"), ("b", "x/b.sock"), ("c", "x/y/c.sock")] {
        let (plugin, served) = test_plugin(name, &node.registry(path));
        let calls = plugin.registered().await;
        assert_eq!(calls, [Call::GetInfo, positive()]);
        plugins.push((plugin, served, node.registry(path)));
    }
    assert_eq!(handler.calls(), ["validate a", "register a", "validate b", "register b", "validate c", "register c"]);
    assert_eq!(hidden.calls(), []);
    let mut expected: Vec<_> = plugins.iter().map(|(_, _, path)| path.clone()).collect();
    expected.sort();
    assert_eq!(node.plugins().sockets().into_iter().map(|socket| socket.path).collect::<Vec<_>>(), expected);
    assert!(node.plugins().is_healthy());
}

/// DRA-R3: a plugin is deregistered with the name and the endpoint with which it was registered.
#[tokio::test]
async fn a_plugin_is_deregistered_when_its_socket_is_gone() {
    let (node, handler) = node_with(FakeHandler::default());
    let (plugin, served) = test_plugin("a", &node.registry("a.sock"));
    plugin.registered().await;
    // What it would announce now does not matter.
    plugin.set(|behaviour| behaviour.endpoint = Some("/run/other.sock".to_owned()));
    drop(served);
    eventually("it is gone", || node.plugins().sockets().is_empty()).await;
    eventually("it is deregistered", || handler.calls().len() == 3).await;
    let calls = handler.calls.lock();
    assert_eq!(calls[2].0, "deregister");
    assert_eq!(calls[2].1, calls[1].1);
}

/// DRA-R3: several sockets may announce one name.
#[tokio::test]
async fn ten_sockets_may_announce_one_name() {
    let (node, handler) = node_with(FakeHandler::default());
    let plugins: Vec<_> = (0..10).map(|i| test_plugin("same", &node.registry(&format!("{i}.sock")))).collect();
    for (plugin, _) in &plugins {
        plugin.registered().await;
    }
    assert_eq!(node.plugins().sockets().iter().filter(|socket| socket.is_desired).count(), 10);
    assert_eq!(handler.calls().len(), 20);
}

/// DRA-R4: another plugin at the same path replaces the first one.
#[tokio::test]
async fn a_socket_that_is_created_again_has_a_new_plugin() {
    let (node, handler) = node_with(FakeHandler::default());
    for round in 0..10 {
        let (old_name, new_name) = (format!("old{round}"), format!("new{round}"));
        let path = node.registry("a.sock");
        let (old, old_served) = test_plugin(&old_name, &path);
        old.registered().await;
        drop(old_served);
        let (new, new_served) = test_plugin(&new_name, &path);
        new.registered().await;
        let sockets = node.plugins().sockets();
        assert_eq!(sockets.len(), 1);
        assert_eq!(sockets[0].registered.as_ref().unwrap().name, new_name);
        let calls = handler.calls();
        assert!(calls.contains(&format!("deregister {old_name}")), "{calls:?}");
        drop(new_served);
        eventually("it is gone", || node.plugins().sockets().is_empty()).await;
    }
}

/// DRA-R5: a plugin without a handler is refused with a text, and tried again.
#[tokio::test]
async fn a_plugin_of_an_unknown_type_is_refused() {
    let node = Node::started();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.kind = "FooPlugin".to_owned());
    let _served = driver.announce(&node.registry("foo.sock"));
    let calls = driver.until(|calls| calls.len() == 4).await;
    assert_eq!(calls[2], Call::GetInfo, "it is tried again");
    let Call::Notified(false, text) = &calls[1] else { panic!("{calls:?}") };
    assert!(text.contains("FooPlugin") && text.contains("DRAPlugin"), "{text}");
    let socket = &node.plugins().sockets()[0];
    assert!(socket.is_desired && socket.registered.is_none());
    eventually("the failures are counted", || {
        let failure = node.plugins().sockets()[0].failure.clone();
        failure.is_some_and(|failure| failure.tries == 2 && failure.error.contains("FooPlugin"))
    })
    .await;
}

/// DRA-R6: a plugin that does not answer yet is registered later.
#[tokio::test]
async fn a_plugin_is_registered_once_it_answers() {
    let node = Node::started();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.get_info_fails = true);
    let _served = driver.announce(&node.registry("gpu.sock"));
    driver.until(|calls| !calls.is_empty()).await;
    driver.set(|behaviour| behaviour.get_info_fails = false);
    let calls = driver.registered().await;
    assert_eq!(calls, [Call::GetInfo, Call::GetInfo, positive()]);
}

/// DRA-R7: a plugin that refuses its registration is not registered.
#[tokio::test]
async fn a_plugin_whose_notification_fails_is_deregistered() {
    let (node, handler) = node_with(FakeHandler::default());
    let plugin = FakeDriver::new("a", "/run/a.sock");
    plugin.set(|behaviour| {
        behaviour.kind = "Test".to_owned();
        behaviour.notify_fails = true;
    });
    let _served = plugin.announce(&node.registry("a.sock"));
    eventually("it is deregistered", || handler.calls() == ["validate a", "register a", "deregister a"]).await;
    eventually("it is not registered", || node.plugins().sockets()[0].registered.is_none()).await;
    plugin.set(|behaviour| behaviour.notify_fails = false);
    plugin.until(|calls| calls.len() == 4).await;
    eventually("it is registered again", || handler.calls().len() == 5).await;
    assert_eq!(handler.calls()[3..], ["validate a", "register a"]);
    assert!(node.plugins().sockets()[0].registered.is_some());
}

/// DRA-R8: a plugin that names no endpoint is served by its registration socket.
#[tokio::test]
async fn an_empty_endpoint_is_the_registration_socket() {
    let node = Node::started();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.endpoint = Some(String::new()));
    let _served = driver.announce(&node.registry("gpu.sock"));
    driver.registered().await;
    let drivers = node.plugins().registered();
    assert_eq!(drivers.instances(&name())[0].instance.endpoint(), node.registry("gpu.sock"));
}

/// DRA-R9: a slow registration delays no other socket, and nothing else happens to its own path.
#[tokio::test]
async fn a_slow_registration_delays_no_other_socket() {
    let released = CancellationToken::new();
    let handler = FakeHandler { slow: Some(("slow".to_owned(), released.clone())), ..FakeHandler::default() };
    let (node, handler) = node_with(handler);
    let (_slow, slow_served) = test_plugin("slow", &node.registry("slow.sock"));
    eventually("it has begun", || handler.calls() == ["validate slow", "register slow"]).await;
    let (fast, _fast_served) = test_plugin("fast", &node.registry("fast.sock"));
    fast.registered().await;
    drop(slow_served);
    eventually("the socket is gone", || {
        node.plugins().sockets().iter().any(|socket| socket.path.ends_with("slow.sock") && !socket.is_desired)
    })
    .await;
    assert_eq!(handler.calls().len(), 4, "one operation on the path runs");
    released.cancel();
    eventually("the removal is not lost", || handler.calls().last().is_some_and(|last| last == "deregister slow"))
        .await;
}

/// A handler that panics counts as one that failed, and other plugins are registered.
#[tokio::test]
async fn a_panic_of_a_handler_is_a_failure() {
    let (node, handler) = node_with(FakeHandler::default());
    *handler.panics.lock() = Some("bad".to_owned());
    let (bad, _bad_served) = test_plugin("bad", &node.registry("bad.sock"));
    bad.until(|calls| {
        calls.iter().any(|call| matches!(call, Call::Notified(false, text) if text.contains("panicked")))
    })
    .await;
    *handler.panics.lock() = None;
    bad.registered().await;
    assert!(node.metric("podwright_hook_panics").iter().any(|line| line.ends_with(" 1")), "the panic is counted");
}

/// DRA-R10: the calls of a driver are of a version that the node knows.
#[tokio::test]
async fn a_driver_must_list_a_known_service() {
    let node = Node::started();
    for versions in [vec![], vec!["1.0.0"]] {
        let driver = node.driver();
        driver.set(|behaviour| behaviour.versions = versions.iter().map(|version| (*version).to_owned()).collect());
        let _served = driver.announce(&node.registry("gpu.sock"));
        let calls = driver.until(|calls| calls.len() >= 2).await;
        let Call::Notified(false, text) = &calls[1] else { panic!("{calls:?}") };
        assert!(text.contains("v1.DRAPlugin") && text.contains("v1beta1.DRAPlugin"), "{text}");
        assert!(!node.plugins().drivers().is_registered(&name()));
    }
    let driver = node.driver();
    driver.set(|behaviour| behaviour.versions = vec!["v1.DRAPlugin".to_owned(), "v9.Unknown".to_owned()]);
    let _served = driver.announce(&node.registry("gpu.sock"));
    driver.registered().await;
    let services = node.plugins().registered().instances(&name())[0].instance.services();
    assert_eq!((services.api, services.health), (ApiVersion::V1, false));
}

/// DRA-R11: a gauge per socket and state.
#[tokio::test]
async fn sockets_are_counted_by_state() {
    let node = Node::started();
    let (_driver, served) = node.connected_driver().await;
    let path = node.registry("gpu-reg.sock");
    let path = path.display();
    let expected = [
        format!("plugin_manager_total_plugins{{socket_path=\"{path}\",state=\"actual_state_of_world\"}} 1"),
        format!("plugin_manager_total_plugins{{socket_path=\"{path}\",state=\"desired_state_of_world\"}} 1"),
    ];
    let mut found = node.metric("plugin_manager_total_plugins");
    found.sort();
    assert_eq!(found, expected);
    drop(served);
    eventually("the series are gone", || node.metric("plugin_manager_total_plugins").is_empty()).await;
}

/// A registry directory that cannot be used makes the node unhealthy, until it can.
#[tokio::test]
async fn a_registry_directory_that_cannot_be_watched_is_reported() {
    let mut node = Node::new();
    std::fs::remove_dir(node.registry("")).unwrap();
    std::fs::write(node.path("plugins_registry"), "").unwrap();
    node.start();
    eventually("it is reported", || node.plugins().problem().is_some_and(|text| text.contains("not a directory")))
        .await;
    assert!(!node.plugins().is_healthy());
    std::fs::remove_file(node.path("plugins_registry")).unwrap();
    eventually("it is created and watched", || node.plugins().is_healthy()).await;
    let (_driver, _served) = node.connected_driver().await;
    let relative = DraPlugins::start(PluginsConfig::new("plugins"), &node.metrics, &node.stop);
    assert_eq!(relative.unwrap_err(), StartPluginsError::RelativeDirectory("plugins".into()));
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
    // A pause cannot be paused with real sockets. Nothing closes an idle connection, so a short one shows as much.
    tokio::time::sleep(Duration::from_millis(500)).await;
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

/// DRA-C4: a call ends at its time limit, which the driver knows.
#[tokio::test]
async fn a_driver_that_does_not_answer_is_given_up_at_the_limit() {
    let mut node = Node::new();
    node.start_with(|config| config.call_limit = Duration::from_secs(1));
    let (driver, _served) = node.connected_driver().await;
    driver.set(|behaviour| behaviour.delay = Duration::from_secs(600));
    let start = Instant::now();
    let error = node.prepare(&["c-1"]).await.unwrap_err();
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(5), "{took:?}");
    assert_eq!(call_error(&error), &CallError::DeadlineExceeded { driver: name(), limit: Duration::from_secs(1) });
    let deadlines = driver.deadlines();
    let deadline = deadlines[0].as_ref().unwrap();
    let micros: u64 = deadline.strip_suffix('u').unwrap().parse().unwrap();
    assert!(micros <= 1_000_000 && micros > 500_000, "{deadline}");
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
    for _ in 0..3 {
        let error = node.prepare(&["c-1"]).await.unwrap_err();
        let error = call_error(&error);
        assert_eq!(error.code(), "Unavailable");
        assert!(error.to_string().contains(node.path("dra.sock").to_str().unwrap()), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "a call without a connection fails fast");
    let _endpoint = driver.serve(Serve::All);
    // A call connects at once, whatever the delay before the next attempt is.
    assert_eq!(node.prepare(&["c-1"]).await.unwrap().len(), 1);
    assert_eq!(driver.accepted(), 1);
    node.until("it is usable", |drivers| drivers.is_usable(&name())).await;
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
    let _endpoint = driver.serve(Serve::All);
    node.until("it is connected again", |drivers| drivers.is_usable(&name())).await;
    eventually("the driver has accepted it", || driver.accepted() == 2).await;
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
    assert_eq!(call_error(&call.unwrap_err()).code(), "Unavailable");
    assert!(stream.message().await.is_err());
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
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("it ends")
}
