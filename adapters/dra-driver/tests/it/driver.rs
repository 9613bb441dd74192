//! The library for drivers: its sockets and its calls.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use k8s_openapi::api::resource::v1::Device;
use parking_lot::Mutex;
use podwright_dra_api::health::NodeWatchResourcesRequest;
use podwright_dra_api::health::dra_resource_health_client::DraResourceHealthClient;
use podwright_dra_api::registration::registration_client::RegistrationClient;
use podwright_dra_api::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use podwright_dra_api::v1::dra_plugin_client::DraPluginClient;
use podwright_dra_api::v1::{NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use podwright_dra_api::v1beta1;
use podwright_dra_driver::{DeviceHealth, DriverResources, Health, PreparedDevice, Registration, StartError};
use podwright_dra_tests::connect;
use podwright_fixtures::polling::{PATIENCE, until};
use podwright_stand_in::{StandIn, User};
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::Code;

use super::support::{Act, DRIVER, Folders, TestDriver, claim};

mod kubelet;
mod metadata;

const REGISTRATION: &str = "gpu.acme.test-reg.sock";

fn files(folders: &Folders) -> [Vec<String>; 2] {
    [folders.registry(""), folders.data("")].map(|folder| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        entries.collect()
    })
}

/// DRA-D1
#[tokio::test]
async fn sockets_exist_while_the_driver_runs() {
    let folders = Folders::new();
    let driver = folders.builder(TestDriver::new().0).without_api().start().await.unwrap();
    assert_eq!(files(&folders), [vec![REGISTRATION.to_owned()], vec!["dra.sock".to_owned()]]);
    driver.stop().await;
    assert_eq!(files(&folders), [vec![], vec![] as Vec<String>]);
    driver.stop().await;

    let dropped = folders.builder(TestDriver::new().0).without_api().start().await.unwrap();
    drop(dropped);
    assert_eq!(files(&folders), [vec![], vec![] as Vec<String>]);
}

/// DRA-D1
#[tokio::test]
async fn custom_listeners_get_the_paths_and_own_the_files() {
    let folders = Folders::new();
    let paths = Arc::<Mutex<Vec<PathBuf>>>::default();
    let (one, two) = (paths.clone(), paths.clone());
    let driver = folders
        .builder(TestDriver::new().0)
        .without_api()
        .registration_listener(move |path| {
            one.lock().push(path.to_owned());
            Ok(stream::pending())
        })
        .service_listener(move |path| {
            two.lock().push(path.to_owned());
            Ok(stream::pending())
        })
        .start()
        .await
        .unwrap();
    assert_eq!(*paths.lock(), [folders.data("dra.sock"), folders.registry(REGISTRATION)], "the service comes first");
    driver.stop().await;
    assert_eq!(files(&folders), [vec![], vec![] as Vec<String>]);
}

/// DRA-D2
#[tokio::test]
async fn start_refuses_options_that_cannot_work() {
    let folders = Folders::new();
    let builder = || folders.builder(TestDriver::new().0).without_api();
    let nameless = podwright_dra_driver::DriverBuilder::new("", TestDriver::new().0).without_api();
    assert!(matches!(nameless.start().await, Err(StartError::Name(_))));
    assert!(matches!(folders.builder(TestDriver::new().0).start().await, Err(StartError::NoClient)));
    let fixed = builder().rolling_update("u9").registrar_file("fixed.sock").start().await;
    assert!(matches!(fixed, Err(StartError::RegistrarFile)));
    let silent = builder().v1(false).v1beta1(false).start().await;
    assert!(matches!(silent, Err(StartError::NoService)));
    let homeless = builder().data_dir(folders.root().join("missing")).start().await;
    assert!(matches!(homeless, Err(StartError::DataDir { .. })));
}

#[tokio::test]
async fn failed_start_leaves_no_socket() {
    let folders = Folders::new();
    let builder = folders.builder(TestDriver::new().0).without_api();
    let result = builder.registrar_dir(folders.root().join("missing")).start().await;
    assert!(matches!(result, Err(StartError::Listen { .. })));
    assert_eq!(files(&folders), [vec![], vec![] as Vec<String>]);
}

/// DRA-D3
#[tokio::test]
async fn rolling_update_has_sockets_of_its_own() {
    let folders = Folders::new();
    let old = folders.builder(TestDriver::new().0).without_api().rolling_update("u8").start().await.unwrap();
    let new = folders.builder(TestDriver::new().0).without_api().rolling_update("u9").start().await.unwrap();
    old.stop().await;
    assert_eq!(files(&folders), [vec!["gpu.acme.test-u9-reg.sock".to_owned()], vec!["dra-u9.sock".to_owned()]]);
    assert_eq!(new.endpoint(), folders.data("dra-u9.sock"));
}

/// DRA-D4
#[tokio::test]
async fn failed_listener_is_a_fatal_failure() {
    let folders = Folders::new();
    let (test, mut reports) = TestDriver::new();
    let _driver = folders
        .builder(test)
        .without_api()
        .service_listener(|_| Ok(stream::iter([Err(io::Error::other("the network namespace is gone"))])))
        .start()
        .await
        .unwrap();
    let failure = reports.failures.recv().await.unwrap();
    assert!(failure.is_fatal());
    assert!(failure.to_string().contains("dra.sock"), "{failure}");
    assert_eq!(std::error::Error::source(&failure).unwrap().to_string(), "the network namespace is gone");
}

/// DRA-D4: the failure is reported to the driver although the node keeps its connection and a health stream open.
#[tokio::test]
async fn failed_listener_is_reported_while_a_connection_is_open() {
    let folders = Folders::new();
    let (mut test, mut reports) = TestDriver::new();
    test.health = Some(watch::channel(Vec::new()).1);
    let (fail, failed) = tokio::sync::oneshot::channel::<()>();
    let driver = folders
        .builder(test)
        .without_api()
        .service_listener(|path| {
            let listener = UnixListener::bind(path)?;
            let first = async move { listener.accept().await.map(|(stream, _)| stream) };
            let error = async move {
                failed.await.ok();
                Err(io::Error::other("the network namespace is gone"))
            };
            Ok(stream::once(first).chain(stream::once(error)))
        })
        .start()
        .await
        .unwrap();
    let mut client = DraResourceHealthClient::new(connect(driver.endpoint()).await);
    let mut health = client.node_watch_resources(NodeWatchResourcesRequest {}).await.unwrap().into_inner();
    health.message().await.unwrap().unwrap();
    fail.send(()).unwrap();
    let failure = timeout(PATIENCE, reports.failures.recv()).await.expect("it is reported").unwrap();
    assert!(failure.is_fatal() && failure.to_string().contains("dra.sock"), "{failure}");
}

/// DRA-D4
#[tokio::test]
async fn node_gets_base_requests_and_all_fields_of_a_device() {
    let folders = Folders::new();
    let (test, _reports) = TestDriver::new();
    let device = PreparedDevice {
        pool: "n7".to_owned(),
        device: "g0".to_owned(),
        share_id: Some("s1".to_owned()),
        requests: vec!["r/a".to_owned(), "r/b".to_owned(), "q".to_owned()],
        cdi_devices: vec!["acme.test/gpu=g0".to_owned()],
    };
    test.on("cam", Act::Devices(vec![device]));
    test.on("nameless", Act::Devices(vec![PreparedDevice::default()]));
    let driver = folders.builder(test).without_api().start().await.unwrap();
    let channel = connect(driver.endpoint()).await;

    let request = NodePrepareResourcesRequest { claims: vec![claim("cam", "c-1"), claim("nameless", "c-2")] };
    let answer = DraPluginClient::new(channel.clone()).node_prepare_resources(request).await.unwrap().into_inner();
    let [device] = &answer.claims["c-1"].devices[..] else { panic!("{answer:?}") };
    assert_eq!(device.request_names, ["r", "q"]);
    assert_eq!((device.pool_name.as_str(), device.device_name.as_str()), ("n7", "g0"));
    assert_eq!((&device.cdi_device_ids[..], device.share_id()), (&["acme.test/gpu=g0".to_owned()][..], "s1"));
    assert!(answer.claims["c-2"].error.contains("without a name"), "{answer:?}");

    let claims = vec![v1beta1::Claim { namespace: "shop".to_owned(), name: "cam".to_owned(), uid: "c-1".to_owned() }];
    let mut older = v1beta1::dra_plugin_client::DraPluginClient::new(channel);
    let request = v1beta1::NodePrepareResourcesRequest { claims: claims.clone() };
    let answer = older.node_prepare_resources(request).await.unwrap().into_inner();
    assert_eq!(answer.claims["c-1"].devices[0].request_names, ["r", "q"]);
    let request = v1beta1::NodeUnprepareResourcesRequest { claims };
    let answer = older.node_unprepare_resources(request).await.unwrap().into_inner();
    assert_eq!(answer.claims["c-1"], v1beta1::NodeUnprepareResourceResponse::default());
}

#[tokio::test]
async fn registration_lists_the_services_and_keeps_the_answer_of_the_node() {
    let folders = Folders::new();
    let (mut test, _reports) = TestDriver::new();
    test.health = Some(watch::channel(Vec::new()).1);
    let driver = folders.builder(test).without_api().start().await.unwrap();
    let mut node = RegistrationClient::new(connect(&folders.registry(REGISTRATION)).await);
    let info = node.get_info(InfoRequest {}).await.unwrap().into_inner();
    let expected = PluginInfo {
        r#type: "DRAPlugin".to_owned(),
        name: DRIVER.to_owned(),
        endpoint: folders.data("dra.sock").display().to_string(),
        supported_versions: ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
            .map(str::to_owned)
            .into(),
    };
    assert_eq!(info, expected);
    let registration = driver.registration();
    assert_eq!(*registration.borrow(), Registration::Pending);

    let refusal = RegistrationStatus { plugin_registered: false, error: "too old".to_owned() };
    let error = node.notify_registration_status(refusal).await.unwrap_err();
    assert!(error.message().contains("too old"), "{error}");
    assert_eq!(*registration.borrow(), Registration::Refused("too old".to_owned()));
    let accepted = RegistrationStatus { plugin_registered: true, error: String::new() };
    node.notify_registration_status(accepted).await.unwrap();
    assert_eq!(*registration.borrow(), Registration::Registered);
}

/// The driver reads the claims from an API server, where only `cam` is as the node says.
#[tokio::test]
async fn one_bad_claim_does_not_fail_the_others() {
    let (folders, server) = (Folders::new(), StandIn::start().await.unwrap());
    server.create_namespace("shop");
    let allocation = json!({"devices": {"results": [
        {"request": "r", "driver": DRIVER, "pool": "n7", "device": "g0"},
    ]}});
    let mut uids = Vec::new();
    for (name, allocation) in [("cam", Some(&allocation)), ("free", None), ("other", Some(&allocation))] {
        let path = "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaims";
        let claim = server.create(path, json!({"metadata": {"name": name}, "spec": {}})).unwrap();
        uids.push(claim["metadata"]["uid"].as_str().unwrap().to_owned());
        if let Some(allocation) = allocation {
            let patch = json!({"status": {"allocation": allocation}});
            let patched =
                server.request("PATCH", &format!("{path}/{name}/status"), "application/merge-patch+json", &patch);
            patched.unwrap();
        }
    }
    let (test, _reports) = TestDriver::new();
    let calls = test.calls.clone();
    let driver = folders.builder(test).client(server.client(&User::admin()).await).start().await.unwrap();
    let mut node = DraPluginClient::new(connect(driver.endpoint()).await);

    let claims =
        vec![claim("cam", &uids[0]), claim("free", &uids[1]), claim("other", "older"), claim("missing", "c-4")];
    let answer = node.node_prepare_resources(NodePrepareResourcesRequest { claims }).await.unwrap().into_inner();
    let errors: Vec<_> = [&uids[0], &uids[1], "older", "c-4"].map(|uid| answer.claims[uid].error.clone()).into();
    assert_eq!(errors[0], "");
    assert_eq!(errors[1], format!("claim shop/free (UID {}) is not allocated", uids[1]));
    assert_eq!(errors[2], format!("claim shop/other (UID older) was replaced: its UID is {}", uids[2]));
    assert_eq!(errors[3], "claim shop/missing (UID c-4) does not exist");
    assert_eq!(*calls.lock(), ["prepare cam"]);

    // The object may be gone when a claim is unprepared.
    let claims = vec![claim("missing", "c-4")];
    let answer = node.node_unprepare_resources(NodeUnprepareResourcesRequest { claims }).await.unwrap().into_inner();
    assert_eq!(answer.claims["c-4"].error, "");
    assert_eq!(*calls.lock(), ["prepare cam", "unprepare missing"]);
}

#[tokio::test]
async fn errors_of_the_driver_belong_to_their_claim_or_call() {
    let folders = Folders::new();
    let (test, _reports) = TestDriver::new();
    for (name, act) in [("bad", Act::Fail), ("silent", Act::Omit), ("panic", Act::Panic), ("fire", Act::FailCall)] {
        test.on(name, act);
    }
    let driver = folders.builder(test).without_api().start().await.unwrap();
    let mut node = DraPluginClient::new(connect(driver.endpoint()).await);
    let request =
        |names: &[&str]| NodePrepareResourcesRequest { claims: names.iter().map(|name| claim(name, name)).collect() };

    let answer = node.node_prepare_resources(request(&["bad", "silent", "good"])).await.unwrap().into_inner();
    assert_eq!(answer.claims["bad"].error, "the device is broken");
    assert_eq!(answer.claims["silent"].error, "the driver returned no result for the claim");
    assert_eq!(answer.claims["good"], Default::default());

    let error = node.node_prepare_resources(request(&["fire"])).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Unknown, "the machine is on fire"));
    let error = node.node_prepare_resources(request(&["panic"])).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    // The lock of the call that panicked is free again.
    node.node_prepare_resources(request(&["good"])).await.unwrap();
}

#[tokio::test]
async fn calls_run_one_at_a_time_to_their_end() {
    let folders = Folders::new();
    let (test, mut reports) = TestDriver::new();
    test.on("slow", Act::Wait);
    let (calls, gate) = (test.calls.clone(), test.gate.clone());
    let driver = folders.builder(test).without_api().start().await.unwrap();
    let channel = connect(driver.endpoint()).await;
    let mut node = DraPluginClient::new(channel.clone());
    let slow = NodePrepareResourcesRequest { claims: vec![claim("slow", "c-1")] };
    let first = tokio::spawn(async move { node.node_prepare_resources(slow).await });
    reports.waiting.recv().await.unwrap();
    // The node gives up. The driver still performs the call, and the next one waits for its end.
    first.abort();
    let quick = NodeUnprepareResourcesRequest { claims: vec![claim("quick", "c-2")] };
    let mut second = tokio::spawn(async move { DraPluginClient::new(channel).node_unprepare_resources(quick).await });
    assert!(timeout(Duration::from_millis(100), &mut second).await.is_err(), "the second call overtakes the first one");
    gate.notify_one();
    second.await.unwrap().unwrap();
    assert_eq!(*calls.lock(), ["prepare slow", "prepare slow ends", "unprepare quick"]);
}

#[tokio::test]
async fn stop_finishes_a_running_call_within_its_limit() {
    let folders = Folders::new();
    let (test, mut reports) = TestDriver::new();
    test.on("slow", Act::Wait);
    let gate = test.gate.clone();
    let request = || NodePrepareResourcesRequest { claims: vec![claim("slow", "c-1")] };
    let driver = Arc::new(folders.builder(test.clone()).without_api().start().await.unwrap());
    let mut node = DraPluginClient::new(connect(driver.endpoint()).await);
    let call = tokio::spawn(async move { node.node_prepare_resources(request()).await });
    reports.waiting.recv().await.unwrap();
    let stopping = driver.clone();
    let stop = tokio::spawn(async move { stopping.stop().await });
    while folders.data("dra.sock").exists() {
        tokio::task::yield_now().await;
    }
    assert!(!folders.registry(REGISTRATION).exists());
    gate.notify_one();
    assert_eq!(call.await.unwrap().unwrap().into_inner().claims["c-1"].error, "");
    stop.await.unwrap();

    let impatient = folders.builder(test).without_api().stop_timeout(Duration::from_millis(10)).start().await.unwrap();
    let mut node = DraPluginClient::new(connect(impatient.endpoint()).await);
    let call = tokio::spawn(async move { node.node_prepare_resources(request()).await });
    reports.waiting.recv().await.unwrap();
    impatient.stop().await;
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

/// The node has given the call up, so no connection waits for it.
#[tokio::test]
async fn stop_finishes_a_call_that_the_node_gave_up_within_its_limit() {
    let folders = Folders::new();
    let (test, mut reports) = TestDriver::new();
    test.on("slow", Act::Wait);
    let (calls, gate) = (test.calls.clone(), test.gate.clone());
    let request = || NodePrepareResourcesRequest { claims: vec![claim("slow", "c-1")] };
    let driver = Arc::new(folders.builder(test.clone()).without_api().start().await.unwrap());
    let mut node = DraPluginClient::new(connect(driver.endpoint()).await);
    let call = tokio::spawn(async move { node.node_prepare_resources(request()).await });
    reports.waiting.recv().await.unwrap();
    call.abort();
    let _ = call.await;
    let stopping = driver.clone();
    let mut stop = tokio::spawn(async move { stopping.stop().await });
    assert!(timeout(Duration::from_millis(100), &mut stop).await.is_err(), "the driver ends while a call runs");
    gate.notify_one();
    stop.await.unwrap();
    assert_eq!(*calls.lock(), ["prepare slow", "prepare slow ends"]);

    let impatient = folders.builder(test).without_api().stop_timeout(Duration::from_millis(10)).start().await.unwrap();
    let mut node = DraPluginClient::new(connect(impatient.endpoint()).await);
    let call = tokio::spawn(async move { node.node_prepare_resources(request()).await });
    reports.waiting.recv().await.unwrap();
    call.abort();
    impatient.stop().await;
    gate.notify_one();
    assert_eq!(calls.lock()[2..], ["prepare slow"], "the call is aborted");
}

#[tokio::test]
async fn node_gets_the_newest_health_until_the_driver_stops() {
    let folders = Folders::new();
    let (mut test, _reports) = TestDriver::new();
    let (report, health) = watch::channel(vec![DeviceHealth::now("n7", "g0", Health::Healthy)]);
    test.health = Some(health);
    let driver = folders.builder(test).without_api().start().await.unwrap();
    let mut node = DraResourceHealthClient::new(connect(driver.endpoint()).await);
    let mut lists = node.node_watch_resources(NodeWatchResourcesRequest {}).await.unwrap().into_inner();
    let first = lists.message().await.unwrap().unwrap();
    assert_eq!((first.devices.len(), first.devices[0].health), (1, 1));

    let message = "too hot".to_owned();
    let timeout = Duration::from_secs(12);
    let mut broken = DeviceHealth { message, timeout, ..DeviceHealth::now("n7", "g0", Health::Unhealthy) };
    broken.updated = std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    report.send_replace(vec![broken]);
    let second = lists.message().await.unwrap().unwrap().devices.remove(0);
    let identifier = second.device.as_ref().unwrap();
    assert_eq!((identifier.pool_name.as_str(), identifier.device_name.as_str()), ("n7", "g0"));
    assert_eq!((second.health, second.message.as_str()), (2, "too hot"));
    assert_eq!((second.last_updated_time, second.health_check_timeout_seconds), (1_700_000_000, 12));

    driver.stop().await;
    assert!(lists.message().await.unwrap().is_none(), "the stream ends without an error");
}

/// A custom listener is a stream of accepted connections.
#[tokio::test]
async fn custom_listener_serves() {
    let folders = Folders::new();
    let driver = folders
        .builder(TestDriver::new().0)
        .without_api()
        .service_listener(|path| {
            let listener = UnixListener::bind(path)?;
            Ok(stream::unfold(listener, |listener| async {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                Some((accepted, listener))
            }))
        })
        .start()
        .await
        .unwrap();
    let mut node = DraPluginClient::new(connect(driver.endpoint()).await);
    node.node_prepare_resources(NodePrepareResourcesRequest { claims: Vec::new() }).await.unwrap();
}

#[tokio::test]
async fn running_driver_publishes_its_devices() {
    let server = StandIn::start().await.unwrap();
    server.create("/api/v1/nodes", json!({"metadata": {"name": "n7"}})).unwrap();
    let offer = |name: &str| {
        let device = Device { name: name.to_owned(), ..Device::default() };
        DriverResources::one_slice("n7", vec![device])
    };
    let folders = Folders::new();
    let (test, _reports) = TestDriver::new();
    let driver = folders
        .builder(test.clone())
        .client(server.client(&User::admin()).await)
        .node_name("n7")
        .start()
        .await
        .unwrap();
    driver.publish(offer("a")).unwrap();
    until("the offer is published", || !server.all("resourceslices").is_empty()).await;
    driver.publish(offer("b")).unwrap();
    let has_device = |slices: &[Arc<serde_json::Value>]| slices[0]["spec"]["devices"][0]["name"] == "b";
    until("the other offer is published", || has_device(&server.all("resourceslices"))).await;
    driver.stop().await;
    assert_eq!(server.all("resourceslices").len(), 1, "slices outlive the driver, so that an update reuses them");
    assert!(driver.publish(DriverResources::default()).is_err());

    let nameless = folders.builder(test.clone()).client(server.client(&User::admin()).await).start().await.unwrap();
    assert!(nameless.publish(DriverResources::default()).is_err());
    drop(nameless);
    let offline = folders.builder(test).without_api().node_name("n7").start().await.unwrap();
    assert!(offline.publish(DriverResources::default()).is_err());
}
