//! A DRA driver with simulated devices. A container that uses a device gets the environment variable `DEVICE_NAME=POOL/DEVICE`.
//! `cargo run --locked --example dra_driver -- --help`

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use k8s_openapi::api::resource::v1::Device;
use kube::config::{KubeConfigOptions, Kubeconfig};
use podwright::dra_driver::{
    CallError, Claim, ClaimRef, ClaimResults, ClaimUid, DeviceHealth, Driver, DriverBuilder, DriverResources, Failure,
    Health, PreparedDevice,
};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{interval, sleep};

/// Offers simulated devices.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// The name of the driver.
    #[arg(long, default_value = "simulated.example.com")]
    name: String,
    /// The number of devices, which are named device-0, device-1 and so on.
    #[arg(long, default_value_t = 2)]
    devices: usize,
    /// The name of the node, which is also the name of the pool.
    #[arg(long, default_value = "node")]
    node_name: String,
    /// The directory in which the directory of the driver is created.
    #[arg(long, default_value = "/var/lib/kubelet/plugins")]
    plugins_dir: PathBuf,
    /// The directory in which the node looks for registration sockets.
    #[arg(long, default_value = "/var/lib/kubelet/plugins_registry")]
    registry_dir: PathBuf,
    /// The directory for CDI files.
    #[arg(long, default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
    /// The cluster. Without one, the driver gets no claim objects, and prepares the first free device for each claim.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Fails each call of this kind.
    #[arg(long)]
    fail: Option<Call>,
    /// How many milliseconds each call takes.
    #[arg(long, default_value_t = 0)]
    delay: u64,
    /// A device that is reported as unhealthy.
    #[arg(long)]
    unhealthy: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Call {
    Prepare,
    Unprepare,
}

struct Simulated {
    options: Options,
    /// The claim that holds each device.
    holders: Mutex<BTreeMap<String, ClaimUid>>,
    health: watch::Receiver<Vec<DeviceHealth>>,
}

impl Driver for Simulated {
    async fn prepare(&self, claims: Vec<Claim>) -> Result<ClaimResults<Vec<PreparedDevice>>, CallError> {
        self.start(Call::Prepare).await?;
        Ok(claims.iter().map(|claim| (claim.uid().clone(), self.prepare_claim(claim))).collect())
    }

    async fn unprepare(&self, claims: Vec<ClaimRef>) -> Result<ClaimResults<()>, CallError> {
        self.start(Call::Unprepare).await?;
        Ok(claims.into_iter().map(|claim| (claim.uid.clone(), self.unprepare_claim(&claim.uid))).collect())
    }

    fn failed(&self, failure: Failure) {
        eprintln!("{failure}: {:?}", failure.source());
        if failure.is_fatal() {
            std::process::exit(1);
        }
    }

    fn health(&self) -> Option<watch::Receiver<Vec<DeviceHealth>>> {
        Some(self.health.clone())
    }
}

impl Simulated {
    /// Writes a CDI file, which tells container runtimes how to add the devices of a claim to a container.
    fn prepare_claim(&self, claim: &Claim) -> Result<Vec<PreparedDevice>, CallError> {
        let uid = claim.uid();
        let mut devices = Vec::new();
        for result in claim.results() {
            let (request, share_id) = (result.request.clone(), result.share_id.clone());
            let is_shared = result.admin_access == Some(true) || share_id.is_some();
            let (pool, device) = (result.pool.clone(), result.device.clone());
            self.hold(&device, uid, is_shared)?;
            devices.push(PreparedDevice { pool, device, share_id, requests: vec![request], cdi_devices: Vec::new() });
        }
        if claim.object().is_none() {
            devices.push(PreparedDevice {
                pool: self.options.node_name.clone(),
                device: self.free(uid)?,
                ..Default::default()
            });
        }
        let kind = format!("{}/device", self.options.name);
        let mut specs = Vec::new();
        for device in &mut devices {
            let name = format!("{uid}-{}", device.device);
            let variable = device.device.to_uppercase().replace(['-', '.'], "_");
            let env = format!("{variable}={}/{}", device.pool, device.device);
            specs.push(json!({"name": name, "containerEdits": {"env": [env]}}));
            device.cdi_devices.push(format!("{kind}={name}"));
        }
        let spec = json!({"cdiVersion": "0.5.0", "kind": kind, "devices": specs});
        // A runtime may read the directory at any time, so the file is renamed into place when it is complete.
        let (path, new) = (self.cdi_file(uid), self.cdi_file(uid).with_extension("new"));
        fs::write(&new, spec.to_string())?;
        fs::rename(new, path)?;
        println!("prepared {} for claim {}", devices.len(), claim.name());
        Ok(devices)
    }

    fn unprepare_claim(&self, uid: &ClaimUid) -> Result<(), CallError> {
        if let Err(error) = fs::remove_file(self.cdi_file(uid))
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error.into());
        }
        self.holders.lock().expect("no code panics while it holds the lock").retain(|_, holder| holder != uid);
        println!("unprepared claim {uid}");
        Ok(())
    }

    /// Records the holder of a device, and refuses a device that another claim holds.
    fn hold(&self, device: &str, uid: &ClaimUid, is_shared: bool) -> Result<(), CallError> {
        let mut holders = self.holders.lock().expect("no code panics while it holds the lock");
        match holders.get(device) {
            Some(holder) if holder != uid && !is_shared => Err(format!("claim {holder} holds {device}").into()),
            Some(_) => Ok(()),
            None => {
                holders.insert(device.to_owned(), uid.clone());
                Ok(())
            }
        }
    }

    /// The device that the claim holds, or the first free one.
    fn free(&self, uid: &ClaimUid) -> Result<String, CallError> {
        let device = device_names(&self.options).find(|device| self.hold(device, uid, false).is_ok());
        device.ok_or_else(|| "no device is free".into())
    }

    async fn start(&self, call: Call) -> Result<(), CallError> {
        sleep(Duration::from_millis(self.options.delay)).await;
        if self.options.fail == Some(call) { Err("the driver was started with --fail".into()) } else { Ok(()) }
    }

    fn cdi_file(&self, uid: &ClaimUid) -> PathBuf {
        self.options.cdi_dir.join(format!("{}-{uid}.json", self.options.name))
    }
}

fn device_names(options: &Options) -> impl Iterator<Item = String> {
    (0..options.devices).map(|number| format!("device-{number}"))
}

fn health(options: &Options) -> Vec<DeviceHealth> {
    let report = |device: String| {
        let health = if options.unhealthy.contains(&device) { Health::Unhealthy } else { Health::Healthy };
        DeviceHealth::now(&options.node_name, device, health)
    };
    device_names(options).map(report).collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let data_dir = options.plugins_dir.join(&options.name);
    for folder in [&data_dir, &options.registry_dir, &options.cdi_dir] {
        fs::create_dir_all(folder)?;
    }
    let (reports, health_reports) = watch::channel(health(&options));
    let driver = Simulated { options: options.clone(), holders: Mutex::default(), health: health_reports };
    let builder = DriverBuilder::new(&options.name, driver)
        .node_name(&options.node_name)
        .registrar_dir(&options.registry_dir)
        .data_dir(data_dir);
    let builder = match &options.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)?;
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            builder.client(kube::Client::try_from(config)?)
        }
        None => builder.without_api(),
    };
    let running = builder.start().await?;
    println!("{} serves on {}", options.name, running.endpoint().display());

    if options.kubeconfig.is_some() {
        let devices = device_names(&options).map(|name| Device { name, ..Device::default() }).collect();
        running.publish(DriverResources::one_slice(&options.node_name, devices))?;
    }

    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut ticks = interval(Duration::from_secs(10));
    loop {
        tokio::select! {
            _ = ticks.tick() => reports.send_replace(health(&options)),
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
        };
    }
    running.stop().await;
    Ok(())
}
