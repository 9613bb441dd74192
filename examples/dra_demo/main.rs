//! Dynamic resource allocation without a cluster: an API server in memory, the agent, the driver of the example `dra_driver` and
//! one pod with a claim. The pod prints the name of its device, and the claim is released when the pod ends. `make demo-dra` runs
//! it.

#[path = "../support/demo.rs"]
mod demo;

use std::fs;

use demo::{Demo, Result, read, until};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let demo = Demo::start().await?;
    // The pod runs until this file exists.
    let shared = tempfile::tempdir()?;
    let end = shared.path().join("end");
    demo.run_pod(&end).await?;
    println!("5. The agent called the driver, and the driver wrote a CDI file:");
    println!("     {}", demo.cdi_file().map(|path| read(&path)).unwrap_or_default());
    demo.until_device_is_used().await?;
    println!("6. The log of the pod has the device:");
    demo.log()?.lines().for_each(|line| println!("     {line}"));
    fs::write(&end, "")?;

    let web = || demo.server.get("pods", "default", "web").map(|pod| pod["status"]["phase"].clone());
    until("the pod succeeds", || web() == Some(json!("Succeeded"))).await?;
    if let Some(left) = demo.cdi_file() {
        return Err(format!("the pod is Succeeded, and its claim is not released: {} exists", left.display()).into());
    }
    println!("7. The container ended. The agent released the claim and then wrote the phase of the pod, Succeeded.");
    demo.print_calls_of_driver();
    Ok(())
}
