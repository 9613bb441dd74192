//! Fake meters of a node: the disk usage of pods, the node's disk, the disk of images, memory and process ids.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_model::ids::ImageId;
use podwright_model::pod::PodObject;
use podwright_ports::{
    DiskMeter, DiskUsage, FileSystemSpace, ImageNeed, ImageStore, NamedImage, NodeMeter, PodDiskUsage, ResourceSpace,
    RuntimeFuture, StorageError, StoredImage, UsedSpace,
};

const MI: u64 = 1 << 20;
/// The size of the node's disk, in mebibytes.
const CAPACITY: u64 = 1000;

/// A disk of 1000 MiB that holds volumes and images. Sizes are in mebibytes.
pub(crate) struct FakeDisks(Mutex<Disks>);

struct Disks {
    available: u64,
    /// The sizes of volumes by pod and volume.
    volumes: HashMap<String, BTreeMap<String, u64>>,
    /// The pods whose measurement takes this long.
    slow: HashMap<String, Duration>,
    /// The pods whose measurement fails or panics.
    broken: HashMap<String, Fault>,
    /// The sizes of unused images.
    images: Vec<u64>,
    /// Files that use space while a condition holds, with their sizes.
    files: Vec<(u64, Condition)>,
    /// Whether lists of the names of images hang.
    hangs: bool,
    measured: HashMap<String, usize>,
}

type Condition = Box<dyn Fn() -> bool + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Error,
    Panic,
}

impl FakeDisks {
    /// A disk with this space left.
    pub(crate) fn new(available: u64) -> Arc<Self> {
        Arc::new(FakeDisks(Mutex::new(Disks {
            available,
            volumes: HashMap::new(),
            slow: HashMap::new(),
            broken: HashMap::new(),
            images: Vec::new(),
            files: Vec::new(),
            hangs: false,
            measured: HashMap::new(),
        })))
    }

    pub(crate) fn set_available(&self, available: u64) {
        self.0.lock().available = available;
    }

    /// Sets the size of a pod's volume.
    pub(crate) fn write(&self, pod: &str, volume: &str, size: u64) {
        self.0.lock().volumes.entry(pod.to_owned()).or_default().insert(volume.to_owned(), size);
    }

    /// Makes the measurement of a pod take this many seconds.
    pub(crate) fn slow(&self, pod: &str, seconds: u64) {
        self.0.lock().slow.insert(pod.to_owned(), Duration::from_secs(seconds));
    }

    pub(crate) fn fail(&self, pod: &str, fault: Fault) {
        self.0.lock().broken.insert(pod.to_owned(), fault);
    }

    /// Makes the measurement of a pod succeed at once.
    pub(crate) fn repair(&self, pod: &str) {
        let mut disks = self.0.lock();
        disks.broken.remove(pod);
        disks.slow.remove(pod);
    }

    /// Adds an unused image.
    pub(crate) fn add_image(&self, size: u64) {
        self.0.lock().images.push(size);
    }

    /// Adds files that exist while a condition holds.
    pub(crate) fn fill_while(&self, size: u64, exists: impl Fn() -> bool + Send + 'static) {
        self.0.lock().files.push((size, Box::new(exists)));
    }

    /// Makes lists of the names of images hang.
    pub(crate) fn hang_images(&self) {
        self.0.lock().hangs = true;
    }

    /// The number of images.
    pub(crate) fn images(&self) -> usize {
        self.0.lock().images.len()
    }

    /// How often a pod was measured.
    pub(crate) fn measured(&self, pod: &str) -> usize {
        self.0.lock().measured.get(pod).copied().unwrap_or(0)
    }

    fn space(&self) -> FileSystemSpace {
        let disks = self.0.lock();
        let files: u64 = disks.files.iter().filter(|(_, exists)| exists()).map(|(size, _)| size).sum();
        let available = disks.available.saturating_sub(files) * MI;
        FileSystemSpace { device: 1, capacity: CAPACITY * MI, available, inodes: 1000, inodes_free: 1000 }
    }
}

impl DiskMeter for FakeDisks {
    fn pod_usage<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<PodDiskUsage, StorageError>> {
        async move {
            let uid = pod.uid().to_string();
            let (slow, fault) = {
                let mut disks = self.0.lock();
                *disks.measured.entry(uid.clone()).or_default() += 1;
                (disks.slow.get(&uid).copied(), disks.broken.get(&uid).copied())
            };
            if let Some(slow) = slow {
                tokio::time::sleep(slow).await;
            }
            match fault {
                Some(Fault::Error) => return Err(StorageError::io("/pods", "the disk is broken")),
                Some(Fault::Panic) => panic!("the meter panics"),
                None => {}
            }
            let sizes = self.0.lock().volumes.get(&uid).cloned().unwrap_or_default();
            let volumes = sizes.into_iter().map(|(name, size)| (name, UsedSpace::new(size * MI, 1))).collect();
            Ok(PodDiskUsage { volumes, ..PodDiskUsage::default() })
        }
        .boxed()
    }

    fn node_file_system(&self) -> BoxFuture<'_, Result<FileSystemSpace, StorageError>> {
        async { Ok(self.space()) }.boxed()
    }
}

impl ImageStore for FakeDisks {
    fn images(&self) -> RuntimeFuture<'_, Vec<StoredImage>> {
        let sizes = self.0.lock().images.clone();
        let image = |size: u64| StoredImage { id: size.to_string().as_str().into(), size, need: ImageNeed::Unused };
        async move { Ok(sizes.into_iter().map(image).collect()) }.boxed()
    }

    fn named_images(&self) -> RuntimeFuture<'_, Vec<NamedImage>> {
        async move {
            if self.0.lock().hangs {
                std::future::pending::<()>().await;
            }
            Ok(Vec::new())
        }
        .boxed()
    }

    fn disk(&self) -> RuntimeFuture<'_, DiskUsage> {
        // The image collector itself finds enough space.
        async { Ok(DiskUsage { capacity: CAPACITY, available: CAPACITY }) }.boxed()
    }

    fn file_system(&self) -> RuntimeFuture<'_, Option<FileSystemSpace>> {
        async { Ok(Some(self.space())) }.boxed()
    }

    fn remove_image<'a>(&'a self, id: &'a ImageId) -> RuntimeFuture<'a, ()> {
        async move {
            let size: u64 = id.as_str().parse().unwrap();
            let mut disks = self.0.lock();
            disks.images.retain(|image| *image != size);
            disks.available += size;
            Ok(())
        }
        .boxed()
    }
}

/// The meter of a node with 1000 MiB of memory and 1000 process ids. The test sets the memory that is left, in mebibytes. All process
/// ids are left.
pub(crate) struct FakeMeter(AtomicU64);

impl FakeMeter {
    pub(crate) fn new(available: u64) -> Arc<Self> {
        Arc::new(FakeMeter(AtomicU64::new(available)))
    }

    pub(crate) fn set_available(&self, available: u64) {
        self.0.store(available, Ordering::Relaxed);
    }
}

impl NodeMeter for FakeMeter {
    fn memory(&self) -> io::Result<ResourceSpace> {
        Ok(ResourceSpace::new(CAPACITY * MI, self.0.load(Ordering::Relaxed) * MI))
    }

    fn pids(&self) -> io::Result<ResourceSpace> {
        Ok(ResourceSpace::new(CAPACITY, CAPACITY))
    }
}
