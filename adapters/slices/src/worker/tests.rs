use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream;
use k8s_openapi::api::resource::v1::{Device, DeviceTaint};
use kube::core::Status;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::super::api::{Answer, Events};
use super::super::compare::SuspectedFeature;
use super::super::engine::{SliceEngine, SliceOptions, WriteCounts};
use super::super::resources::{DriverResources, InvalidPool, Owner};
use super::*;

/// An API server in memory, for one driver.
struct FakeApi {
    slices: Mutex<BTreeMap<String, ResourceSlice>>,
    /// The fields that this server does not know.
    drop_fields: fn(&mut Device),
    /// How many of the next writes panic or fail.
    panics: Mutex<u32>,
    failures: Mutex<u32>,
    calls: Mutex<Vec<&'static str>>,
    events: Mutex<Option<mpsc::UnboundedReceiver<Event<ResourceSlice>>>>,
}

impl FakeApi {
    fn new(drop_fields: fn(&mut Device)) -> (Arc<Self>, mpsc::UnboundedSender<Event<ResourceSlice>>) {
        let (sender, events) = mpsc::unbounded_channel();
        let api = FakeApi {
            slices: Mutex::default(),
            drop_fields,
            panics: Mutex::default(),
            failures: Mutex::default(),
            calls: Mutex::default(),
            events: Mutex::new(Some(events)),
        };
        (Arc::new(api), sender)
    }

    fn store(&self, call: &'static str, slice: &ResourceSlice) -> Result<ResourceSlice, CallError> {
        self.start(call)?;
        let mut slices = self.slices.lock();
        let mut slice = slice.clone();
        slice.spec.devices.iter_mut().flatten().for_each(self.drop_fields);
        let number = self.calls.lock().len();
        let prefix = slice.metadata.generate_name.clone().unwrap_or_default();
        let name = slice.metadata.name.get_or_insert_with(|| format!("{prefix}{number}")).clone();
        slice.metadata.resource_version = Some(number.to_string());
        slices.insert(name, slice.clone());
        Ok(slice)
    }

    fn start(&self, call: &'static str) -> Result<(), CallError> {
        self.calls.lock().push(call);
        let takes_one = |left: &Mutex<u32>| {
            let mut left = left.lock();
            let takes = *left > 0;
            *left -= u32::from(takes);
            takes
        };
        assert!(!takes_one(&self.panics), "the library made a mistake");
        if takes_one(&self.failures) { Err(CallError::Timeout) } else { Ok(()) }
    }

    /// Takes the calls since the last time it was called.
    fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls.lock())
    }
}

impl SliceApi for FakeApi {
    fn watch(&self) -> Events {
        let Some(events) = self.events.lock().take() else {
            let mut list = vec![Ok(Event::Init)];
            list.extend(self.slices.lock().values().cloned().map(|slice| Ok(Event::InitApply(slice))));
            list.push(Ok(Event::InitDone));
            return stream::iter(list).chain(stream::pending()).boxed();
        };
        let later = stream::unfold(events, |mut events| async { events.recv().await.map(|event| (Ok(event), events)) });
        stream::iter([Ok(Event::Init), Ok(Event::InitDone)]).chain(later).boxed()
    }

    fn create<'a>(&'a self, slice: &'a ResourceSlice) -> Answer<'a, ResourceSlice> {
        Box::pin(async { self.store("create", slice) })
    }

    fn update<'a>(&'a self, slice: &'a ResourceSlice) -> Answer<'a, ResourceSlice> {
        Box::pin(async { self.store("update", slice) })
    }

    fn delete<'a>(&'a self, slice: &'a ResourceSlice) -> Answer<'a, ()> {
        Box::pin(async {
            self.start("delete")?;
            match self.slices.lock().remove(slice.metadata.name.as_deref().unwrap()) {
                Some(_) => Ok(()),
                None => {
                    let missing = Status::failure("not found", "NotFound").with_code(404).boxed();
                    Err(CallError::Failed(kube::Error::Api(missing).into()))
                }
            }
        })
    }

    fn node_uid<'a>(&'a self, _: &'a str) -> Answer<'a, String> {
        Box::pin(async {
            self.start("node")?;
            Ok("u-7".to_owned())
        })
    }
}

fn options(errors: &Arc<Mutex<Vec<SliceError>>>) -> SliceOptions {
    let errors = errors.clone();
    SliceOptions::new("d", move |error| errors.lock().push(error)).owner(Owner::node("n7", None))
}

fn resources(pools: &[(&str, &[&str])]) -> DriverResources {
    let pools = pools.iter().map(|(pool, names)| {
        let devices = names.iter().map(|name| Device { name: (*name).to_owned(), ..Device::default() }).collect();
        DriverResources::one_slice(*pool, devices).pools.into_iter().next().unwrap()
    });
    DriverResources { pools: pools.collect() }
}

const SOON: Duration = Duration::from_secs(1);

/// An engine that has published one slice, in whose pool there is a slice of another name, too.
async fn beside_another_slice(
    api: &Arc<FakeApi>,
    events: &mpsc::UnboundedSender<Event<ResourceSlice>>,
    engine: &SliceEngine,
) {
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(SOON).await;
    let mut other = api.slices.lock().values().next().unwrap().clone();
    other.metadata.name = Some("other".to_owned());
    api.slices.lock().insert("other".to_owned(), other.clone());
    events.send(Event::Apply(other)).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["node", "create"]);
}

/// Slices are reused before others are created, and superfluous ones are deleted last, although the other writes fail: their devices may
/// be gone.
#[tokio::test(start_paused = true)]
async fn slices_are_updated_created_and_deleted_in_this_order_although_writes_fail() {
    let (api, events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    beside_another_slice(&api, &events, &engine).await;
    let mut two = resources(&[("p", &["b"])]);
    two.pools.get_mut("p").unwrap().slices.extend(resources(&[("p", &["c"])]).pools.remove("p").unwrap().slices);
    *api.failures.lock() = 2;
    engine.update(two).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["update", "create", "delete", "update", "create"], "the first two have failed");
    assert_eq!(api.slices.lock().len(), 2);
    assert_eq!(errors.lock().len(), 1);
}

/// Another program was faster.
#[tokio::test(start_paused = true)]
async fn slice_that_is_gone_needs_no_deletion() {
    let (api, events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    beside_another_slice(&api, &events, &engine).await;
    api.slices.lock().remove("other");
    engine.update(resources(&[("p", &["b"])])).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["update", "delete"]);
    assert!(errors.lock().is_empty());
}

/// A driver may change its offer as often as it likes.
#[tokio::test(start_paused = true)]
async fn pool_that_changes_all_the_time_is_written_once_a_second() {
    let (api, _events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    for device in ["a", "b"].repeat(500) {
        engine.update(resources(&[("p", &[device])])).unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    let writes = api.calls().iter().filter(|call| **call != "node").count();
    assert!((15..25).contains(&writes), "{writes} writes in 10 s");
    sleep(2 * SOON).await;
    let devices = api.slices.lock().values().next().unwrap().spec.devices.clone().unwrap();
    assert_eq!(devices[0].name, "b", "the last offer is published");
}

/// Each update ends the backoff of the write that failed.
#[tokio::test(start_paused = true)]
async fn pool_that_changes_while_its_writes_fail_is_tried_once_a_second() {
    let (api, _events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let options = options(&errors).owner(Owner::node("n7", Some("u-7".to_owned())));
    let engine = SliceEngine::with_api(api.clone(), options);
    *api.failures.lock() = u32::MAX;
    for device in ["a", "b"].repeat(500) {
        engine.update(resources(&[("p", &[device])])).unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    let calls = api.calls();
    assert!(calls.iter().all(|call| *call == "create"), "{calls:?}");
    assert!((15..25).contains(&calls.len()), "{} calls in 10 s", calls.len());
    *api.failures.lock() = 0;
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(2 * SOON).await;
    assert_eq!(api.slices.lock().len(), 1);
}

/// The watch never reports the created slice.
#[tokio::test(start_paused = true)]
async fn lagging_watch_leads_to_no_second_create() {
    let (api, _events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(SOON).await;
    engine.update(resources(&[("p", &["b"])])).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["node", "create", "update"]);
    assert_eq!(engine.counts(), WriteCounts { creates: 1, updates: 1, deletes: 0 });
    engine.update(DriverResources::default()).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["delete"]);
    assert!(errors.lock().is_empty());
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn change_by_another_client_is_reverted_after_30_seconds() {
    let (api, events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(SOON).await;
    let mut slice = api.slices.lock().values().next().unwrap().clone();
    events.send(Event::Apply(slice.clone())).unwrap();
    slice.spec.devices = None;
    slice.metadata.resource_version = Some("100".to_owned());
    events.send(Event::Apply(slice)).unwrap();
    sleep(Duration::from_secs(29)).await;
    assert_eq!(api.calls(), ["node", "create"]);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(api.calls(), ["update"]);
}

/// The watch reports neither the create nor the deletion by another client.
#[tokio::test(start_paused = true)]
async fn created_slice_is_checked_again_after_60_seconds() {
    let (api, _events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(Duration::from_secs(59)).await;
    assert_eq!(api.calls(), ["node", "create"]);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(api.calls(), ["create"]);
    drop(engine);
}

/// Another client deletes a slice that was just updated, and the watch reports no deletion but a list without the slice.
#[tokio::test(start_paused = true)]
async fn slice_that_another_client_deletes_after_an_update_is_created_again() {
    let (api, events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(Duration::from_secs(40)).await;
    events.send(Event::Apply(api.slices.lock().values().next().unwrap().clone())).unwrap();
    engine.update(resources(&[("p", &["b"])])).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["node", "create", "update"]);
    api.slices.lock().clear();
    events.send(Event::Init).unwrap();
    events.send(Event::InitDone).unwrap();
    sleep(Duration::from_secs(61)).await;
    assert_eq!(api.calls(), ["create"]);
    drop(engine);
}

/// A driver whose first offer is refused has said nothing about the slices that an earlier process published.
#[tokio::test(start_paused = true)]
async fn published_slices_stay_until_the_first_accepted_update() {
    let (api, events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors).single_pool("p"));
    let slice = json!({"metadata": {"name": "00000-d-n7-x", "resourceVersion": "1"}, "spec": {"driver": "d",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}});
    let slice: ResourceSlice = serde_json::from_value(slice).unwrap();
    api.slices.lock().insert("00000-d-n7-x".to_owned(), slice.clone());
    events.send(Event::Apply(slice)).unwrap();
    assert!(engine.update(resources(&[("q", &["a"])])).is_err());
    sleep(Duration::from_secs(100)).await;
    assert_eq!(api.calls(), [""; 0]);
    engine.update(DriverResources::default()).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["node", "delete"]);
}

/// The API server would refuse each write.
#[tokio::test(start_paused = true)]
async fn pool_of_a_node_that_also_names_nodes_is_refused_without_a_write() {
    let (api, _events) = FakeApi::new(|_| {});
    let errors: Arc<Mutex<Vec<SliceError>>> = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    let mut offered = resources(&[("p", &["a"])]);
    offered.pools.get_mut("p").unwrap().slices[0].per_device_node_selection = true;
    engine.update(offered).unwrap();
    sleep(Duration::from_secs(100)).await;
    assert_eq!(api.calls(), [""; 0]);
    let errors = errors.lock();
    let [SliceError::Invalid { source, .. }] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(source, &InvalidPool::BoundToNode);
    drop(engine);
}

#[tokio::test(start_paused = true)]
async fn failure_and_panic_are_retried_and_delay_no_other_pool() {
    let (api, _events) = FakeApi::new(|_| {});
    let errors: Arc<Mutex<Vec<SliceError>>> = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    (*api.panics.lock(), *api.failures.lock()) = (1, 1);
    engine.update(resources(&[("p", &["a"]), ("q", &["b"])])).unwrap();
    sleep(SOON).await;
    assert_eq!(api.slices.lock().len(), 2);
    let errors = errors.lock();
    assert!(matches!(&errors[0], SliceError::Panicked { message, .. } if message == "the library made a mistake"));
    assert!(matches!(&errors[1], SliceError::Owner(CallError::Timeout)));
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(SliceError::is_recoverable));
    drop(engine);
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_error_function_does_not_stop_publishing() {
    let (api, _events) = FakeApi::new(|_| {});
    let options = SliceOptions::new("d", |_| panic!("the driver made a mistake")).owner(Owner::node("n7", None));
    let engine = SliceEngine::with_api(api.clone(), options);
    *api.failures.lock() = 1;
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(SOON).await;
    assert_eq!(api.slices.lock().len(), 1);
    drop(engine);
}

#[tokio::test(start_paused = true)]
async fn engine_that_is_held_writes_nothing_until_it_resumes() {
    let (api, _events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    engine.hold();
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(Duration::from_secs(100)).await;
    assert_eq!(api.calls(), [""; 0]);
    engine.resume();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["node", "create"]);
    engine.hold();
    engine.update(resources(&[("p", &["b"])])).unwrap();
    engine.update(resources(&[("p", &["a"])])).unwrap();
    engine.resume();
    sleep(SOON).await;
    assert_eq!(api.calls(), [""; 0], "the slice is what the driver offers");
}

#[tokio::test(start_paused = true)]
async fn node_is_read_again_before_a_create() {
    let (api, _events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors).reads_owner_again());
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(SOON).await;
    engine.update(resources(&[("p", &["b"]), ("q", &["c"])])).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["node", "create", "update", "node", "create"]);
}

/// The watch misses a deletion.
#[tokio::test(start_paused = true)]
async fn slices_are_listed_again_regularly() {
    let (api, events) = FakeApi::new(|_| {});
    let errors = Arc::default();
    let options = options(&errors).relist_every(Duration::from_secs(600));
    let engine = SliceEngine::with_api(api.clone(), options);
    engine.update(resources(&[("p", &["a"])])).unwrap();
    sleep(SOON).await;
    events.send(Event::Apply(api.slices.lock().values().next().unwrap().clone())).unwrap();
    sleep(Duration::from_secs(100)).await;
    api.slices.lock().clear();
    sleep(Duration::from_secs(490)).await;
    assert_eq!(api.calls(), ["node", "create"]);
    sleep(Duration::from_secs(50)).await;
    assert_eq!(api.calls(), ["create"]);
    drop(engine);
}

/// Devices that are gone must vanish although the new state cannot be written.
#[tokio::test(start_paused = true)]
async fn obsolete_slices_are_deleted_although_an_update_fails() {
    let (api, _events) = FakeApi::new(|_| {});
    let errors: Arc<Mutex<Vec<SliceError>>> = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    let mut two = resources(&[("p", &["a"])]);
    two.pools.get_mut("p").unwrap().slices.push(super::super::resources::Slice::default());
    engine.update(two).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["node", "create", "create"]);
    *api.failures.lock() = 1;
    engine.update(resources(&[("p", &["b"])])).unwrap();
    sleep(SOON).await;
    assert_eq!(api.calls(), ["update", "delete", "update"]);
    let text = errors.lock()[0].to_string();
    assert!(text.starts_with("cannot publish the pool p: cannot update 00000-d-n7-"), "{text}");
}

/// DRA-S11
#[tokio::test(start_paused = true)]
async fn invalid_pool_is_reported_once_and_delays_no_other_pool() {
    let (api, events) = FakeApi::new(|_| {});
    let errors: Arc<Mutex<Vec<SliceError>>> = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    engine.update(resources(&[("p", &["a", "a"]), ("q", &["b"])])).unwrap();
    sleep(SOON).await;
    // Somebody else writes a slice of the invalid pool.
    let mut slice = api.slices.lock().values().next().unwrap().clone();
    slice.spec.pool.name = "p".to_owned();
    slice.metadata.name = Some("p".to_owned());
    events.send(Event::Apply(slice)).unwrap();
    sleep(Duration::from_secs(300)).await;
    {
        let errors = errors.lock();
        let [SliceError::Invalid { pool, source }] = &errors[..] else { panic!("{errors:?}") };
        assert_eq!((pool.as_str(), source), ("p", &InvalidPool::DuplicateDevice("a".to_owned())));
        assert!(!errors[0].is_recoverable());
    }
    assert!(engine.counts().creates >= 1);
    assert!(api.slices.lock().values().all(|slice| slice.spec.pool.name == "q"));
}

/// DRA-S3
#[tokio::test(start_paused = true)]
async fn dropped_fields_are_reported_once_and_not_written_again() {
    let drop_fields = |device: &mut Device| {
        device.taints = None;
        device.allow_multiple_allocations = None;
    };
    let (api, events) = FakeApi::new(drop_fields);
    let errors: Arc<Mutex<Vec<SliceError>>> = Arc::default();
    let engine = SliceEngine::with_api(api.clone(), options(&errors));
    let mut offered = resources(&[("p", &["a"])]);
    engine.update(offered.clone()).unwrap();
    sleep(SOON).await;
    events.send(Event::Apply(api.slices.lock().values().next().unwrap().clone())).unwrap();
    let device = &mut offered.pools.get_mut("p").unwrap().slices[0].devices[0];
    device.taints = Some(vec![DeviceTaint { key: "k".into(), effect: "NoExecute".into(), ..DeviceTaint::default() }]);
    device.allow_multiple_allocations = Some(true);
    engine.update(offered).unwrap();
    sleep(SOON).await;
    events.send(Event::Apply(api.slices.lock().values().next().unwrap().clone())).unwrap();
    sleep(Duration::from_secs(300)).await;
    assert_eq!(api.calls(), ["node", "create", "update"]);
    let errors = errors.lock();
    let [SliceError::DroppedFields(dropped)] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!((dropped.pool.as_str(), dropped.index), ("p", 0));
    assert_eq!(dropped.features, [SuspectedFeature::DRADeviceTaints, SuspectedFeature::DRAConsumableCapacity]);
    let text = errors[0].to_string();
    assert!(text.ends_with("suspected features: DRADeviceTaints, DRAConsumableCapacity"), "{text}");
}
