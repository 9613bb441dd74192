//! The registration of plugins, and the calls to drivers. Real sockets need real time. So the tests wait for conditions, and the time
//! limits of a registration are as long as the longest wait of a test.

mod calls;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_dra::{
    ApiVersion, DraPlugins, Drivers, HandlerError, Plugin, PluginHandler, PluginsConfig, StartPluginsError,
};
use podwright_dra_tests::fake_driver::{Call, FakeDriver, Serve, Served};
use podwright_fixtures::polling::{PATIENCE, eventually, until};
use podwright_metrics::{Format, Metrics};
use podwright_model::ids::{ClaimName, ClaimUid, DriverName};
use podwright_ports::{ClaimRef, DriverError, PreparedDevice};
use tokio_util::sync::CancellationToken;

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
        (config.info_limit, config.notify_limit) = (PATIENCE, PATIENCE);
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
        tokio::time::timeout(PATIENCE, met).await.expect(what).unwrap();
    }

    async fn prepare(&self, uids: &[&str]) -> Result<Vec<(String, Result<Vec<String>, String>)>, DriverError> {
        let claims: Vec<_> = uids.iter().map(|uid| claim(uid)).collect();
        let answers = self.plugins().drivers().prepare(&name(), &claims).await?;
        let devices =
            |devices: Vec<PreparedDevice>| devices.into_iter().map(|device| device.cdi_devices.join(",")).collect();
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

/// DRA-R2: a plugin that does not answer its first call is not registered, and other plugins are.
#[tokio::test]
async fn a_plugin_that_does_not_answer_is_named_and_delays_no_other() {
    let mut node = Node::new();
    let other: Arc<dyn PluginHandler> = Arc::new(FakeHandler::default());
    node.start_with(|config| {
        config.handlers.push(("Test".to_owned(), other));
        config.info_limit = Duration::from_millis(100);
    });
    // The kernel accepts connections, and nobody reads from them.
    let _silent = std::os::unix::net::UnixListener::bind(node.registry("silent.sock")).unwrap();
    let expected = "the plugin did not answer GetInfo within 100ms";
    let failure = || node.plugins().sockets().into_iter().find_map(|socket| Some(socket.failure?.error));
    until("the failure is named", || failure().is_some_and(|error| error.contains(expected))).await;
    // The limit is short, so a slow machine may need more than one try.
    let (plugin, _served) = test_plugin("a", &node.registry("a.sock"));
    until("another plugin is registered", || plugin.calls().contains(&positive())).await;
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
    assert_eq!(node.plugins().problem(), None);
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
    until("it is gone", || node.plugins().sockets().is_empty()).await;
    until("it is deregistered", || handler.calls().len() == 3).await;
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
        until("it is gone", || node.plugins().sockets().is_empty()).await;
    }
}

/// DRA-R5: a plugin without a handler is refused with an error text, and the registration is tried again.
#[tokio::test]
async fn a_plugin_of_an_unknown_type_is_refused() {
    let node = Node::started();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.kind = "FooPlugin".to_owned());
    let _served = driver.announce(&node.registry("foo.sock"));
    let calls = driver.until(|calls| calls.len() >= 4).await;
    assert_eq!(calls[2], Call::GetInfo, "it is tried again");
    let Call::Notified(false, text) = &calls[1] else { panic!("{calls:?}") };
    assert!(text.contains("FooPlugin") && text.contains("DRAPlugin"), "{text}");
    let socket = &node.plugins().sockets()[0];
    assert!(socket.is_desired && socket.registered.is_none());
    until("the failures are counted", || {
        let failure = node.plugins().sockets()[0].failure.clone();
        failure.is_some_and(|failure| failure.tries >= 2 && failure.error.contains("FooPlugin"))
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
    // The node may have asked again before the test changed the answer.
    let (last, before) = calls.split_last().unwrap();
    assert_eq!(last, &positive());
    assert!(before.len() >= 2 && before.iter().all(|call| *call == Call::GetInfo), "{calls:?}");
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
    until("it is deregistered", || handler.calls().len() >= 3).await;
    until("it is not registered", || node.plugins().sockets()[0].registered.is_none()).await;
    plugin.set(|behaviour| behaviour.notify_fails = false);
    // The node may have tried again before the test changed the answer.
    let calls = eventually("it is registered again", || async {
        let (calls, socket) = (handler.calls(), node.plugins().sockets().remove(0));
        (socket.registered.is_some() && calls.len() > 3 && calls.len() % 3 == 2).then_some(calls)
    })
    .await;
    let expected = ["validate a", "register a", "deregister a"].iter().cycle();
    assert!(calls.iter().zip(expected).all(|(call, expected)| call == expected), "{calls:?}");
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

/// DRA-R9: a slow registration delays no other socket, and its own path gets no second operation.
#[tokio::test]
async fn a_slow_registration_delays_no_other_socket() {
    let released = CancellationToken::new();
    let handler = FakeHandler { slow: Some(("slow".to_owned(), released.clone())), ..FakeHandler::default() };
    let (node, handler) = node_with(handler);
    let (_slow, slow_served) = test_plugin("slow", &node.registry("slow.sock"));
    until("it has begun", || handler.calls() == ["validate slow", "register slow"]).await;
    let (fast, _fast_served) = test_plugin("fast", &node.registry("fast.sock"));
    fast.registered().await;
    drop(slow_served);
    until("the socket is gone", || {
        node.plugins().sockets().iter().any(|socket| socket.path.ends_with("slow.sock") && !socket.is_desired)
    })
    .await;
    assert_eq!(handler.calls().len(), 4, "one operation on the path runs");
    released.cancel();
    until("the removal is not lost", || handler.calls().last().is_some_and(|last| last == "deregister slow")).await;
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

/// The function that learns of usable drivers belongs to the embedder.
#[tokio::test]
async fn a_part_that_panics_starts_again() {
    let node = Node::started();
    let _connected = node.connected_driver().await;
    let reports = Arc::new(AtomicUsize::new(0));
    let counted = reports.clone();
    node.plugins().on_usable(move |_| {
        assert!(counted.fetch_add(1, Ordering::Relaxed) > 0, "as the test wants it");
    });
    until("the driver is reported again", || reports.load(Ordering::Relaxed) == 2).await;
    let panics = node.metric("podwright_part_panics_total{part=\"usable_drivers\"}");
    assert!(panics.len() == 1 && panics[0].ends_with(" 1"), "{panics:?}");
    assert_eq!(node.plugins().stopped_parts(), []);
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
    until("the series are gone", || node.metric("plugin_manager_total_plugins").is_empty()).await;
}

/// A registry directory that cannot be used makes the node unhealthy, until it can be used.
#[tokio::test]
async fn a_registry_directory_that_cannot_be_watched_is_reported() {
    let mut node = Node::new();
    std::fs::remove_dir(node.registry("")).unwrap();
    std::fs::write(node.path("plugins_registry"), "").unwrap();
    node.start();
    until("it is reported", || node.plugins().problem().is_some_and(|text| text.contains("not a directory"))).await;
    assert!(node.plugins().problem().is_some());
    std::fs::remove_file(node.path("plugins_registry")).unwrap();
    until("it is created and watched", || node.plugins().problem().is_none()).await;
    let (_driver, _served) = node.connected_driver().await;
    let relative = DraPlugins::start(PluginsConfig::new("plugins"), &node.metrics, &node.stop);
    assert_eq!(relative.unwrap_err(), StartPluginsError::RelativeDirectory("plugins".into()));
}
